"""FedBN: each client keeps its normalization layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from repper.methods import losses
from repper.methods.method import Method, Phase, everything


@final
@dataclass(frozen=True)
class FedBN(Method):
    """Li et al. 2021 (FedBN): FedAvg, but each client keeps its own normalization layers.

    Our reading: weights and running statistics of all of them are the client's. A client that has
    never trained has them as they were drawn, so it answers badly until it takes part. `--bn local`
    does the same to any other method.
    """

    local_norm: ClassVar[bool] = True

    def shared(self, name: str) -> bool:
        return True

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, losses.cross_entropy),)
