"""Read an image file as the array that an encoder takes."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from repper.basics.errors import RepperError


def read_image(path: Path, channels: int, size: int) -> NDArray[np.uint8]:
    """One image file as uint8 of shape (channels, size, size).

    It is turned as its EXIF data says, laid on white where it is transparent, brought to grey or
    colour, cropped to its central square and resized.
    """
    try:
        with _quiet():
            return _decode(path, channels, size)
    except Exception as error:  # a damaged image can make Pillow raise nearly anything
        reason = "it is damaged or not an image"
        if isinstance(error, FileNotFoundError):
            reason = "there is no such file"
        elif isinstance(error, Image.DecompressionBombError):
            most = 2 * (Image.MAX_IMAGE_PIXELS or 0) // 10**6
            reason = f"it has more than {most} million pixels; make it smaller first"
        raise RepperError(f"cannot read image {path}: {reason}") from error


def read_images(
    files: Sequence[str | bytes], size: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Many image files, or the bytes of them, and the rows of those that cannot be read.

    The images have one channel if all are grey, else three; an unreadable one is black.
    """
    images = np.zeros((len(files), 3, size, size), np.uint8)

    def read(rows: range) -> tuple[list[int], bool]:
        bad = []
        for row in rows:
            try:
                images[row] = _decode(files[row], 3, size)
            except Exception:  # as in read_image
                bad.append(row)
        part = images[rows.start : rows.stop]
        return bad, bool((part == part[:, :1]).all())

    parts = [range(at, min(at + 256, len(files))) for at in range(0, len(files), 256)]
    with _quiet(), ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(read, parts))
    unreadable = np.array([row for bad, _ in done for row in bad], np.int64)
    if all(grey for _, grey in done):
        images = np.ascontiguousarray(images[:, :1])
    return images, unreadable


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Pillow's warnings: large or odd images are fine, and attacks are still errors.

    Entered once and outside of any thread, because Python keeps one list of filters for all.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _decode(source: Path | str | bytes, channels: int, size: int) -> NDArray[np.uint8]:
    if not isinstance(source, bytes) and Path(source).exists() and not Path(source).is_file():
        raise OSError("not a file")  # opening a pipe would wait for ever
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as file:
        ImageOps.exif_transpose(file, in_place=True)
        return fitted(file, channels, size)


def fitted(image: Image.Image, channels: int, size: int) -> NDArray[np.uint8]:
    """The central square of an upright grey or colour image, resized: (channels, size, size)."""
    if image.mode in ("I", "I;16", "I;16B", "I;16L", "I;16N"):
        # Sixteen bits: Pillow would cut them off at 255 instead of scaling them.
        wide = np.asarray(image).astype(np.float64) / 257
        image = Image.fromarray(np.clip(np.round(wide), 0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (size, size):
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    array = np.asarray(image, dtype=np.uint8)
    return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))
