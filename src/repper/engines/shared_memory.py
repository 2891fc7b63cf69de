"""Tensors in memory that this process and its workers share.

Anonymous memory passed by file descriptor: it has no name that a killed process could leave behind,
and, unlike /dev/shm in a container, no size limit of its own.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class SharedTensor:
    """A tensor that stays shared when it is sent to a process that is being started."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, fd: int | None = None) -> None:
        self._shape, self._dtype = shape, dtype
        # A byte more than needed, because neither a map nor a buffer may be empty.
        count = math.prod(shape)
        size = count * dtype.itemsize + 1
        self._fd = _anonymous_file(size) if fd is None else fd
        memory = torch.frombuffer(mmap.mmap(self._fd, size), dtype=torch.uint8)
        self.tensor: Tensor = memory[: size - 1].view(dtype).reshape(shape)

    @classmethod
    def copy_of(cls, array: NDArray[Any]) -> SharedTensor:
        source = torch.from_numpy(np.ascontiguousarray(array))
        shared = cls(tuple(source.shape), source.dtype)
        shared.tensor.copy_(source)
        return shared

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (self._shape, self._dtype, DupFd(self._fd))

    def __del__(self) -> None:
        os.close(self._fd)


def _attach(shape: tuple[int, ...], dtype: torch.dtype, fd: Any) -> SharedTensor:
    return SharedTensor(shape, dtype, fd.detach())


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("repper")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.truncate(fd, size)
    return fd
