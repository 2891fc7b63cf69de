"""FedAvg with class-calibrated cross-entropy and a contrastive term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from repper.basics.options import setting
from repper.methods import losses
from repper.methods.method import Method, Phase, Seen, everything

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Calibrated(Method):
    """Share encoder and head; calibrated cross-entropy (Zhang et al. 2022, "FedLC") and contrast.

    Each client adds the log of its class frequencies to the logits in its loss, as our common head
    does, so that what travels is not torn between class mixes. FedLC subtracts a margin of the
    fourth root of the counts instead. Without `prior_smoothing`, a class of which a client has no
    image is left out of its loss, so that nothing tells it from those that the client has; many
    classes need some. `contrast` weighs RepPer's loss in its usual form (Khosla et al. 2020) on the
    same features; without it (0) this is the control that tells what contrast is worth.
    """

    contrast: float = setting(0.5, "weight of the contrastive loss", least=0, most=1e6)
    prior_smoothing: float = setting(
        0.0,
        "additive smoothing of a client's class counts; a large value approaches plain "
        "cross-entropy",
        least=0,
        most=1e6,
    )
    temperature: float = setting(0.1, "temperature of the contrastive loss", least=1e-6)
    views: int = setting(
        2,
        "augmented views per image in a batch; with 1, the positives are other images of the same "
        "class",
        least=1,
        most=2,
    )

    personalize: ClassVar[str] = "common"

    def shared(self, name: str) -> bool:
        return True

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, self.loss, views=self.views),)

    def loss(self, seen: Seen) -> Tensor:
        counts = seen.counts + self.prior_smoothing
        loss = losses.prior_corrected_cross_entropy(seen.outputs["head"], seen.labels, counts)
        if not self.contrast:
            return loss
        contrast = losses.supcon(seen.outputs["r"], seen.labels, self.temperature, "usual")
        return loss + self.contrast * contrast
