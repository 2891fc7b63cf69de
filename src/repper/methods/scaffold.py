"""SCAFFOLD: control variates correct the drift of each client's gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from repper.basics.names import is_statistic, named_parts, part_of
from repper.methods import losses
from repper.methods.method import Method, Phase, Seen, Trained, everything

if TYPE_CHECKING:
    from torch import Tensor

    from repper.basics.params import Params

CONTROL = "control"


@final
@dataclass(frozen=True)
class Scaffold(Method):
    """Karimireddy et al. 2020: FedAvg with gradients g - c_i + c.

    A client keeps c_i, sends by how much it has changed, and the server keeps c. Our reading: c_i
    becomes the mean of the client's own gradients over its steps, which is their option II for
    plain descent and means the same for Adam, whose steps are not gradients. The server's mean is
    weighted by examples, as all our means are.
    """

    def begin(self, weights: Params) -> tuple[dict[str, Params], Params]:
        zeros = {n: 0 * tensor for n, tensor in weights.items() if not is_statistic(n)}
        return {CONTROL: zeros}, named_parts({CONTROL: zeros})

    def shared(self, name: str) -> bool:
        return True

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, self.loss, gradients=True),)

    def loss(self, seen: Seen) -> Tensor:
        """Cross-entropy, and a term that is linear in the weights: its gradient is c - c_i."""
        loss = losses.cross_entropy(seen)
        for name, weight in seen.moving.items():
            key = f"{CONTROL}:{name}"
            if key in seen.received:  # a client's own normalization layers have none
                loss = loss + ((seen.received[key] - seen.own[key]) * weight).sum()
        return loss

    def leave(self, trained: Trained) -> tuple[dict[str, Params], Params]:
        common, own = part_of(trained.received, CONTROL), part_of(trained.own, CONTROL)
        new = {name: trained.gradients[name].cpu() - (common[name] - own[name]) for name in common}
        return {CONTROL: {n: new[n] - own[n] for n in new}}, named_parts({CONTROL: new})

    def absorb(self, part: str, before: Params, mean: Params, share: float) -> Params:
        return {name: before[name] + share * mean[name] for name in before}
