"""A data set: images and labels in memory, without PyTorch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from repper.basics.errors import RepperError
from repper.basics.options import check_kind

LARGEST = 4096
"""The largest side of an image, in pixels."""


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels.

    `images` are uint8, 0 to 255, of shape (n, channels, size, size) with 1 or 3 channels; images of
    shape (n, size, size, 3) become that by `images.transpose(0, 3, 1, 2)`. `labels` are whole
    numbers of shape (n,), from 0 on.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in ("images", "labels"):
            check_kind(f"{name} of a Split", getattr(self, name), np.ndarray, "a numpy array")
        # Plain writable memory, because PyTorch will look at it without copying.
        plain = np.require(self.images, requirements=["C", "W"])
        object.__setattr__(self, "images", plain)
        if np.issubdtype(np.asarray(self.labels).dtype, np.integer):
            labels = np.require(self.labels, np.int64, ["C", "W"])
            object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training images and test images, with the names of their classes.

        data = repper.Dataset(
            name="shapes",
            classes=("circle", "square"),
            train=repper.Split(train_images, train_labels),
            test=repper.Split(test_images, test_labels),
        )
        run = repper.run(data, clients=10, rounds=5)

    `name` is shown in tables and names folders. A label is the place of its class in `classes`.
    `flip` says whether a mirrored image still shows its class (not so for digits). `note` tells a
    reader what part of the original data set this is. Where images belong to real clients,
    `clients` names them and `owners` has the client of each training and each test image.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split
    flip: bool = True
    note: str = ""
    clients: tuple[str, ...] = ()
    owners: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def __post_init__(self) -> None:
        for name, kind, said in (
            ("name", str, "text"), ("classes", tuple | list, "names of classes"),
            ("train", Split, "repper.Split(images, labels)"),
            ("test", Split, "repper.Split(images, labels)"),
            ("flip", bool, "true or false"), ("note", str, "text"),
            ("clients", tuple | list, "names of clients"),
        ):  # fmt: skip
            check_kind(f"{name} of a Dataset", getattr(self, name), kind, said)
        for name in ("classes", "clients"):
            object.__setattr__(self, name, _names(f"data set {self.name!r}, {name}", self, name))
        for part, split in (("train", self.train), ("test", self.test)):
            where = f"data set {self.name!r}, {part}"
            shape = split.images.shape
            if split.images.dtype != np.uint8 or len(shape) != 4 or shape[2] != shape[3]:
                raise RepperError(
                    f"{where}: images must be uint8 of shape (n, channels, size, size), "
                    f"got {split.images.dtype} {shape}"
                )
            if shape[1] not in (1, 3):
                raise RepperError(f"{where}: images must have 1 or 3 channels, got {shape[1]}")
            if split.labels.shape != shape[:1]:
                raise RepperError(
                    f"{where}: {shape[0]} images but labels of shape {split.labels.shape}"
                )
            if shape[0] == 0:
                raise RepperError(f"{where} is empty: it needs at least one image")
            if not np.issubdtype(split.labels.dtype, np.integer):
                raise RepperError(f"{where}: labels must be integers, got {split.labels.dtype}")
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= len(self.classes):
                raise RepperError(
                    f"{where}: labels must be 0 to {len(self.classes) - 1}, got {low} to {high}"
                )
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            raise RepperError(
                f"data set {self.name!r}: train images are {self.train.images.shape[1:]} "
                f"but test images are {self.test.images.shape[1:]}"
            )

        self._check_owners()

    def _check_owners(self) -> None:
        if bool(self.clients) != (self.owners is not None):
            raise RepperError(f"data set {self.name!r}: give both clients and owners, or neither")
        if self.owners is not None and not (
            isinstance(self.owners, tuple) and len(self.owners) == 2
        ):
            raise RepperError(
                f"data set {self.name!r}: owners must be two arrays, one for train and one for test"
            )
        for owners, split in zip(self.owners or (), (self.train, self.test), strict=False):
            check_kind(f"data set {self.name!r}: owners", owners, np.ndarray, "numpy arrays")
            if (
                not np.issubdtype(owners.dtype, np.integer)
                or owners.shape != split.labels.shape
                or not (0 <= owners.min() <= owners.max() < len(self.clients))
            ):
                raise RepperError(
                    f"data set {self.name!r}: owners must name one of {len(self.clients)} clients "
                    f"for each image"
                )

    @property
    def channels(self) -> int:
        return int(self.train.images.shape[1])

    @property
    def size(self) -> int:
        return int(self.train.images.shape[2])

    @cached_property
    def digest(self) -> str:
        """A SHA-256 over all images, labels and class names."""
        sha = hashlib.sha256("\n".join(self.classes).encode())
        for split in (self.train, self.test):
            sha.update(repr(split.images.shape).encode())
            sha.update(np.ascontiguousarray(split.images).data)
            sha.update(np.ascontiguousarray(split.labels.astype("<i8", copy=False)).data)
        return sha.hexdigest()


def _names(where: str, data: Dataset, field: str) -> tuple[str, ...]:
    """Check that names differ, and return them as a tuple."""
    names = tuple(getattr(data, field))
    seen = set[str]()
    for name in names:
        check_kind(where, name, str, "names, each a text")
        if not name or name in seen:
            raise RepperError(f"{where}: {name!r} {'stands there twice' if name else 'is no name'}")
        seen.add(name)
    return names


def set_apart(data: Dataset, share: float, random: np.random.Generator) -> Dataset:
    """The training images, with a held-out share of each class (of each client) as test images."""
    labels = data.train.labels
    owners = data.owners[0] if data.owners is not None else np.zeros_like(labels)
    chosen = np.zeros(len(labels), bool)
    for owner, label in np.unique(np.stack([owners, labels], 1), axis=0):
        rows = random.permutation(np.flatnonzero((owners == owner) & (labels == label)))
        chosen[rows[: round(share * len(rows))]] = True
    if not chosen.any() or chosen.all():
        raise RepperError(
            f"data set {data.name!r} has too few training images to hold out {share:.0%} of each "
            f"class"
        )
    train, test = (Split(data.train.images[part], labels[part]) for part in (~chosen, chosen))
    note = f"{len(train)} training images; {len(test)} more held out to choose hyperparameters"
    parts = (owners[~chosen], owners[chosen]) if data.owners is not None else None
    return replace(data, train=train, test=test, note=note, owners=parts)
