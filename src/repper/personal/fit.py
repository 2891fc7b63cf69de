"""Fit a head on photos' features, and estimate its accuracy by cross-validation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.covariance import LedoitWolf
from sklearn.model_selection import StratifiedKFold

from repper.basics.errors import RepperError, unknown
from repper.basics.options import check_fields
from repper.edge.saved_head import Array, SavedHead, softmax
from repper.edge.unknown import Unknown
from repper.heads import DEVICE_HEADS
from repper.heads.head import Head

FOLDS = 5
KNOWN_SHARE = 0.95
"""So many of one's own photos are nearer than the threshold of `unknown`."""
LEAST_FOR_UNKNOWN = 10
FEW = 5
"""Photos of a class below which a person is told that there are few."""
UNEQUAL = 10
"""How many times the photos of another class a class may have, before a person is told."""


@dataclass(frozen=True)
class HeldOut:
    """Cross-validation results of a head, with each photo held out once.

    `confusion[i, j]` are photos of class i that were called j.
    """

    accuracy: float
    photos: int
    folds: int
    confusion: NDArray[np.int64]


def make_head(kind: str, settings: Mapping[str, Any] | None = None, seed: int = 0) -> Head:
    """Create a head of this kind; random heads take the seed."""
    if kind not in DEVICE_HEADS:  # it may come from a file of others: never code of one's own
        raise unknown("head", kind, DEVICE_HEADS)
    made = DEVICE_HEADS[kind]
    if made.draws:
        settings = {"random_state": seed, **(settings or {})}
    head = made(**(settings or {}))
    check_fields(head)
    return head


def fit_head(
    head: Head, x: Array, labels: Array, names: tuple[str, ...], encoder: str
) -> SavedHead:
    """The head, fitted on all photos; `names[label]` is a class's name."""
    return head.fit(x, labels).saved(names, encoder, unit_input=False)


def held_out_scores(head: Head, x: Array, labels: Array) -> tuple[Array, NDArray[np.bool_], int]:
    """Cross-validation scores of photos, which photos have scores, and the folds.

    A class of one photo is never held out, for nobody else could know it.
    """
    from sklearn.base import clone

    classes, counts = np.unique(labels, return_counts=True)
    scores = np.full((len(x), len(classes)), -np.inf)
    tested = np.zeros(len(x), bool)
    several = np.flatnonzero(counts[np.searchsorted(classes, labels)] > 1)
    most = int(counts.max())
    if not len(several) or len(classes) < 2 or most < 2:
        return scores, tested, 0
    folds = min(FOLDS, most)
    parts = StratifiedKFold(folds, shuffle=True, random_state=0)
    for rest, held_out in _splits(parts, labels):
        held_out = held_out[np.isin(held_out, several) & np.isin(labels[held_out], labels[rest])]
        if not len(held_out):
            continue
        fitted = clone(head).fit(x[rest], labels[rest])
        saved = fitted.saved(tuple(map(str, range(int(classes.max()) + 1))), "", unit_input=False)
        places = np.searchsorted(classes, saved.classes)
        scores[np.ix_(held_out, places)] = saved.scores(x[held_out])
        tested[held_out] = True
    return scores, tested, folds


def _splits(parts: Any, labels: Array) -> Any:
    """Cross-validation folds, without warnings about classes smaller than the number of folds."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return list(parts.split(labels, labels))


def held_out(head: Head, x: Array, labels: Array) -> tuple[HeldOut | None, float]:
    """Estimate the accuracy on new photos, and the temperature to divide scores by.

    Divided so, the softmax of the scores says how often the head is right (temperature scaling, Guo
    et al. 2017). None if there are too few photos to hold any out.
    """
    scores, tested, folds = held_out_scores(head, x, labels)
    if not tested.any():
        return None, 1.0
    classes = np.unique(labels)
    truth = np.searchsorted(classes, labels[tested])
    called = scores[tested].argmax(1)
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(confusion, (truth, called), 1)
    accuracy = 100 * float((truth == called).mean())
    found = HeldOut(accuracy, int(tested.sum()), folds, confusion)
    return found, _temperature(scores[tested], truth)


def _temperature(scores: Array, truth: NDArray[np.int64]) -> float:
    def loss(log: float) -> float:
        chances = softmax(scores / np.exp(log))[np.arange(len(truth)), truth]
        return -float(np.log(np.maximum(chances, 1e-12)).mean())

    # Within bounds: a head that is right on every photo would be made sure beyond all measure.
    found = minimize_scalar(loss, bounds=(np.log(0.05), np.log(20)), method="bounded")
    return float(np.exp(found.x))


def cooled(head: SavedHead, temperature: float) -> SavedHead:
    """The head with all scores divided by a temperature; predictions do not change."""
    from dataclasses import replace

    last = {
        name: (head.arrays[name] / temperature).astype(np.float32) for name in ("weight", "bias")
    }
    return replace(head, arrays=head.arrays | last)


def fit_unknown(x: Array, labels: Array, encoder: str) -> Unknown | None:
    """Fit the rule for `unknown`; None for too few photos.

    The threshold is one that photos of one's own pass 95 times in 100, held out in turn.
    """
    _, counts = np.unique(labels, return_counts=True)
    if len(x) < LEAST_FOR_UNKNOWN or int(counts.max()) < 2:
        return None
    parts = StratifiedKFold(min(FOLDS, int(counts.max())), shuffle=True, random_state=0)
    distances = [
        _rule(x[rest], labels[rest], encoder).distances(x[held_out])
        for rest, held_out in _splits(parts, labels)
    ]
    threshold = float(np.quantile(np.concatenate(distances), KNOWN_SHARE))
    rule = _rule(x, labels, encoder)
    return Unknown(rule.means, rule.whiten, threshold, encoder)


def _rule(x: Array, labels: Array, encoder: str) -> Unknown:
    classes, codes = np.unique(labels, return_inverse=True)
    means = np.stack([x[codes == code].mean(0) for code in range(len(classes))]).astype(np.float64)
    spread = LedoitWolf(assume_centered=True).fit(x - means[codes]).covariance_
    size = float(np.trace(spread)) / len(spread) or 1.0
    lower = np.linalg.cholesky(spread + 1e-6 * size * np.eye(len(spread)))
    whiten = np.linalg.inv(lower).T
    return Unknown(means.astype(np.float32), whiten.astype(np.float32), np.inf, encoder)


def check_classes(counts: Mapping[str, int]) -> list[str]:
    """Warnings about the photos of each class; fewer than two classes are an error."""
    if len(counts) < 2:
        only = f", {next(iter(counts))!r}" if counts else ""
        raise RepperError(
            f"a classifier needs photos of at least two classes, got photos of {len(counts)}{only}"
        )
    found = []
    for name, count in Counter(counts).most_common()[::-1]:
        if count == 1:
            found.append(f"class {name!r} has one photo, so its accuracy cannot be measured")
        elif count < FEW:
            found.append(f"class {name!r} has only {count} photos: add more")
    most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    if counts[most] > UNEQUAL * counts[least]:
        found.append(
            f"class {most!r} has {counts[most]} photos and {least!r} {counts[least]}: rare classes "
            f"are predicted rarely"
        )
    return found
