"""Detect images that are unlike all training photos: too far from every class."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from repper.basics.errors import RepperError
from repper.basics.tensor_files import read_sealed, write_sealed
from repper.edge.saved_head import Array

FORMAT = "repper-unknown-1"
TENSORS = ("means", "whiten", "threshold")


@dataclass(frozen=True)
class Unknown:
    """The rule for `unknown`: Mahalanobis distance to the class means (Lee et al. 2018).

    `means` (k, d) are of classes. Times `whiten` (d, d), classes spread by one in all directions.
    """

    means: Array
    whiten: Array
    threshold: float
    encoder: str

    def distances(self, features: Array) -> Array:
        """The distance of each image (n, d) to the nearest class."""
        x, means = features @ self.whiten, self.means @ self.whiten
        squares = (x**2).sum(1)[:, None] - 2 * x @ means.T + (means**2).sum(1)[None]
        result: Array = np.sqrt(np.maximum(squares, 0)).min(1)
        return result

    def is_unknown(self, features: Array) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = self.distances(features) > self.threshold
        return result

    def save(self, path: Path) -> None:
        arrays = self._arrays()
        header = {"format": FORMAT, "encoder": self.encoder, "digest": _digest(arrays)}
        write_sealed(path, save(arrays, metadata=header))

    def digest(self) -> str:
        return _digest(self._arrays())

    def _arrays(self) -> dict[str, Array]:
        threshold = np.array([self.threshold], np.float32)
        found = {"means": self.means, "whiten": self.whiten, "threshold": threshold}
        return {name: np.ascontiguousarray(a, np.float32) for name, a in found.items()}


def read_unknown(path: Path, encoder: str) -> Unknown:
    """Read the rule of a model folder, for the encoder with this digest."""
    arrays, header = read_sealed(path, "np")
    whole = (
        set(arrays) == set(TENSORS)
        and header.get("digest") in (None, _digest(arrays))
        and _fit_together(**arrays)
    )
    if header.get("format") != FORMAT or not whole:
        raise RepperError(f"{path} is damaged, or of another version of repper ({FORMAT})")
    if header.get("encoder") != encoder:
        raise RepperError(f"{path} belongs to another encoder: copy the whole folder again")
    return Unknown(arrays["means"], arrays["whiten"], float(arrays["threshold"][0]), encoder)


def _fit_together(means: Array, whiten: Array, threshold: Array) -> bool:
    square = whiten.ndim == 2 and whiten.shape[0] == whiten.shape[1]
    finite = all(np.isfinite(array).all() for array in (means, whiten, threshold))
    suits = means.ndim == 2 and len(means) > 0 and means.shape[1:] == whiten.shape[1:]
    return square and suits and threshold.shape == (1,) and finite


def _digest(arrays: dict[str, Array]) -> str:
    sha = hashlib.sha256()
    for name in TENSORS:
        sha.update(f"{name} {arrays[name].shape}\n".encode())
        sha.update(np.ascontiguousarray(arrays[name], np.float32).tobytes())
    return sha.hexdigest()
