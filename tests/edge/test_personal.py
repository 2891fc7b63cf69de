"""Classifiers of one's own photos: fitted, changed, tested, and refused when they are damaged."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file

from repper.edge.model_folder import ModelNotes, read_model
from repper.edge.onnx_encoder import OnnxEncoder
from repper.edge.saved_head import read_head
from repper.edge.unknown import Unknown
from repper.errors import RepperError
from repper.files import alone_in
from repper.heads import DEVICE_HEADS
from repper.personal.album import read_album
from repper.personal.classifier import PersonalClassifier
from repper.personal.evaluation import Evaluation, evaluate
from repper.personal.fit import cooled, fit_unknown, held_out, make_head
from repper.personal.model import Model
from repper.personal.personalize import add, personalize, remove
from repper.personal.photos import features_of, photos_in

from .tiny_model import (
    CLASSES,
    encoder_bytes,
    pixel_encoder,
    random_photos,
    write_model,
    write_photos,
)


def answer(process):
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def refused(process, *words):
    """One sentence, exit code 2, and no traceback."""
    assert process.returncode == 2, (process.stdout, process.stderr)
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1, process.stderr
    assert process.stderr.startswith("repper: ")
    assert "\x1b" not in process.stderr
    for word in words:
        assert word in process.stderr
    return process.stderr


def content(folder):
    """All files and their bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def files(folder):
    return sorted(folder.glob("*/*.png"))


@pytest.fixture
def encoded(monkeypatch):
    """How many photos went through an encoder, call by call."""
    rows = []
    original = OnnxEncoder.features_of

    def counting(self, images):
        rows.append(len(images))
        return original(self, images)

    monkeypatch.setattr(OnnxEncoder, "features_of", counting)
    return rows


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
    refused(repper("add", "exported", "--images", place / "more"), "knows no photos")
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
    assert "60 of these photos were known already; 12 new ones" in said.stdout


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
        "needs photos of two classes", "photos of 1, '1'",
    )  # fmt: skip
    refused(repper("remove", model), "say what to remove")
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


# Replacing models


def test_replacing_a_model_forgets_its_photos_but_not_their_features(
    repper, model, photos, place, encoded
):
    command = ("personalize", "--encoder", place / "encoder.onnx", "--out", model, "--json")
    refused(repper(*command, "--images", photos), "exists", "--overwrite")
    for gone in files(photos)[::3]:
        gone.unlink()
    said = answer(repper(*command, "--images", photos, "--overwrite"))
    assert (sum(said["photos"].values()), said["new"], encoded) == (40, 0, [])
    said = answer(repper(*command, "--images", place / "more", "--overwrite"))
    assert said["photos"] == dict.fromkeys(CLASSES, 3)  # none of the 40 before
    assert read_model(model).photos.count == 12


@pytest.mark.parametrize("strange", ["holiday.png", "head-shot.png", "photos-2024", "model-2.zip"])
def test_a_folder_with_something_of_ones_own_is_never_replaced(
    repper, model, photos, place, strange
):
    if "." in strange:
        (model / strange).write_text("mine")
    else:
        (model / strange).mkdir()
    before = {path.name for path in model.iterdir()}
    command = ("personalize", "--encoder", place / "encoder.onnx", "--images", photos)
    refused(repper(*command, "--out", model, "--overwrite"), strange, "is none")
    assert {path.name for path in model.iterdir()} == before
    assert repper("add", model, "--images", place / "more").returncode == 0
    assert (model / strange).exists()


def test_overwrite_refuses_what_is_no_model(repper, photos, place, tmp_path):
    (tmp_path / "file").write_text("mine")
    command = (
        "personalize",
        "--encoder",
        place / "encoder.onnx",
        "--images",
        photos,
        "--overwrite",
    )
    refused(repper(*command, "--out", "file"), "it is a file")
    refused(repper(*command, "--out", photos), "it holds")
    assert (tmp_path / "file").read_text() == "mine"
    assert len(files(photos)) == 60
    refused(repper(*command, "--out", "file/model"), "cannot write")
    (tmp_path / "empty").mkdir()
    assert repper(*command, "--out", "empty").returncode == 0


