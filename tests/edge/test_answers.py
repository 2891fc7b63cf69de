"""What a model answers: classes, chances, `unknown`, and how often it is right."""

from __future__ import annotations

import re
import shutil
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from repper.personal.classifier import PersonalClassifier
from repper.personal.evaluation import Evaluation, evaluate
from repper.personal.fit import fit_unknown
from repper.personal.model import Model
from repper.personal.personalize import personalize
from repper.personal.photos import photos_in

from .commands import answer, files, refused
from .tiny_model import (
    CLASSES,
    write_photos,
)

# Unknown


def test_one_in_twenty_of_ones_own_photos_is_called_unknown_and_noise_always(
    place, tmp_path, digits
):
    write_photos(tmp_path / "photos", digits.train, 80)
    write_photos(tmp_path / "tests", digits.test, 30)
    personalize(place / "encoder.onnx", tmp_path / "photos", tmp_path / "m")
    random = np.random.default_rng(0)
    (tmp_path / "tests" / "noise").mkdir()
    for number in range(30):
        noise = Image.fromarray(random.integers(0, 256, (8, 8), np.uint8))
        noise.save(tmp_path / "tests" / "noise" / f"{number}.png")
    found = evaluate(tmp_path / "m", tmp_path / "tests")
    assert 0 < found.called_unknown / found.photos < 0.15
    assert (found.strangers, found.strangers_unknown) == (30, 30)
    assert found.photos == 120


def test_the_threshold_is_passed_by_95_of_100_held_out_photos(digits):
    x = digits.train.images.reshape(-1, 64).astype(np.float32) / 255
    rule = fit_unknown(x[:800], digits.train.labels[:800], "e")
    assert 1 - rule.is_unknown(x[800:]).mean() == pytest.approx(0.95, abs=0.03)
    differences = (x[900, None] - rule.means) @ rule.whiten
    wanted = np.sqrt((differences.astype(np.float64) ** 2).sum(1)).min()
    assert rule.distances(x[900:901])[0] == pytest.approx(wanted, rel=1e-3)


def test_features_that_never_change_do_no_harm():
    x = np.zeros((20, 5), np.float32)
    rule = fit_unknown(x, np.arange(20) % 2, "e")
    assert not rule.is_unknown(x).any()
    assert rule.is_unknown(x + 1).all()


def test_no_unknown_always_answers(repper, model, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    [row] = answer(repper("predict", model, "noise.png", "--json"))["predictions"]
    assert (row["class"], row["unknown"]) == (None, True)
    [row] = answer(repper("predict", model, "noise.png", "--json", "--no-unknown"))["predictions"]
    assert row["class"] in CLASSES
    assert "unknown (nearest: " in repper("predict", model, "noise.png").stdout


# Answers


def test_all_ways_to_ask_give_the_same_answer(repper, model, place):
    paths = sorted((place / "tests").glob("*/*"))
    said = answer(repper("predict", model, place / "tests", "--top", 4, "--json"))
    assert said["model"] == str(model)
    answers = Model.open(model).predict(paths)
    for row, one, path in zip(said["predictions"], answers, paths, strict=True):
        assert row["image"] == str(path)
        assert row["class"] == (None if one.unknown else one.name)
        assert list(row["chances"].items()) == list(one.chances)
    photos = photos_in(place / "photos")
    estimator = PersonalClassifier(place / "encoder.onnx", "linear")
    estimator.fit([photo.path for photo in photos], [photo.label for photo in photos])
    assert estimator.predict(paths).tolist() == [one.name for one in answers]
    assert estimator.score(paths, [path.parent.name for path in paths]) == pytest.approx(
        evaluate(model, place / "tests").accuracy / 100
    )


def test_top_shows_so_many_classes(repper, model, place):
    photo = files(place / "tests")[0]
    line = repper("predict", model, photo, "--top", 2).stdout
    assert re.fullmatch(rf"{photo}\t0 [\d.]+ %, \d [\d.]+ %\n", line)
    [row] = answer(repper("predict", model, photo, "--top", 99, "--json"))["predictions"]
    assert len(row["chances"]) == 4
    for wrong in (0, -1, "many"):
        refused(repper("predict", model, photo, "--top", wrong), "--top must be")


def test_the_confusion_counts_photos_by_class_and_answer(repper, model, place):
    said = answer(repper("evaluate", model, "--images", place / "tests", "--json"))
    wanted = Counter()
    paths = sorted((place / "tests").glob("*/*"))
    for path, one in zip(paths, Model.open(model).predict(paths), strict=True):
        wanted[path.parent.name, one.name] += 1
    for i, row in enumerate(CLASSES):
        for j, column in enumerate(CLASSES):
            assert said["confusion"][i][j] == wanted[row, column]
    assert said["classes"] == list(CLASSES)
    assert said["accuracy"] == 100 * np.trace(said["confusion"]) / 80
    assert said["photos"] == 80
    shown = repper("evaluate", model, "--images", place / "tests").stdout
    assert "95 % interval" in shown
    assert "Confusion matrix" in shown


@pytest.mark.parametrize(
    ("right", "photos", "low", "high"),
    [
        (10, 10, 72.2467, 100),
        (0, 10, 0, 27.7533),
        (8, 10, 49.0162, 94.3318),
        (81, 100, 72.22, 87.49),
    ],
)
def test_the_interval_is_wilsons(right, photos, low, high):
    confusion = np.array([[right, photos - right], [0, 0]])
    found = Evaluation(("a", "b"), confusion, None, 0, None, ()).interval
    assert found == pytest.approx((low, high), abs=0.01)


def test_nothing_but_strangers_has_no_accuracy(repper, model, place, tmp_path):
    (tmp_path / "other").mkdir()
    shutil.copytree(place / "tests" / "0", tmp_path / "other" / "zero")
    said = answer(repper("evaluate", model, "--images", "other", "--json"))
    assert (said["accuracy"], said["interval"], said["strangers"]) == (None, None, 20)
    assert "20 photos of classes that the model does not know: " in repper(
        "evaluate", model, "--images", "other"
    ).stdout  # fmt: skip
