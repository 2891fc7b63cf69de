"""Lower and upper bound of a comparison: no federation, and all images in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from repper.methods import losses
from repper.methods.method import Method, Phase, everything
from repper.methods.stage import Stage


@final
@dataclass(frozen=True)
class Local(Method):
    """The lower bound: every client trains alone by cross-entropy (as in McMahan et al. 2017).

    Our reading: a client trains rounds x C x E epochs, what a federated one does on average. That
    makes round(rounds x C) rounds of E epochs in which all clients take part; a learning rate that
    falls with rounds falls accordingly faster.
    """

    def shared(self, name: str) -> bool:
        return False

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, losses.cross_entropy),)

    def stages(self, asked: Stage) -> tuple[Stage, ...]:
        return (asked.as_everyone(),)


@final
@dataclass(frozen=True)
class Central(Method):
    """The upper bound: one model trained on all clients' images (as in McMahan et al. 2017).

    Our reading: rounds x C x E epochs, so that as many images are processed as in FedAvg. Adam
    starts afresh every E epochs, as it does in a client.
    """

    pooled: ClassVar[bool] = True

    def shared(self, name: str) -> bool:
        return True

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, losses.cross_entropy),)

    def stages(self, asked: Stage) -> tuple[Stage, ...]:
        return (asked.as_everyone(),)
