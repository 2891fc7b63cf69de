"""A small convolutional network that a CPU trains quickly."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from repper.encoders.blocks import Norm, conv_norm_relu, scaled
from repper.encoders.encoder import Encoder


def small(channels: int, size: int, width: float, norm: Norm) -> Encoder:
    """Four 3x3 convolutions, each but the first halving the image, then the mean over positions."""
    sizes = [scaled(c, width) for c in (32, 64, 128, 256)]
    layers = [conv_norm_relu(channels, sizes[0], norm)]
    layers += [conv_norm_relu(i, o, norm, stride=2) for i, o in pairwise(sizes)]
    return Encoder(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), sizes[-1])
