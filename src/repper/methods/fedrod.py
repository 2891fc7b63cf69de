"""FedRoD: a generic head corrected for class mixes, and a personal head on top of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from repper.methods import losses
from repper.methods.method import Method, Phase, Seen, everything

if TYPE_CHECKING:
    from torch import Tensor, nn


@final
@dataclass(frozen=True)
class FedRoD(Method):
    """Chen and Chao 2022: a generic head by balanced softmax, a personal one by cross-entropy.

    Our reading: the linear version. The personal head adds to the generic logits, which it takes as
    given, and does not train the encoder. It begins at zero: a client that has never trained
    answers with the generic head alone. Class counts correct a client's own loss, and stay there.
    """

    def top(self, features: int, classes: int) -> dict[str, nn.Module]:
        from torch import nn

        parts = super().top(features, classes) | {"own_head": nn.Linear(features, classes)}
        for parameter in parts["own_head"].parameters():
            nn.init.zeros_(parameter)
        return parts

    def outputs(self, parts: Mapping[str, nn.Module], r: Tensor) -> dict[str, Tensor]:
        return {"head": parts["head"](r), "own_head": parts["own_head"](r.detach())}

    def classifier(self, params: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        weight, bias = (params[f"head.{n}"] + params[f"own_head.{n}"] for n in ("weight", "bias"))
        return weight, bias

    def shared(self, name: str) -> bool:
        return not name.startswith("own_head.")

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, self.loss),)

    def loss(self, seen: Seen) -> Tensor:
        from torch.nn import functional

        generic, own = seen.outputs["head"], seen.outputs["own_head"]
        balanced = losses.prior_corrected_cross_entropy(generic, seen.labels, seen.counts)
        return balanced + functional.cross_entropy(generic.detach() + own, seen.labels)
