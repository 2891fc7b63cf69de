"""The seam between a method and the machines it runs on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from threadpoolctl import threadpool_limits

from repper.evaluate import Score
from repper.heads import HEADS
from repper.params import Params


@dataclass(frozen=True)
class Update:
    """All that leaves a client in stage 1."""

    client: int
    shared: Params
    examples: int
    loss: float


@dataclass(frozen=True)
class Absent:
    """A client that was asked for an update, gave none that is any good, and is done without."""

    client: int
    reason: str


@dataclass(frozen=True)
class Personal:
    """What leaves a client in stage 2, in simulation: its scores, and digests of what it keeps.

    `curve` has its test accuracy after some epochs of its head, if asked for.
    """

    client: int
    test: Score
    validation: Score | None
    head_digest: str
    private_digest: str = ""
    curve: tuple[tuple[int, float | None], ...] = ()


class Engine(ABC):
    """A fleet of clients. Use it in a `with` block.

    The numbers an engine gives are those of the serial one, to the bit. Every client's work, and
    this process while the block lasts, therefore runs on one thread: the order in which several
    threads add would show in the last digits.
    """

    @abstractmethod
    def fit(self, shared: Params, cohort: Sequence[int], number: int) -> Iterator[Update | Absent]:
        """Let each client of the cohort train in round `number`; updates come in any order."""

    @abstractmethod
    def personalize(
        self, shared: Params, clients: Sequence[int], number: int, save_to: Path | None
    ) -> Iterator[Personal]:
        """Let each client fit its head, keep it in `save_to` if given, and test it.

        `shared` and what clients have of their own are those after round `number`.
        """

    @abstractmethod
    def probe(self, shared: Params) -> float | None:
        """The k-NN accuracy of the shared encoder on a fixed sample of all images, if asked for."""

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._stack.enter_context(one_thread())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep PyTorch, BLAS and OpenMP to one thread in this process, for a while."""
    for kind in HEADS:
        # A limit holds only for libraries that are loaded: load those of every head.
        HEADS[kind]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
