"""The only place that reads a pickle: CIFAR's python batches, and nothing but arrays in them."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from repper.basics.errors import RepperError

_reconstruct: Any = np.ndarray(0).__reduce__()[0]

ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
"""All that the batches refer to: what rebuilds an array from its bytes."""


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it uses {module}.{name}, which is not allowed")
        return ALLOWED[module, name]


def read_arrays(path: Path) -> dict[str, Any]:
    """The dictionary of arrays, lists and texts in a pickle; any other object is refused unread.

    Text of Python 2, which wrote CIFAR's batches, comes out as text.
    """
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            # Newer versions of numpy warn of how older ones, of Python 2, wrote down a type.
            warnings.simplefilter("ignore")
            content = _ArraysOnly(file, encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise RepperError(f"{path} is not a pickle of arrays: {error}") from error
    if not isinstance(content, dict):
        raise RepperError(f"{path} is not a pickle of arrays: it holds a {type(content).__name__}")
    return content
