"""Run an exported encoder with onnxruntime: images in, features out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repper.basics.errors import RepperError, needs
from repper.edge.onnx_file import read_notes, verified
from repper.edge.saved_head import Array

PIXELS_AT_ONCE = 64 * 64 * 64
"""So many pixels go through the encoder at once: more need memory, and are not faster."""


class OnnxEncoder:
    """An encoder that takes images as uint8 (n, size, size, channels).

    `digest` is what heads for this encoder name in their files.
    """

    def __init__(self, data: bytes, name: str = "the encoder") -> None:
        with needs("predict", "an exported encoder"):
            import onnxruntime
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(
                data, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's own exceptions have no class in common
            raise RepperError(
                f"onnxruntime {onnxruntime.__version__} cannot load {name}: update it with "
                f"pip install --upgrade onnxruntime ({str(error).splitlines()[0]})"
            ) from error
        notes = read_notes(data)
        self.digest = notes.get("repper.encoder", "")
        self.precision = notes.get("repper.precision", "fp32")
        self.architecture = notes.get("repper.architecture", "unknown")
        self.origin = notes.get("repper.origin", "unknown")
        given, made = self._session.get_inputs(), self._session.get_outputs()
        shapes: list[Any] = [*given[0].shape, *made[0].shape] if given and made else []
        match shapes:
            case [_, int(size), int(width), int(channels), _, int(features)] if (
                (given[0].name, given[0].type, made[0].name)
                == ("images", "tensor(uint8)", "features")
                and len(given) == len(made) == 1
                and size == width
                and channels in (1, 3)
                and self.digest
            ):
                self.size, self.channels, self.features = size, channels, features
            case _:
                raise RepperError(
                    f"{name} is not an encoder of repper: it does not turn images (uint8) into "
                    f"features; export it again"
                )

    @classmethod
    def open(cls, path: Path) -> OnnxEncoder:
        """Open an encoder file of `repper export`; a damaged file is refused."""
        return cls(verified(path), str(path))

    def features_of(self, images: NDArray[np.uint8]) -> Array:
        """The features (n, d) of images as they are."""
        expected = (self.size, self.size, self.channels)
        if images.dtype != np.uint8 or images.shape[1:] != expected:
            raise RepperError(
                f"images must be uint8 of shape (n, {', '.join(map(str, expected))}), "
                f"got {images.dtype} {images.shape}"
            )
        at_once = max(1, PIXELS_AT_ONCE // self.size**2)
        parts = [
            self._session.run(["features"], {"images": images[at : at + at_once]})[0]
            for at in range(0, len(images), at_once)
        ]
        empty = np.zeros((0, self.features), np.float32)
        result: Array = np.concatenate(parts) if parts else empty
        return result