def test_a_damaged_model_can_be_replaced(repper, model, photos, place):
    (model / "model.json").write_text("{")
    command = ("personalize", "--encoder", place / "encoder.onnx", "--images", photos)
    assert repper(*command, "--out", model, "--overwrite").returncode == 0
    assert repper("predict", model, photos).returncode == 0


class PowerError(Exception):
    """The machine loses power."""


@pytest.mark.parametrize("moment", ["before model.json", "after the head"])
def test_a_crash_leaves_the_old_model(model, place, monkeypatch, moment):
    paths = sorted((place / "tests").glob("*/*"))
    before = Model.open(model).predict(paths)

    def stop(*_):
        raise PowerError

    if moment == "before model.json":
        monkeypatch.setattr(ModelNotes, "write", stop)
    else:
        monkeypatch.setattr("repper.personal.album.Album.save", stop)
    for change in (
        lambda: add(model, place / "more"),
        lambda: remove(model, classes=["6"]),
        lambda: personalize(
            place / "encoder.onnx", place / "more", model, head="svm", overwrite=True
        ),
    ):
        with pytest.raises(PowerError):
            change()
        assert Model.open(model).predict(paths) == before
    monkeypatch.undo()
    assert add(model, place / "more").counts == dict.fromkeys(CLASSES, 18)
    assert len(content(model)) == 5  # nothing is left of the crashes


def test_a_full_disk_leaves_the_old_model_and_nothing_else(model, place, monkeypatch):
    before = content(model)

    def full(*_):
        raise RepperError("cannot write model.json: No space left on device")

    monkeypatch.setattr(ModelNotes, "write", full)
    with pytest.raises(RepperError, match="No space"):
        add(model, place / "more")
    assert content(model) == before


def test_a_crash_leaves_no_folder_that_was_not_there(photos, place, tmp_path, monkeypatch):
    def stop(*_):
        raise PowerError

    monkeypatch.setattr(ModelNotes, "write", stop)
    with pytest.raises(PowerError):
        personalize(place / "encoder.onnx", photos, tmp_path / "m")
    assert {path.name for path in tmp_path.iterdir()} == {"photos"}


def test_two_commands_do_not_change_a_model_at_once(repper, model, photos, place, tmp_path):
    before = content(model)
    with alone_in(model):
        for command in (
            ("add", model, "--images", place / "more"),
            ("remove", model, "--class", "6"),
            ("personalize", "--encoder", place / "encoder.onnx", "--images", photos, "--out", model,
             "--overwrite"),
        ):  # fmt: skip
            refused(repper(*command), "another command is changing")
        assert content(model) == before
        assert repper("predict", model, files(photos)[0]).returncode == 0
    assert add(model, place / "more").counts == dict.fromkeys(CLASSES, 18)
    (tmp_path / ".new.tmp").mkdir()
    with (
        alone_in(tmp_path / ".new.tmp"),
        pytest.raises(RepperError, match="another command is changing"),
    ):
        personalize(place / "encoder.onnx", photos, tmp_path / "new")
    assert personalize(place / "encoder.onnx", photos, tmp_path / "new").counts["6"] == 15
    assert not (tmp_path / ".new.tmp").exists()


# Photos as people have them


