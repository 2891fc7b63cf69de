"""What is wrong is said in one sentence, and nothing is half-written."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from repper.basics.documents import read_json
from repper.basics.errors import RepperError
from repper.checks import verify
from repper.checks.check import WRONG
from repper.edge.model_folder import read_model
from repper.edge.saved_head import read_head
from repper.edge.unknown import Unknown
from repper.personal.album import read_album
from repper.personal.model import Model
from repper.personal.personalize import personalize

from .commands import answer, content, files, model_in, refused
from .tiny_model import (
    CLASSES,
    pixel_encoder,
)


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
    refused(personalized(photos), "needs photos of at least two classes", "photos of 1, '0'")
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
    notes = read_json(model / "model.json")
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
    notes = read_json(model / "model.json")
    (model / "model.json").write_text(json.dumps({**notes, "scores": scores}))
    before = content(model)
    refused(repper("add", model, "--images", place / "more"), "model.json")
    assert content(model) == before


def test_keys_of_later_versions_are_ignored(repper, model, place):
    notes = read_json(model / "model.json")
    notes["encoder"]["colour"] = notes["later"] = {"x": 1}
    (model / "model.json").write_text(json.dumps(notes))
    assert repper("predict", model, files(place / "tests")[0]).returncode == 0


def test_the_head_of_another_encoder_is_refused(repper, model, place, tmp_path):
    (tmp_path / "other.onnx").write_bytes(pixel_encoder(digest="f" * 64, gain=2))
    personalize(tmp_path / "other.onnx", place / "photos", tmp_path / "other")
    notes = read_json(model / "model.json")
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


def test_a_changed_byte_anywhere_in_a_model_is_found(repper, model, place):
    """By `verify`; and `predict` refuses it or answers as before."""
    photo = files(place / "tests")[0]

    def predicted():
        opened = Model.open(model)
        read_album(model / opened.notes.photos.file, opened.encoder)
        return opened.predict([photo])

    good, random = predicted(), np.random.default_rng(0)
    done = repper("verify", model)
    assert done.returncode == 0, done.stderr
    assert [line.split(", ")[0] for line in done.stdout.splitlines()] == [
        "description: OK", "encoder: OK", "head: OK", "unknown: OK", "photos: OK",
    ]  # fmt: skip
    for name, data in content(model).items():
        for _ in range(25):
            changed = bytearray(data)
            changed[random.integers(len(data))] ^= 1 << int(random.integers(8))
            (model / name).write_bytes(changed)
            assert WRONG in {one.status for one in verify(model)}, name
            with suppress(RepperError):
                assert predicted() == good
        (model / name).write_bytes(data)
    refused(repper("verify", model / "head.safetensors", "--no-such-flag"), "unknown option")
    assert repper("verify", model / "head.safetensors").returncode == 0
