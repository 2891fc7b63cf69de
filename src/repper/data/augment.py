"""Random views of images as batched tensor code: every image has its own parameters.

The operations are SimCLR's (Chen et al. 2020), which supervised contrastive learning took over; the
RepPer paper does not name its own. They are applied in this fixed order: resized crop and flip as
one sampling grid, then brightness, saturation, hue, contrast and grayscale as one matrix per image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Level = Literal["none", "weak", "medium", "strong"]


@dataclass(frozen=True)
class Strength:
    """Ranges of the random operations; colour changes apply with probability `colour_chance`."""

    least_area: float
    shift: float
    brightness: float
    contrast: float
    saturation: float
    hue: float
    colour_chance: float
    grey_chance: float


STRENGTHS: dict[Level, Strength] = {
    # A shift of an eighth is the usual "pad 32 pixels by 4 and crop".
    "weak": Strength(1.0, 0.125, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "medium": Strength(0.5, 0.0, 0.2, 0.2, 0.2, 0.05, 0.5, 0.0),
    "strong": Strength(0.2, 0.0, 0.4, 0.4, 0.4, 0.1, 0.8, 0.2),
}


def normalize(images: Tensor) -> Tensor:
    """uint8 images as float32 from -1 to 1.

    The constants are fixed, not the data's mean and deviation: nothing about a client's images
    needs to be shared for it, and an exported encoder needs no extra numbers.
    """
    return images.to(torch.float32, memory_format=torch.channels_last).div_(127.5).sub_(1.0)


def augment(images: Tensor, level: Level, flip: bool, random: torch.Generator) -> Tensor:
    """One random view of every image: uint8 (n, c, s, s) to normalized float32 of the same shape.

    `random` is a generator on the CPU whatever the device of `images`, so that the same seed means
    the same views everywhere.
    """
    if level == "none":
        return normalize(images)
    strength = STRENGTHS[level]
    count, channels, size, _ = images.shape
    # One draw for all parameters: (n, 11) numbers from 0 to 1.
    u = torch.rand(count, 11, generator=random).to(images.device)
    pixels = images.to(torch.float32, memory_format=torch.channels_last).div_(255.0)
    boxes = _crop_and_flip(u[:, :5], strength, flip)
    grid = functional.affine_grid(boxes, [count, channels, size, size], align_corners=False)
    # What lies outside repeats the edge. As a clamp, because not every device has such a padding.
    inside = 1 - 1 / size
    pixels = functional.grid_sample(pixels, grid.clamp_(-inside, inside), align_corners=False)
    if strength.colour_chance or strength.grey_chance:
        pixels = _colour(pixels, u[:, 5:], strength)
    return pixels.mul_(2.0).sub_(1.0).contiguous(memory_format=torch.channels_last)


def _crop_and_flip(u: Tensor, strength: Strength, flip: bool) -> Tensor:
    """(n, 2, 3) matrices that send an output pixel to its place in the image."""
    area = strength.least_area + (1 - strength.least_area) * u[:, 0]
    # Aspect ratios from 3/4 to 4/3, evenly on a log scale; only a real crop is stretched.
    stretch = math.log(4 / 3) if strength.least_area < 1 else 0.0
    ratio = torch.exp((2 * u[:, 1] - 1) * stretch)
    width = (area * ratio).sqrt().clamp(max=1.0)
    height = (area / ratio).sqrt().clamp(max=1.0)
    # The image spans -1 to 1: a box of width w may have its centre up to 1 - w from the middle.
    x = (2 * u[:, 2] - 1) * (1 - width + 2 * strength.shift)
    y = (2 * u[:, 3] - 1) * (1 - height + 2 * strength.shift)
    mirrored = torch.where(u[:, 4] < 0.5, -width, width) if flip else width
    zero = torch.zeros_like(x)
    return torch.stack([torch.stack([mirrored, zero, x], 1), torch.stack([zero, height, y], 1)], 1)


def _colour(pixels: Tensor, u: Tensor, strength: Strength) -> Tensor:
    """Apply each image's colour jitter and grayscale; values stay within 0 and 1."""
    count, channels, size, _ = pixels.shape
    jitter = (u[:, 0] < strength.colour_chance).float()
    brightness = 1 + (2 * u[:, 1] - 1) * strength.brightness * jitter
    contrast = 1 + (2 * u[:, 2] - 1) * strength.contrast * jitter
    flat = pixels.permute(0, 2, 3, 1).reshape(count, size * size, channels)
    matrix = brightness[:, None, None] * torch.eye(channels, device=pixels.device)
    if channels == 3:
        saturation = 1 + (2 * u[:, 3] - 1) * strength.saturation * jitter
        # No saturation at all is a grayscale image.
        saturation = torch.where(u[:, 4] < strength.grey_chance, 0.0, saturation)
        angle = (2 * u[:, 5] - 1) * strength.hue * jitter * (2 * math.pi)
        matrix = matrix @ _saturate(saturation) @ _rotate_hue(angle)
    # Contrast pulls every pixel towards the image's mean grey, which the mean colour determines.
    grey = _grey_weights(channels, pixels.device)
    mean_grey = (flat.mean(1, keepdim=True) @ matrix) @ grey
    towards = ((1 - contrast)[:, None] * mean_grey[:, 0])[:, :, None].expand(-1, 1, channels)
    result = torch.baddbmm(towards, flat, matrix * contrast[:, None, None])
    return result.clamp_(0.0, 1.0).reshape(count, size, size, channels).permute(0, 3, 1, 2)


def _saturate(factor: Tensor) -> Tensor:
    """(n, 3, 3) matrices, for pixels as rows, that blend a colour with its grey."""
    device = factor.device
    to_grey = _grey_weights(3, device).expand(3, 3)
    eye = torch.eye(3, device=device)
    return to_grey + factor[:, None, None] * (eye - to_grey)


def _rotate_hue(angle: Tensor) -> Tensor:
    """(n, 3, 3) matrices, for pixels as rows, that turn colours about the grey axis (in YIQ)."""
    to_yiq, from_yiq = (m.to(angle.device) for m in _yiq())
    turn = torch.zeros(len(angle), 3, 3, device=angle.device)
    turn[:, 0, 0] = 1
    turn[:, 1, 1] = turn[:, 2, 2] = angle.cos()
    turn[:, 1, 2] = angle.sin()
    turn[:, 2, 1] = -angle.sin()
    return to_yiq @ turn @ from_yiq


@cache
def _yiq() -> tuple[Tensor, Tensor]:
    """The NTSC colour space, brightness apart from colour, transposed for pixels as rows."""
    rgb_to_yiq = torch.tensor(
        [[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]]
    ).T
    return rgb_to_yiq, torch.linalg.inv(rgb_to_yiq.double()).float()


def _grey_weights(channels: int, device: torch.device) -> Tensor:
    """(channels, 1): how much each channel adds to the brightness we see."""
    weights = [1.0] if channels == 1 else [0.299, 0.587, 0.114]
    return torch.tensor(weights, device=device)[:, None]
