"""Test a model on photos that it was not fitted on, without scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from repper.basics.errors import RepperError
from repper.edge.onnx_encoder import OnnxEncoder
from repper.edge.saved_head import SavedHead
from repper.edge.unknown import Unknown
from repper.personal.model import Model
from repper.personal.photos import Photo, features_of, photos_in


@dataclass(frozen=True)
class Evaluation:
    """Results on photos of known classes, and of unknown classes, which should be `unknown`.

    `confusion[i, j]` are photos of class i that were called j, in the order of `classes`.
    """

    classes: tuple[str, ...]
    confusion: NDArray[np.int64]
    called_unknown: int | None
    strangers: int
    strangers_unknown: int | None
    unreadable: tuple[Path, ...]

    @property
    def photos(self) -> int:
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float | None:
        return 100 * float(np.trace(self.confusion)) / self.photos if self.photos else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the accuracy, by Wilson, which holds for few photos, too."""
        if not self.photos:
            return None
        n, right, z = self.photos, float(np.trace(self.confusion)), 1.959964
        middle = (right + z * z / 2) / (n + z * z)
        half = z / (n + z * z) * float(np.sqrt(right * (n - right) / n + z * z / 4))
        return 100 * max(0.0, middle - half), 100 * min(1.0, middle + half)


def evaluate(model: Path, images: Path, *, skip_unreadable: bool = False) -> Evaluation:
    """Test a model on photos in `images`, with a folder per class, or in its test/."""
    photos = photos_in(images)
    if any(photo.part == "test" for photo in photos):
        photos = [photo for photo in photos if photo.part == "test"]
    opened = Model.open(model)
    return tested_on(opened.encoder, opened.classifier, opened.unknown, photos, skip_unreadable)


def tested_on(
    encoder: OnnxEncoder,
    head: SavedHead,
    unknown: Unknown | None,
    photos: Sequence[Photo],
    skip_unreadable: bool,
) -> Evaluation:
    """Test a head on photos of known and unknown classes."""
    names = head.names
    found, bad = features_of(
        [photo.path for photo in photos], encoder, skip_unreadable=skip_unreadable
    )
    keep = np.setdiff1d(np.arange(len(photos)), bad)
    place = {name: number for number, name in enumerate(names)}
    truth = np.array([place.get(photo.label, -1) for photo in photos], np.int64)[keep]
    features = found[keep]
    if not len(truth):
        raise RepperError("there are no readable photos to test on")
    known = truth >= 0
    confusion = np.zeros((len(names), len(names)), np.int64)
    if known.any():
        np.add.at(confusion, (truth[known], head.scores(features[known]).argmax(1)), 1)
    far = unknown.is_unknown(features) if unknown is not None else None
    return Evaluation(
        names,
        confusion,
        None if far is None else int(far[known].sum()),
        int((~known).sum()),
        None if far is None else int(far[~known].sum()),
        tuple(photos[row].path for row in bad),
    )
