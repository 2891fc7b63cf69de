"""A personal part on top of the common head.

What a client adds to the logits of the common head is pulled to zero, with a strength that it
chooses on its own images: from so strong that nothing is added, to a head of its own that knows
nothing of the common one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from repper.basics.errors import RepperError
from repper.basics.options import check_fields
from repper.edge.saved_head import Array
from repper.heads.batched import LinearLayer
from repper.heads.class_frequencies import log_prior
from repper.heads.head import Fitted, Head

Labels = NDArray[np.int64]
FOLDS = 5
PULLS = (np.inf, 1000.0, 100.0, 10.0, 1.0)
"""Strengths of the pull to the common head, strongest first. The last choice is ALONE."""
ALONE = 0.0
PULL_ALONE = 1.0
"""How strongly a head without the common one is pulled to zero, as `--head-c` 1 does."""


@dataclass(eq=False, repr=False)
class PulledHead(Head):
    """The common head, the client's class frequencies, and a residual (`pull_`: its L2 weight)."""

    kind: ClassVar[str] = "common+finetune"

    scale: bool = True
    smoothing: float = 0.5
    start: LinearLayer | None = None

    def prepared(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, Labels]:
        """Use labels as they are: numbers of all classes, some of which a client may lack."""
        check_fields(self)
        return self.scaled(np.asarray(X, np.float32), np.asarray(y))

    def scaled(self, x: Array, labels: Array) -> tuple[Array, Labels]:
        inputs, _ = super().scaled(x, labels)
        self.classes_ = np.arange(len(self._start[1]))
        return inputs, labels

    @property
    def _start(self) -> LinearLayer:
        if self.start is None:
            raise RepperError("common+finetune needs the common head")
        return self.start

    def _steps(self, x: Array, codes: Labels) -> Iterator[Fitted]:
        return self._fit(x, codes)

    def _fit(self, x: Array, codes: Labels) -> Iterator[Fitted]:
        # The common head for centred and scaled features, in whose space the residual is small.
        weight, bias = (np.asarray(part, np.float64) for part in self._start)
        mean, scale = self.mean_.astype(np.float64), float(self.scale_)
        bias = bias + weight @ mean
        weight = weight * scale
        small, back = _reduced(x.astype(np.float64))
        common = x @ weight.T + bias
        self.pull_ = self._chosen(small, common, codes)
        prior = log_prior(codes, len(bias), self.smoothing)
        alone = self.pull_ == ALONE
        offset = 0 * common if alone else common + prior
        [(own_weight, own_bias)] = residuals(small, offset, codes, [self.pull_ or PULL_ALONE])
        own_weight = own_weight @ back
        if not alone:
            own_weight, own_bias = own_weight + weight, own_bias + bias + prior
        yield "linear", {"weight": own_weight, "bias": own_bias}

    def _chosen(self, x: Array, common: Array, codes: Labels) -> float:
        """The L2 weight with the best cross-validation accuracy; of equals the largest.

        The encoder and the common head know these images, at a client that took part in training.
        """
        classes, parts = common.shape[1], min(FOLDS, len(x))
        if parts < 2:
            return float(np.inf)
        order = np.random.default_rng(0).permutation(len(x))
        right = dict.fromkeys((*PULLS, ALONE), 0)
        for part in range(parts):
            held_out = np.zeros(len(x), bool)
            held_out[order[part::parts]] = True
            known, asked = codes[~held_out], codes[held_out]
            offset = common + log_prior(known, classes, self.smoothing)
            rows = x[~held_out]
            found = [
                *residuals(rows, offset[~held_out], known, PULLS),
                *residuals(rows, 0 * offset[~held_out], known, [PULL_ALONE]),
            ]
            for pull, (weight, bias) in zip(right, found, strict=True):
                logits = x[held_out] @ weight.T + bias + (offset[held_out] if pull else 0)
                right[pull] += int((logits.argmax(1) == asked).sum())
        return max(right, key=right.__getitem__)


def _reduced(x: Array) -> tuple[Array, Array]:
    """Project features to as many dimensions as images, and back: `x = small @ back`."""
    if len(x) >= x.shape[1]:
        return x, np.eye(x.shape[1])
    directions, triangle = np.linalg.qr(x.T)
    return triangle.T, directions.T


def residuals(x: Array, offset: Array, labels: Labels, pulls: Sequence[float]) -> list[LinearLayer]:
    """Weight and bias to add to logits, for each L2 weight; these must be descending.

    The least sum of cross-entropies of `offset + x W' + b`, plus half the pull times the squares of
    W and b. Each solution is where the search for the next begins.
    """
    (count, classes), features = offset.shape, x.shape[1]
    inputs = np.hstack([x, np.ones((count, 1))])
    target = np.eye(classes)[labels]
    at = np.zeros(classes * (features + 1))

    def loss(flat: NDArray[Any], pull: float) -> tuple[float, NDArray[Any]]:
        own = flat.reshape(classes, -1)
        logits = offset + inputs @ own.T
        value = -float(log_softmax(logits, 1)[np.arange(count), labels].sum())
        slope = (softmax(logits, 1) - target).T @ inputs + pull * own
        return value + pull / 2 * float(flat @ flat), slope.ravel()

    found = []
    for pull in pulls:
        if np.isfinite(pull):
            options = {"maxiter": 500, "ftol": 1e-9, "gtol": 1e-4}
            at = minimize(loss, at, (pull,), "L-BFGS-B", jac=True, options=options).x
        own = at.reshape(classes, -1)
        found.append((own[:, :-1].copy(), own[:, -1].copy()))
    return found
