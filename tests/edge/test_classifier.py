"""`PersonalClassifier` keeps scikit-learn's contract, on features and on photos."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import repper
from repper.basics.errors import RepperError
from repper.edge.onnx_encoder import OnnxEncoder
from repper.edge.saved_head import read_head
from repper.heads import DEVICE_HEADS
from repper.heads.convex import LogisticHead, SVMHead
from repper.personal import PersonalClassifier
from repper.personal.classifier import features_of

from .tiny_model import CLASSES

HEADS = (
    "logistic",
    "svm",
    DEVICE_HEADS["linear"](epochs=25),
    DEVICE_HEADS["mlp"](epochs=25, hidden=32),
)


@pytest.mark.filterwarnings("ignore:.*set_output.*")
@parametrize_with_checks([PersonalClassifier(head=head) for head in HEADS])
def test_scikit_learns_own_checks_pass(estimator, check):
    check(estimator)


@pytest.fixture
def paths(place):
    """Photos to learn from and their labels, photos to test on and theirs."""
    found = [sorted((place / name).glob("*/*.png")) for name in ("photos", "tests")]
    return [(photos, [path.parent.name for path in photos]) for photos in found]


@pytest.mark.parametrize("head", list(DEVICE_HEADS))
def test_photos_are_classified(place, paths, head):
    (photos, labels), (new, truth) = paths
    estimator = PersonalClassifier(place / "encoder.onnx", head).fit(photos, labels)
    assert estimator.classes_.tolist() == list(CLASSES)
    assert estimator.score(new, truth) > 0.9
    chances = estimator.predict_proba(new)
    assert chances.shape == (80, 4)
    assert chances.sum(1) == pytest.approx(np.ones(80), abs=1e-5)
    assert (estimator.classes_[chances.argmax(1)] == estimator.predict(new)).all()
    assert (estimator.decision_function(new).argmax(1) == chances.argmax(1)).all()


def test_photos_may_be_paths_images_or_arrays(place, paths):
    (photos, labels), (new, _) = paths
    estimator = PersonalClassifier(str(place / "encoder.onnx")).fit(photos, labels)
    wanted = estimator.predict_proba(new)
    images = [Image.open(path) for path in new]
    arrays = np.stack([np.asarray(image) for image in images])
    for given in (
        list(map(str, new)),
        np.array(list(map(str, new))),
        images,
        arrays,
        arrays[..., None],
        list(arrays),
        arrays[..., None].repeat(3, 3),
    ):
        assert estimator.predict_proba(given) == pytest.approx(wanted, abs=1e-6)
    assert estimator.predict_proba([]).shape == (0, 4)


@pytest.mark.parametrize(
    "given", ["photo.png", [np.zeros((8, 8))], [np.zeros((8, 8, 4), np.uint8)], [3], [None]]
)
def test_what_is_no_list_of_photos_is_refused(place, paths, given):
    estimator = PersonalClassifier(place / "encoder.onnx").fit(*paths[0])
    with pytest.raises(ValueError, match="photo|image must be uint8"):
        estimator.predict(given)


def test_mistakes_are_errors(place, paths, tmp_path):
    photos, labels = paths[0]
    estimator = PersonalClassifier(place / "encoder.onnx")
    with pytest.raises(NotFittedError):
        estimator.predict(photos)
    with pytest.raises(ValueError, match="60 photos need as many labels"):
        estimator.fit(photos, labels[1:])
    with pytest.raises(ValueError, match="no photos"):
        estimator.fit([], [])
    with pytest.raises(RepperError, match="there is no such file"):
        estimator.fit([tmp_path / "missing.png"], ["a"])
    with pytest.raises(RepperError, match="there is no file"):
        PersonalClassifier(tmp_path / "missing.onnx").fit(photos, labels)
    with pytest.raises(RepperError, match="unknown head 'forest'"):
        PersonalClassifier(place / "encoder.onnx", "forest").fit(photos, labels)
    with pytest.raises(RepperError, match="has no encoder"):
        PersonalClassifier()._open()


def test_cross_validation_and_grids_take_paths(place, paths):
    photos, labels = paths[0]
    estimator = PersonalClassifier(place / "encoder.onnx")
    assert cross_val_score(estimator, photos, labels, cv=3).mean() > 0.85
    grid = GridSearchCV(estimator, {"head": ["linear", "svm", LogisticHead()]}, cv=3)
    grid.fit(photos, labels)
    assert grid.best_score_ > 0.85
    nested = PersonalClassifier(place / "encoder.onnx", SVMHead(kernel="rbf"))
    grid = GridSearchCV(nested, {"head__c": [0.5, 10.0]}, cv=3).fit(photos, labels)
    assert grid.best_estimator_.head_.c == grid.best_params_["head__c"] in (0.5, 10.0)
    assert grid.best_score_ > 0.85
    assert nested.head.c == 1.0


PROCESSES = """
import sys
from pathlib import Path
from sklearn.model_selection import cross_val_score
from repper import PersonalClassifier