def test_all_kinds_of_photos_are_read_alike(tmp_path, place):
    """One picture, saved in many ways: the features are the same, or nearly so."""
    random = np.random.default_rng(0)
    small = random.integers(40, 255, (4, 4, 3), np.uint8)
    picture = Image.fromarray(small).resize((64, 64), Image.Resampling.NEAREST)
    picture.save(tmp_path / "a plain.png")
    picture.save(tmp_path / "b lossy.jpg", quality=98, subsampling=0)
    picture.save(tmp_path / "c UPPER.JPG", quality=98, subsampling=0)
    picture.save(tmp_path / "d.webp", lossless=True)
    picture.save(tmp_path / "e.bmp")
    picture.convert("RGBA").save(tmp_path / "f opaque.png")
    picture.quantize(64).save(tmp_path / "g palette.png")
    picture.convert("CMYK").save(tmp_path / "h print.jpg", quality=98)
    turned = picture.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees to the right
    turned.save(tmp_path / "i turned.jpg", exif=exif, quality=98, subsampling=0)
    wide = Image.new("RGB", (128, 64), "red")
    wide.paste(picture, (32, 0))
    wide.save(tmp_path / "j wide.png")
    for channels in (3, 1):
        encoder = OnnxEncoder(pixel_encoder(channels=channels))
        paths = sorted(path for path in tmp_path.iterdir() if path.is_file())
        features, bad = features_of(paths, encoder)
        assert bad == []
        for path, row in zip(paths, features, strict=True):
            # Resizing looks a little beyond the edge of the central square.
            near = 0.15 if "wide" in path.name else 0.06
            assert row == pytest.approx(features[0], abs=near), path.name
            alone, _ = features_of([path], encoder)
            assert alone[0] == pytest.approx(row, abs=1e-6)  # whatever lies beside it
            of_file = PersonalClassifier._features(_classifier(tmp_path, channels), [path])
            with Image.open(path) as opened:
                of_image = PersonalClassifier._features(_classifier(tmp_path, channels), [opened])
            assert (of_file == alone).all()
            assert (of_image == alone).all()


def _classifier(folder, channels):
    (folder / "encoders").mkdir(exist_ok=True)
    path = folder / "encoders" / f"{channels}.onnx"
    path.write_bytes(pixel_encoder(channels=channels))
    return PersonalClassifier(path)


def test_grey_sixteen_bits_and_transparency_mean_what_they_show(tmp_path):
    levels = np.linspace(0, 255, 64).reshape(8, 8).round().astype(np.uint8)
    Image.fromarray(levels).save(tmp_path / "grey.png")
    Image.fromarray(levels.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    clear = np.dstack([np.zeros((8, 8, 3), np.uint8), 255 - levels])
    Image.fromarray(clear).save(tmp_path / "clear.png")
    paths = [tmp_path / f"{name}.png" for name in ("grey", "deep", "clear")]
    for channels in (1, 3):
        encoder = OnnxEncoder(pixel_encoder(channels=channels))
        features, _ = features_of(paths, encoder)
        for row in features:
            assert row == pytest.approx(np.repeat(levels.reshape(-1) / 255, channels), abs=0.005)
        found = PersonalClassifier._features(
            _classifier(tmp_path, channels), [Image.open(path) for path in paths]
        )
        assert (found == features).all()


def test_a_huge_photo_is_read(repper, model, tmp_path):
    Image.new("L", (6000, 4000), 200).save(tmp_path / "huge.jpg")
    [row] = answer(repper("predict", model, "huge.jpg", "--json"))["predictions"]
    assert row["unknown"]


def test_a_photo_made_to_fill_the_memory_is_refused(repper, model, tmp_path):
    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 1, 0, 0, 0, 0))
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", b""))
    refused(repper("predict", model, "bomb.png"), "more than 178 million pixels")


def unreadable_photos(folder):
    good = files(folder)[0].read_bytes()
    (folder / "0" / "a-empty.png").write_bytes(b"")
    (folder / "0" / "a-text.jpg").write_text("no image")
    (folder / "1" / "a-short.png").write_bytes(good[:60])
    (folder / "1" / "a-link.png").symlink_to(folder / "nowhere.png")
    os.mkfifo(folder / "4" / "a-pipe.png")
    return 5


