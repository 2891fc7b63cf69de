"""Linear layers of many clients, trained in one batched computation.

One client's layer is too small to keep a core busy: a loop over clients spends most of its time
between operations. A layer comes out the same, to the bit, whoever is trained beside it: what is
computed for it has a shape that depends on its client alone, and only equal shapes are stacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from repper.edge.saved_head import Array

LinearLayer = tuple[Array, Array]
"""A weight (classes, d) and a bias (classes,)."""


@dataclass(frozen=True)
class Problem:
    """Features (n, d) and labels (n,) to train a layer on, and the layer to start from."""

    x: Array
    labels: NDArray[np.int64]
    start: LinearLayer

    @property
    def shape(self) -> Shape:
        classes, features = self.start[0].shape
        return shape_of(classes, features, len(self.x))


Shape = tuple[int, int, int]


def shape_of(classes: int, features: int, images: int) -> Shape:
    """Rounded up: the number of classes, of features (plus one for the bias), and of images.

    Multiples of 8 and 16 keep a client's numbers at the same places of vector registers, wherever
    it lies in a stack.
    """
    return _up(classes, 8), _up(features + 1, 16), _up(images, 16)


class Stack:
    """The layers of problems of one shape."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        [(classes, features, images)] = {problem.shape for problem in problems}
        count = len(problems)
        self._sizes = [problem.start[0].shape for problem in problems]
        self._weight = torch.zeros(count, classes, features)
        self._x = torch.zeros(count, images, features)
        self._share = torch.zeros(count, 1, images)
        self._target = torch.zeros(count, classes, images)
        # Classes that a client does not have get no probability, and so no gradient.
        self._absent = torch.full((count, classes, 1), torch.finfo(torch.float32).min)
        for i, problem in enumerate(problems):
            (k, d), n = self._sizes[i], len(problem.x)
            weight, bias = problem.start
            self._weight[i, :k, :d] = torch.tensor(weight)
            self._weight[i, :k, d] = torch.tensor(bias)
            self._x[i, :n, :d] = torch.tensor(problem.x)
            self._x[i, :n, d] = 1.0  # what the bias is the weight of
            self._share[i, 0, :n] = 1 / n
            self._target[i, torch.tensor(problem.labels), torch.arange(n)] = 1 / n
            self._absent[i, :k] = 0.0

    def train(self, epochs: int, optimizer: str, lr: float, weight_decay: float) -> Iterator[None]:
        """Train each layer by gradient descent on cross-entropy; yields after every epoch.

        The gradient is written down, for autograd would take most of the time.
        """
        kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        momentum = {"momentum": 0.9} if optimizer == "sgd" else {}
        self._weight.grad = torch.empty_like(self._weight)
        descent = kinds[optimizer](
            [self._weight], lr=lr, weight_decay=weight_decay, fused=True, **momentum
        )
        columns = self._x.transpose(1, 2).contiguous()
        for _ in range(epochs):
            logits = torch.baddbmm(self._absent, self._weight, columns)
            error = torch.softmax(logits, 1).mul_(self._share).sub_(self._target)
            torch.bmm(error, self._x, out=self._weight.grad)
            descent.step()
            yield

    def layers(self) -> list[LinearLayer]:
        """The current layers."""
        stack = self._weight.numpy()
        return [
            (stack[i, :k, :d].copy(), stack[i, :k, d].copy())
            for i, (k, d) in enumerate(self._sizes)
        ]


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
