"""FedAdam and FedYogi: the server takes adaptive steps along the clients' mean update."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from repper.basics.names import is_statistic, named_parts, part_of
from repper.basics.options import setting
from repper.server.rule import Rule, Sent, mean_of

if TYPE_CHECKING:
    from torch import Tensor

    from repper.basics.params import Params


@dataclass(frozen=True)
class Adaptive(Rule):
    """Reddi et al. 2021, Algorithm 2: m and v of the mean update d; w = w + lr m / (sqrt(v) + tau).

    As there, no bias correction, and v begins at tau^2. Our reading: batch norm's
    running statistics are no weights that descend; they are the mean.
    """

    server_lr: float = setting(0.01, "learning rate of the server", above=0, most=1e6)
    server_beta1: float = setting(
        0.9, "decay rate of the first moment of the mean update", least=0, most=0.9999
    )
    server_beta2: float = setting(
        0.99, "decay rate of the second moment of the mean update", least=0, most=0.9999
    )
    server_tau: float = setting(
        1e-3, "added to the denominator of the server's step, for stability", above=0, most=1e6
    )

    def init(self, weights: Params) -> Params:
        trained = {name: tensor for name, tensor in weights.items() if not is_statistic(name)}
        first = {name: 0 * tensor for name, tensor in trained.items()}
        second = {name: 0 * tensor + self.server_tau**2 for name, tensor in trained.items()}
        return named_parts({"first": first, "second": second})

    def apply(
        self, state: Params, received: Params, updates: Iterable[Sent]
    ) -> tuple[Params, Params]:
        mean = mean_of(updates, received)
        first, second = part_of(state, "first"), part_of(state, "second")
        moved: Params = {}
        for name in first:
            move = mean[name] - received[name]
            first[name] = self.server_beta1 * first[name] + (1 - self.server_beta1) * move
            second[name] = self.second(second[name], move.square())
            step = first[name] / (second[name].sqrt() + self.server_tau)
            moved[name] = received[name] + self.server_lr * step
        return named_parts({"first": first, "second": second}), mean | moved

    @abstractmethod
    def second(self, before: Tensor, square: Tensor) -> Tensor:
        """The second moment after a round whose mean update has this square."""


@final
@dataclass(frozen=True)
class FedAdam(Adaptive):
    """v = beta2 v + (1 - beta2) d^2."""

    def second(self, before: Tensor, square: Tensor) -> Tensor:
        return self.server_beta2 * before + (1 - self.server_beta2) * square


@final
@dataclass(frozen=True)
class FedYogi(Adaptive):
    """v = v - (1 - beta2) d^2 sign(v - d^2)."""

    def second(self, before: Tensor, square: Tensor) -> Tensor:
        return before - (1 - self.server_beta2) * square * (before - square).sign()
