"""Heads trained by gradient descent on cross-entropy."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from repper.basics.errors import RepperError
from repper.basics.options import check_fields
from repper.data.batches import batch_sizes, batches, even_size
from repper.edge.saved_head import Array
from repper.heads.batched import LinearLayer, Problem, Shape, Stack, shape_of
from repper.heads.head import Fitted, Head, stops
from repper.heads.settings import DescentSettings, LinearSettings, MLPSettings


class DescentHead(DescentSettings, Head):
    """Heads that are trained by gradient descent on cross-entropy, on one seeded stream."""

    draws: ClassVar[bool] = True

    random_state: int

    def _train(self, network: nn.Module, x: Array, codes: NDArray[np.int64]) -> Iterator[None]:
        """Train the network in place; every epoch's end is a stop."""
        random = torch.Generator().manual_seed(self.random_state)
        features, labels = torch.tensor(x), torch.tensor(codes)
        size = even_size(len(x), self.batch)
        steps = len(batch_sizes(len(x), size))
        kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        momentum = {"momentum": 0.9} if self.optimizer == "sgd" else {}
        optimizer = kinds[self.optimizer](
            network.parameters(), lr=self.lr, weight_decay=self.weight_decay, **momentum
        )
        for _ in range(self.epochs_of(steps)):
            for rows in batches(len(x), size, random):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(features[rows]), labels[rows]).backward()
                optimizer.step()
            yield


@dataclass(eq=False, repr=False)
class LinearHead(LinearSettings, DescentHead):
    """One linear layer trained by gradient descent: the paper's one-layer "MLP"."""

    kind: ClassVar[str] = "linear"

    random_state: int = 0

    def alike(self, x: Array, labels: Array) -> Hashable:
        """Heads with one step an epoch can be trained at once: they need no random order."""
        classes = len(np.unique(labels))
        images, features = x.shape
        return None if classes == 1 else self._stacks(classes, features, images)

    def _stacks(self, classes: int, features: int, images: int) -> Shape | None:
        return shape_of(classes, features, images) if images <= self.batch + 1 else None

    @classmethod
    def fit_alike(
        cls, heads: Sequence[LinearHead], data: Sequence[tuple[Array, Array]], every: int
    ) -> Iterator[int]:
        problems = [head.problem(*head.scaled(*own)) for head, own in zip(heads, data, strict=True)]
        for epoch, layers in heads[0].solved(problems, every):
            for head, layer in zip(heads, layers, strict=True):
                head._set("linear", {"weight": layer[0], "bias": layer[1]})
            yield epoch

    def problem(
        self, x: Array, labels: NDArray[np.int64], start: LinearLayer | None = None
    ) -> Problem:
        """The training problem; it starts from zero unless there is a layer to start from."""
        if start is None:
            # The problem is convex: zero is as good as anywhere, and needs no draw.
            count = len(self.classes_)
            start = np.zeros((count, x.shape[1]), np.float32), np.zeros(count, np.float32)
        return Problem(x, labels, start)

    def solved(
        self, problems: Sequence[Problem], every: int = 0
    ) -> Iterator[tuple[int, list[LinearLayer]]]:
        """Train heads that are alike at once; yields their layers after some epochs."""
        classes, features = problems[0].start[0].shape
        if self._stacks(classes, features, len(problems[0].x)):
            stack = Stack(problems)
            steps = stack.train(self.epochs_of(1), self.optimizer, self.lr, self.weight_decay)
            for epoch, _ in stops(steps, every):
                yield epoch, stack.layers()
        else:
            [one] = problems
            layer = _layer(one.start)
            for epoch, _ in stops(self._train(layer, one.x, one.labels), every):
                yield epoch, [(layer.weight.detach().numpy(), layer.bias.detach().numpy())]

    def _fit(self, x: Array, codes: NDArray[np.int64]) -> Iterator[Fitted]:
        for _, [(weight, bias)] in self.solved([self.problem(x, codes)], every=1):
            yield "linear", {"weight": weight, "bias": bias}


@dataclass(eq=False, repr=False)
class TunedHead(LinearHead):
    """A linear head over all classes, fine-tuned from the method's layer."""

    kind: ClassVar[str] = "finetune"

    start: LinearLayer | None = None

    def alike(self, x: Array, labels: Array) -> Hashable:
        classes, features = self._start[0].shape
        return self._stacks(classes, features, len(x))

    @property
    def _start(self) -> LinearLayer:
        if self.start is None:
            raise RepperError("fine-tuning a head needs the layer to start from")
        return self.start

    def prepared(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
        """Use labels as they are: numbers of all classes, some of which a client may lack."""
        check_fields(self)
        return self.scaled(np.asarray(X, np.float32), np.asarray(y))

    def scaled(self, x: Array, labels: Array) -> tuple[Array, NDArray[np.int64]]:
        """Use features as they are, because the layer was trained on them."""
        self.classes_ = np.arange(len(self._start[1]))
        self.mean_, self.scale_ = np.zeros(x.shape[1], np.float32), np.float32(1)
        return x, labels

    def problem(
        self, x: Array, labels: NDArray[np.int64], start: LinearLayer | None = None
    ) -> Problem:
        return super().problem(x, labels, start or self._start)

    def _steps(self, x: Array, codes: NDArray[np.int64]) -> Iterator[Fitted]:
        return self._fit(x, codes)


def _layer(start: LinearLayer) -> nn.Linear:
    classes, features = start[0].shape
    layer = nn.Linear(features, classes)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(start[0]))
        layer.bias.copy_(torch.from_numpy(start[1]))
    return layer


@dataclass(eq=False, repr=False)
class MLPHead(MLPSettings, DescentHead):
    """One hidden layer of ReLU units, trained by gradient descent."""

    kind: ClassVar[str] = "mlp"

    random_state: int = 0

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
