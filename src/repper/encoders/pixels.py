"""A control without learning: the features are the pixels."""

from __future__ import annotations

from torch import nn

from repper.encoders.encoder import Encoder


def pixels(channels: int, size: int, width: float, norm: str) -> Encoder:
    return Encoder(nn.Flatten(), channels * size * size)
