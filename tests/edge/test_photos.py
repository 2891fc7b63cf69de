"""Photos as people have them."""

from __future__ import annotations

import os
import shutil
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from repper.edge.model_folder import read_model
from repper.edge.onnx_encoder import OnnxEncoder
from repper.heads import DEVICE_HEADS
from repper.personal.classifier import PersonalClassifier
from repper.personal.model import Model
from repper.personal.personalize import personalize
from repper.personal.photos import features_of

from .commands import answer, files, refused
from .tiny_model import (
    CLASSES,
    pixel_encoder,
)


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
        "class '0' has one photo, so its accuracy cannot be measured",
        "class '1' has only 3 photos",
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
