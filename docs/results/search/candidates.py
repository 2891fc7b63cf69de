"""Additions to `calibrated` that were tried and did not become part of the package.

    repper run --method docs/results/search/candidates.py:Anchored

Which were tried, how and with what result: docs/results/search/protocol.md, "More contrast".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from repper.basics.options import setting
from repper.methods import losses
from repper.methods.method import Method, Phase, Seen, everything

if TYPE_CHECKING:
    from repper.methods.stage import Stage


@dataclass(frozen=True)
class Base(Method):
    """`calibrated` with one view, and a contrastive term that its children choose."""

    contrast: float = setting(0.5, "weight of the contrastive loss", least=0)
    prior_smoothing: float = setting(0.0, "images added to every class", least=0)
    temperature: float = setting(0.1, "temperature of the contrastive loss", least=1e-6)

    personalize: ClassVar[str] = "common"

    def shared(self, name: str) -> bool:
        return True

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, self.loss),)

    def loss(self, seen: Seen) -> Tensor:
        counts = seen.counts + self.prior_smoothing
        loss = losses.prior_corrected_cross_entropy(seen.outputs["head"], seen.labels, counts)
        return loss + self.contrast * self.contrastive(seen)

    def contrastive(self, seen: Seen) -> Tensor:
        return losses.supcon(seen.outputs["r"], seen.labels, self.temperature, "usual")


@dataclass(frozen=True)
class Relaxed(Base):
    """Images of a class must not become one point: cosines above a limit cost.

    The idea of Seo et al. 2024 ("FedRCL"); the penalty is the mean excess over pairs of a class.
    """

    relax: float = setting(1.0, "weight of the penalty on too similar pairs", least=0)
    limit: float = setting(0.7, "cosine from which a pair of a class is too similar", least=-1)

    def contrastive(self, seen: Seen) -> Tensor:
        unit = functional.normalize(seen.outputs["r"], dim=1)
        itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
        pairs = (seen.labels[:, None] == seen.labels[None, :]) & ~itself
        excess = (unit @ unit.T - self.limit).clamp(min=0) * pairs
        penalty = excess.sum() / pairs.sum().clamp(min=1) / self.temperature
        return super().contrastive(seen) + self.relax * penalty


@dataclass(frozen=True)
class Anchored(Base):
    """Every class has a fixed vector, the same at all clients, in every batch.

    So each image has a positive, and classes that a batch or a client lacks push, too. The vectors
    are a simplex in the first dimensions of the features' space, turned at random by one seed.
    """

    def contrastive(self, seen: Seen) -> Tensor:
        r = seen.outputs["r"]
        vectors = anchors(seen.outputs["head"].shape[1], r)
        classes = torch.arange(len(vectors), device=r.device)
        z = functional.normalize(torch.cat([r, vectors]), dim=1)
        labels = torch.cat([seen.labels, classes])
        per_anchor, _ = losses.supcon_per_anchor(z, labels, self.temperature, "usual")
        return per_anchor[: len(r)].mean()


def anchors(classes: int, like: Tensor) -> Tensor:
    """Unit vectors at equal angles, one a class, of as many dimensions as `like` has columns."""
    generator = torch.Generator().manual_seed(0)
    space = torch.randn(like.shape[1], like.shape[1], dtype=torch.float64, generator=generator)
    turned = torch.linalg.qr(space).Q[:, :classes]
    centred = turned - turned.mean(1, keepdim=True)
    return functional.normalize(centred.T, dim=1).to(like)


@dataclass(frozen=True)
class Measure(Base):
    """Nothing is trained; batch norm's statistics follow the images that pass."""

    def loss(self, seen: Seen) -> Tensor:
        return sum((0 * value.sum() for value in seen.moving.values()), torch.zeros(()))


@dataclass(frozen=True)
class Recalibrated(Base):
    """After the last round all clients measure batch norm's statistics anew, with its weights."""

    def stages(self, asked: Stage) -> tuple[Stage, ...]:
        still = replace(asked.training, epochs=4, weight_decay=0.0)
        everyone = replace(
            asked, method=Measure(), rounds=1, participation=Fraction(1), training=still
        )
        return replace(asked, method=self), everyone
