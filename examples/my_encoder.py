"""An encoder of one's own, and a data set of one's own.

repper run --encoder examples/my_encoder.py:two_layers
repper run --data examples/my_encoder.py:stripes --encoder examples/my_encoder.py:two_layers
"""

import numpy as np
from torch import nn

from repper import Dataset, Split
from repper.data import Request
from repper.encoders.encoder import Encoder


def two_layers(channels: int, size: int, width: float, norm: str) -> Encoder:
    """Two convolutions, then the mean over positions."""
    features = max(8, round(64 * width))
    body = nn.Sequential(
        nn.Conv2d(channels, features, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(features, features, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return Encoder(body, features)


def stripes(request: Request) -> Dataset:
    """Noisy stripes: lying, standing, or both."""
    random = np.random.default_rng(0)

    def split(count: int) -> Split:
        labels = np.arange(count) % 3
        images = random.integers(0, 100, (count, 1, 8, 8))
        for image, label in zip(images, labels, strict=True):
            start = random.integers(2)
            if label != 1:
                image[0, start::2] += 100
            if label != 0:
                image[0, :, start::2] += 100
        return Split(np.minimum(images, 255).astype(np.uint8), labels)

    return Dataset("stripes", ("lying", "standing", "both"), split(600), split(300), flip=False)
