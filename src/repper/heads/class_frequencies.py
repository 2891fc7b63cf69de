"""The class frequencies of a client, for its heads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def log_prior(labels: NDArray[np.int64], classes: int, smoothing: float) -> NDArray[np.float64]:
    """The log of class frequencies, with `smoothing` images of every class added."""
    counts = np.bincount(labels, minlength=classes) + smoothing
    prior: NDArray[np.float64] = np.log(counts / counts.sum())
    return prior
