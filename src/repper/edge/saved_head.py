"""A fitted head as plain arrays that can predict, and its file format.

Every kind of head ends as one of three shapes, so that a few lines of numpy serve them all:

| shape    | scores of x, where u = (x - mean) / scale            | heads                   |
|----------|------------------------------------------------------|-------------------------|
| `linear` | `u W' + b`                                           | linear, svm, logistic   |
| `mlp`    | `relu(u W1' + b1) W' + b`                            | mlp                     |
| `rbf`    | `exp(-gamma |u - v|^2) W' + b`, v the support vectors | svm with an RBF kernel  |

The prediction is the class with the largest score. With a single class it is that class.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from repper.basics.errors import RepperError
from repper.basics.tensor_files import read_sealed, write_sealed

Array = NDArray[Any]

SHAPES = {
    "linear": ("mean", "scale", "weight", "bias"),
    "mlp": ("mean", "scale", "hidden_weight", "hidden_bias", "weight", "bias"),
    "rbf": ("mean", "scale", "vectors", "gamma", "weight", "bias"),
}
_FORMAT = "repper-head-1"


@dataclass(frozen=True)
class SavedHead:
    """A fitted head that can predict, but not be fitted.

    `classes` are the labels it can answer, in the order of its scores; `names` are theirs.
    `encoder` is the digest of the encoder whose features it was fitted on. With `unit_input`,
    features are first normalized to length one (the paper's z instead of r).
    """

    kind: str
    shape: str
    arrays: dict[str, Array]
    classes: tuple[int, ...]
    names: tuple[str, ...]
    encoder: str
    unit_input: bool = False

    def scores(self, features: Array) -> Array:
        """Scores with one row per image and one column per class of `classes`."""
        a = self.arrays
        if features.ndim != 2 or features.shape[1] != a["mean"].shape[0]:
            raise RepperError(
                f"this head takes {a['mean'].shape[0]} features per image, got an array of shape "
                f"{features.shape}"
            )
        x = unit_rows(features) if self.unit_input else features
        x = (x - a["mean"]) / a["scale"]
        if self.shape == "mlp":
            x = np.maximum(x @ a["hidden_weight"].T + a["hidden_bias"], 0)
        elif self.shape == "rbf":
            squares = (x**2).sum(1)[:, None] + (a["vectors"] ** 2).sum(1)[None, :]
            x = np.exp(-a["gamma"] * np.maximum(squares - 2 * x @ a["vectors"].T, 0))
        result: Array = x @ a["weight"].T + a["bias"]
        return result

    def predict(self, features: Array) -> NDArray[np.int64]:
        """The label of every row."""
        best = self.scores(features).argmax(1)
        result: NDArray[np.int64] = np.asarray(self.classes, dtype=np.int64)[best]
        return result

    def probabilities(self, features: Array) -> Array:
        """The softmax of the scores."""
        return softmax(self.scores(features))

    def digest(self) -> str:
        """A SHA-256 over everything that determines a prediction."""
        sha = hashlib.sha256(json.dumps(self._header(), sort_keys=True).encode())
        for name in SHAPES[self.shape]:
            array = np.ascontiguousarray(self.arrays[name])
            sha.update(f"{name} {array.dtype} {array.shape}\n".encode())
            sha.update(array.tobytes())
        return sha.hexdigest()

    def save(self, path: Path) -> None:
        header = {**self._header(), "digest": self.digest()}
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        write_sealed(path, save(arrays, metadata=header))

    def for_encoder(self, digest: str) -> SavedHead:
        """This head, after a check that it belongs to the encoder with this digest."""
        if self.encoder != digest:
            raise RepperError(
                f"this head was fitted on encoder {self.encoder[:12]}, not on {digest[:12]}: "
                f"fit a new head on this encoder, or use the head's own"
            )
        return self

    def _fits_together(self) -> bool:
        """Whether the arrays can be multiplied, and give a score for every class."""
        if not all(isinstance(name, str) for name in self.names):
            return False
        if not all(type(label) is int for label in self.classes):
            return False
        if not all(np.isfinite(array).all() for array in self.arrays.values()):
            return False
        one = np.zeros((1, len(self.arrays["mean"])), np.float32)
        count = (1, len(self.classes))
        return self.scores(one).shape == count and len(self.names) == len(self.classes)

    def _header(self) -> dict[str, str]:
        return {
            "format": _FORMAT,
            "kind": self.kind,
            "shape": self.shape,
            "classes": json.dumps(list(self.classes)),
            "names": json.dumps(list(self.names)),
            "encoder": self.encoder,
            "input": "z" if self.unit_input else "r",
        }


def read_head(path: Path) -> SavedHead:
    """Read a head file; a damaged file, or a file of another format, is refused."""
    arrays, header = read_sealed(path, "np")
    if header.get("format") != _FORMAT or set(arrays) != set(
        SHAPES.get(header.get("shape", ""), ())
    ):
        raise RepperError(f"{path} is not a head file of this version of repper ({_FORMAT})")
    try:
        head = SavedHead(
            kind=header["kind"],
            shape=header["shape"],
            arrays=arrays,
            classes=tuple(json.loads(header["classes"])),
            names=tuple(json.loads(header["names"])),
            encoder=header["encoder"],
            unit_input=header["input"] == "z",
        )
        whole = head.digest() == header["digest"] and head._fits_together()
    except (KeyError, TypeError, ValueError, RecursionError):
        whole = False
    if not whole:
        raise RepperError(f"{path} is damaged: its contents do not match its digest")
    return head


def unit_rows(features: Array) -> Array:
    """Rows scaled to length one: the paper's z for its r."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    result: Array = features / np.maximum(norms, 1e-12)
    return result


def softmax(scores: Array) -> Array:
    """Each row as positive numbers with a sum of one."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    result: Array = powers / powers.sum(1, keepdims=True)
    return result
