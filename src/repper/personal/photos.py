"""Find photos in files and folders, and decode them for an encoder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from repper.basics.errors import RepperError
from repper.data.image_folder import ENDINGS, class_files
from repper.data.images import read_image, read_images
from repper.edge.onnx_encoder import OnnxEncoder
from repper.edge.saved_head import Array

AT_ONCE = 256
"""Photos that are in memory at the same time."""


@dataclass(frozen=True)
class Photo:
    """A photo with its class and part (train, test, or empty if not divided)."""

    path: Path
    label: str
    part: str = ""


def photos_in(folder: Path) -> list[Photo]:
    """The photos of `<class>/*`, or of train/ and test/ with such folders."""
    found = [Photo(Path(path), label, part) for path, label, part in class_files(folder)]
    if not found:
        raise RepperError(f"there are no images ({', '.join(ENDINGS)}) in the folders of {folder}")
    return found


def files_of(paths: Iterable[Path]) -> list[Path]:
    """The given image files, and all image files in the given folders and subfolders."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = list(_below(path))
            if not inside:
                raise RepperError(f"there are no images ({', '.join(ENDINGS)}) in {path}")
            found += inside
        else:
            found.append(path)
    return found


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            if not name.startswith(".") and name.lower().endswith(ENDINGS):
                yield Path(place) / name


def digest_of(path: Path) -> str:
    """The SHA-256 of a photo's bytes, which identifies it."""
    try:
        if not path.is_file() and path.exists():
            raise RepperError(f"cannot read image {path}: it is not a file")  # a pipe would wait
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise RepperError(f"cannot read image {path}: there is no such file") from error
    except OSError as error:
        raise RepperError(f"cannot read image {path}: {error.strerror}") from error


def read_photo(path: Path, encoder: OnnxEncoder) -> NDArray[np.uint8]:
    """Decode a photo for the encoder: (size, size, channels)."""
    return read_image(path, encoder.channels, encoder.size).transpose(1, 2, 0)


def features_of(
    paths: Sequence[Path], encoder: OnnxEncoder, *, skip_unreadable: bool = False
) -> tuple[Array, list[int]]:
    """The features of photos, and the indices of unreadable photos.

    Such a photo is an error unless it may be skipped; its features are zeros.
    """
    parts, bad = [np.zeros((0, encoder.features), np.float32)], list[int]()
    for start in range(0, len(paths), AT_ONCE):
        part = paths[start : start + AT_ONCE]
        images, unreadable = read_images([str(path) for path in part], encoder.size)
        if len(unreadable) and not skip_unreadable:
            read_image(part[unreadable[0]], encoder.channels, encoder.size)  # says what is wrong
        images = _with_channels(images, part, encoder)
        features = encoder.features_of(np.ascontiguousarray(images.transpose(0, 2, 3, 1)))
        features[unreadable] = 0
        parts.append(features)
        bad += [start + int(row) for row in unreadable]
    return np.concatenate(parts), bad


def _with_channels(
    images: NDArray[np.uint8], paths: Sequence[Path], encoder: OnnxEncoder
) -> NDArray[np.uint8]:
    """Convert images to the encoder's number of channels."""
    if images.shape[1] == encoder.channels:
        return images
    if encoder.channels == 3:
        return images.repeat(3, 1)
    shape = (encoder.channels, encoder.size, encoder.size)

    def grey(path: Path) -> NDArray[np.uint8]:
        try:
            return read_image(path, encoder.channels, encoder.size)
        except RepperError:
            return np.zeros(shape, np.uint8)

    return np.stack([grey(path) for path in paths])
