"""A classifier for photos with scikit-learn's contract."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageOps
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from repper.basics.errors import RepperError
from repper.data.images import fitted, read_image
from repper.edge.onnx_encoder import OnnxEncoder
from repper.edge.saved_head import Array, SavedHead, softmax
from repper.heads.head import Head
from repper.personal.fit import make_head


class PersonalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # no types there
    """A head on an exported encoder.

    `encoder` is a file that `repper export` wrote; None says that X are features already. `head` is
    linear, mlp, svm or logistic, or a head with settings of its own, such as `SVMHead(c=10)`.

    X are paths of photos, Pillow's images, or an array of images: uint8 of shape (n, h, w) or
    (n, h, w, channels). `partial_fit` adds photos to those known before, and fits the head anew.
    """

    def __init__(
        self,
        encoder: str | Path | None = None,
        head: str | Head = "logistic",
        random_state: int = 0,
    ) -> None:
        self.encoder = encoder
        self.head = head
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Fit on photos and their labels, which may be of any kind that can be sorted."""
        x, labels = self._given(X, y, reset=True)
        return self._fitted(x, labels, np.unique(labels))

    def partial_fit(self, X: Any, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Add photos; `classes` may name classes without photos yet."""
        first = not hasattr(self, "features_")
        x, labels = self._given(X, y, reset=first)
        known = [labels] if classes is None else [labels, np.asarray(classes)]
        if not first:
            known.append(self.classes_)
            x = np.concatenate([self.features_, x])
            labels = np.concatenate([self.labels_, labels])
        return self._fitted(x, labels, np.unique(np.concatenate(known)))

    def _given(self, X: Any, y: ArrayLike, reset: bool) -> tuple[Array, Array]:
        if self.encoder is None:
            x, labels = validate_data(self, X, y, dtype=np.float32, reset=reset)
        else:
            x, labels = self._features(X), np.asarray(y)
            if labels.ndim != 1 or len(labels) != len(x):
                raise ValueError(f"{len(x)} photos need as many labels, got shape {labels.shape}")
            if not len(x):
                raise ValueError("there are no photos to fit on")
        check_classification_targets(labels)
        return x, labels

    def _fitted(self, x: Array, labels: Array, classes: Array) -> Self:
        head = self.head
        made = make_head(head, seed=self.random_state) if isinstance(head, str) else clone(head)
        self.features_, self.labels_ = x, labels
        self.head_ = made.fit(x, labels)
        self.classes_ = classes
        return self

    def decision_function(self, X: Any) -> Array:
        """A score per photo and class; for two classes, as scikit-learn has it, one column."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> Array:
        """The softmax of the scores; a class without photos has no chance."""
        return softmax(self._scores(X))

    def predict(self, X: Any) -> Array:
        best = self._scores(X).argmax(1)
        result: Array = self.classes_[best]
        return result

    def _scores(self, X: Any) -> Array:
        check_is_fitted(self)
        if self.encoder is None:
            x = validate_data(self, X, dtype=np.float32, reset=False)
        else:
            x = self._features(X)
        head = self.head_
        saved = head._saved(range(len(head.classes_)), (), "")
        found = saved.scores(x)
        scores = np.full((len(x), len(self.classes_)), -np.inf, found.dtype)
        scores[:, np.searchsorted(self.classes_, head.classes_)] = found
        return scores

    def saved(self) -> SavedHead:
        """The head as it is written to `head.safetensors`."""
        check_is_fitted(self)
        digest = self._open().digest if self.encoder is not None else ""
        names = tuple(map(str, self.head_.classes_))
        return self.head_._saved(range(len(names)), names, digest)

    def _open(self) -> OnnxEncoder:
        """Open the encoder once; it is not part of the estimator's state."""
        if self.encoder is None:
            raise RepperError("this classifier has no encoder: give encoder=")
        path = Path(self.encoder)
        found: OnnxEncoder | None = self.__dict__.get("_opened")
        if found is None or self.__dict__.get("_opened_path") != path:
            found = OnnxEncoder.open(path)
            self._opened, self._opened_path = found, path
        return found

    def __getstate__(self) -> dict[str, Any]:
        """The state without onnxruntime's session, which cannot be pickled."""
        state: dict[str, Any] = super().__getstate__()
        return {key: value for key, value in state.items() if not key.startswith("_opened")}

    def _features(self, X: Any) -> Array:
        encoder = self._open()
        if isinstance(X, str | Path | Image.Image):
            raise ValueError("X must be a list of photos, not one photo")
        return encoder.features_of(_images(X, encoder))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.encoder is not None:
            tags.input_tags.two_d_array = False
            tags.input_tags.three_d_array = True
            tags.input_tags.string = True
            tags.no_validation = True
        return tags


def _images(X: Any, encoder: OnnxEncoder) -> NDArray[np.uint8]:
    """Convert images of any size for the encoder: (n, size, size, channels)."""
    shape = (encoder.size, encoder.size, encoder.channels)
    if isinstance(X, np.ndarray) and X.dtype == np.uint8 and X.shape[1:] == shape:
        return X
    found = [_image(one, encoder) for one in X]
    return np.stack(found) if found else np.zeros((0, *shape), np.uint8)


def _image(one: Any, encoder: OnnxEncoder) -> NDArray[np.uint8]:
    channels, size = encoder.channels, encoder.size
    if isinstance(one, str | Path):
        return read_image(Path(one), channels, size).transpose(1, 2, 0)
    if isinstance(one, Image.Image):
        one = ImageOps.exif_transpose(one)
    else:
        array = np.asarray(one)
        grey = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 1)
        colour = array.ndim == 3 and array.shape[2] == 3
        if array.dtype != np.uint8 or not (grey or colour) or not array.size:
            raise ValueError(
                f"an image must be uint8 of shape (h, w) or (h, w, 3), got {array.dtype} "
                f"{array.shape}"
            )
        one = Image.fromarray(array.reshape(array.shape[:2]) if grey else array)
    return fitted(one, channels, size).transpose(1, 2, 0)


def features_of(encoder: str | Path, X: Sequence[Any]) -> Array:
    """The features of photos, to fit other models on them."""
    opened = OnnxEncoder.open(Path(encoder))
    return opened.features_of(_images(X, opened))
