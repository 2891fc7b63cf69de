"""A federated stage: its method, clients, training settings and rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from repper.basics.errors import RepperError

if TYPE_CHECKING:
    from repper.methods.method import Method


@dataclass(frozen=True)
class Training:
    """Training settings of a client in a round, for any method.

    The encoder's layers before its part `freeze_until` stay as they are.
    """

    epochs: int = 5
    batch: int = 64
    lr: float = 3e-3
    lr_decay: float = 1.0
    lr_decay_every: int = 50
    weight_decay: float = 1e-4
    augment: str = "medium"
    compile: bool = False
    precision: str = "float32"
    freeze_until: str | None = None

    def lr_after(self, rounds: int) -> float:
        """The learning rate after so many rounds."""
        return self.lr * self.lr_decay ** (rounds // self.lr_decay_every)


@dataclass(frozen=True)
class Stage:
    """Rounds of one method; the method defines what is sent and trained.

    In each round, a share of the `clients` takes part. A round stands for `stands_for` of the
    rounds that were asked for, as seen by a learning rate that falls with rounds. Without
    `travels`, all is in one place, and nothing is sent.
    """

    method: Method
    rounds: int
    participation: Fraction = Fraction(1)
    training: Training = Training()
    clients: tuple[int, ...] = ()
    stands_for: Fraction = Fraction(1)
    travels: bool = True

    def __post_init__(self) -> None:
        if type(self.rounds) is not int or self.rounds < 0:
            raise RepperError(f"rounds of a stage must be a whole number, got {self.rounds!r}")
        if not 0 < self.participation <= 1:
            raise RepperError(
                f"participation of a stage must be above 0 and at most 1, got {self.participation}"
            )

    def as_everyone(self) -> Stage:
        """Full participation with C times the rounds: as many epochs as other methods have."""
        share = self.participation
        rounds = max(1, round(self.rounds * share)) if self.rounds else 0
        return replace(self, participation=Fraction(1), rounds=rounds, stands_for=1 / share)

    def lr(self, number: int) -> float:
        """The learning rate in the stage's round `number`."""
        return self.training.lr_after(int((number - 1) * self.stands_for))


def rounds_of(stages: Sequence[Stage]) -> int:
    """The rounds of all stages together."""
    return sum(stage.rounds for stage in stages)


def stage_at(stages: Sequence[Stage], number: int) -> tuple[int, int]:
    """Which stage a run's round `number` belongs to, and its number there.

    Rounds are counted through all stages; one after the last belongs to the last.
    """
    for index, stage in enumerate(stages[:-1]):
        if number <= stage.rounds:
            return index, number
        number -= stage.rounds
    return len(stages) - 1, number


def cohort_size(clients: int, participation: float | Fraction) -> int:
    """`max(round(C * K), 1)`."""
    return max(round(participation * clients), 1)


def choose_cohort(
    clients: Sequence[int], participation: float | Fraction, random: np.random.Generator
) -> tuple[int, ...]:
    """Different clients at random, in ascending order."""
    size = cohort_size(len(clients), participation)
    return tuple(sorted(int(c) for c in random.choice(clients, size, replace=False)))
