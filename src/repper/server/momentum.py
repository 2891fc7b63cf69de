"""FedAvgM: server momentum."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from repper.basics.names import is_statistic
from repper.basics.options import setting
from repper.server.rule import Rule, Sent, mean_of

if TYPE_CHECKING:
    from repper.basics.params import Params


@final
@dataclass(frozen=True)
class FedAvgM(Rule):
    """Hsu et al. 2019: v = beta v + (w - mean), w = w - lr v. With momentum 0 and lr 1 it is mean.

    Our reading: batch norm's running statistics are no weights that descend; they are the mean.
    """

    server_lr: float = setting(1.0, "learning rate of the server", above=0, most=1e6)
    server_momentum: float = setting(0.9, "momentum of the server", least=0, most=0.9999)

    def init(self, weights: Params) -> Params:
        return {name: 0 * tensor for name, tensor in weights.items() if not is_statistic(name)}

    def apply(
        self, state: Params, received: Params, updates: Iterable[Sent]
    ) -> tuple[Params, Params]:
        mean = mean_of(updates, received)
        velocity = {n: self.server_momentum * v + (received[n] - mean[n]) for n, v in state.items()}
        moved = {name: received[name] - self.server_lr * v for name, v in velocity.items()}
        return velocity, mean | moved
