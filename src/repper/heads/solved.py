"""Heads that scikit-learn solves to the end: nothing to tune but the regularization."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC, LinearSVC

from repper.edge.saved_head import Array
from repper.heads.head import Fitted, Head


def _linear_arrays(model: LogisticRegression | LinearSVC) -> dict[str, Array]:
    """One row of weights per class; for two classes scikit-learn keeps the second one's only."""
    weight, bias = model.coef_, model.intercept_
    if len(weight) == 1:
        weight, bias = np.vstack([0 * weight, weight]), np.hstack([0 * bias, bias])
    return {"weight": weight, "bias": bias}


@contextmanager
def _stopping_early_is_fine() -> Iterator[None]:
    """Thousands of steps are as good as the optimum: no warning amid a thousand clients."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


class LogisticHead(Head):
    """Logistic regression, solved to the end by scikit-learn."""

    kind = "logistic"

    def __init__(self, c: float = 1.0, plain: bool = False) -> None:
        self.c = c
        self.plain = plain

    def _fit(self, x: Array, codes: NDArray[np.int64]) -> Iterator[Fitted]:
        with _stopping_early_is_fine():
            model = LogisticRegression(C=self.c, max_iter=2000).fit(x, codes)
        yield "linear", _linear_arrays(model)


class SVMHead(Head):
    """A support vector machine, one class against the rest: linear, or with an RBF kernel."""

    kind = "svm"

    def __init__(self, c: float = 1.0, kernel: str = "linear", plain: bool = False) -> None:
        self.c = c
        self.kernel = kernel
        self.plain = plain

    def _fit(self, x: Array, codes: NDArray[np.int64]) -> Iterator[Fitted]:
        yield self._linear(x, codes) if self.kernel == "linear" else self._rbf(x, codes)

    def _linear(self, x: Array, codes: NDArray[np.int64]) -> Fitted:
        # The primal solver: unlike the dual one it draws no random numbers.
        with _stopping_early_is_fine():
            model = LinearSVC(C=self.c, dual=False, max_iter=5000).fit(x, codes)
        return "linear", _linear_arrays(model)

    def _rbf(self, x: Array, codes: NDArray[np.int64]) -> Fitted:
        # As scikit-learn's gamma="scale": scaled features have a variance of one, on average.
        variance = float(x.var()) if self.plain else 1.0
        gamma = 1 / (x.shape[1] * (variance or 1.0))
        columns = np.zeros((len(self.classes_), len(x)))
        bias = np.zeros(len(self.classes_))
        for label in range(len(self.classes_)):
            machine = SVC(C=self.c, gamma=gamma).fit(x, codes == label)
            columns[label, machine.support_] = machine.dual_coef_[0]
            bias[label] = machine.intercept_[0]
        used = np.flatnonzero(columns.any(0))
        arrays = {"vectors": x[used], "gamma": np.array([gamma])}
        return "rbf", {**arrays, "weight": columns[:, used], "bias": bias}
