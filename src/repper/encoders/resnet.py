"""ResNet-18 and ResNet-34 (He et al. 2016).

Two stems: 3x3 without pooling for images of about 32 pixels, as is usual for CIFAR, and the
original 7x7 with stride 2 and pooling for larger ones.
"""

from __future__ import annotations

from torch import Tensor, nn

from repper.encoders.blocks import MeanOverPositions, Norm, conv_norm_relu, norm_layer, scaled
from repper.encoders.encoder import Encoder

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
"""Blocks in each of the four layers, by the number in a ResNet's name."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first = conv_norm_relu(inputs, outputs, norm, stride=stride)
        self.second = nn.Sequential(
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), norm_layer(norm, outputs)
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm_layer(norm, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.second(self.first(x)) + self.shortcut(x))


def _resnet(
    channels: int, width: float, norm: Norm, blocks: tuple[int, ...], *, large_stem: bool
) -> Encoder:
    sizes = [scaled(c, width) for c in (64, 128, 256, 512)]
    layers: list[nn.Module] = [
        conv_norm_relu(channels, sizes[0], norm, kernel=7, stride=2)
        if large_stem
        else conv_norm_relu(channels, sizes[0], norm)
    ]
    if large_stem:
        layers.append(nn.MaxPool2d(3, 2, padding=1))
    inputs, parts = sizes[0], {}
    for stage, (outputs, count) in enumerate(zip(sizes, blocks, strict=True)):
        parts[f"layer{stage + 1}"] = len(layers)
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            layers.append(BasicBlock(inputs, outputs, stride, norm))
            inputs = outputs
    return Encoder(nn.Sequential(*layers, MeanOverPositions()), inputs, parts)


def resnet18(channels: int, size: int, width: float, norm: Norm) -> Encoder:
    return _resnet(channels, width, norm, BLOCKS[18], large_stem=False)


def resnet34(channels: int, size: int, width: float, norm: Norm) -> Encoder:
    return _resnet(channels, width, norm, BLOCKS[34], large_stem=False)


def resnet18_7x7(channels: int, size: int, width: float, norm: Norm) -> Encoder:
    return _resnet(channels, width, norm, BLOCKS[18], large_stem=True)


def resnet34_7x7(channels: int, size: int, width: float, norm: Norm) -> Encoder:
    return _resnet(channels, width, norm, BLOCKS[34], large_stem=True)
