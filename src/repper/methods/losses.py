"""Losses as pure functions.

PyTorch is imported where it is used: methods name these losses, and `--help` reads the methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from repper.methods.method import Seen

SupConForm = Literal["paper", "usual"]


def supcon_per_anchor(
    z: Tensor, labels: Tensor, temperature: float, form: SupConForm
) -> tuple[Tensor, Tensor]:
    """The supervised contrastive loss of every anchor, and which anchors have a positive.

    `z` is (n, d) with unit rows, `labels` is (n,). With s = z_j . z_a / temperature, A(j) all other
    rows and P(j) those of the anchor's class:

    - "paper" (RepPer, eq. 5; the log is outside the mean over positives):
      `log|P(j)| + logsumexp_A(s) - logsumexp_P(s)`;
    - "usual" (Khosla et al. 2020, their L_out; the log is inside, as in most public code):
      `logsumexp_A(s) - mean_P(s)`.

    An anchor without positives has no loss: it is 0 here and False in the mask.
    """
    import torch

    count = z.shape[0]
    itself = torch.eye(count, dtype=torch.bool, device=z.device)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    positives = positive.sum(1)
    has_positive = positives > 0
    # The lowest finite number, not -inf: rows in which everything is masked then stay finite,
    # backwards too. It works at any temperature because logsumexp subtracts the largest entry.
    lowest = torch.finfo(z.dtype).min
    similarity = z @ z.T / temperature
    over_all = similarity.masked_fill(itself, lowest).logsumexp(1)
    if form == "paper":
        over_positives = similarity.masked_fill(~positive, lowest).logsumexp(1)
        loss = positives.clamp(min=1).to(z.dtype).log() + over_all - over_positives
    else:
        mean_positive = (similarity * positive).sum(1) / positives.clamp(min=1)
        loss = over_all - mean_positive
    return torch.where(has_positive, loss, torch.zeros_like(loss)), has_positive


def supcon(r: Tensor, labels: Tensor, temperature: float, form: SupConForm) -> Tensor:
    """The mean supervised contrastive loss over anchors that have a positive (eq. 4 and 5).

    `r` is (n, d), not normalized. The paper sums over anchors (eq. 4); the mean makes the learning
    rate mean the same at every batch size. Without any positive it is 0, with zero gradient.
    """
    from torch.nn import functional

    loss, has_positive = supcon_per_anchor(
        functional.normalize(r, dim=1), labels, temperature, form
    )
    return loss.sum() / has_positive.sum().clamp(min=1)


def cross_entropy(seen: Seen) -> Tensor:
    """The mean cross-entropy of the head's logits."""
    from torch.nn import functional

    return functional.cross_entropy(seen.outputs["head"], seen.labels)


def prior_corrected_cross_entropy(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy of logits plus the log of a client's own class frequencies.

    What the logits learn is then free of that client's class mix (Ren et al. 2020, "balanced
    softmax"; Menon et al. 2021). A class of which the client has no image is left out of its sum.
    """
    from torch.nn import functional

    return functional.cross_entropy(logits + (counts / counts.sum()).log(), labels)


def proximal(moving: Mapping[str, Tensor], anchors: Mapping[str, Tensor]) -> Tensor:
    """Half the squared distance of all parameters from their anchors (Li et al. 2020)."""
    import torch

    return (
        0.5 * torch.stack([(p - anchors[name]).square().sum() for name, p in moving.items()]).sum()
    )


def pulled(loss: Tensor, seen: Seen, weight: float) -> Tensor:
    """A loss plus a proximal term towards the parameters that the server sent."""
    if not weight:
        return loss
    sent = {name: p for name, p in seen.moving.items() if name in seen.received}
    return loss + weight * proximal(sent, seen.received)
