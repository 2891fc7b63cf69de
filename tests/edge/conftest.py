"""Photos of digits, an encoder whose features are their pixels, and a model of both."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from repper.edge.onnx_encoder import OnnxEncoder
from repper.personal.personalize import personalize

from .tiny_model import pixel_encoder, write_photos


@pytest.fixture(scope="session")
def place(tmp_path_factory, digits) -> Path:
    """encoder.onnx, folders of photos to learn from, to add and to test on, and a model."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "encoder.onnx").write_bytes(pixel_encoder())
    write_photos(folder / "photos", digits.train, 15)
    write_photos(folder / "more", digits.train, 3, skip=15)
    write_photos(folder / "tests", digits.test, 20)
    personalize(folder / "encoder.onnx", folder / "photos", folder / "model")
    return folder


@pytest.fixture
def model(place, tmp_path) -> Path:
    """A model of one's own, linear, on 15 photos of each of four digits."""
    return Path(shutil.copytree(place / "model", tmp_path / "model"))


@pytest.fixture
def photos(place, tmp_path) -> Path:
    """Photos of one's own: the ones that the model was fitted on."""
    return Path(shutil.copytree(place / "photos", tmp_path / "photos"))


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
