"""One model for all: FedAvg, and FedProx, which keeps its clients from drifting apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from repper import losses
from repper.methods.method import Method, Phase, Seen, everything
from repper.options import setting

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
    """Li et al. 2020: FedAvg, and a pull of mu/2 |w - w_t|^2 towards the model the server sent.

    Our reading: w is every trained weight; batch norm's statistics are not pulled.
    """

    mu: float = setting(0.01, "weight of FedProx's pull; with 0 it is FedAvg", least=0, most=1e6)

    def shared(self, name: str) -> bool:
        return True

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, self.loss),)

    def loss(self, seen: Seen) -> Tensor:
        return losses.pulled(losses.cross_entropy(seen), seen, self.mu)
