"""An update as one vector, which is clipped and noised as a whole."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from repper.basics.params import Params

Vector = NDArray[np.float64]


def vector_of(params: Mapping[str, Tensor], names: list[str]) -> Vector:
    """All values of these parameters, one after the other, in a fixed order."""
    parts = [params[name].detach().cpu().double().contiguous().flatten() for name in names]
    return np.concatenate([part.numpy() for part in parts]) if parts else np.zeros(0)


def params_from(vector: Vector, like: Mapping[str, Tensor], names: list[str]) -> Params:
    """The parameters that a vector stands for."""
    found: Params = {}
    sizes = [like[name].numel() for name in names]
    for name, part in zip(names, np.split(vector, np.cumsum(sizes)[:-1]), strict=True):
        found[name] = torch.from_numpy(part).to(like[name].dtype).reshape(like[name].shape)
    return found


def shortened(move: Vector, most: float) -> Vector:
    """The vector, clipped to this length."""
    length = float(np.sqrt(np.square(move).sum()))
    return move * (most / length) if length > most else move
