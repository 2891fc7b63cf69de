"""A model is replaced whole or not at all, by one command at a time."""

from __future__ import annotations

import pytest

from repper.basics.errors import RepperError
from repper.basics.files import alone_in
from repper.edge.model_folder import ModelNotes, read_model
from repper.personal.model import Model
from repper.personal.personalize import add, personalize, remove

from .commands import answer, content, files, refused
from .tiny_model import (
    CLASSES,
)


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
    refused(repper(*command, "--out", model, "--overwrite"), strange, "is not a model folder")
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