def test_photos_that_cannot_be_read_are_an_error_or_left_out(repper, model, photos, place):
    count = unreadable_photos(photos)
    command = ("personalize", "--encoder", place / "encoder.onnx", "--images", photos, "--out", "m")
    refused(repper(*command), "cannot read image")
    done = repper(*command, "--skip-unreadable", "--json")
    assert answer(done)["photos"] == dict.fromkeys(CLASSES, 15)
    assert done.stderr.count("note: left out") == count
    for name in ("empty", "text", "short", "link", "pipe"):
        assert f"a-{name}" in done.stderr
    refused(repper("add", model, "--images", photos), "cannot read image")
    assert answer(repper("add", model, "--images", photos, "--skip-unreadable", "--json"))
    refused(repper("evaluate", model, "--images", photos), "cannot read image")
    tested = repper("evaluate", model, "--images", photos, "--skip-unreadable", "--json")
    assert answer(tested)["photos"] == 60


@pytest.mark.parametrize("command", ["predict", "remove"])
def test_a_pipe_a_folder_or_nothing_as_a_photo_is_a_sentence(repper, model, tmp_path, command):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "bad.png").write_text("no image")
    refused(repper(command, model, "pipe.png"), "pipe.png")
    refused(repper(command, model, "missing.png"), "missing.png", "there is no such file")
    refused(repper(command, model, "folder.png"), "there are no images")
    refused(repper(command, model, "bad.png"), "bad.png")


def test_few_photos_are_worth_a_note(repper, photos, place):
    for number, name in enumerate(("0", "1")):
        for gone in files(photos / "..")[:0] + sorted((photos / name).iterdir())[1 + 2 * number :]:
            gone.unlink()
    done = repper(
        "personalize", "--encoder", place / "encoder.onnx", "--images", photos, "--out", "m", "--json"
    )  # fmt: skip
    said = answer(done)
    assert said["photos"] == {"0": 1, "1": 3, "4": 15, "6": 15}
    assert [note.split(":")[0] for note in said["notes"]] == [
        "class '0' has one photo",
        "class '1' has 3 photos only",
        "class '4' has 15 photos and '0' 1",
    ]
    assert done.stderr.count("note: ") == 3
    assert answer(repper("predict", "m", photos / "0", "--json"))["predictions"][0]["class"] == "0"


def test_one_photo_of_each_of_two_classes_is_enough(repper, photos, place, tmp_path):
    for name in CLASSES:
        for gone in sorted((photos / name).iterdir())[1:]:
            gone.unlink()
    shutil.rmtree(photos / "4")
    shutil.rmtree(photos / "6")
    for kind in DEVICE_HEADS:
        done = personalize(place / "encoder.onnx", photos, tmp_path / kind, head=kind)
        assert done.held_out is None
        assert [a.name for a in Model.open(tmp_path / kind).predict(files(photos))] == ["0", "1"]
        assert read_model(tmp_path / kind).unknown is None


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
    assert "Photos of a class (row)" in shown


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


# What is wrong is said in one sentence


