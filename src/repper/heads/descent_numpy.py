"""The heads of `descent.py` without PyTorch, for devices that have none.

The same loss, optimizers and number of steps. Only the random draws differ (order of images, first
values of an MLP), which are numpy's here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from repper.basics.errors import RepperError
from repper.data.batches import batch_sizes, even_size
from repper.edge.saved_head import Array, softmax
from repper.heads.head import Fitted, Head
from repper.heads.settings import DescentSettings, LinearSettings, MLPSettings

Arrays = list[Array]
"""The weight and bias of each layer, first layer first."""
BETAS, SMALL = (0.9, 0.999), 1e-8
"""Of Adam, as PyTorch has them."""
MOMENTUM = 0.9


class NumpyDescentHead(DescentSettings, Head):
    draws: ClassVar[bool] = True

    random_state: int

    def _train(self, layers: Arrays, x: Array, codes: NDArray[np.int64]) -> Iterator[None]:
        """Train the layers in place; every epoch's end is a stop."""
        random = np.random.default_rng(self.random_state)
        ends = list(accumulate(batch_sizes(len(x), even_size(len(x), self.batch))))
        target = np.eye(len(self.classes_), dtype=np.float32)[codes]
        optimizer = _Adam(layers) if self.optimizer == "adam" else _Sgd(layers)
        for _ in range(self.epochs_of(len(ends))):
            order = random.permutation(len(x)) if len(ends) > 1 else np.arange(len(x))
            with np.errstate(over="ignore", invalid="ignore"):  # an error below says more
                for rows in np.split(order, ends[:-1]):
                    slopes = _gradients(layers, x[rows], target[rows])
                    for layer, slope in zip(layers, slopes, strict=True):
                        slope += self.weight_decay * layer
                    optimizer.step(layers, slopes, self.lr)
            if not all(np.isfinite(layer).all() for layer in layers):
                raise RepperError(
                    f"the head's training diverged: it needs a learning rate below {self.lr:g}"
                )
            yield


def _gradients(layers: Arrays, x: Array, target: Array) -> Arrays:
    """Of the mean cross-entropy of a linear layer, or of one after a layer of ReLUs."""
    *hidden, weight, bias = layers
    inner = np.maximum(x @ hidden[0].T + hidden[1], 0) if hidden else x
    error = (softmax(inner @ weight.T + bias) - target) / np.float32(len(x))
    last = [error.T @ inner, error.sum(0)]
    if not hidden:
        return last
    back = (error @ weight) * (inner > 0)
    return [back.T @ x, back.sum(0), *last]


class _Adam:
    def __init__(self, layers: Arrays) -> None:
        self._count = 0
        self._means = [np.zeros_like(layer) for layer in layers]
        self._squares = [np.zeros_like(layer) for layer in layers]

    def step(self, layers: Arrays, slopes: Arrays, lr: float) -> None:
        self._count += 1
        first, second = (1 - beta**self._count for beta in BETAS)
        for layer, slope, mean, square in zip(
            layers, slopes, self._means, self._squares, strict=True
        ):
            mean += (1 - BETAS[0]) * (slope - mean)
            square += (1 - BETAS[1]) * (slope * slope - square)
            layer -= (lr / first) * mean / (np.sqrt(square / second) + SMALL)


class _Sgd:
    def __init__(self, layers: Arrays) -> None:
        self._moves = [np.zeros_like(layer) for layer in layers]

    def step(self, layers: Arrays, slopes: Arrays, lr: float) -> None:
        for layer, slope, move in zip(layers, slopes, self._moves, strict=True):
            move *= MOMENTUM
            move += slope
            layer -= lr * move


@dataclass(eq=False, repr=False)
class LinearHead(LinearSettings, NumpyDescentHead):
    """One linear layer trained by gradient descent."""

    kind: ClassVar[str] = "linear"

    random_state: int = 0

    def _fit(self, x: Array, codes: NDArray[np.int64]) -> Iterator[Fitted]:
        classes = len(self.classes_)
        layers: Arrays = [
            np.zeros((classes, x.shape[1]), np.float32),
            np.zeros(classes, np.float32),
        ]
        for _ in self._train(layers, x, codes):
            weight, bias = layers
            yield "linear", {"weight": weight, "bias": bias}


@dataclass(eq=False, repr=False)
class MLPHead(MLPSettings, NumpyDescentHead):
    """One hidden layer of ReLU units, trained by gradient descent."""

    kind: ClassVar[str] = "mlp"

    random_state: int = 0

    def _fit(self, x: Array, codes: NDArray[np.int64]) -> Iterator[Fitted]:
        random = np.random.default_rng([self.random_state, 1])
        names = ("hidden_weight", "hidden_bias", "weight", "bias")
        sizes = ((self.hidden, x.shape[1]), (len(self.classes_), self.hidden))
        layers: Arrays = []
        for outputs, inputs in sizes:
            # As PyTorch draws the values of a linear layer.
            edge = inputs**-0.5
            layers.append(random.uniform(-edge, edge, (outputs, inputs)).astype(np.float32))
            layers.append(random.uniform(-edge, edge, outputs).astype(np.float32))
        for _ in self._train(layers, x, codes):
            yield "mlp", dict(zip(names, layers, strict=True))
