"""FedAvg: one model for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn
from torch.nn.functional import cross_entropy

from repper.methods.method import Method, Phase


@final
@dataclass(frozen=True)
class FedAvg(Method):
    """McMahan et al. 2017: share encoder and head, and train both by cross-entropy."""

    epochs: int

    personalize: ClassVar[str] = "keep"

    def top(self, features: int, classes: int) -> dict[str, nn.Module]:
        return {"head": nn.Linear(features, classes)}

    def shared(self, name: str) -> bool:
        return True

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(self.shared, self.epochs, cross_entropy),)
