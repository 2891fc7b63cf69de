"""Estimate the memory of a training step before the first step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from repper.engines.task import Work
from repper.methods.method import phases_of
from repper.methods.network import Network

BESIDE = 1.4
"""What a step holds besides what layers gave: views, gradients. Measured for ResNet-18 with images
of 128 and 224 pixels (1.4), `small` (1.8) and MobileNet (1.0)."""


def step_bytes(work: Work) -> int:
    """Estimated bytes that one process needs for its largest step: activations for gradients.

    The network is run on PyTorch's `meta` device, which computes shapes only.
    """
    needs = [0]
    for stage, network in zip(work.stages, work.networks(), strict=True):
        if not stage.rounds:
            continue
        images = min(stage.training.batch, work.most_rows)
        views = max(max(1, phase.views) for phase in phases_of(stage))
        half = stage.training.precision == "bfloat16"
        needs.append(images * views * _bytes_of_an_image(work, network, 2 if half else 4))
    return round(BESIDE * max(needs))


def _bytes_of_an_image(work: Work, network: Network, size: int) -> int:
    kept = 0

    def count(layer: nn.Module, _: Any, output: Tensor) -> None:
        nonlocal kept
        if not getattr(layer, "inplace", False):
            kept += output.numel() * size

    encoder = network.encoder.to("meta").eval()
    for layer in encoder.modules():
        if not list(layer.children()):
            layer.register_forward_hook(count)
    spec = work.spec
    with torch.no_grad():
        encoder(torch.empty(1, spec.channels, spec.size, spec.size, device="meta"))
    return kept
