"""Parquet files of images and labels, as the hub's copies of the data sets have them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from repper.basics.errors import RepperError, missing_extra
from repper.data.dataset import Split
from repper.data.decoded import Arrays, key_of, remembered
from repper.data.images import read_images
from repper.data.location import Request


@dataclass(frozen=True)
class HubCopy:
    """The folder that a copy's files lie in, their columns, and the shape of their images."""

    folder: str
    image: str
    label: str
    channels: int
    size: int

    def read(self, folders: Sequence[Path], request: Request) -> tuple[Split, Split] | None:
        """Train and test from the first folder that has parquet files, if any has."""
        for folder in folders:
            for place in (folder / self.folder, folder / "data", folder):
                train, test = (_files(place, part) for part in ("train", "test"))
                if train and test:
                    return self._split(train, request), self._split(test, request)
                if train or test:
                    missing = "test" if train else "train"
                    raise RepperError(
                        f"no {missing}-*.parquet in {place}: put all of the data set's parquet "
                        f"files there, or name another folder with --data-dir or REPPER_DATA"
                    )
        return None

    def _split(self, paths: Sequence[Path], request: Request) -> Split:
        images, labels = [], []
        for path in paths:
            found = remembered(key_of(path, self), partial(self._decoded, path))
            pixels, numbers, unreadable = found["images"], found["labels"], found["unreadable"]
            if len(unreadable) and not request.skip_unreadable:
                raise RepperError(
                    f"{path}: the image in row {unreadable[0]} cannot be read "
                    f"(--skip-unreadable leaves such images out)"
                )
            kept = np.setdiff1d(np.arange(len(numbers)), unreadable)
            if pixels.shape[1] < self.channels:
                pixels = pixels.repeat(self.channels, 1)
            elif pixels.shape[1] > self.channels:
                raise RepperError(
                    f"{path} has colour images, but this data set has grey images only"
                )
            images.append(pixels[kept])
            labels.append(numbers[kept])
        return Split(np.concatenate(images), np.concatenate(labels))

    def _decoded(self, path: Path) -> Arrays:
        encoded, numbers = self._columns(path)
        self._check_first(path, encoded)
        pixels, unreadable = read_images(encoded, self.size)
        return {"images": pixels, "labels": numbers, "unreadable": unreadable}

    def _check_first(self, path: Path, encoded: Sequence[bytes]) -> None:
        """Check the size of the first image: another data set may have the same columns."""
        with suppress(OSError), Image.open(io.BytesIO(encoded[0] if encoded else b"")) as image:
            if image.size != (self.size, self.size):
                raise RepperError(
                    f"{path} belongs to another data set: its images are "
                    f"{image.width} x {image.height}, not {self.size} x {self.size}"
                )

    def _columns(self, path: Path) -> tuple[list[bytes], Any]:
        try:
            from pyarrow import ArrowException, parquet, types
        except ModuleNotFoundError as error:
            raise missing_extra("pyarrow", "train", "reading parquet files") from error
        try:
            table = parquet.read_table(path, columns=[self.image, self.label])
            encoded = [image["bytes"] for image in table[self.image].to_pylist()]
            if not types.is_integer(table[self.label].type):
                raise ValueError(f"{self.label} holds {table[self.label].type}, not whole numbers")
            if not all(isinstance(image, bytes | None) for image in encoded):
                raise ValueError(f"{self.image} does not hold the bytes of image files")
            labels = np.asarray(table[self.label].to_pylist(), dtype=np.int64)
        except (
            OSError, ValueError, KeyError, TypeError, OverflowError, ArrowException,
        ) as error:  # fmt: skip
            reason = str(error).splitlines()[0]
            raise RepperError(
                f"{path} cannot be read as parquet with columns {self.image} and {self.label}: "
                f"{reason}"
            ) from error
        return [image or b"" for image in encoded], labels


def _files(folder: Path, part: str) -> list[Path]:
    return sorted(folder.glob(f"{part}-*.parquet")) or sorted(folder.glob(f"{part}/*.parquet"))
