import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator

from repper.basics.errors import RepperError
from repper.data.batches import batch_sizes, even_size
from repper.edge import SavedHead, read_head
from repper.heads import HEADS
from repper.heads.descent import LinearHead
from repper.heads.personalize import Features, FineTune, FitHead, HeadInputs, Keep, personalize

NAMES = tuple("abcdefgh")
VARIANTS = {
    **{kind: HEADS[kind]() for kind in HEADS},
    "mlp": HEADS["mlp"](hidden=32),
    "svm with rbf": HEADS["svm"](kernel="rbf"),
    "linear with sgd": HEADS["linear"](optimizer="sgd", lr=0.1),
    "scaled logistic": HEADS["logistic"](scale=True),
    "scaled svm with rbf": HEADS["svm"](kernel="rbf", scale=True),
    "logistic with a chosen C": HEADS["logistic"](choose_c=True),
}


def blobs(classes=4, count=160, features=6, seed=0, spread=1.0):
    random = np.random.default_rng(seed)
    centres = 4 * np.random.default_rng(99).normal(size=(classes, features))
    labels = np.arange(count) % classes
    x = centres[labels] + spread * random.normal(size=(count, features))
    return x.astype(np.float32), labels


def stops(personalizer, client, names=NAMES[:4], every=0):
    """The epochs at which a client's head is looked at, each with the head."""
    for _, epoch, head in personalize([(personalizer, client)], names, every):
        yield epoch, head


@pytest.mark.parametrize("head", VARIANTS.values(), ids=VARIANTS)
def test_scikit_learns_own_checks_pass(head):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        warnings.filterwarnings("ignore", message=".*set_output.*")
        # Fewer epochs than usual: there are hundreds of fits.
        short = {"epochs": 25} if "epochs" in head.get_params() else {}
        check_estimator(clone(head).set_params(**short))


