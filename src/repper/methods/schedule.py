"""How much a method trains: how many clients at a time, for how many rounds."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Schedule:
    """Which share of the clients takes part in each round, and how many rounds there are.

    Each of them stands for `stands_for` of the rounds that were asked for, as seen by a learning
    rate that falls with rounds.
    """

    participation: Fraction
    rounds: int
    stands_for: Fraction = Fraction(1)

    def as_everyone(self) -> Schedule:
        """All take part in every round, in C times the rounds: as many epochs as others have."""
        share = self.participation
        rounds = max(1, round(self.rounds * share)) if self.rounds else 0
        return Schedule(Fraction(1), rounds, 1 / share)


def cohort_size(clients: int, participation: float | Fraction) -> int:
    """`max(round(C * K), 1)`."""
    return max(round(participation * clients), 1)
