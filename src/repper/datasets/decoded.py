"""Image files as arrays, kept in the user's cache so that the next start need not decode them."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from repper.datasets.images import read_images
from repper.datasets.request import cache_folder
from repper.errors import RepperError
from repper.files import write_atomically

FORMAT = 1
"""Raised whenever the same file would come out as other pixels."""


@dataclass(frozen=True)
class ImageFile:
    """A file, and what changes when it is written again."""

    path: str
    size: int
    modified: int


def read_files(
    root: Path, files: Sequence[ImageFile], size: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """What `read_images` gives for files below `root`, from the cache if none has changed."""
    cached = cache_folder() / "decoded" / f"{_key(root, files, size)}.safetensors"
    try:
        with safe_open(cached, framework="numpy") as file:
            images, unreadable, check = map(file.get_tensor, ("images", "unreadable", "check"))
        if int(check[0]) == zlib.crc32(images.data) and len(images) == len(files):
            return images, unreadable
    except (OSError, SafetensorError, ValueError):
        pass  # not there, or damaged
    images, unreadable = read_images([file.path for file in files], size)
    check = np.array([zlib.crc32(images.data)], np.int64)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cached, save({"images": images, "unreadable": unreadable, "check": check}))
    except (OSError, RepperError):
        pass  # a cache that cannot be written only costs time
    return images, unreadable


def _key(root: Path, files: Sequence[ImageFile], size: int) -> str:
    # The folder too: files from an archive can agree in name, size and time, and yet differ.
    sha = hashlib.sha256(os.fsencode(f"{FORMAT}\0{size}\0{root.resolve()}\0"))
    for file in files:
        name = file.path[len(str(root)) :]
        sha.update(os.fsencode(f"{name}\0{file.size}\0{file.modified}\0"))
    return sha.hexdigest()[:32]
