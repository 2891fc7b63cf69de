"""Convert a data set to other channels and sizes, or take a subset."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from PIL import Image

from repper.basics.errors import RepperError
from repper.basics.seeds import Purpose, stream
from repper.data.dataset import Dataset, Split
from repper.data.images import fitted


def shaped(data: Dataset, channels: int, size: int) -> Dataset:
    """The data set with these channels and this image size, converted as image files are."""
    if (data.channels, data.size) == (channels, size):
        return data
    return replace(
        data,
        train=_shaped(data.train, channels, size),
        test=_shaped(data.test, channels, size),
    )


def _shaped(split: Split, channels: int, size: int) -> Split:
    images = np.empty((len(split), channels, size, size), np.uint8)
    for row, image in enumerate(split.images):
        pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        images[row] = fitted(Image.fromarray(pixels), channels, size)
    return Split(images, split.labels)


def part_of(data: Dataset, count: int) -> Dataset:
    """The data set with a stratified subset of `count` training images.

    The part is always the same, whatever the seed of a run. Where clients own the images, each
    client's classes keep their shares.
    """
    if count > len(data.train):
        raise RepperError(
            f"--train-images must be at most {len(data.train)}, the training images of "
            f"{data.name!r}, got {count}"
        )
    owners = data.owners[0] if data.owners else np.zeros(len(data.train), np.int64)
    groups = owners * len(data.classes) + data.train.labels
    found, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if count < len(found):
        raise RepperError(
            f"--train-images must be at least {len(found)} for {data.name!r}, "
            f"one for each class{' of each client' if data.owners else ''}, got {count}"
        )
    rng = stream(0, Purpose.DATA_PART)
    place = np.empty(len(groups))
    for number, size in enumerate(sizes):
        # Places from 0 up to 1: the lowest of all groups together are a share of each.
        place[group == number] = rng.permutation(size) / size
    rows = np.sort(np.argsort(place, kind="stable")[:count])
    return replace(
        data,
        train=Split(data.train.images[rows], data.train.labels[rows]),
        owners=(data.owners[0][rows], data.owners[1]) if data.owners else None,
        note=f"{count} of {data.note or f'{len(data.train)} train images'}",
    )
