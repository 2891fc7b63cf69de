"""The interface of heads: scikit-learn's contract, and two more rules.

It accepts a client that owns a single class, and it turns into a `SavedHead`, the plain arrays that
predict and that are saved. `predict` itself uses those, so a head read from its file answers the
same, to the bit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from repper.basics.errors import RepperError, unknown
from repper.basics.options import check_fields
from repper.edge.saved_head import SHAPES, Array, SavedHead

Fitted = tuple[str, dict[str, Array]]
"""A SavedHead's shape and arrays."""


T = TypeVar("T")


def stops(epochs: Iterable[T], every: int) -> Iterator[tuple[int, T]]:
    """Every `every`-th epoch (0: none), counted from 1, and the last; `epochs` is not run ahead."""
    number = 0
    for number, state in enumerate(epochs, start=1):
        if every and number % every == 0:
            yield number, state
    if not number:
        raise RepperError("_fit of a head must yield a shape and its arrays at least once")
    if not every or number % every:
        yield number, state


class Head(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The base class of heads.

    Its settings are the fields of a dataclass. As scikit-learn wants it, they are stored as given
    and checked when the head is fitted.
    """

    kind: ClassVar[str]
    scale: bool
    """Whether features are centred and scaled first, or taken as they are."""
    draws: ClassVar[bool] = False
    """Whether it makes random choices, and so takes a `random_state`."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit on features (n, d) and labels (n,)."""
        for _ in self.fits(X, y):
            pass
        return self

    def fits(self, X: ArrayLike, y: ArrayLike, every: int = 0) -> Iterator[int]:
        """Fit, and stop after every `every`-th epoch (0: none) and after the last.

        A head that knows no epochs stops once.
        """
        for epoch, (shape, arrays) in stops(self._steps(*self.prepared(X, y)), every):
            self._set(shape, arrays)
            yield epoch

    def prepared(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
        """Features to fit on and labels 0, 1, ..; stores the scaling and the classes."""
        check_fields(self)
        x, labels = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(labels)
        return self.scaled(x, labels)

    def scaled(self, x: Array, labels: Array) -> tuple[Array, NDArray[np.int64]]:
        """`prepared` for float32 features that were checked before."""
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if not self.scale:
            self.mean_, self.scale_ = np.zeros(x.shape[1], np.float32), np.float32(1)
            return x, codes
        self.mean_ = x.mean(0)
        # One scale for all features, not one each: a feature that hardly varies over a client's few
        # images would be blown up otherwise.
        deviation = float(np.sqrt(((x - self.mean_) ** 2).mean()))
        self.scale_ = np.float32(deviation if deviation > 1e-12 else 1.0)
        return (x - self.mean_) / self.scale_, codes

    def _set(self, shape: str, arrays: dict[str, Array]) -> None:
        if shape not in SHAPES:
            raise unknown(f"shape of {type(self).__name__}", shape, SHAPES)
        scaling = {"mean": self.mean_, "scale": np.atleast_1d(self.scale_)}
        self.shape_ = shape
        self.arrays_ = scaling | {n: np.asarray(a, np.float32) for n, a in arrays.items()}
        if self.arrays_.keys() != set(SHAPES[shape]):
            expected, given = ", ".join(SHAPES[shape][2:]), ", ".join(arrays)
            raise RepperError(
                f"{type(self).__name__} must give the arrays {expected} for shape {shape!r}, "
                f"got {given}"
            )

    def _steps(self, x: Array, codes: NDArray[np.int64]) -> Iterator[Fitted]:
        if len(self.classes_) == 1:
            yield "linear", {"weight": np.zeros((1, x.shape[1])), "bias": np.zeros(1)}
        else:
            yield from self._fit(x, codes)

    def alike(self, x: Array, labels: Array) -> Hashable:
        """Heads of one kind with equal answers can be fitted at once; None: it is fitted alone."""
        return None

    @classmethod
    def fit_alike(
        cls, heads: Sequence[Any], data: Sequence[tuple[Array, Array]], every: int
    ) -> Iterator[int]:
        """Fit heads that are alike at once: same stops as `fits`, same bits as single fits."""
        raise TypeError(f"{cls.__name__} says that heads are alike, but fits them one by one only")

    @abstractmethod
    def _fit(self, x: Array, codes: NDArray[np.int64]) -> Iterator[Fitted]:
        """Fit on prepared features and labels 0, 1, ..; yield the result after every epoch."""

    def decision_function(self, X: ArrayLike) -> Array:
        """A score per image and class; for two classes, as scikit-learn has it, one column."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float32, reset=False)
        scores = self._saved(range(len(self.classes_)), (), "").scores(x)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float32, reset=False)
        codes = self._saved(range(len(self.classes_)), (), "").predict(x)
        result: Array = self.classes_[codes]
        return result

    def saved(self, names: tuple[str, ...], encoder: str, unit_input: bool) -> SavedHead:
        """This head as plain arrays; `names[label]` is a label's name, `encoder` a digest."""
        check_is_fitted(self)
        labels = [int(label) for label in self.classes_]
        return self._saved(labels, tuple(names[label] for label in labels), encoder, unit_input)

    def _saved(
        self, labels: Iterable[int], names: tuple[str, ...], encoder: str, unit_input: bool = False
    ) -> SavedHead:
        return SavedHead(
            self.kind, self.shape_, self.arrays_, tuple(labels), names, encoder, unit_input
        )
