"""Heads trained by gradient descent on cross-entropy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from repper.batches import batches
from repper.edge.saved_head import Array
from repper.heads.head import Fitted, Head

LEAST_STEPS = 100
LEAST_EPOCHS = 10


class DescentHead(Head):
    """Heads that are trained by gradient descent on cross-entropy, on one seeded stream."""

    epochs: int | None
    lr: float
    batch: int
    optimizer: str
    weight_decay: float
    random_state: int

    def _train(self, network: nn.Module, x: Array, codes: NDArray[np.int64]) -> Iterator[None]:
        """Train the network in place; every epoch's end is a stop."""
        random = torch.Generator().manual_seed(self.random_state)
        features, labels = torch.tensor(x), torch.tensor(codes)
        steps = len(list(batches(len(x), self.batch, random)))
        # Ten epochs on 70 images would be ten steps: too few to fit anything.
        epochs = (
            self.epochs if self.epochs is not None else max(LEAST_EPOCHS, -(-LEAST_STEPS // steps))
        )
        kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        momentum = {"momentum": 0.9} if self.optimizer == "sgd" else {}
        optimizer = kinds[self.optimizer](
            network.parameters(), lr=self.lr, weight_decay=self.weight_decay, **momentum
        )
        for _ in range(epochs):
            for rows in batches(len(x), self.batch, random):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(features[rows]), labels[rows]).backward()
                optimizer.step()
            yield


class LinearHead(DescentHead):
    """One linear layer trained by gradient descent: the paper's one-layer "MLP"."""

    kind = "linear"

    def __init__(
        self,
        epochs: int | None = None,
        lr: float = 0.01,
        batch: int = 256,
        optimizer: str = "adam",
        weight_decay: float = 1e-4,
        random_state: int = 0,
    ) -> None:
        self.epochs = epochs
        self.lr = lr
        self.batch = batch
        self.optimizer = optimizer
        self.weight_decay = weight_decay
        self.random_state = random_state

    def _fit(self, x: Array, codes: NDArray[np.int64]) -> Iterator[Fitted]:
        # The problem is convex: starting from zero is as good as anywhere, and needs no draw.
        count = len(self.classes_)
        zero = np.zeros((count, x.shape[1]), np.float32), np.zeros(count, np.float32)
        for weight, bias in self.continued(zero, x, codes):
            yield "linear", {"weight": weight, "bias": bias}

    def continued(
        self, start: tuple[Array, Array], x: Array, labels: NDArray[np.int64]
    ) -> Iterator[tuple[Array, Array]]:
        """Train a layer further that has a weight (classes, d) and a bias, epoch by epoch."""
        classes, features = start[0].shape
        layer = nn.Linear(features, classes)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(start[0]))
            layer.bias.copy_(torch.from_numpy(start[1]))
        for _ in self._train(layer, x, labels):
            yield layer.weight.detach().numpy(), layer.bias.detach().numpy()


class MLPHead(DescentHead):
    """One hidden layer of ReLU units, trained by gradient descent."""

    kind = "mlp"

    def __init__(
        self,
        hidden: int = 128,
        epochs: int | None = None,
        lr: float = 0.01,
        batch: int = 256,
        optimizer: str = "adam",
        weight_decay: float = 1e-4,
        random_state: int = 0,
    ) -> None:
        self.hidden = hidden
        self.epochs = epochs
        self.lr = lr
        self.batch = batch
        self.optimizer = optimizer
        self.weight_decay = weight_decay
        self.random_state = random_state

    def _fit(self, x: Array, codes: NDArray[np.int64]) -> Iterator[Fitted]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            first = nn.Linear(x.shape[1], self.hidden)
            last = nn.Linear(self.hidden, len(self.classes_))
        for _ in self._train(nn.Sequential(first, nn.ReLU(), last), x, codes):
            yield (
                "mlp",
                {
                    "hidden_weight": first.weight.detach().numpy(),
                    "hidden_bias": first.bias.detach().numpy(),
                    "weight": last.weight.detach().numpy(),
                    "bias": last.bias.detach().numpy(),
                },
            )
