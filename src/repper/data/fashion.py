"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): idx files, or the parquet files of its hub copy."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from repper.basics.errors import RepperError
from repper.data.dataset import Dataset, Split
from repper.data.fetch import Remote, fetch
from repper.data.hub import HubCopy
from repper.data.location import Request, counted, not_found

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
    "Ankle boot",
)  # fmt: skip
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts the files (compressed anew: other md5 sums)."""
SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
MOST_BYTES = 10**9
"""The numbers that an idx file may hold; the largest of the data set holds 47 million."""
REMOTES = tuple(Remote(name, md5, (SITE + name,)) for name, md5 in MD5.items())


def fashion_mnist(request: Request) -> Dataset:
    folders = request.folders("fashion-mnist", "FashionMNIST", "fashion_mnist", "Fashion-MNIST")
    hub = HubCopy("fashion_mnist", "image", "label", 1, 28)
    parts = hub.read(folders, request) or _idx([*folders, DEBIAN])
    if parts is None and request.download:
        for remote in REMOTES:
            fetch(remote, folders[0])
        parts = _idx(folders)
    if parts is None:
        raise not_found("fashion-mnist", request)
    train, test = parts
    note = counted(len(train), len(test), of=(60_000, 10_000))
    return Dataset("fashion-mnist", CLASSES, train, test, flip=True, note=note)


def _idx(folders: Sequence[Path]) -> tuple[Split, Split] | None:
    """Train and test from the first folder that has all four files (`raw/` is torchvision's)."""
    for place in (p for folder in folders for p in (folder, folder / "raw")):
        found = [_file(place, name.removesuffix(".gz")) for name in MD5]
        paths = [path for path in found if path is not None]
        if len(paths) == len(MD5):
            arrays = [read_idx(path) for path in paths]
            for path, array in zip(paths, arrays, strict=True):
                if array.shape[1:] not in ((), (28, 28)) or ("images" in path.name) != (
                    array.ndim == 3
                ):
                    raise RepperError(
                        f"{path} has an array of the wrong shape for its name: {array.shape}"
                    )
            train, test = (
                Split(images[:, None], labels.astype(np.int64))
                for images, labels in (arrays[:2], arrays[2:])
            )
            return train, test
    return None


def _file(folder: Path, name: str) -> Path | None:
    names = (name, f"{name}.gz")
    dotted = tuple(n.replace("-idx", ".idx") for n in names)
    return next((folder / n for n in names + dotted if (folder / n).is_file()), None)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An idx file of bytes, compressed or not: a header with the shape, then the numbers.

    Never more is unpacked than the header says, as a small file can unpack to any size.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.open(raw) if packed else raw as file:
                return _read_idx(path, file)
    except (OSError, EOFError, zlib.error) as error:
        raise RepperError(f"{path} is truncated or damaged: {error}") from error


def _read_idx(path: Path, file: BinaryIO | gzip.GzipFile) -> NDArray[np.uint8]:
    # Two zeros, 8 for bytes, the number of dimensions, and each dimension in four bytes.
    start = file.read(4)
    dimensions = start[3] if start[:3] == b"\0\0\x08" and len(start) == 4 else 0
    sizes = file.read(4 * dimensions)
    if not 1 <= dimensions <= 3 or len(sizes) < 4 * dimensions:
        raise RepperError(f"{path} is not an idx file of bytes")
    shape = tuple(int(n) for n in np.frombuffer(sizes, ">u4"))
    expected = math.prod(shape)
    if expected > MOST_BYTES:
        raise RepperError(
            f"{path} is damaged, or not a file of this data set: its header says {expected} "
            f"bytes, above the limit of {MOST_BYTES}"
        )
    content = file.read(expected)
    if len(content) < expected or file.read(1):
        follow = "more" if len(content) == expected else f"{len(content)}"
        raise RepperError(
            f"{path} is truncated or damaged: its header says {expected} bytes, but {follow} follow"
        )
    return np.frombuffer(content, np.uint8).reshape(shape)
