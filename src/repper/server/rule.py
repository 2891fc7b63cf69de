"""What a server does with the updates of a round: a frozen value over explicit state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

from repper.basics.options import Settled

if TYPE_CHECKING:
    from repper.basics.params import Params


class Sent(NamedTuple):
    """The weights that a client has sent, and its number of examples."""

    client: int
    weights: Params
    examples: int


@dataclass(frozen=True)
class Rule(Settled, ABC):
    """How updates become the next model. Its fields are its settings, its state is in `init`.

    State is named tensors and goes into the checkpoint, so that a run that was interrupted goes on
    with it.
    """

    streams: ClassVar[bool] = True
    """Whether it takes updates one at a time and forgets each: memory does not grow with the
    cohort. A rule that needs all of them at once gets them as a tuple."""

    def check(self, clients: int) -> None:
        """Refuse rounds of so few clients that the rule cannot work."""

    def init(self, weights: Params) -> Params:
        """The state before the first round."""
        return {}

    @abstractmethod
    def apply(
        self, state: Params, received: Params, updates: Iterable[Sent]
    ) -> tuple[Params, Params]:
        """The state and the model after a round that began with the model `received`.

        Updates come in the order of the cohort, and are not empty. Each is to be looked at once.
        """

    def use(self, state: Params, weights: Params) -> Params:
        """The model to test, and to fit heads on; training goes on from `weights`."""
        return weights


def mean_of(updates: Iterable[Sent], like: Params) -> Params:
    """The mean of updates weighted by examples, of which one is in memory at a time."""
    from repper.basics.params import WeightedMean

    mean = WeightedMean(like)
    for update in updates:
        mean.add(update.weights, update.examples)
    return mean.value()


@final
@dataclass(frozen=True)
class Mean(Rule):
    """The mean weighted by examples (RepPer, section 4, Server Update; McMahan et al. 2017)."""

    def apply(
        self, state: Params, received: Params, updates: Iterable[Sent]
    ) -> tuple[Params, Params]:
        return state, mean_of(updates, received)
