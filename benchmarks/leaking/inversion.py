"""Images from an update: search those whose own update would look like the one that was sent.

Gradient matching by cosine with total variation (Geiping et al. 2020), and matching of batch norm's
statistics, which travel too (Yin et al. 2021). The attacker is the server: it knows the method, the
weights it has sent, how many images there are, and is given their labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from repper.basics.names import is_statistic, is_weight, part_of
from repper.basics.params import Params, load_params, select
from repper.engines.task import Work
from repper.engines.trainer import set_moving
from repper.methods.method import Outputs, Seen, phases_of

RATE = 0.1
MOMENTUM = 0.1
"""Of batch norm's running statistics in PyTorch."""
STATISTICS, SMOOTH, ROUGH = 1.0, 0.2, 0.02
"""Weights beside the cosine, which is 0 to 2: of statistics, and of total variation with them and
without."""

FLOOR, TINY = 1e-2, 1e-8

Moments = dict[str, tuple[Tensor, Tensor]]
"""Mean and variance of what comes to a normalization layer, by its name."""


@dataclass(frozen=True)
class Evidence:
    """What an update says of the images behind it.

    `direction` has the gradient, or the way down that the weights went. With `signs` it is that of
    Adam's first step, which is as long for a small gradient as for a large one. `moments` are mean
    and variance of what came to a normalization layer.
    """

    direction: Params
    signs: bool
    moments: Moments


def evidence(received: Params, sent: Params, steps: int) -> Evidence:
    """What a server reads from an update after so many steps."""
    control = part_of(sent, "control")
    weights = select(sent, is_weight)
    down = {n: received[n] - t for n, t in weights.items() if not is_statistic(n)}
    left = (1 - MOMENTUM) ** steps
    seen = {n: (t - left * received[n]) / (1 - left) for n, t in weights.items() if is_statistic(n)}
    layers = {name.rpartition(".")[0] for name in seen}
    moments = {
        layer: (seen[f"{layer}.running_mean"], seen[f"{layer}.running_var"].clamp(min=0))
        for layer in layers
    }
    return Evidence(control or down, steps == 1 and not control, moments)


def invert(
    work: Work,
    received: Params,
    found: Evidence,
    labels: Sequence[int],
    *,
    tries: int,
    seed: int,
) -> NDArray[np.float32]:
    """Images (n, c, s, s) from -1 to 1 whose update would be like the evidence."""
    network, stage = work.networks()[0], work.stages[0]
    load_params(network, select(received, is_weight))
    [phase] = phases_of(stage)
    moving = set_moving(network, phase)
    names = [name for name in moving if float(found.direction[name].abs().sum())]
    target = [found.direction[name] for name in names]
    truth = torch.tensor(labels).repeat(max(1, phase.views))
    counts = torch.bincount(torch.tensor(labels), minlength=len(work.classes)).float()
    looked: Moments = {}
    for name, module in network.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_pre_hook(_watch(looked, name))
    random = torch.Generator().manual_seed(seed)
    size = work.spec.size
    images = 0.3 * torch.randn(len(labels), work.spec.channels, size, size, generator=random)
    images.requires_grad_(True)
    descent = torch.optim.Adam([images], RATE)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(descent, tries)
    own = {n: 0 * t for n, t in received.items()}
    for step in range(tries):
        r = network.encoder(images.repeat(max(1, phase.views), 1, 1, 1))
        seen = Seen(Outputs(network.of_features(r)), truth, moving, received, own, counts)
        loss = phase.loss(seen)
        value = (SMOOTH if found.moments else ROUGH) * _variation(images)
        # Gradients of noise lead nowhere: statistics, where there are any, show the way to them.
        if target and (step >= tries // 2 or not found.moments):
            gradients = torch.autograd.grad(loss, [moving[n] for n in names], create_graph=True)
            value = value + _unlike(gradients, target, found.signs)
        if found.moments:
            value = value + STATISTICS * _far(looked, found.moments)
        [images.grad] = torch.autograd.grad(value, [images])
        descent.step()
        falling.step()
        with torch.no_grad():
            images.clamp_(-1, 1)
    return images.detach().numpy()


def _watch(looked: Moments, name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        looked[name] = inputs[0].mean((0, 2, 3)), inputs[0].var((0, 2, 3))

    return look


def _unlike(gradients: Sequence[Tensor], target: Sequence[Tensor], signs: bool) -> Tensor:
    """One minus the cosine of what an update would be and what it was."""
    if signs:
        # Adam's first step, made smooth: as a step itself it has no slope to go down.
        gradients = [torch.tanh(g / (g.detach().abs().mean() + TINY)) for g in gradients]
    ours, theirs = (torch.cat([g.flatten() for g in part]) for part in (gradients, target))
    return 1 - (ours @ theirs) / (ours.norm() * theirs.norm()).clamp(min=TINY)


def _far(looked: Moments, moments: Moments) -> Tensor:
    """How far the statistics of guessed images are from those that were sent, by their spread."""
    parts = []
    for name, (mean, variance) in moments.items():
        ours, spread = looked[name]
        floor = variance + FLOOR
        parts.append(((ours - mean).square() / floor).mean())
        parts.append((((spread + FLOOR).sqrt() - floor.sqrt()).square() / floor).mean())
    return torch.stack(parts).mean()


def _variation(images: Tensor) -> Tensor:
    down, right = images.diff(dim=2), images.diff(dim=3)
    return down.abs().mean() + right.abs().mean()


def likeness(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """The correlation of every image in `a` with every one in `b`: (len(a), len(b))."""

    def unit(x):
        flat = x.reshape(len(x), -1).astype(np.float64)
        flat = flat - flat.mean(1, keepdims=True)
        return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)

    return unit(a) @ unit(b).T


def nearness(
    guess: NDArray[np.float32], true: NDArray[np.float32], others: NDArray[np.float32]
) -> tuple[float, ...]:
    """How well a guess shows the true images, beside others that nobody trained on.

    The mean place of a true image among it and the others, by how near it is to what is nearest in
    the guess (1 is the best); the share of true images in first place; that likeness, of true
    images and of others; the same in dB (PSNR).
    """
    own, other = likeness(guess, true), likeness(guess, others)
    places = 1 + (other.max(0)[:, None] >= own.max(0)).sum(0)
    best = [
        float(_psnr(guess[alike.argmax(0)], part).mean())
        for alike, part in ((own, true), (other, others))
    ]
    first = float((places == 1).mean())
    return float(places.mean()), first, float(own.max(0).mean()), float(other.max(0).mean()), *best


def _psnr(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """Of images from -1 to 1."""
    return 10 * np.log10(4 / np.maximum(((a - b) ** 2).mean((1, 2, 3)), 1e-12))
