"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): hub copies, python and binary batches, archives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from repper.basics.errors import RepperError
from repper.data.dataset import Dataset, Split
from repper.data.fetch import Remote, fetch, unpack
from repper.data.hub import HubCopy
from repper.data.location import Request, check_md5, counted, not_found
from repper.data.unpickle import read_arrays

CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR100 = tuple(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
    crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
    lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm""".split()
)
SITES = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
"""The authors' address, and the one that it leads to since the site moved."""
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Batches:
    """An official archive: the name of its folder, and its training and test files.

    `md5` holds the checksums of the files. None are published for the single binary files, so
    those are checked by size and labels only, and the binary archives as a whole.
    """

    archive: Remote
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    md5: dict[str, str]
    labels: str
    label_bytes: int
    """Bytes before the pixels of a binary record, the last of which is the label; 0: a pickle."""

    def find(self, folders: Sequence[Path]) -> Path | None:
        """The folder of the batches, unpacked from its archive if only that is there."""
        for folder in folders:
            for place in (folder / self.folder, folder):
                if (place / self.train[0]).is_file() and (place / self.test[0]).is_file():
                    return place
            archive = folder / self.archive.name
            if archive.is_file():
                check_md5(archive, self.archive.md5)
                unpack(archive, self.folder, folder / self.folder)
                return folder / self.folder
        return None

    def read(self, folder: Path, classes: int) -> tuple[Split, Split]:
        train, test = (
            [self._file(folder / name, classes) for name in names]
            for names in (self.train, self.test)
        )
        return _joined(train), _joined(test)

    def _file(self, path: Path, classes: int) -> Split:
        if not path.is_file():
            raise RepperError(
                f"{path} is missing: {self.folder} must contain all files of the data set"
            )
        if self.label_bytes:
            return read_binary(path, self.label_bytes, classes)
        check_md5(path, self.md5[path.name])
        content = read_arrays(path)
        return Split(
            np.asarray(content["data"], np.uint8).reshape(-1, 3, 32, 32),
            np.asarray(content[self.labels], np.int64),
        )


def read_binary(path: Path, label_bytes: int, classes: int) -> Split:
    """A binary batch: records of one or two labels, the last of which counts, and the pixels."""
    content: NDArray[np.uint8] = np.fromfile(path, np.uint8)
    length = label_bytes + PIXELS
    if not len(content) or len(content) % length:
        raise RepperError(
            f"{path} is truncated or not a CIFAR file: its size, {len(content)} bytes, is not a "
            f"multiple of a record's {length} bytes"
        )
    records = content.reshape(-1, length)
    labels = records[:, label_bytes - 1].astype(np.int64)
    if labels.max() >= classes:
        row = int(np.argmax(labels >= classes))
        raise RepperError(
            f"{path}: record {row} has label {labels[row]}, but labels are 0 to {classes - 1}"
        )
    return Split(records[:, label_bytes:].reshape(-1, 3, 32, 32), labels)


def _joined(splits: Sequence[Split]) -> Split:
    return Split(
        np.concatenate([split.images for split in splits]),
        np.concatenate([split.labels for split in splits]),
    )


def _remote(name: str, md5: str) -> Remote:
    return Remote(name, md5, tuple(site + name for site in SITES))


_TEN = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR10_BATCHES = (
    Batches(
        _remote("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
        "cifar-10-batches-py",
        _TEN,
        ("test_batch",),
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
        labels="labels",
        label_bytes=0,
    ),
    Batches(
        _remote("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        "cifar-10-batches-bin",
        tuple(f"{name}.bin" for name in _TEN),
        ("test_batch.bin",),
        {},
        labels="",
        label_bytes=1,
    ),
)
CIFAR100_BATCHES = (
    Batches(
        _remote("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
        "cifar-100-python",
        ("train",),
        ("test",),
        {
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
        labels="fine_labels",
        label_bytes=0,
    ),
    Batches(
        _remote("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
        "cifar-100-binary",
        ("train.bin",),
        ("test.bin",),
        {},
        labels="",
        label_bytes=2,
    ),
)


def cifar10(request: Request) -> Dataset:
    hub = HubCopy("plain_text", "img", "label", 3, 32)
    folders = request.folders("cifar10", "CIFAR10", "cifar-10", "CIFAR-10")
    return _cifar("cifar10", CIFAR10, hub, CIFAR10_BATCHES, folders, request)


def cifar100(request: Request) -> Dataset:
    hub = HubCopy("cifar100", "img", "fine_label", 3, 32)
    folders = request.folders("cifar100", "CIFAR100", "cifar-100", "CIFAR-100")
    return _cifar("cifar100", CIFAR100, hub, CIFAR100_BATCHES, folders, request)


def _cifar(
    name: str,
    classes: tuple[str, ...],
    hub: HubCopy,
    kinds: tuple[Batches, ...],
    folders: list[Path],
    request: Request,
) -> Dataset:
    parts = hub.read(folders, request) or _batches(kinds, folders, len(classes))
    if parts is None and request.download:
        fetch(kinds[0].archive, folders[0])
        parts = _batches(kinds, folders, len(classes))
    if parts is None:
        raise not_found(name, request)
    train, test = parts
    note = counted(len(train), len(test), of=(50_000, 10_000))
    return Dataset(name, classes, train, test, flip=True, note=note)


def _batches(
    kinds: tuple[Batches, ...], folders: list[Path], classes: int
) -> tuple[Split, Split] | None:
    for kind in kinds:
        if folder := kind.find(folders):
            return kind.read(folder, classes)
    return None
