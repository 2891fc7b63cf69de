"""Two strong views of a batch of 256 images with kornia, on one core: prints the median seconds."""

from __future__ import annotations

import statistics
import time

import torch
from kornia import augmentation
from torch import nn

torch.set_num_threads(1)


def main() -> None:
    # The operations and strengths of our strong views.
    view = nn.Sequential(
        augmentation.RandomResizedCrop((32, 32), scale=(0.2, 1.0), ratio=(3 / 4, 4 / 3)),
        augmentation.RandomHorizontalFlip(p=0.5),
        augmentation.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        augmentation.RandomGrayscale(p=0.2),
        augmentation.Normalize(mean=torch.full((3,), 0.5), std=torch.full((3,), 0.5)),
    )
    images = torch.randint(0, 256, (256, 3, 32, 32), dtype=torch.uint8)
    seconds = []
    with torch.no_grad():
        for _ in range(12):
            began = time.perf_counter()
            pixels = images.float() / 255
            torch.cat([view(pixels), view(pixels)])
            seconds.append(time.perf_counter() - began)
    print("SECONDS", statistics.median(seconds[2:]))


if __name__ == "__main__":
    main()