def test_folders_without_photos_are_refused(repper, place, photos, tmp_path):
    def personalized(images):
        return repper(
            "personalize", "--encoder", place / "encoder.onnx", "--images", images, "--out", "m"
        )

    (tmp_path / "empty").mkdir()
    (tmp_path / "no images" / "cats").mkdir(parents=True)
    (tmp_path / "no images" / "cats" / "notes.txt").write_text("")
    refused(personalized("missing"), "does not exist")
    refused(personalized("empty"), "empty")
    refused(personalized("no images"), "no images")
    refused(personalized(files(photos)[0]), "is a file, not a folder")
    refused(personalized(photos / "0"), "no class folders")
    for name in CLASSES[1:]:
        shutil.rmtree(photos / name)
    refused(personalized(photos), "needs photos of two classes", "photos of 1, '0'")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--head", "linaer"), ["unknown head", "did you mean 'linear'"]),
        (("--head", "own.py:Head"), ["unknown head"]),
        (("--head", "svm", "--head-lr", 1), ["--head-lr is not a setting of svm heads"]),
        (("--head-hidden", 3), ["--head-hidden is not a setting of linear heads"]),
        (("--head-lr", 0), ["--head-lr must be above 0"]),
        (("--head-lr", "fast"), ["--head-lr must be a number"]),
        (("--head-lr", 1e6, "--head-optimizer", "sgd"), ["diverged", "learning rate below"]),
        (("--head-optimizer", "lion"), ["unknown head optimizer", "adam, sgd"]),
        (("--seed", -1), ["--seed must be at least 0"]),
        (("--seed", "x"), ["--seed must be a whole number"]),
        (("--encoder", "missing.onnx"), ["there is no file missing.onnx"]),
        (("--encoder", "/"), ["not a model folder"]),
        (("--hed", "svm"), ["unknown option --hed", "did you mean --head?"]),
    ],
)
def test_wrong_settings_are_refused(repper, place, tmp_path, flags, words):
    refused(
        repper(
            "personalize", "--encoder", place / "encoder.onnx", "--images", place / "photos",
            "--out", "m", *flags,
        ),
        *words,
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_wrong_commands_are_refused(repper, model, place):
    photo = files(place / "tests")[0]
    refused(repper("predict", model), "at least one image")
    refused(repper("predict", photo, photo), "there is no model folder")
    refused(repper("predict", place / "photos", photo), "no model.json")
    refused(repper("predict", model, photo, "--client", 1), "--client needs --run")
    refused(repper("predict", "--run", model, photo), "--client N")
    refused(repper("play", model, "--port", 99999), "--port must be at most 65535")
    refused(repper("play", model, "--port", "x"), "--port must be a whole number")
    refused(repper("play", "missing"), "there is no model folder")
    refused(repper("play", model, "--html", "no/such/folder.html"), "cannot write")


PARTS = (
    "encoder.onnx",
    "head.safetensors",
    "unknown.safetensors",
    "photos.safetensors",
    "model.json",
)


def damages(data):
    """A file cut short, with a flipped bit in some places, emptied, of other content, and gone."""
    for length in (0, 1, 7, 8, 50, len(data) // 2, len(data) - 1):
        yield f"cut to {length}", data[:length]
    for place in np.linspace(0, len(data) - 1, 40).astype(int).tolist():
        flipped = bytearray(data)
        flipped[place] ^= 1 << (place % 8)
        yield f"flipped at {place}", bytes(flipped)
    yield "other", b"\x89PNG\r\n\x1a\n" * 40
    yield "zeros", bytes(len(data))
    yield "gone", None


@pytest.mark.parametrize("part", PARTS)
def test_damaged_files_are_refused_or_do_not_matter(repper, model, place, part):
    photo = files(place / "tests")[0]
    good = (model / part).read_bytes()
    healthy = repper("predict", model, photo, "--json").stdout
    others = {name: data for name, data in content(model).items() if name != part}
    for what, data in damages(good):
        if data is None:
            (model / part).unlink()
        else:
            (model / part).write_bytes(data)
        if part == "photos.safetensors":
            assert repper("predict", model, photo, "--json").stdout == healthy
            refused(repper("remove", model, "--class", "6"), part)
        elif (process := repper("predict", model, photo, "--json")).returncode == 0:
            assert part == "model.json", what  # a changed letter in a sentence for people
            assert process.stdout == healthy
        else:
            refused(process)
            if part != "model.json":
                refused(repper("play", model, "--html", "page.html"), part)
                refused(repper("add", model, "--images", place / "more"), part)
        assert {name: data for name, data in content(model).items() if name != part} == others
        (model / part).write_bytes(good)
    assert repper("predict", model, photo, "--json").stdout == healthy


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("encoder", None), ("encoder", []), ("encoder", 7), ("encoder", "encoder.onnx"),
        ("encoder.file", "../encoder.onnx"), ("encoder.file", "/etc/passwd"), ("encoder.file", ""),
        ("encoder.file", None), ("encoder.file", "model.json"), ("encoder.file", "no\x00file"),
        ("encoder.features", "64"), ("encoder.features", 63), ("encoder.digest", "0" * 64),
        ("encoder.sha256", "0" * 64), ("input", None), ("input.size", 10**400), ("input.size", 16),
        ("input.channels", 3),
        ("classes", "cat"), ("classes", [1, 2, 3, 4]), ("classes", {}), ("classes", ["0"]),
        ("classes", ["0", "1", "4", "\x1b[31m"]), ("classes", ["x"] * 100_000),
        ("head", []), ("head.kind", 3), ("head.digest", "0" * 64), ("head.file", "model.json"),
        ("head.file", "unknown.safetensors"),
        ("unknown", True), ("unknown.threshold", "far"), ("unknown.threshold", 10**400),
        ("unknown.file", "head.safetensors"),
        ("photos", 5), ("photos.count", -0.5), ("scores", []), ("versions", 1), ("licence", None),
        ("format", "repper-model-2"), ("format", None),
    ],
)  # fmt: skip
def test_a_description_of_the_wrong_types_is_refused(repper, model, place, key, value):
    notes = json.loads((model / "model.json").read_text())
    *way, last = key.split(".")
    inner = notes
    for step in way:
        inner = inner[step]
    inner[last] = value
    (model / "model.json").write_text(json.dumps(notes))
    said = refused(repper("predict", model, files(place / "tests")[0]))
    assert len(said) < 600
    refused(repper("add", model, "--images", place / "more"))


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "7", '"text"', "[" * 100_000, "{}", "NaN", '{"format": 1}', "\xff"]
)
def test_a_description_that_is_none_is_refused(repper, model, place, text):
    (model / "model.json").write_text(text, encoding="latin-1")
    refused(repper("predict", model, files(place / "tests")[0]), "model.json")
    refused(repper("play", model, "--html", "page.html"), "model.json")


