"""Decode image files, with a cache in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from repper.basics.errors import RepperError
from repper.basics.files import write_atomically
from repper.data.images import read_images
from repper.data.location import cache_folder

Arrays = Mapping[str, NDArray[Any]]
FORMAT = 2
"""Raised whenever the same file would come out as other pixels."""


@dataclass(frozen=True)
class ImageFile:
    """An image file, with its size and modification time for the cache key."""

    path: str
    size: int
    modified: int


def read_files(
    root: Path, files: Sequence[ImageFile], size: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Decode files below `root` as `read_images` does, or take them from the cache if unchanged."""

    def decode() -> Arrays:
        images, unreadable = read_images([file.path for file in files], size)
        return {"images": images, "unreadable": unreadable}

    found = remembered(_key(root, files, size), decode)
    return found["images"], found["unreadable"]


def remembered(key: str, decode: Callable[[], Arrays]) -> Arrays:
    """The result of `decode`, or its undamaged copy from the cache under this key."""
    cached = cache_folder() / "decoded" / f"{key}.safetensors"
    try:
        with safe_open(cached, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}
        check = arrays.pop("check")
        if int(check[0]) == _check(arrays):
            return arrays
    except (OSError, SafetensorError, ValueError, KeyError):
        pass  # not there, or damaged
    made = decode()
    check = np.array([_check(made)], np.int64)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cached, save({**made, "check": check}))
    except (OSError, RepperError):
        pass  # a cache that cannot be written only costs time
    return made


def _check(arrays: Arrays) -> int:
    check = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        check = zlib.crc32(array.data, zlib.crc32(f"{name} {array.shape}".encode(), check))
    return check


def key_of(path: Path, *what: object) -> str:
    """The cache key of a file, which changes when the file is written again."""
    found = path.stat()
    text = "\0".join(map(str, (FORMAT, path.resolve(), found.st_size, found.st_mtime_ns, *what)))
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:32]


def _key(root: Path, files: Sequence[ImageFile], size: int) -> str:
    # The folder too: files from an archive can agree in name, size and time, and yet differ.
    sha = hashlib.sha256(os.fsencode(f"{FORMAT}\0{size}\0{root.resolve()}\0"))
    for file in files:
        name = file.path[len(str(root)) :]
        sha.update(os.fsencode(f"{name}\0{file.size}\0{file.modified}\0"))
    return sha.hexdigest()[:32]
