"""Ditto: a global model, and a personal model per client with a proximal term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from repper.basics.names import is_personal
from repper.basics.options import setting
from repper.methods import losses
from repper.methods.method import Method, Phase, Seen

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Ditto(Method):
    """Li et al. 2021: FedAvg, and a personal model v pulled by lambda/2 |v - w_t|^2.

    Our reading: both are trained for E epochs in a round, so Ditto processes twice the images; w_t
    is the model that the server sent. A client's personal model begins as the model it first
    receives, and is what it answers with; who has never trained answers with the shared one.
    """

    ditto_lambda: float = setting(
        0.1, "weight of Ditto's proximal term for the personal models", least=0, most=1e6
    )

    copies: ClassVar[tuple[str, ...]] = ("personal",)
    answers_with: ClassVar[str] = "personal"

    def shared(self, name: str) -> bool:
        return not is_personal(name)

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (
            Phase(self.shared, epochs, losses.cross_entropy),
            Phase(is_personal, epochs, self.held_near, network="personal"),
        )

    def held_near(self, seen: Seen) -> Tensor:
        return losses.pulled(losses.cross_entropy(seen), seen, self.ditto_lambda)