@pytest.mark.parametrize(
    "scores",
    [
        {"head_settings": 5}, {"head_settings": {"lr": "fast"}}, {"head_settings": {"no": 1}},
        {"head_settings": None, "seed": "x"}, {"seed": None}, {"seed": -1}, {"seed": 1e400},
        {"head_settings": {"random_state": []}}, {"head_settings": [1]},
    ],
)  # fmt: skip
def test_damaged_settings_of_a_head_are_refused(repper, model, place, scores):
    notes = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps({**notes, "scores": scores}))
    before = content(model)
    refused(repper("add", model, "--images", place / "more"), "model.json")
    assert content(model) == before


def test_keys_of_later_versions_are_ignored(repper, model, place):
    notes = json.loads((model / "model.json").read_text())
    notes["encoder"]["colour"] = notes["later"] = {"x": 1}
    (model / "model.json").write_text(json.dumps(notes))
    assert repper("predict", model, files(place / "tests")[0]).returncode == 0


def test_the_head_of_another_encoder_is_refused(repper, model, place, tmp_path):
    (tmp_path / "other.onnx").write_bytes(pixel_encoder(digest="f" * 64, gain=2))
    personalize(tmp_path / "other.onnx", place / "photos", tmp_path / "other")
    notes = json.loads((model / "model.json").read_text())
    photo = files(place / "tests")[0]
    before = content(model)
    for part in ("head", "unknown"):
        shutil.copy(tmp_path / "other" / f"{part}.safetensors", model)
        refused(repper("predict", model, photo), "encoder")
        (model / f"{part}.safetensors").write_bytes(before[f"{part}.safetensors"])
    shutil.copy(tmp_path / "other" / "photos.safetensors", model)
    refused(repper("remove", model, "--class", "6"), "another encoder")
    # Another encoder with its checksum, but under the old digest.
    shutil.copy(tmp_path / "other" / "encoder.onnx", model)
    refused(repper("predict", model, photo), "not the encoder")
    other = read_model(tmp_path / "other")
    notes["encoder"]["sha256"] = other.encoder.sha256
    (model / "model.json").write_text(json.dumps(notes))
    refused(repper("predict", model, photo), "another encoder")


