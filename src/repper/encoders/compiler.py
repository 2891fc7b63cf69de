"""`--compile`: PyTorch's compiler, with a cache that workers share and that outlives a run."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

import torch
from torch import Tensor

from repper.basics.errors import RepperError
from repper.basics.files import lock_file

CACHE = "TORCHINDUCTOR_CACHE_DIR"
LOCK = "repper.lock"


def check_compiler() -> None:
    """Raise an error if the compiler cannot work on this machine."""
    compilers = [os.environ.get("CXX", "g++"), "clang++"]
    if not any(shutil.which(name) for name in compilers):
        raise RepperError("--compile needs a C++ compiler: install g++, or leave --compile out")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        raise RepperError(
            "--compile needs Python's headers (Debian: python3-dev): install them, "
            "or leave --compile out"
        )


def compiled(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The function, compiled at its first call for any number of rows."""
    fast = torch.compile(function, dynamic=None)

    @wraps(function)
    def call(views: Tensor, labels: Tensor) -> Tensor:
        for tensor in (views, labels):
            torch._dynamo.mark_dynamic(tensor, 0)
        return fast(views, labels)

    return call


@contextmanager
def compiling() -> Iterator[None]:
    """Compile inside this block; one process at a time, and later processes use its cache."""
    folder = Path(os.environ.setdefault(CACHE, str(Path.home() / ".cache" / "repper" / "compiled")))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).touch()
    except OSError as error:
        raise RepperError(
            f"cannot write compiled code to {folder}: {error.strerror}; "
            f"set {CACHE} to a folder, or leave --compile out"
        ) from error
    with lock_file(folder / LOCK, wait=True):
        try:
            yield
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            raise RepperError(f"--compile failed, leave it out: {reason}") from error
