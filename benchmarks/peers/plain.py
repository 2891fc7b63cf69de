"""A client as anyone would write it, for every peer: the `small` encoder, and FedAvg's training.

Needs PyTorch only, since peers live in environments of their own. It has what makes PyTorch quick
on a CPU: channels last, a fused optimizer, one thread for each process, the images in one tensor.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

torch.set_num_threads(1)


def network(channels: int) -> nn.Module:
    layers: list[nn.Module] = []
    inputs = channels
    for outputs, stride in ((16, 1), (32, 2), (64, 2), (128, 2), (256, 1)):
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        inputs = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


class Scenario:
    """Images, who holds which, and how they train, from a folder that the benchmark wrote."""

    def __init__(self) -> None:
        folder = Path(os.environ["SCENARIO"])
        settings = json.loads((folder / "settings.json").read_text())
        self.clients: int = settings["clients"]
        self.cohort: int = settings["cohort"]
        self.epochs: int = settings["epochs"]
        self.batch: int = settings["batch"]
        self.rounds: int = settings["rounds"]
        images = torch.from_numpy(np.load(folder / "images.npy"))
        pixels = images.to(torch.float32, memory_format=torch.channels_last)
        self.images = pixels.div_(127.5).sub_(1.0)
        self.labels = torch.from_numpy(np.load(folder / "labels.npy"))

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        each = len(self.labels) // self.clients
        rows = slice(client * each, (client + 1) * each)
        return self.images[rows], self.labels[rows]

    def network(self) -> nn.Module:
        return network(self.images.shape[1])


@cache
def scenario() -> Scenario:
    """The scenario, read once in every process."""
    return Scenario()


@cache
def model_of_process() -> nn.Module:
    return scenario().network()


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, batch: int) -> None:
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()


def report(moments: list[float]) -> None:
    """Say the seconds between rounds; the first, in which processes start, is left out."""
    print("SECONDS", json.dumps(np.diff(moments).tolist()), flush=True)