def test_int8_and_fp32_do_not_share_heads(repper, model, place, tmp_path, encoded):
    (tmp_path / "int8.onnx").write_bytes(pixel_encoder(digest="8" * 64, precision="int8"))
    command = ("personalize", "--encoder", "int8.onnx", "--images", place / "photos")
    said = answer(repper(*command, "--out", model, "--overwrite", "--json"))
    assert said["new"] == 60 == sum(encoded)  # features of fp32 are of no use
    notes = read_model(model)
    assert (notes.encoder.precision, notes.encoder.digest) == ("int8", "8" * 64)
    assert repper("predict", model, files(place / "tests")[0]).returncode == 0
    shutil.copy(place / "model" / "head.safetensors", model / notes.head.file)
    refused(repper("predict", model, files(place / "tests")[0]), "was fitted on encoder")


def test_names_of_classes_cannot_command_a_terminal(repper, place, photos, model, tmp_path):
    command = ("personalize", "--encoder", place / "encoder.onnx", "--images", photos, "--out", "m")
    for name in ("red\x1b[31m", "two\nlines"):
        (photos / "6").rename(photos / name)
        refused(repper(*command), "its name is not text")
        (photos / name).rename(photos / "6")
    names = ("\x1b[2J", "[bold]b", "日本語 👩‍🔬", "<script>")
    head = read_head(model / "head.safetensors")
    head = replace(head, names=names)
    head.save(model / "head.safetensors")
    notes = read_model(model)
    replace(notes, classes=names, head=replace(notes.head, digest=head.digest())).write(model)
    shown = repper("predict", model, place / "tests").stdout
    assert "\x1b" not in shown
    assert "[bold]b" in shown
    (tmp_path / "tests").mkdir()
    shutil.copytree(place / "tests" / "1", tmp_path / "tests" / "[bold]b")
    shown = repper("evaluate", model, "--images", "tests").stdout
    assert "\x1b" not in shown
    assert "[bold]b" in shown
    assert repper("play", model, "--html", "p.html").returncode == 0
    assert model_in((tmp_path / "p.html").read_text("utf-8"))["model"]["classes"] == list(names)


def test_names_in_errors_cannot_command_a_terminal(repper, model):
    album = read_album(model / "photos.safetensors", Model.open(model).encoder)
    labels = tuple(label.replace("6", "\x1b[2J") for label in album.labels)
    replace(album, labels=labels).save(model / "photos.safetensors")
    refused(repper("remove", model, "--class", "5"), "no class '5'", "[2J")


def test_a_kind_of_head_in_a_file_is_never_code(repper, model, place, tmp_path):
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('done').touch()\nHead = 1\n")
    head = replace(read_head(model / "head.safetensors"), kind="evil.py:Head")
    head.save(model / "head.safetensors")
    notes = read_model(model)
    replace(notes, head=replace(notes.head, digest=head.digest())).write(model)
    refused(repper("add", model, "--images", place / "more"))
    assert not (tmp_path / "done").exists()


def test_a_whole_head_file_that_does_not_fit_together_is_refused(tmp_path, model):
    head = read_head(model / "head.safetensors")
    for arrays in ({"bias": np.zeros(3)}, {"weight": np.zeros((4, 63))}, {"mean": np.zeros(())}):
        replace(head, arrays=head.arrays | arrays).save(tmp_path / "h.safetensors")
        with pytest.raises(RepperError, match="damaged"):
            read_head(tmp_path / "h.safetensors")
    nan = {"weight": np.full_like(head.arrays["weight"], np.nan)}
    for changed in (
        replace(head, names=("a",)),
        replace(head, names=(1, 2, 3, 4)),
        replace(head, classes=("0", "1", "2", "3")),
        replace(head, arrays=head.arrays | nan),
    ):
        changed.save(tmp_path / "h.safetensors")
        with pytest.raises(RepperError, match="damaged"):
            read_head(tmp_path / "h.safetensors")


