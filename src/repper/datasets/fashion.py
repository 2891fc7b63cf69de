"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): idx files, or the parquet files of its hub copy."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from repper.datasets.dataset import Dataset, Split
from repper.datasets.fetch import Remote, fetch
from repper.datasets.hub import HubCopy
from repper.datasets.request import Request, counted, not_found
from repper.errors import RepperError

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
                    raise RepperError(f"{path} does not hold what its name says: {array.shape}")
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
    """An idx file of bytes, compressed or not: a header with the shape, then the numbers."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise RepperError(f"{path} is truncated or damaged: {error}") from error
    # Two zeros, 8 for bytes, the number of dimensions, and each dimension in four bytes.
    dimensions = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * dimensions
    if not 1 <= dimensions <= 3 or len(content) < start:
        raise RepperError(f"{path} is not an idx file of bytes")
    shape = tuple(int(n) for n in np.frombuffer(content[4:start], ">u4"))
    expected = int(np.prod(shape, dtype=object))
    if len(content) - start != expected:
        raise RepperError(
            f"{path} is truncated or damaged: its header says {expected} bytes, "
            f"but {len(content) - start} follow"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
