"""MOON: pulls features towards the global model's, and away from the client's last model's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from repper.basics.options import setting
from repper.methods import losses
from repper.methods.method import Method, Phase, Seen, Trained

if TYPE_CHECKING:
    from torch import Tensor

    from repper.basics.params import Params


@final
@dataclass(frozen=True)
class MOON(Method):
    """Li et al. 2021 (MOON): FedAvg, and a model-contrastive term.

    Features r of a view are its anchor, those of the received model the positive, those of the
    model that the client ended its last round with the negative. Our reading: r itself instead of a
    projection; both other models are frozen, their batch norm too. In a client's first round the
    two are the same, and the term has no gradient.
    """

    moon_mu: float = setting(1.0, "weight of MOON's contrastive term", least=0, most=1e6)
    moon_temperature: float = setting(0.5, "temperature of MOON's contrastive term", least=1e-6)

    copies: ClassVar[tuple[str, ...]] = ("received", "previous")

    def shared(self, name: str) -> bool:
        return not name.startswith(("received.", "previous."))

    def private(self, name: str) -> bool:
        return name.startswith("previous.")

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(self.shared, epochs, self.loss, beside=self.copies),)

    def loss(self, seen: Seen) -> Tensor:
        from torch.nn import functional

        r = seen.outputs["r"]
        near, far = (
            functional.cosine_similarity(r, seen.outputs[f"{name}.r"]) / self.moon_temperature
            for name in self.copies
        )
        # -log(exp(near) / (exp(near) + exp(far)))
        contrast = functional.softplus(far - near).mean()
        return losses.cross_entropy(seen) + self.moon_mu * contrast

    def leave(self, trained: Trained) -> tuple[dict[str, Params], Params]:
        last = {n: tensor for n, tensor in trained.params.items() if self.shared(n)}
        return {}, {f"previous.{name}": tensor for name, tensor in last.items()}