@pytest.mark.parametrize("part", ["head", "unknown", "photos"])
def test_numbers_that_numpy_does_not_have_are_refused(repper, model, place, part):
    path = model / f"{part}.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    first = next(name for name in header if name != "__metadata__")
    start, end = header[first]["data_offsets"]
    header[first] |= {"dtype": "BF16", "shape": [(end - start) // 2]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    command = ("add", model, "--images", place / "more")
    if part != "photos":
        command = ("predict", model, files(place / "tests")[0])
    refused(repper(*command), path.name, "damaged")


def test_a_graph_that_is_no_encoder_is_refused(repper, place, photos, tmp_path):
    for wrong in (pixel_encoder(channels=2), pixel_encoder(digest="")):
        (tmp_path / "wrong.onnx").write_bytes(wrong)
        refused(
            repper("personalize", "--encoder", "wrong.onnx", "--images", photos, "--out", "m"),
            "is not an encoder of repper",
        )
    os.mkfifo(tmp_path / "pipe.onnx")
    refused(
        repper("personalize", "--encoder", "pipe.onnx", "--images", photos, "--out", "m"),
        "it is not a file",
    )
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "arrays",
    [
        {"threshold": np.zeros(0)}, {"threshold": np.array([np.nan])}, {"means": np.zeros((0, 64))},
        {"means": np.zeros((4, 63))}, {"whiten": np.zeros((64, 63))}, {"whiten": np.zeros(64)},
    ],
)  # fmt: skip
def test_a_rule_that_does_not_fit_together_is_refused(repper, model, place, arrays):
    rule = Unknown(np.zeros((4, 64)), np.eye(64), 1.0, read_model(model).encoder.digest)
    header = {"format": "repper-unknown-1", "encoder": rule.encoder}
    all_arrays = {
        name: np.asarray(array, np.float32) for name, array in (rule._arrays() | arrays).items()
    }
    save_file(all_arrays, model / "unknown.safetensors", metadata=header)
    refused(repper("predict", model, files(place / "tests")[0]), "unknown.safetensors")


# The page


def model_in(page):
    [data] = re.findall(r'<script id="model" type="application/json">(.*?)</script>', page)
    return json.loads(data)


def test_the_page_holds_the_model(repper, model, tmp_path):
    said = repper("play", model, "--html", "page.html")
    assert said.returncode == 0
    assert "open it in a browser" in said.stdout
    found = model_in((tmp_path / "page.html").read_text("utf-8"))
    assert found["model"] == json.loads((model / "model.json").read_text())
    for part, file in (("encoder", "encoder.onnx"), ("head", "head.safetensors"),
                       ("unknown", "unknown.safetensors")):  # fmt: skip
        assert base64.b64decode(found[part]) == (model / file).read_bytes()
    write_model(tmp_path / "bare", pixel_encoder())
    assert repper("play", "bare", "--html", "page.html").returncode == 0
    found = model_in((tmp_path / "page.html").read_text("utf-8"))
    assert (found["head"], found["unknown"], found["model"]["classes"]) == (None, None, None)


@pytest.fixture
def served(model):
    """A running `repper play`, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "repper", "play", str(model), "--no-browser"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        yield process, int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/ .*\n", line)[1])
    finally:
        process.kill()
        process.communicate()


def ask(port, path="/", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_the_page_is_served_to_this_machine_only(served, model):
    process, port = served
    status, page = ask(port)
    assert status == 200
    assert model_in(page)["model"] == json.loads((model / "model.json").read_text())
    assert ask(port, Host=f"localhost:{port}")[0] == 200
    assert ask(port, Host="127.0.0.1")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "[::1]"):
        status, page = ask(port, Host=host)
        assert status == 403
        assert "encoder" not in page
    for path in ("/model.json", "/../../etc/passwd", "/?x"):
        assert ask(port, path)[0] == 404
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")


def test_a_port_in_use_is_a_sentence(served, repper, model):
    _, port = served
    refused(repper("play", model, "--port", port, "--no-browser"), f"port {port}", "--port")
