"""FedETF: a fixed classifier, the same for all clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from repper.basics.options import setting
from repper.methods import losses
from repper.methods.method import Method, Phase, Seen, everything

if TYPE_CHECKING:
    from torch import Tensor, nn


def simplex(like: Tensor) -> Tensor:
    """A simplex of unit vectors at equal angles, one per row, as many as `like` has columns."""
    import torch

    count = like.shape[-1]
    eye = torch.eye(count, dtype=like.dtype, device=like.device)
    length = math.sqrt(count / max(count - 1, 1))
    return length * (eye - 1 / count)


@final
@dataclass(frozen=True)
class FedETF(Method):
    """Li et al. 2023 (FedETF): features are projected onto a fixed simplex of class vectors.

    Our reading: the simplex has as many dimensions as classes and is computed, so it need not
    travel; the temperature is a setting instead of being learned; balanced softmax with the
    client's own class counts, as there. A client answers with the nearest class vector, which is a
    linear layer on r.
    """

    etf_temperature: float = setting(0.1, "temperature of FedETF's logits", least=1e-6)

    def top(self, features: int, classes: int) -> dict[str, nn.Module]:
        from torch import nn

        return {"projection": nn.Linear(features, classes)}

    def classifier(self, params: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        weight, bias = params["projection.weight"], params["projection.bias"]
        vectors = simplex(bias)
        return vectors @ weight, vectors @ bias

    def shared(self, name: str) -> bool:
        return True

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, self.loss),)

    def loss(self, seen: Seen) -> Tensor:
        from torch.nn import functional

        unit = functional.normalize(seen.outputs["projection"], dim=1)
        logits = unit @ simplex(unit).T / self.etf_temperature
        return losses.prior_corrected_cross_entropy(logits, seen.labels, seen.counts)
