"""Ditto: a model for all, and one of its own for each client, held near it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch.nn.functional import cross_entropy

from repper.methods.method import ClassifierMethod, Phase
from repper.params import is_personal


@final
@dataclass(frozen=True)
class Ditto(ClassifierMethod):
    """Li et al. 2021: FedAvg, and a personal model v pulled by lambda/2 |v - w_t|^2.

    Our reading: both are trained for E epochs in a round, so Ditto processes twice the images; w_t
    is the model that the server sent. A client's personal model begins as the model it first
    receives, and is what it answers with; who has never trained answers with the shared one.
    """

    epochs: int
    ditto_lambda: float

    personal_copy: ClassVar[bool] = True

    def shared(self, name: str) -> bool:
        return not is_personal(name)

    def phases(self) -> tuple[Phase, ...]:
        own = Phase(is_personal, self.epochs, cross_entropy, pull=self.ditto_lambda, personal=True)
        return (Phase(self.shared, self.epochs, cross_entropy), own)
