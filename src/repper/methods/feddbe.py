"""FedDBE: one model for all, and an offset of its own in each client's features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, final

from repper.methods import losses
from repper.methods.method import Method, Phase, everything

if TYPE_CHECKING:
    from torch import Tensor, nn


@final
@dataclass(frozen=True)
class FedDBE(Method):
    """Zhang et al. 2023 (FedDBE): a client adds a vector of its own to r before the shared head.

    Our reading: its "personalized representation bias memory" alone. Its other half pulls the means
    of features together, for which they would have to travel: no statistic of features leaves a
    client here. The offset begins at zero, so a client that has never trained answers as in FedAvg.
    """

    def top(self, features: int, classes: int) -> dict[str, nn.Module]:
        import torch
        from torch import nn

        offset = nn.ParameterDict({"value": nn.Parameter(torch.zeros(features))})
        return super().top(features, classes) | {"offset": offset}

    def outputs(self, parts: Mapping[str, nn.Module], r: Tensor) -> dict[str, Tensor]:
        return {"head": parts["head"](r + cast("nn.ParameterDict", parts["offset"])["value"])}

    def classifier(self, params: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        weight = params["head.weight"]
        return weight, params["head.bias"] + weight @ params["offset.value"]

    def shared(self, name: str) -> bool:
        return not name.startswith("offset.")

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, losses.cross_entropy),)
