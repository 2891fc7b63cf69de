"""Floor and ceiling of a comparison: no federation at all, and all images in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch.nn.functional import cross_entropy

from repper.methods.method import ClassifierMethod, Phase
from repper.methods.schedule import Schedule


@final
@dataclass(frozen=True)
class Local(ClassifierMethod):
    """The floor, as in McMahan et al. 2017 and after: every client alone, by cross-entropy.

    Our reading: a client trains rounds x C x E epochs, what a federated one does on average. That
    makes round(rounds x C) rounds of E epochs in which all clients take part; a learning rate that
    falls with rounds falls accordingly faster.
    """

    epochs: int

    def shared(self, name: str) -> bool:
        return False

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(lambda name: True, self.epochs, cross_entropy),)

    def schedule(self, asked: Schedule) -> Schedule:
        return asked.as_everyone()


@final
@dataclass(frozen=True)
class Central(ClassifierMethod):
    """The ceiling, as in McMahan et al. 2017 and after: one model on the images of all clients.

    Our reading: rounds x C x E epochs, so that as many images are processed as in FedAvg. Adam
    starts afresh every E epochs, as it does in a client.
    """

    epochs: int

    pooled: ClassVar[bool] = True

    def shared(self, name: str) -> bool:
        return True

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(self.shared, self.epochs, cross_entropy),)

    def schedule(self, asked: Schedule) -> Schedule:
        return asked.as_everyone()
