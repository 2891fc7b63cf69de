"""One model for all: FedAvg, and FedProx, which keeps its clients from drifting apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch.nn.functional import cross_entropy

from repper.methods.method import ClassifierMethod, Phase


@final
@dataclass(frozen=True)
class FedAvg(ClassifierMethod):
    """McMahan et al. 2017: share encoder and head, and train both by cross-entropy."""

    epochs: int

    def shared(self, name: str) -> bool:
        return True

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(self.shared, self.epochs, cross_entropy),)


@final
@dataclass(frozen=True)
class FedProx(ClassifierMethod):
    """Li et al. 2020: FedAvg, and a pull of mu/2 |w - w_t|^2 towards the model the server sent.

    Our reading: w is every trained weight; batch norm's statistics are not pulled.
    """

    epochs: int
    mu: float

    def shared(self, name: str) -> bool:
        return True

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(self.shared, self.epochs, cross_entropy, pull=self.mu),)
