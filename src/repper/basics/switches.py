"""Isolate a run from global switches of PyTorch and numpy.

Some change the last digits of every result, or the kind of all numbers. A program that uses us, or
code of a user's own, may have set them for itself: our work is done without them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch

T = TypeVar("T")
CPU = torch.device("cpu")
EXACT = ("none", "ieee")
"""Ways to multiply float32 numbers that leave them as they are."""


@contextmanager
def default_switches() -> Iterator[None]:
    """Use the switches of a new process in this block, then restore the caller's."""
    with ExitStack() as stack:

        def pin(now: Any, ours: Any, put: Callable[[Any], object]) -> None:
            if now != ours:
                put(ours)
                stack.callback(put, now)

        pin(torch.get_num_threads(), 1, torch.set_num_threads)
        pin(torch.get_default_dtype(), torch.float32, torch.set_default_dtype)
        pin(torch.get_default_device(), CPU, _set_device)
        precision = torch.get_float32_matmul_precision()
        pin(precision, "highest", torch.set_float32_matmul_precision)
        backend: Any = torch.backends.mkldnn
        for part in (torch.backends, backend, *_parts(backend)):
            if getattr(part, "fp32_precision", "none") not in EXACT:
                pin(part.fp32_precision, "none", _setter(part, "fp32_precision"))
        pin(backend.enabled, True, _setter(backend, "enabled"))
        strict = torch.are_deterministic_algorithms_enabled()
        only_warn = torch.is_deterministic_algorithms_warn_only_enabled()
        pin(strict, False, lambda on: torch.use_deterministic_algorithms(on, warn_only=only_warn))
        pin(_flushes(), False, torch.set_flush_denormal)
        for device in ("cpu", "cuda"):
            put = _autocast(device)
            pin(torch.is_autocast_enabled(device), False, put)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        yield


def each_step(
    context: Callable[[], AbstractContextManager[object]], events: Generator[T, None, None]
) -> Iterator[T]:
    """Produce each event in a context of its own; the caller's code runs outside of it."""
    while True:
        with context():
            try:
                event = next(events)
            except StopIteration:
                return
        try:
            yield event
        except GeneratorExit:
            # The end of Python is no time for switches, and needs none.
            with nullcontext() if sys.is_finalizing() else context():
                events.close()
            raise


def _parts(backend: Any) -> list[Any]:
    """Operations of oneDNN with their own precision setting, in newer versions of PyTorch."""
    return [getattr(backend, n) for n in ("matmul", "conv", "rnn") if hasattr(backend, n)]


def _setter(owner: Any, name: str) -> Callable[[Any], object]:
    return lambda value: setattr(owner, name, value)


def _set_device(device: torch.device) -> None:
    # None for the usual one: it then costs nothing to ask for it.
    torch.set_default_device(None if device == CPU else device)


def _autocast(device: str) -> Callable[[Any], object]:
    return lambda on: torch.set_autocast_enabled(device, on)


def _flushes() -> bool:
    """Whether denormal floats are flushed to 0; PyTorch has no function for this."""
    return float(torch.tensor(1e-40, dtype=torch.float32, device="cpu") * 0.5) == 0.0
