"""Heads fitted to the optimum: only the regularization is to be chosen."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.svm import SVC, LinearSVC

from repper.edge.saved_head import Array
from repper.heads.head import Fitted, Head
from repper.heads.logistic import shape_of, solve
from repper.heads.settings import LogisticSettings, SVMSettings

FOLDS = 5
SMALLER = (1.0, 0.1, 0.01, 0.001)


def _linear_arrays(model: LogisticRegression | LinearSVC) -> dict[str, Array]:
    """One row of weights per class; for two classes scikit-learn keeps the second one's only."""
    weight, bias = model.coef_, model.intercept_
    if len(weight) == 1:
        weight, bias = np.vstack([0 * weight, weight]), np.hstack([0 * bias, bias])
    return {"weight": weight, "bias": bias}


@contextmanager
def _stopping_early_is_fine() -> Iterator[None]:
    """Silence convergence warnings: thousands of steps are as good as the optimum."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


class SolvedHead(Head):
    """Heads fitted to the optimum; `c_` is the inverse regularization that was used."""

    c: float
    choose_c: bool

    def _fit(self, x: Array, codes: NDArray[np.int64]) -> Iterator[Fitted]:
        self.c_ = self._chosen(x, codes) if self.choose_c else self.c
        with _stopping_early_is_fine():
            yield self._solve(x, codes, self.c_)

    @abstractmethod
    def _solve(self, x: Array, codes: NDArray[np.int64], c: float) -> Fitted:
        """Compute the optimum for prepared features and labels."""

    def _chosen(self, x: Array, codes: NDArray[np.int64]) -> float:
        """The best of `c` and smaller ones by cross-validation; of equal ones the smallest."""
        parts = KFold(min(FOLDS, len(x)), shuffle=True, random_state=0)
        right = {}
        for c in (self.c * factor for factor in SMALLER):
            # What is left of a client's images without a part may be of a single class: a head
            # can do that, which scikit-learn's solvers cannot. These features are scaled already.
            head = clone(self).set_params(c=c, choose_c=False, scale=False)
            right[c] = int((cross_val_predict(head, x, codes, cv=parts) == codes).sum())
        return max(sorted(right), key=right.__getitem__)


@dataclass(eq=False, repr=False)
class LogisticHead(LogisticSettings, SolvedHead):
    """Logistic regression at its optimum: by scikit-learn, for few images by our own solver.

    That one solves many clients at once (`heads/logistic.py`).
    """

    kind: ClassVar[str] = "logistic"

    def alike(self, x: Array, labels: Array) -> Hashable:
        classes = len(np.unique(labels))
        return None if classes == 1 or self.choose_c else shape_of(len(x), classes)

    @classmethod
    def fit_alike(
        cls, heads: Sequence[LogisticHead], data: Sequence[tuple[Array, Array]], every: int
    ) -> Iterator[int]:
        problems = [head.scaled(*own) for head, own in zip(heads, data, strict=True)]
        for head, (weight, bias) in zip(heads, solve(problems, heads[0].c), strict=True):
            head.c_ = head.c
            head._set("linear", {"weight": weight, "bias": bias})
        yield 1

    def _solve(self, x: Array, codes: NDArray[np.int64], c: float) -> Fitted:
        if shape_of(len(x), len(self.classes_)) is None:
            return "linear", _linear_arrays(LogisticRegression(C=c, max_iter=2000).fit(x, codes))
        [(weight, bias)] = solve([(x, codes)], c)
        return "linear", {"weight": weight, "bias": bias}


@dataclass(eq=False, repr=False)
class SVMHead(SVMSettings, SolvedHead):
    """A support vector machine, one class against the rest: linear, or with an RBF kernel."""

    kind: ClassVar[str] = "svm"

    def _solve(self, x: Array, codes: NDArray[np.int64], c: float) -> Fitted:
        return self._linear(x, codes, c) if self.kernel == "linear" else self._rbf(x, codes, c)

    def _linear(self, x: Array, codes: NDArray[np.int64], c: float) -> Fitted:
        # The primal solver: unlike the dual one it draws no random numbers.
        model = LinearSVC(C=c, dual=False, max_iter=5000).fit(x, codes)
        return "linear", _linear_arrays(model)

    def _rbf(self, x: Array, codes: NDArray[np.int64], c: float) -> Fitted:
        # As scikit-learn's gamma="scale": scaled features have a variance of one, on average.
        variance = 1.0 if self.scale else float(x.var())
        gamma = 1 / (x.shape[1] * (variance or 1.0))
        columns = np.zeros((len(self.classes_), len(x)))
        bias = np.zeros(len(self.classes_))
        for label in range(len(self.classes_)):
            machine = SVC(C=c, gamma=gamma).fit(x, codes == label)
            columns[label, machine.support_] = machine.dual_coef_[0]
            bias[label] = machine.intercept_[0]
        used = np.flatnonzero(columns.any(0))
        arrays = {"vectors": x[used], "gamma": np.array([gamma])}
        return "rbf", {**arrays, "weight": columns[:, used], "bias": bias}
