"""RepPer, stage 1: common representation learning by federated supervised contrastive learning."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

from torch import nn

from repper.losses import SupConForm, supcon
from repper.methods.method import Method, Phase

PROJECTED = 128


@final
@dataclass(frozen=True)
class RepPer(Method):
    """Jing et al. 2022 (arXiv 2204.11841), Algorithm 1, stage 1: share and train the encoder only.

    The paper's network ends in the encoder. An optional projection, as in SimCLR, travels and is
    trained with it and is dropped after stage 1.
    """

    epochs: int
    temperature: float
    loss: SupConForm
    projection: str

    personalize: ClassVar[str] = "linear"

    def top(self, features: int, classes: int) -> dict[str, nn.Module]:
        if self.projection == "linear":
            return {"projection": nn.Linear(features, PROJECTED)}
        if self.projection == "mlp":
            hidden = nn.Linear(features, features)
            return {"projection": nn.Sequential(hidden, nn.ReLU(), nn.Linear(features, PROJECTED))}
        return {}

    def shared(self, name: str) -> bool:
        return True

    def phases(self) -> tuple[Phase, ...]:
        loss = partial(supcon, temperature=self.temperature, form=self.loss)
        return (Phase(self.shared, self.epochs, loss, views=2),)
