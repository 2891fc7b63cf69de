"""The interface between a method and the machines it runs on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from threadpoolctl import threadpool_limits

from repper.basics.params import Params
from repper.basics.switches import default_switches
from repper.heads import HEADS
from repper.heads.scores import Score


@dataclass(frozen=True)
class Update:
    """Everything that leaves a client in a round: parameters, number of examples, mean loss.

    `sent` has the weights it shares by name, and what travels beside them by part and name, such as
    `control:head.bias` (`repper.basics.names`).
    """

    client: int
    sent: Params
    examples: int
    loss: float


@dataclass(frozen=True)
class Absent:
    """A cohort member left out of the mean, and why."""

    client: int
    reason: str
    declined: bool = False
    """Whether it does not want to take part in this stage."""


@dataclass(frozen=True)
class Personal:
    """Everything that leaves a client after its head is fitted: scores and digests.

    `curve` has its test accuracy after some epochs of its head, if asked for. A site tells of all
    this at most an accuracy, `told`, and the digest of what it keeps; None is not told.
    """

    client: int
    test: Score | None
    validation: Score | None
    head_digest: str | None
    private_digest: str | None = ""
    curve: tuple[tuple[int, float | None], ...] = ()
    told: float | None = None


class Engine(ABC):
    """Runs the work of all clients. Use it in a `with` block.

    The numbers an engine gives are those of the serial one, to the bit. Every client's work, and
    this process while the block lasts, therefore runs on one thread: the order in which several
    threads add would show in the last digits.
    """

    @abstractmethod
    def fit(
        self, received: Params, cohort: Sequence[int], number: int, stage: int = 0
    ) -> Iterator[Update | Absent]:
        """Let each client of the cohort train in round `number`; updates come in any order.

        `received` is what the server sends: the parameters that clients share, what travels beside
        them, and in a later stage what earlier ones have left. `stage` is its place in the run.
        """

    @abstractmethod
    def personalize(
        self,
        received: Params,
        clients: Sequence[int],
        number: int,
        save_to: Path | None,
        stage: int = 0,
    ) -> Iterator[Personal]:
        """Let each client fit its head, keep it in `save_to` if given, and test it.

        `received` and what clients have of their own are those after round `number`.
        """

    @abstractmethod
    def probe(self, received: Params, stage: int = 0) -> float | None:
        """The k-NN accuracy of the shared encoder on a fixed sample of all images, if asked for."""

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._stack.enter_context(one_thread())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch, BLAS and OpenMP to one thread in this process, in a `with` block.

    And its switches as a new process has them, which decide the last digits, too.
    """
    for kind in HEADS:
        # A limit holds only for libraries that are loaded: load those of every head.
        HEADS[kind]
    with default_switches(), threadpool_limits(1):
        yield
