"""MobileNet v1 (Howard et al. 2017), with the strides that are usual for 32x32 images."""

from __future__ import annotations

from torch import nn

from repper.encoders.blocks import MeanOverPositions, Norm, conv_norm_relu, scaled
from repper.encoders.encoder import Encoder

# Output channels and stride of each depthwise-separable block. The original halves the image once
# more in its stem, which would leave a 32x32 image with a single position for most of the network.
BLOCKS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (512, 1), (512, 1),
    (512, 1), (512, 1), (1024, 2), (1024, 1),
)  # fmt: skip


def mobilenet(channels: int, size: int, width: float, norm: Norm) -> Encoder:
    inputs = scaled(32, width)
    layers: list[nn.Module] = [conv_norm_relu(channels, inputs, norm)]
    for count, stride in BLOCKS:
        outputs = scaled(count, width)
        layers.append(conv_norm_relu(inputs, inputs, norm, stride=stride, groups=inputs))
        layers.append(conv_norm_relu(inputs, outputs, norm, kernel=1))
        inputs = outputs
    return Encoder(nn.Sequential(*layers, MeanOverPositions()), inputs)