place = Path(sys.argv[1])
photos = sorted((place / "photos").glob("*/*.png"))
labels = [path.parent.name for path in photos]
fitted = PersonalClassifier(place / "encoder.onnx").fit(photos, labels)
alone = cross_val_score(fitted, photos, labels, cv=4)
print((cross_val_score(fitted, photos, labels, cv=4, n_jobs=2) == alone).all())
"""


def test_other_processes_open_the_encoder_themselves(place, paths):
    fitted = PersonalClassifier(place / "encoder.onnx").fit(*paths[0])
    assert "_opened" in vars(fitted)
    assert not [key for key in fitted.__getstate__() if key.startswith("_opened")]
    # In a process of its own: joblib's workers would outlive the test.
    done = subprocess.run(
        [sys.executable, "-c", PROCESSES, str(place)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"


def test_one_photo_at_a_time_ends_where_all_at_once_does(place, paths):
    (photos, labels), (new, _) = paths
    some = photos[::4], labels[::4]
    slow = PersonalClassifier(place / "encoder.onnx")
    for photo, label in zip(*some, strict=True):
        slow.partial_fit([photo], [label])
    whole = PersonalClassifier(place / "encoder.onnx").fit(*some)
    assert (slow.predict_proba(new) == whole.predict_proba(new)).all()
    assert slow.fit(photos[:20], labels[:20]).features_.shape == (20, 64)  # fit begins anew


def test_classes_may_be_named_before_they_have_photos(place, paths):
    (photos, labels), (new, _) = paths
    estimator = PersonalClassifier(place / "encoder.onnx")
    estimator.partial_fit(photos[:15], labels[:15], classes=["0", "1", "9"])
    assert estimator.predict_proba(new)[0].tolist() == [1, 0, 0]
    assert set(estimator.predict(new)) == {"0"}
    estimator.partial_fit(photos[15:], labels[15:])
    assert estimator.classes_.tolist() == ["0", "1", "4", "6", "9"]
    chances = estimator.predict_proba(new)
    assert (chances[:, 4] == 0).all()
    assert chances.sum(1) == pytest.approx(np.ones(80), abs=1e-5)


def test_labels_may_be_numbers_or_words(place, paths):
    (photos, labels), (new, truth) = paths
    numbers = PersonalClassifier(place / "encoder.onnx").fit(photos, list(map(int, labels)))
    assert numbers.predict(new).dtype.kind == "i"
    words = {"0": "zero", "1": "one", "4": "four", "6": "a very long name of six"}
    named = PersonalClassifier(place / "encoder.onnx").fit(photos, [words[x] for x in labels])
    assert named.score(new, [words[x] for x in truth]) == numbers.score(new, list(map(int, truth)))


def test_a_saved_head_predicts_the_same(place, paths, tmp_path):
    (photos, labels), (new, _) = paths
    estimator = PersonalClassifier(place / "encoder.onnx", "mlp").fit(photos, labels)
    estimator.saved().save(tmp_path / "head.safetensors")
    encoder = OnnxEncoder.open(place / "encoder.onnx")
    head = read_head(tmp_path / "head.safetensors").for_encoder(encoder.digest)
    features = features_of(place / "encoder.onnx", new)
    assert [head.names[n] for n in head.predict(features)] == estimator.predict(new).tolist()
    assert head.probabilities(features) == pytest.approx(estimator.predict_proba(new), abs=1e-6)
    on_features = PersonalClassifier(head="mlp").fit(estimator.features_, labels)
    assert on_features.saved().encoder == ""
    assert (on_features.predict(features) == estimator.predict(new)).all()


def test_the_seed_is_the_heads(place, paths):
    def weights(**settings):
        return (
            PersonalClassifier(place / "encoder.onnx", **settings).fit(*paths[0]).saved().digest()
        )

    assert weights(head="mlp", random_state=1) == weights(head="mlp", random_state=1)
    assert weights(head="mlp", random_state=1) != weights(head="mlp", random_state=2)
    own = DEVICE_HEADS["mlp"](random_state=2)
    assert weights(head=own, random_state=1) == weights(head="mlp", random_state=2)


def test_another_encoder_is_opened_when_it_is_set(place, paths, tmp_path):
    from .tiny_model import pixel_encoder

    (tmp_path / "other.onnx").write_bytes(pixel_encoder(gain=2.0))
    estimator = PersonalClassifier(place / "encoder.onnx").fit(*paths[0])
    first = estimator.features_
    estimator.set_params(encoder=tmp_path / "other.onnx").fit(*paths[0])
    assert estimator.features_ == pytest.approx(2 * first)
    assert clone(estimator).encoder == tmp_path / "other.onnx"


def test_it_is_found_at_the_top_and_loads_scikit_learn_only_then():
    assert repper.PersonalClassifier is PersonalClassifier
    assert "PersonalClassifier" in repper.__all__
    code = (
        "import sys, repper, repper.personal, repper.personal.model\n"
        "before = 'sklearn' in sys.modules\n"
        "repper.PersonalClassifier\n"
        "print(before, 'sklearn' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False"]
    for module in (repper, repper.personal):
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            module.nothing  # noqa: B018
