"""An image file as the array an encoder takes."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from repper.errors import RepperError


def read_image(path: Path, channels: int, size: int) -> NDArray[np.uint8]:
    """One image file as uint8 of shape (channels, size, size).

    It is turned as its EXIF data says, laid on white where it is transparent, brought to grey or
    colour, cropped to its central square and resized.
    """
    try:
        with warnings.catch_warnings():
            # Large is fine: Pillow has an error, too, for what it holds for an attack.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            file = Image.open(path)
        with file:
            image = ImageOps.exif_transpose(file)
            if image.mode in ("I", "I;16", "I;16B", "I;16L", "I;16N"):
                # Sixteen bits: Pillow would cut them off at 255 instead of scaling them.
                wide = np.asarray(image).astype(np.float64) / 257
                image = Image.fromarray(np.clip(np.round(wide), 0, 255).astype(np.uint8))
            if image.has_transparency_data:
                image = image.convert("RGBA")
                white = Image.new("RGBA", image.size, "white")
                image = Image.alpha_composite(white, image)
            image = image.convert("L" if channels == 1 else "RGB")
            image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "there is no such file" if missing else "it is not an image that can be read"
        raise RepperError(f"cannot read image {path}: {reason}") from error
    array = np.asarray(image, dtype=np.uint8)
    return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))
