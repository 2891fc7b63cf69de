"""Feature shift: each client's images get their own rotation, contrast or colours.

With it, the same class looks different at different clients, as from other cameras or scanners.
A partition alone gives clients another mix of classes, but images of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from repper.basics.errors import RepperError
from repper.basics.seeds import Purpose, stream
from repper.data.dataset import Dataset, Split
from repper.data.partition import Partition

Images = NDArray[np.uint8]
SHIFTS = ("none", "rotation", "contrast", "colour")


def shifted(data: Dataset, partition: Partition, kind: str, seed: int) -> Dataset:
    """Apply each client's own change to its images.

    - `rotation`: by 0, 90, 180 or 270 degrees;
    - `contrast`: contrast times 0.25 to 1, and a brightness of its own;
    - `colour`: the three channels in an order of its own, each with its own strength.
    """
    if kind == "none":
        return data
    images = [split.images.copy() for split in (data.train, data.test)]
    for client in range(partition.clients):
        change = _CHANGES[kind](stream(seed, Purpose.SHIFT, client))
        for own, rows in zip(
            images, (partition.train[client], partition.test[client]), strict=True
        ):
            own[rows] = change(own[rows])
    train, test = (
        Split(own, split.labels) for own, split in zip(images, (data.train, data.test), strict=True)
    )
    return replace(data, train=train, test=test)


def check_shift(data: Dataset, kind: str) -> None:
    """Refuse a shift that does not suit these images."""
    if kind == "colour" and data.channels == 1:
        raise RepperError(f"--shift colour needs colour images, but {data.name!r} has grey images")


def _rotation(random: np.random.Generator) -> Callable[[Images], Images]:
    turns = int(random.integers(4))
    return lambda images: np.rot90(images, turns, axes=(2, 3))


def _contrast(random: np.random.Generator) -> Callable[[Images], Images]:
    factor = 0.25 ** random.random()
    # Black and white stay within 0 to 255: nothing is cut off.
    shift = (255 - 255 * factor) * random.random()
    return lambda images: np.rint(images * factor + shift).astype(np.uint8)


def _colour(random: np.random.Generator) -> Callable[[Images], Images]:
    order = random.permutation(3)
    strengths = random.uniform(0.4, 1.0, (1, 3, 1, 1))
    return lambda images: np.rint(images[:, order] * strengths).astype(np.uint8)


_CHANGES = {"rotation": _rotation, "contrast": _contrast, "colour": _colour}
