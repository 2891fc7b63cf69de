"""Fit logistic regressions of many clients to the optimum in one batched computation.

A client has fewer images than features, so its weights are a sum over its images, `W = A X`, and
all that is needed of the features are their products G = X X'. The Hessian of the cross-entropy is
nowhere larger than half of G (Boehning 1992): its inverse, found once, makes steps of L-BFGS so
good that ten to twenty reach the optimum. scikit-learn's solver takes several times as long, one
client at a time.

A client's solution does not depend on who is solved beside it: its matrices have a shape of its
own, and it stops when it has converged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from repper.edge.saved_head import Array

Labels = NDArray[np.int64]
Numbers = NDArray[np.float32]
T = TypeVar("T")

MOST_IMAGES = 256
"""Images of a client up to which products of images are fewer than those of features."""
PAIRS = 5
"""Steps that L-BFGS remembers."""
MOST_STEPS = 200
RENEWED = (0, 6, 20, 60)
MOST_HALVES = 20
ROUNDING = 4 * float(np.finfo(np.float32).eps)
"""A step that has gained less than this share of the loss is the last, too."""
CLOSE = 1e-6
"""A step that would gain less than this share of the loss is the last."""


def shape_of(images: int, classes: int) -> tuple[int, int] | None:
    """Problems with equal shapes can be solved at once; None: a client has too many images."""
    return None if images > MOST_IMAGES else (_up(images, 16), _up(classes, 8))


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def solve(problems: Sequence[tuple[Array, Labels]], c: float) -> list[tuple[Array, Array]]:
    """Weight and bias for features (n, d) and labels 0, 1, ... of problems of one shape.

    The least `c` times the sum of cross-entropies plus half the squared weights, as scikit-learn
    has it; of two classes it counts the weights of one.
    """
    [shape] = {shape_of(len(x), _classes(labels)) for x, labels in problems}
    if shape is None:
        raise ValueError("too many images")
    means = [np.asarray(x, np.float64).mean(0) for x, _ in problems]
    centred = [(x - mean).astype(np.float32) for (x, _), mean in zip(problems, means, strict=True)]
    stack = _Stack.of(centred, [labels for _, labels in problems], shape, c)
    parts, biases = stack.minimum()
    found = []
    for place, (x, mean) in enumerate(zip(centred, means, strict=True)):
        count = _classes(problems[place][1])
        weight = parts[place, :count, : len(x)] @ x
        # A shift of the features only shifts the bias, which is not regularized.
        found.append((weight, biases[place, :count] - weight @ mean))
    return found


def _classes(labels: Labels) -> int:
    return int(labels.max()) + 1


@dataclass
class _Point:
    """The state of the search: A and bias, A G, the loss, errors, gradients."""

    parts: Numbers
    bias: Numbers
    products: Numbers
    loss: Numbers
    error: Numbers
    of_parts: Numbers
    of_bias: Numbers


@dataclass(frozen=True)
class _Stack:
    """Problems of one shape: n images (padded), k classes (padded), s clients."""

    grams: Numbers  # (s, n, n)
    inverses: Numbers  # (s, n, n): of G and the regularization
    target: Numbers  # (s, k, n)
    real: Numbers  # (s, 1, n): 1 for an image
    absent: Numbers  # (s, k, 1): a large negative number for a class that a client has not
    c: Numbers  # (s, 1, 1)
    curve: Numbers  # (s, 1, 1): of an image's cross-entropy, as it is guessed

    @classmethod
    def of(
        cls, features: Sequence[Array], labels: Sequence[Labels], shape: tuple[int, int], c: float
    ) -> _Stack:
        count, (images, classes) = len(features), shape
        grams = np.zeros((count, images, images), np.float32)
        target = np.zeros((count, classes, images), np.float32)
        real = np.zeros((count, 1, images), np.float32)
        absent = np.full((count, classes, 1), -1e30, np.float32)
        cs = np.full((count, 1, 1), c, np.float32)
        for i, (x, own) in enumerate(zip(features, labels, strict=True)):
            n, k = len(x), _classes(own)
            grams[i, :n, :n] = x @ x.T
            target[i, own, np.arange(n)] = 1
            real[i, 0, :n] = 1
            absent[i, :k] = 0
            if k == 2:
                # Two rows of weights, each the other's negative, have half the squares of one.
                cs[i] = c / 2
        return cls(grams, grams, target, real, absent, cs, np.full_like(cs, 0.5))

    def minimum(self) -> tuple[Numbers, Numbers]:
        """A and bias of every client at the minimum of its loss."""
        count, classes, images = self.target.shape
        nothing = np.zeros((count, classes, images), np.float32)
        found, found_bias = nothing.copy(), nothing[:, :, :1].copy()
        places, stack = np.arange(count), self
        at, pairs = stack._point(nothing, nothing[:, :, :1], nothing), list[_Pair]()
        active = np.ones(count, bool)
        for number in range(MOST_STEPS):
            if number in RENEWED:
                stack = stack._with_curvature(at)
            direction = stack._direction(at, pairs)
            slope = _dot(direction[2], at.of_parts) + _dot(direction[1], at.of_bias)
            active &= -slope > CLOSE * at.loss
            if active.any():
                new = stack._step(at, direction, slope, active)
                active &= at.loss - new.loss > ROUNDING * at.loss
                pairs = [*pairs[1 - PAIRS :], stack._pair(at, new)]
                at = new
            if active.sum() <= len(places) // 2:
                # Most have converged: the others go on without them.
                found[places], found_bias[places] = at.parts, at.bias
                places, at, stack = places[active], _only(at, active), _only(stack, active)
                pairs, active = [_only(pair, active) for pair in pairs], active[active]
            if not len(places):
                break
        found[places], found_bias[places] = at.parts, at.bias
        return found, found_bias[:, :, 0]

    def _with_curvature(self, at: _Point) -> _Stack:
        """The same with a new guess of the curvature: the mean of all directions, at a point."""
        chances = at.error + self.target
        spread = self.real.sum(2, keepdims=True) - _dot(chances, chances)[:, None, None]
        classes = (self.absent == 0).sum(1, keepdims=True, dtype=np.float32)
        images = self.real.sum(2, keepdims=True)
        curve = np.maximum(spread / (images * np.maximum(classes - 1, 1)), 1e-4)
        identity = np.eye(self.grams.shape[1], dtype=np.float32)
        regular = self.grams + identity / (self.c * curve)
        return replace(self, inverses=np.linalg.inv(regular), curve=curve)

    def _point(self, parts: Numbers, bias: Numbers, products: Numbers) -> _Point:
        logits = products + bias + self.absent
        largest = logits.max(1, keepdims=True)
        powers = np.exp(logits - largest)
        sums = powers.sum(1, keepdims=True)
        error = (powers / sums - self.target) * self.real
        # Image by image, as the difference of two large sums would have no digits left.
        given = np.where(self.target > 0, logits - largest, 0).sum(1, keepdims=True)
        entropy = _dot((np.log(sums) - given) * self.real, self.real)
        loss = self.c[:, 0, 0] * entropy + _dot(parts, products) / 2
        of_bias = self.c * (error @ self.real.swapaxes(1, 2))
        # Features are centred, so what all images have in common does nothing but rounding.
        common = of_bias / self.real.sum(2, keepdims=True)
        of_parts = parts + (self.c * error - common) * self.real
        return _Point(parts, bias, products, loss, error, of_parts, of_bias)

    def _direction(self, at: _Point, pairs: Sequence[_Pair]) -> tuple[Numbers, Numbers, Numbers]:
        """The step of L-BFGS (Nocedal 1980), from the bound on the Hessian: A, bias, and A G."""
        parts, bias = -at.of_parts, -at.of_bias
        shares = []
        for pair in reversed(pairs):
            share = pair.weight * (_dot(pair.products, parts) + _dot(pair.bias, bias))
            parts = parts - share[:, None, None] * pair.of_parts
            bias = bias - share[:, None, None] * pair.of_bias
            shares.append(share)
        scale = self.c * self.curve
        parts = (parts @ self.inverses) / scale
        bias = bias / (scale * self.real.sum(2, keepdims=True))
        for pair, share in zip(pairs, reversed(shares), strict=True):
            back = pair.weight * (_dot(pair.of_products, parts) + _dot(pair.of_bias, bias))
            rest = (share - back)[:, None, None]
            parts, bias = parts + rest * pair.parts, bias + rest * pair.bias
        return parts, bias, parts @ self.grams

    def _step(
        self,
        at: _Point,
        direction: tuple[Numbers, Numbers, Numbers],
        slope: Numbers,
        active: NDArray[np.bool_],
    ) -> _Point:
        """Each client's state after a step, which is halved as often as needed.

        Those at their end stay where they are.
        """
        step = active.astype(np.float32)
        before = at.parts, at.bias, at.products
        for tries in range(MOST_HALVES + 1):
            t = step[:, None, None]
            new = self._point(*(old + t * way for old, way in zip(before, direction, strict=True)))
            bad = active & (new.loss > at.loss * (1 + ROUNDING) + 1e-4 * step * slope)
            if not bad.any():
                break
            step = np.where(bad, step / 2 if tries < MOST_HALVES - 1 else 0.0, step)
        return new

    def _pair(self, at: _Point, new: _Point) -> _Pair:
        parts, bias, products = new.parts - at.parts, new.bias - at.bias, new.products - at.products
        of_parts, of_bias = new.of_parts - at.of_parts, new.of_bias - at.of_bias
        curve = _dot(products, of_parts) + _dot(bias, of_bias)
        weight = np.where(curve > 1e-12, 1 / np.maximum(curve, 1e-12), 0.0)
        of_products: Any = of_parts @ self.grams
        return _Pair(parts, bias, products, of_parts, of_bias, of_products, weight)


@dataclass(frozen=True)
class _Pair:
    """A step, how the gradient changed by it, both also as products with G, and their weight."""

    parts: Numbers
    bias: Numbers
    products: Numbers
    of_parts: Numbers
    of_bias: Numbers
    of_products: Numbers
    weight: Numbers


def _only(value: T, wanted: NDArray[np.bool_]) -> T:
    """The same arrays of some clients."""
    arrays = {name: array[wanted] for name, array in vars(value).items()}
    return replace(value, **arrays)  # type: ignore[type-var]  # all are dataclasses


def _dot(a: Numbers, b: Numbers) -> Any:
    """The inner product of every client's numbers: as matrices, so that each is summed alone."""
    count = len(a)
    return (a.reshape(count, 1, -1) @ b.reshape(count, -1, 1))[:, 0, 0]
