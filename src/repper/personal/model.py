"""Predict with a model folder, also `unknown` for images unlike its photos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from repper.basics.errors import RepperError
from repper.edge.model_folder import MODEL, ModelNotes, read_model
from repper.edge.onnx_encoder import OnnxEncoder
from repper.edge.saved_head import Array, SavedHead
from repper.edge.unknown import Unknown, read_unknown
from repper.personal.photos import features_of


@dataclass(frozen=True)
class Answer:
    """A prediction: class probabilities, largest first, and whether the image is unknown."""

    chances: tuple[tuple[str, float], ...]
    unknown: bool

    @property
    def name(self) -> str:
        return self.chances[0][0]


@dataclass(frozen=True)
class Model:
    folder: Path
    notes: ModelNotes
    encoder: OnnxEncoder
    head: SavedHead | None
    unknown: Unknown | None

    @classmethod
    def open(cls, folder: Path) -> Model:
        """Open a model folder of `repper export` or `repper personalize`."""
        notes = read_model(folder)
        encoder = OnnxEncoder(notes.encoder_bytes(folder), str(folder / notes.encoder.file))
        said = notes.encoder.digest, notes.encoder.features, notes.input.size, notes.input.channels
        if said != (encoder.digest, encoder.features, encoder.size, encoder.channels):
            raise RepperError(
                f"{folder / MODEL} describes another encoder than {notes.encoder.file}: copy the "
                f"whole folder again"
            )
        head, unknown = notes.read_head(folder), None
        if notes.unknown is not None:
            unknown = read_unknown(folder / notes.unknown.file, encoder.digest)
        return cls(folder, notes, encoder, head, unknown)

    @property
    def classifier(self) -> SavedHead:
        """The head; an error if the folder has none."""
        if self.head is None:
            raise RepperError(
                f"{self.folder} holds an encoder without a head: fit one with repper personalize "
                f"--encoder {self.folder} --images FOLDER --out MODEL"
            )
        return self.head

    def predict(self, photos: Sequence[Path]) -> list[Answer]:
        """Predict each photo."""
        head = self.classifier
        features, _ = features_of(photos, self.encoder)
        return self.answers(features, head)

    def answers(self, features: Array, head: SavedHead) -> list[Answer]:
        chances = head.probabilities(features)
        far = np.zeros(len(features), bool)
        if self.unknown is not None:
            far = self.unknown.is_unknown(features)
        found = []
        for row, strange in zip(chances, far, strict=True):
            order = np.argsort(-row, kind="stable")
            named = tuple((head.names[place], float(row[place])) for place in order)
            found.append(Answer(named, bool(strange)))
        return found
