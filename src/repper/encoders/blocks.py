"""Building blocks of all encoders."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn

Norm = Literal["batch", "group"]


def scaled(channels: int, width: float) -> int:
    """Channels times a width factor, as a multiple of 8 so that group norm divides it."""
    return max(8, round(channels * width / 8) * 8)


def norm_layer(norm: Norm, channels: int) -> nn.Module:
    """Batch norm, or group norm with 8 channels a group, which keeps no running statistics."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(channels // 8, channels)


@final
class MeanOverPositions(nn.Module):
    """Features (n, c), as float32, of maps (n, c, h, w).

    As a mean of rows in the order in which they lie in memory: the gradient of PyTorch's pooling
    lies in another order than the maps, which took 4 % of a training step of `small`.
    """

    def forward(self, maps: Tensor) -> Tensor:
        return maps.permute(0, 2, 3, 1).flatten(1, 2).mean(1, dtype=torch.float32)


def conv_norm_relu(
    inputs: int, outputs: int, norm: Norm, *, kernel: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        norm_layer(norm, outputs),
        nn.ReLU(inplace=True),
    )
