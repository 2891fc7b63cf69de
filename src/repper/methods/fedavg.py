"""FedAvg, and FedProx, which adds a proximal term against client drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from repper.basics.options import setting
from repper.methods import losses
from repper.methods.method import Method, Phase, Seen, everything

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class FedAvg(Method):
    """McMahan et al. 2017: share encoder and head, and train both by cross-entropy."""

    def shared(self, name: str) -> bool:
        return True

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, losses.cross_entropy),)


@final
@dataclass(frozen=True)
class FedProx(Method):
    """Li et al. 2020: FedAvg, plus mu/2 |w - w_t|^2, where w_t is the model the server sent.

    Our reading: w is every trained weight; batch norm's statistics are not pulled.
    """

    mu: float = setting(0.01, "weight of FedProx's proximal term; 0 is FedAvg", least=0, most=1e6)

    def shared(self, name: str) -> bool:
        return True

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, self.loss),)

    def loss(self, seen: Seen) -> Tensor:
        return losses.pulled(losses.cross_entropy(seen), seen, self.mu)