@pytest.mark.parametrize("head", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("classes", [2, 4])
def test_heads_learn_what_can_be_learned(head, classes):
    x, y = blobs(classes)
    x_new, y_new = blobs(classes, seed=1)
    assert clone(head).fit(x, y).score(x_new, y_new) > 0.98


@pytest.mark.parametrize("head", VARIANTS.values(), ids=VARIANTS)
def test_a_single_class_is_predicted_for_everything(head):
    x, _ = blobs()
    fitted = clone(head).fit(x, np.full(len(x), 5))
    assert set(fitted.predict(x + 100)) == {5}
    saved = fitted.saved(NAMES, "digest", unit_input=False)
    assert saved.classes == (5,)
    assert saved.names == ("f",)
    assert set(saved.predict(x)) == {5}


@pytest.mark.parametrize("head", VARIANTS.values(), ids=VARIANTS)
def test_a_client_with_one_image_a_class_works(head):
    x, y = blobs(3, 3)
    assert clone(head).fit(x, y).predict(x).tolist() == [0, 1, 2]
    assert clone(head).fit(x[:1], y[:1]).predict(x).tolist() == [0, 0, 0]


@pytest.mark.parametrize("head", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("unit", [False, True])
def test_saved_then_read_is_the_same_head(tmp_path, head, unit):
    x, y = blobs()
    saved = clone(head).fit(x, y + 2).saved(NAMES, "some digest", unit_input=unit)
    saved.save(tmp_path / "7.safetensors")
    again = read_head(tmp_path / "7.safetensors")
    assert again.digest() == saved.digest()
    assert (again.scores(x) == saved.scores(x)).all()
    assert (again.classes, again.names) == ((2, 3, 4, 5), ("c", "d", "e", "f"))
    assert again.unit_input == unit


@pytest.mark.parametrize("head", VARIANTS.values(), ids=VARIANTS)
def test_same_seed_same_bits(head):
    x, y = blobs()
    first, again = (clone(head).fit(x, y).saved(NAMES, "e", False).digest() for _ in range(2))
    assert first == again


@pytest.mark.parametrize("classes", [2, 4])
def test_logistic_and_svm_are_scikit_learns(classes):
    x, y = blobs(classes, spread=6.0)
    new, _ = blobs(classes, seed=1, spread=6.0)
    scaled, scaled_new = ((v - x.mean(0)) / (x - x.mean(0)).std() for v in (x, new))
    pairs = {
        "logistic": (HEADS["logistic"](scale=True), LogisticRegression(max_iter=2000, tol=1e-8)),
        "svm": (HEADS["svm"](scale=True), LinearSVC(dual=False)),
    }
    for ours, theirs in pairs.values():
        agreement = ours.fit(x, y).predict(new) == theirs.fit(scaled, y).predict(scaled_new)
        assert agreement.mean() == 1
        assert not (ours.predict(new) == y).all()
        difference = ours.decision_function(new) - theirs.decision_function(scaled_new)
        if classes == 2 or ours.kind == "svm":
            assert np.abs(difference).max() < 5e-3


def test_rbf_scores_are_those_of_one_machine_per_class():
    x, y = blobs(3, spread=6.0)
    scaled = (x - x.mean(0)) / (x - x.mean(0)).std()
    scores = HEADS["svm"](kernel="rbf", c=2.0, scale=True).fit(x, y).decision_function(x)
    for label in range(3):
        expected = (
            SVC(C=2.0, gamma=1 / x.shape[1]).fit(scaled, y == label).decision_function(scaled)
        )
        assert np.abs(scores[:, label] - expected).max() < 1e-3


def test_regularization_epochs_and_hidden_units_have_an_effect():
    x, y = blobs(spread=6.0)

    def weight(kind, **settings):
        return HEADS[kind](**settings, scale=True).fit(x, y).arrays_["weight"]

    for kind in ("logistic", "svm"):
        assert np.abs(weight(kind, c=1e-3)).max() < 0.5 * np.abs(weight(kind, c=10)).max()
    assert np.abs(weight("linear", epochs=1)).max() < np.abs(weight("linear", epochs=50)).max()
    assert weight("mlp", hidden=17).shape == (4, 17)
    strong = np.abs(weight("linear", weight_decay=10.0)).max()
    assert strong < np.abs(weight("linear", weight_decay=0.0)).max()


@pytest.mark.parametrize("kind", ["logistic", "svm"])
@pytest.mark.parametrize("spread", [2.0, 12.0, 30.0])
def test_a_chosen_regularization_is_that_of_a_grid_search(kind, spread):
    x, y = blobs(features=40, spread=spread)
    x_new, y_new = blobs(features=40, spread=spread, count=4000, seed=1)
    grid = [0.01, 0.1, 1.0, 10.0]  # of equal ones, this search takes the first too
    parts = KFold(5, shuffle=True, random_state=0)
    search = GridSearchCV(HEADS[kind](), {"c": grid}, cv=parts).fit(x, y)
    chosen = HEADS[kind](c=10.0, choose_c=True).fit(x, y)
    assert chosen.c_ == pytest.approx(search.best_params_["c"])
    assert (chosen.predict(x_new) == search.predict(x_new)).all()
    if spread == 12:
        loose = HEADS[kind](c=10.0).fit(x, y)
        assert chosen.c_ < 10
        assert chosen.score(x_new, y_new) > loose.score(x_new, y_new) + 0.01


def test_by_default_there_are_at_least_ten_epochs_and_a_hundred_steps():
    x, y = blobs(2, 70)
    tiny = HEADS["linear"]().fit(x, y).arrays_["weight"]
    assert np.array_equal(tiny, HEADS["linear"](epochs=100).fit(x, y).arrays_["weight"])
    x, y = blobs(2, 330)
    large = HEADS["linear"](batch=10).fit(x, y).arrays_["weight"]
    assert np.array_equal(large, HEADS["linear"](batch=10, epochs=10).fit(x, y).arrays_["weight"])


def test_a_head_file_knows_its_encoder_and_shows_damage(tmp_path):
    x, y = blobs()
    path = tmp_path / "0.safetensors"
    head = HEADS["linear"]().fit(x, y).saved(NAMES, "a" * 64, unit_input=False)
    head.save(path)
    assert read_head(path).for_encoder("a" * 64).digest() == head.digest()
    with pytest.raises(
        RepperError, match="was fitted on encoder aaaaaaaaaaaa, not on bbbbbbbbbbbb"
    ):
        read_head(path).for_encoder("b" * 64)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(RepperError, match="do not match its digest"):
        read_head(path)
    path.write_bytes(good[:50])
    with pytest.raises(RepperError, match="damaged or not a safetensors file"):
        read_head(path)
    with pytest.raises(RepperError, match="there is no file"):
        read_head(tmp_path / "1.safetensors")
    with pytest.raises(RepperError, match="takes 6 features per image"):
        head.predict(x[:, :5])


def test_keep_is_the_methods_own_head_on_plain_features():
    random = np.random.default_rng(0)
    weight, bias = random.normal(size=(4, 6)), random.normal(size=4)
    x, y = blobs()
    [(_, head)] = stops(Keep(), HeadInputs(Features(x, y, "e"), (weight, bias), 0))
    assert np.allclose(head.scores(x), x @ weight.T + bias)
    for personalizer in (Keep(), FineTune()):
        with pytest.raises(RepperError, match="needs a method that trains a head"):
            next(stops(personalizer, HeadInputs(Features(x, y, "e"), None, 0)))


def test_finetune_goes_on_from_the_methods_head():
    """One epoch of one batch of plain gradient descent, against its closed form."""
    random = np.random.default_rng(0)
    weight = random.normal(size=(4, 6)).astype(np.float32)
    bias = random.normal(size=4).astype(np.float32)
    x, y = blobs()
    settings = (("epochs", 1), ("lr", 0.1), ("optimizer", "sgd"), ("weight_decay", 0.0))
    client = HeadInputs(Features(x, y, "e"), (weight, bias), 0)
    [(_, head)] = stops(FineTune(settings), client)
    logits = x @ weight.T + bias
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    slope = (chances - np.eye(4)[y]) / len(x)
    assert np.allclose(head.arrays["weight"], weight - 0.1 * slope.T @ x, atol=1e-5)
    assert np.allclose(head.arrays["bias"], bias - 0.1 * slope.sum(0), atol=1e-5)
    assert (head.kind, head.names) == ("finetune", NAMES[:4])


def test_finetune_and_linear_take_the_same_number_of_steps():
    x, y = blobs()
    start = np.zeros((4, 6), np.float32), np.zeros(4, np.float32)
    client = HeadInputs(Features(x, y, "e"), start, 0)
    for personalizer in (FineTune(), FitHead(HEADS["linear"])):
        [(epochs, _)] = stops(personalizer, client)
        assert epochs == 100  # one batch an epoch, at least a hundred steps


@pytest.mark.parametrize("kind", HEADS)
def test_the_last_of_the_heads_is_the_fitted_one(kind):
    x, y = blobs()
    client = HeadInputs(Features(x, y, "e"), None, 0)
    found = stops(FitHead(HEADS[kind]), client, NAMES, every=1)
    digests = [head.digest() for _, head in found]
    head = HEADS[kind]()
    assert digests[-1] == head.fit(x, y).saved(NAMES, "e", False).digest()
    assert len(set(digests)) == len(digests) == (100 if kind in ("linear", "mlp") else 1)


@pytest.mark.parametrize("seed", range(5))
def test_unit_input_ignores_the_length_of_features(seed):
    x, y = blobs()
    client = HeadInputs(Features(x, y, "e"), None, 0)
    [(_, head)] = stops(FitHead(HEADS["logistic"], unit_input=True), client, NAMES)
    lengths = np.random.default_rng(seed).uniform(0.1, 10, (len(x), 1)).astype(np.float32)
    assert np.allclose(head.scores(x), head.scores(x * lengths), atol=1e-4)
    assert isinstance(head, SavedHead)


def test_a_plain_head_is_one_tuned_from_zero():
    x, y = blobs()
    zero = np.zeros((4, 6), np.float32), np.zeros(4, np.float32)
    client = HeadInputs(Features(x, y, "digest"), zero, seed=3)
    [(_, new)] = stops(FitHead(HEADS["linear"], (("epochs", 5),)), client)
    [(_, tuned)] = stops(FineTune((("epochs", 5),)), client)
    assert (new.scores(x) == tuned.scores(x)).all()
    with_scaling = FitHead(HEADS["linear"], (("scale", True), ("epochs", 5)))
    [(_, scaled)] = stops(with_scaling, client)
    assert not np.allclose(new.scores(x), scaled.scores(x))


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_centres_and_scales_only_where_it_shall(kind):
    x, y = blobs()
    fitted = HEADS[kind]().fit(x, y)
    assert not fitted.mean_.any()
    assert fitted.scale_ == 1
    centred = HEADS[kind](scale=True).fit(x, y)
    assert np.allclose(centred.mean_, x.mean(0))
    assert centred.scale_ == pytest.approx(np.sqrt(((x - x.mean(0)) ** 2).mean()))


def test_the_width_of_a_plain_kernel_is_scikit_learns():
    x, y = blobs()
    gamma = HEADS["svm"](kernel="rbf").fit(x, y).arrays_["gamma"]
    assert gamma == pytest.approx(SVC(gamma="scale").fit(x, y)._gamma)


@pytest.mark.parametrize(
    ("images", "expected"), [(279, [140, 139]), (256, [256]), (513, [171] * 3)]
)
def test_batches_of_a_head_are_equal(images, expected):
    """279 images in batches of 256 and 23 made a head's accuracy a matter of its seed."""
    size = even_size(images, 256)
    assert batch_sizes(images, size) == expected


def test_a_head_of_few_more_images_than_a_batch_hardly_depends_on_its_seed(digits):
    x = digits.train.images.reshape(len(digits.train), -1)[:279].astype(np.float32)
    y = digits.train.labels[:279]
    fresh = digits.test.images.reshape(len(digits.test), -1).astype(np.float32)
    found = [
        LinearHead(random_state=seed, scale=True).fit(x, y).predict(fresh) for seed in range(6)
    ]
    right = [100 * (one == digits.test.labels).mean() for one in found]
    assert np.std(right) < 0.6
