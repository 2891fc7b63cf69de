"""RepPer, stage 1: common representation learning by federated supervised contrastive learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast, final

from repper.basics.options import setting
from repper.methods import losses
from repper.methods.method import Method, Phase, Seen, everything

if TYPE_CHECKING:
    from torch import Tensor, nn

PROJECTED = 128


@final
@dataclass(frozen=True)
class RepPer(Method):
    """Jing et al. 2022 (arXiv 2204.11841), Algorithm 1, stage 1: share and train the encoder only.

    The paper's network ends in the encoder. An optional projection, as in SimCLR, travels and is
    trained with it and is dropped after stage 1.
    """

    projection: str = setting(
        "none",
        "projection head after the encoder, in stage 1 only",
        choices=("none", "linear", "mlp"),
    )
    loss: str = setting(
        "usual",
        "form of RepPer's contrastive loss: log inside the mean (usual), or outside as printed in "
        "the paper",
        choices=("usual", "paper"),
    )
    temperature: float = setting(0.1, "temperature of the contrastive loss", least=1e-6)
    views: int = setting(
        2,
        "augmented views per image in a batch; with 1, the positives are other images of the same "
        "class",
        least=1,
        most=2,
    )

    personalize: ClassVar[str] = "linear"

    def top(self, features: int, classes: int) -> dict[str, nn.Module]:
        from torch import nn

        if self.projection == "linear":
            return {"projection": nn.Linear(features, PROJECTED)}
        if self.projection == "mlp":
            hidden = nn.Linear(features, features)
            return {"projection": nn.Sequential(hidden, nn.ReLU(), nn.Linear(features, PROJECTED))}
        return {}

    def shared(self, name: str) -> bool:
        return True

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, self.contrast, views=self.views),)

    def contrast(self, seen: Seen) -> Tensor:
        """Equations 4 and 5, on the projection where there is one."""
        r = seen.outputs["r" if self.projection == "none" else "projection"]
        form = cast(losses.SupConForm, self.loss)
        return losses.supcon(r, seen.labels, self.temperature, form)
