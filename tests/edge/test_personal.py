"""Classifiers of one's own photos: fitted, and changed as photos come and go."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from repper.edge.model_folder import read_model
from repper.edge.onnx_encoder import OnnxEncoder
from repper.heads import DEVICE_HEADS
from repper.personal.evaluation import evaluate
from repper.personal.fit import cooled, held_out, make_head
from repper.personal.model import Model
from repper.personal.personalize import add, personalize
from repper.personal.photos import features_of, photos_in

from .commands import answer, content, files, refused
from .tiny_model import (
    CLASSES,
    encoder_bytes,
    pixel_encoder,
    random_photos,
    write_model,
    write_photos,
)

# Fitting


@pytest.mark.parametrize("kind", list(DEVICE_HEADS))
def test_every_head_learns_photos_from_a_folder(repper, place, tmp_path, kind):
    said = answer(repper(
        "personalize", "--encoder", place / "encoder.onnx", "--images", place / "photos",
        "--out", "m", "--head", kind, "--json",
    ))  # fmt: skip
    assert said["head"] == kind
    assert said["photos"] == dict.fromkeys(CLASSES, 15)
    assert said["new"] == 60
    assert said["held_out_accuracy"] > 85
    assert said["test"] is None
    assert said["notes"] == []
    tested = answer(repper("evaluate", "m", "--images", place / "tests", "--json"))
    assert tested["accuracy"] > 90
    assert abs(tested["accuracy"] - said["held_out_accuracy"]) < 15
    notes = read_model(tmp_path / "m")
    assert (notes.classes, notes.head.kind, notes.photos.count) == (CLASSES, kind, 60)
    assert set(content(tmp_path / "m")) == {
        "model.json", "encoder.onnx", "head.safetensors", "unknown.safetensors",
        "photos.safetensors",
    }  # fmt: skip


def test_the_encoder_may_be_that_of_a_model_folder(repper, place, tmp_path):
    write_model(tmp_path / "exported", pixel_encoder())
    for encoder in ("exported", place / "model"):
        out = tmp_path / f"of {Path(encoder).name}"
        assert repper(
            "personalize", "--encoder", encoder, "--images", place / "photos", "--out", out
        ).returncode == 0  # fmt: skip
        assert content(out).keys() == content(place / "model").keys()
        assert read_model(out).head.digest == read_model(place / "model").head.digest
    refused(repper("predict", "exported", place / "tests"), "without a head", "personalize")
    refused(repper("add", "exported", "--images", place / "more"), "was not fitted on photos")
    refused(repper("evaluate", "exported", "--images", place / "more"), "without a head")


def test_convolutions_on_colour_photos_work_too(repper, tmp_path):
    from onnx import load_from_string

    from repper.export.graph import sealed

    notes = {"repper.format": "repper-encoder-1", "repper.encoder": "tiny"}
    data = sealed(load_from_string(encoder_bytes()), notes)
    (tmp_path / "encoder.onnx").write_bytes(data)
    random_photos(tmp_path / "photos", count=20)
    random_photos(tmp_path / "tests", count=20, seed=1)
    done = personalize(tmp_path / "encoder.onnx", tmp_path / "photos", tmp_path / "m")
    assert done.held_out.accuracy > 70
    assert evaluate(tmp_path / "m", tmp_path / "tests").accuracy > 70


def test_a_test_folder_is_what_a_model_is_tested_on(repper, place, tmp_path):
    shutil.copytree(place / "photos", tmp_path / "all" / "train")
    shutil.copytree(place / "tests", tmp_path / "all" / "test")
    command = ("personalize", "--encoder", place / "encoder.onnx", "--images", "all", "--out", "m")
    said = answer(repper(*command, "--json"))
    assert said["photos"] == dict.fromkeys(CLASSES, 15)
    assert said["test"]["photos"] == 80
    alone = answer(repper("evaluate", "m", "--images", place / "tests", "--json"))
    assert said["test"] == alone
    assert alone == answer(repper("evaluate", "m", "--images", "all", "--json"))
    shown = repper(*command, "--overwrite").stdout
    assert "held-out accuracy " in shown
    assert f"test accuracy {alone['accuracy']:.2f} % on 80 photos" in shown


def test_a_test_photo_that_cannot_be_read_leaves_no_model(repper, place, tmp_path):
    shutil.copytree(place / "photos", tmp_path / "all" / "train")
    shutil.copytree(place / "tests", tmp_path / "all" / "test")
    (tmp_path / "all" / "test" / "0" / "bad.png").write_text("no image")
    command = ("personalize", "--encoder", place / "encoder.onnx", "--images", "all", "--out", "m")
    refused(repper(*command), "bad.png")
    assert not (tmp_path / "m").exists()
    said = answer(repper(*command, "--skip-unreadable", "--json"))
    assert said["test"]["photos"] == 80


def test_held_out_photos_were_not_fitted_on(place):
    encoder = OnnxEncoder.open(place / "encoder.onnx")
    photos = photos_in(place / "photos")
    x, _ = features_of([photo.path for photo in photos], encoder)
    labels = np.random.default_rng(0).integers(0, 4, len(x))  # nothing to learn
    found, _ = held_out(make_head("svm", {"kernel": "rbf", "c": 1000.0}), x, labels)
    assert found.accuracy < 50
    assert make_head("svm", {"kernel": "rbf", "c": 1000.0}).fit(x, labels).score(x, labels) == 1
    assert found.confusion.sum() == found.photos == len(x)
    assert found.accuracy == pytest.approx(100 * np.trace(found.confusion) / len(x))


def test_temperature_changes_chances_and_no_prediction(place):
    encoder = OnnxEncoder.open(place / "encoder.onnx")
    photos = photos_in(place / "photos")
    x, _ = features_of([photo.path for photo in photos], encoder)
    new, _ = features_of(sorted((place / "tests").glob("*/*")), encoder)
    labels = np.array([CLASSES.index(photo.label) for photo in photos])
    for kind in DEVICE_HEADS:
        head = make_head(kind).fit(x, labels).saved(CLASSES, "", unit_input=False)
        cold = cooled(head, 4.0)
        assert (cold.predict(new) == head.predict(new)).all()
        assert cold.scores(new) == pytest.approx(head.scores(new) / 4, abs=1e-5)
        found, temperature = held_out(make_head(kind), x, labels)
        assert 0.04 < temperature < 21
        assert found.folds == 5


def test_chances_are_about_as_large_as_a_model_is_right(place):
    model = Model.open(place / "model")
    paths = sorted((place / "tests").glob("*/*"))
    answers = model.predict(paths)
    right = [answer.name == path.parent.name for answer, path in zip(answers, paths, strict=True)]
    sure = [answer.chances[0][1] for answer in answers]
    assert np.mean(sure) == pytest.approx(np.mean(right), abs=0.12)
    for one in answers:
        assert sum(chance for _, chance in one.chances) == pytest.approx(1, abs=1e-5)
        assert [chance for _, chance in one.chances] == sorted(
            (chance for _, chance in one.chances), reverse=True
        )


def test_the_same_command_gives_the_same_model(place, tmp_path):
    for kind in DEVICE_HEADS:
        for out in ("a", "b"):
            personalize(
                place / "encoder.onnx", place / "photos", tmp_path / out, head=kind, overwrite=True
            )
        first, again = content(tmp_path / "a"), content(tmp_path / "b")
        heads = [read_model(tmp_path / out).head.digest for out in ("a", "b")]
        assert heads[0] == heads[1]
        assert len(first) == len(again)


# Photos that come and go


def test_adding_photos_encodes_only_these(model, place, encoded):
    before = read_model(model)
    done = add(model, place / "more")
    assert encoded == [12]
    assert (done.added.new, done.added.known, done.added.twice) == (12, 0, 0)
    assert done.counts == dict.fromkeys(CLASSES, 18)
    after = read_model(model)
    assert after.photos.count == 72
    assert after.head.digest != before.head.digest
    assert sum(encoded) == 12
    assert len(content(model)) == 5  # the files of the old model are gone


def test_a_model_that_grew_is_the_model_of_all_its_photos(model, place, tmp_path):
    add(model, place / "more")
    shutil.copytree(place / "photos", tmp_path / "all")
    shutil.copytree(place / "more", tmp_path / "all", dirs_exist_ok=True)
    personalize(place / "encoder.onnx", tmp_path / "all", tmp_path / "whole")
    paths = sorted((place / "tests").glob("*/*"))
    grown, whole = (Model.open(folder).predict(paths) for folder in (model, tmp_path / "whole"))
    for one, other in zip(grown, whole, strict=True):
        assert one.name == other.name


def test_a_new_class_may_come(model, place, tmp_path, digits, encoded):
    write_photos(tmp_path / "seven", digits.train, 6, classes=("7",))
    done = add(model, tmp_path / "seven")
    assert encoded == [6]
    assert done.counts == {**dict.fromkeys(CLASSES, 15), "7": 6}
    assert read_model(model).classes == (*CLASSES, "7")
    write_photos(tmp_path / "new", digits.test, 10, classes=("7",))
    assert evaluate(model, tmp_path / "new").accuracy > 60


def test_photos_known_before_are_not_encoded_again(repper, model, photos, place, encoded):
    shutil.copytree(place / "more", photos, dirs_exist_ok=True)
    said = repper("add", model, "--images", photos)
    assert encoded == [12]
    assert "60 of these photos were known already; features of 12 new" in said.stdout


def test_a_changed_class_counts_from_then_on(model, photos, encoded):
    photo = files(photos)[0]
    moved = photos.parent / "moved" / "1" / photo.name
    moved.parent.mkdir(parents=True)
    shutil.copy(photo, moved)
    assert photo.parent.name == "0"
    done = add(model, photos.parent / "moved")
    assert encoded == []
    assert done.counts == {"0": 14, "1": 16, "4": 15, "6": 15}
    assert (done.added.new, done.added.known) == (0, 1)


def test_removed_photos_and_classes_are_forgotten(repper, model, photos, encoded):
    gone = files(photos)[:2]
    said = answer(repper("remove", model, *gone, "--class", "6", "--json"))
    assert said["photos"] == {"0": 13, "1": 15, "4": 15}
    assert encoded == []
    notes = read_model(model)
    assert notes.classes == ("0", "1", "4")
    with safe_open(model / notes.photos.file, framework="np") as file:
        assert file.get_tensor("features").shape == (43, 64)
        assert gone[0].name not in json.loads(file.metadata()["names"])
    refused(repper("remove", model, gone[0]), "is not among the photos")
    refused(repper("remove", model, "--class", "6"), "no class '6'", "0, 1, 4")


def test_a_model_keeps_two_classes(repper, model):
    before = content(model)
    refused(
        repper("remove", model, "--class", "6", "--class", "4", "--class", "0"),
        "needs photos of at least two classes", "photos of 1, '1'",
    )  # fmt: skip
    refused(repper("remove", model), "nothing to remove: give photos")
    assert content(model) == before


def test_a_folder_of_photos_can_be_removed(repper, model, photos):
    said = answer(repper("remove", model, photos / "0", "--json"))
    assert said["photos"] == {"1": 15, "4": 15, "6": 15}
    assert answer(repper("add", model, "--images", photos, "--json"))["new"] == 15


def test_settings_of_the_head_outlive_changes(repper, place, tmp_path):
    repper(
        "personalize", "--encoder", place / "encoder.onnx", "--images", place / "photos", "--out",
        "m", "--head", "mlp", "--head-hidden", 7, "--seed", 5, "--no-unknown",
    )  # fmt: skip
    assert repper("add", "m", "--images", place / "more").returncode == 0
    notes = read_model(tmp_path / "m")
    assert notes.read_head(tmp_path / "m").arrays["hidden_weight"].shape == (7, 64)
    assert notes.scores["seed"] == 5
    assert notes.unknown is None


def test_a_photo_that_is_there_twice_counts_once(photos, place, tmp_path):
    first = files(photos)[0]
    shutil.copy(first, first.with_name("copy.png"))
    done = personalize(place / "encoder.onnx", photos, tmp_path / "m")
    assert done.counts == dict.fromkeys(CLASSES, 15)
    assert done.added.twice == 1


def test_a_photo_in_two_classes_is_refused(repper, photos, place, tmp_path):
    first = files(photos)[0]
    shutil.copy(first, photos / "1" / "other.png")
    refused(
        repper("personalize", "--encoder", place / "encoder.onnx", "--images", photos, "--out", "m"),
        "the same photo in two classes", first.name, "other.png",
    )  # fmt: skip
    assert not (tmp_path / "m").exists()
