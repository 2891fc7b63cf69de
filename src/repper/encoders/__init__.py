"""Encoders by name: images (n, channels, s, s) to features (n, d), where d is `features`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from repper.basics.registry import Registry

if TYPE_CHECKING:
    from repper.encoders.encoder import Encoder


class BuildEncoder(Protocol):
    def __call__(self, channels: int, size: int, width: float, norm: str) -> Encoder: ...


ENCODERS: Registry[BuildEncoder] = Registry(
    "encoder",
    {
        "small": "repper.encoders.small:small",
        "resnet18": "repper.encoders.resnet:resnet18",
        "resnet34": "repper.encoders.resnet:resnet34",
        "resnet18-7x7": "repper.encoders.resnet:resnet18_7x7",
        "resnet34-7x7": "repper.encoders.resnet:resnet34_7x7",
        "mobilenet": "repper.encoders.mobilenet:mobilenet",
        "pixels": "repper.encoders.pixels:pixels",
    },
)
NORMS = ("batch", "group")
WIDEST = 16
"""The largest factor on an encoder's channels."""
HALF = "half"
PIXELS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]] | None] = {
    HALF: None,
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""What pixels from 0 to 1 become before an encoder's first layer: from -1 to 1, or less this mean
of red, green and blue, over this deviation."""
