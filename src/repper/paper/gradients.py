"""Gradient norms of anchors, by the size of their class (section 5 of the paper).

The paper argues that anchors of tail classes get larger gradients from the supervised contrastive
loss, because their positives are hard, and so |z_p - (z_j . z_p) z_j| is near 1. It does not look
at the other factors. With t_a = z_a - (z_j . z_a) z_j, the whole gradient has the norm

    1 / temperature * 1 / |r_j| * s * |mean of t_p over positives - mean of t_n over negatives|

where s = sum of |P_jp - X_jp| over positives = sum of P_jn over negatives, and the means are
weighted by these terms. All three factors are measured here, and hardness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor
from torch.nn import functional

from repper.basics.params import load_params
from repper.basics.seeds import Purpose, torch_seed
from repper.data.augment import Level, augment
from repper.data.dataset import Dataset
from repper.data.partition import read_partition
from repper.heads.scores import head_classes, tail_classes
from repper.methods.losses import SupConForm
from repper.methods.network import build_network
from repper.methods.repper import RepPer
from repper.runs.round_log import read_trained
from repper.runs.run import Run
from repper.runs.run_folder import PARTITION

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Anchors:
    """One value per anchor: the norm of its loss's gradient by r, and what it is made of.

    `factor` is the sum of |P_jp - X_jp| over positives, `shrink` 1 / |r|, `apart` the distance of
    the weighted means of positives and negatives; the three make the norm, but for the temperature.
    `hardness` is the mean of |z_p - (z_j . z_p) z_j| over positives, `hardness_of_others` over
    those that are not the other view of the same image, NaN where there are none. For cross-entropy
    `factor` is |p - y|, and the others are None.
    """

    norm: Values
    factor: Values
    shrink: Values | None = None
    apart: Values | None = None
    hardness: Values | None = None
    hardness_of_others: Values | None = None


def contrastive_anchors(
    r: Tensor,
    labels: Tensor,
    temperature: float,
    images: Tensor | None = None,
    form: SupConForm = "paper",
) -> tuple[Anchors, Tensor]:
    """The gradient of each anchor's own loss (eq. 5) by its own r, all other vectors constant.

    In the usual form of the loss all positives weigh the same: X is 1 / |P|. Anchors without a
    positive have no loss; the second value says which have one. Views with the same number in
    `images` are of the same image.
    """
    length = r.norm(dim=1, keepdim=True)
    z = functional.normalize(r, dim=1)
    itself = torch.eye(len(r), dtype=torch.bool)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    has = positive.any(1)
    similarity = z @ z.T / temperature
    lowest = torch.finfo(z.dtype).min
    over_all = similarity.masked_fill(itself, lowest).softmax(1)  # P_ja
    if form == "paper":
        over_positives = similarity.masked_fill(~positive, lowest).softmax(1) * positive  # X_jp
    else:
        over_positives = positive / positive.sum(1, keepdim=True).clamp(min=1)
    by_z = (over_all - over_positives) @ z / temperature
    by_r = (by_z - (by_z * z).sum(1, keepdim=True) * z) / length
    norm = by_r.norm(dim=1)
    factor = ((over_all - over_positives).abs() * positive).sum(1)
    apart = norm * length[:, 0] * temperature / factor.clamp(min=torch.finfo(z.dtype).tiny)
    hard = (1 - (z @ z.T).square()).clamp(min=0).sqrt()
    of_others = positive & (images[:, None] != images) if images is not None else positive
    hardness, harder = ((hard * kind).sum(1) / kind.sum(1) for kind in (positive, of_others))
    measured = (norm, factor, 1 / length[:, 0], apart, hardness, harder)
    return Anchors(*(_values(t[has]) for t in measured)), has


def classifier_anchors(r: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Anchors:
    """The gradient of each image's cross-entropy by its r, with a linear head."""
    error = functional.linear(r, weight, bias).softmax(1)
    error = error - functional.one_hot(labels, len(bias))
    return Anchors(_values((error @ weight).norm(dim=1)), _values(error.norm(dim=1)))


@dataclass(frozen=True)
class BySize:
    """Means over a client's tail and frequent classes, and the rank correlation with class size.

    Tail and frequent are the classes with fewer and more images than the client's median class.
    """

    tail: float
    head: float
    correlation: float


def by_class_size(values: Values, labels: NDArray[np.int64], counts: NDArray[np.int64]) -> BySize:
    """Compare a client's anchors by how many training images their class has.

    Every class counts once, however many anchors it has.
    """
    classes = [int(label) for label in np.unique(labels)]
    means = np.array([values[labels == label].mean() for label in classes])
    sizes = counts[classes]
    tail, head = means[tail_classes(counts)[classes]], means[head_classes(counts)[classes]]
    correlation = np.nan
    if len(classes) > 2 and len(set(sizes)) > 1 and len(set(means)) > 1:
        correlation = float(stats.spearmanr(sizes, means).statistic)
    return BySize(_mean(tail), _mean(head), correlation)


def over_clients(found: Sequence[BySize]) -> dict[str, float]:
    """Means over clients that have both; `ratio` is the geometric mean of tail over head."""
    known = _with_both(found)
    ratios = np.array([one.tail / one.head for one in known])
    correlations = [one.correlation for one in found if np.isfinite(one.correlation)]
    return {
        "clients": len(known),
        "tail": _mean([one.tail for one in known]),
        "head": _mean([one.head for one in known]),
        "ratio": float(np.exp(_mean(np.log(ratios)))),
        "larger_for_tail": _mean((ratios > 1).astype(np.float64)),
        "correlation": _mean(correlations),
    }


def _with_both(found: Sequence[BySize]) -> list[BySize]:
    return [one for one in found if one.tail > 0 and one.head > 0]


@dataclass(frozen=True)
class Measured:
    """One quantity of a run's anchors: per client, and summarized over clients."""

    quantity: str
    clients: tuple[BySize, ...]

    @property
    def summary(self) -> dict[str, float]:
        return over_clients(self.clients)

    @property
    def ratios(self) -> list[float]:
        """Tail over head, of each client that has both."""
        return [one.tail / one.head for one in _with_both(self.clients)]


def measure_run(run: Run, data: Dataset) -> list[Measured]:
    """The gradients of one batch of every client, as its next step of training would have them."""
    config, partition = run.config, read_partition(run.folder / PARTITION, data)
    spec, _ = run.encoder
    method = config.build_method()
    network = build_network(method, spec, len(data.classes), seed=0)
    load_params(network, read_trained(run.folder))
    network.train()
    head = network.classifier
    views_of_an_image = method.phases(1)[0].views
    found: dict[str, list[BySize]] = {}
    for client, rows in enumerate(partition.train):
        random = torch.Generator().manual_seed(torch_seed(config.seed, Purpose.PROBE, client))
        batch = rows[torch.randperm(len(rows), generator=random)[: config.batch].numpy()]
        counts = np.bincount(data.train.labels[rows], minlength=len(data.classes))
        images = torch.from_numpy(data.train.images[batch])
        labels = torch.from_numpy(data.train.labels[batch])
        level = cast(Level, config.augment)
        views = [augment(images, level, data.flip, random) for _ in range(views_of_an_image)]
        with torch.no_grad():
            r = network.encoder(torch.cat(views)).double()
        every = labels.repeat(len(views))
        if head is not None:
            anchors = classifier_anchors(r, every, *(tensor.double() for tensor in head))
        else:
            twins = torch.arange(len(labels)).repeat(len(views))
            repper = cast(RepPer, method)
            form = cast(SupConForm, repper.loss)
            anchors, has = contrastive_anchors(r, every, repper.temperature, twins, form)
            every = every[has]
        for quantity, values in (
            ("gradient norm", anchors.norm),
            ("|p - y|" if head is not None else "sum of |P - X|", anchors.factor),
            ("1 / |r|", anchors.shrink),
            ("distance of positives and negatives", anchors.apart),
            ("hardness of positives", anchors.hardness),
            ("hardness, without the own other view", anchors.hardness_of_others),
        ):
            if values is not None and (known := np.isfinite(values)).any():
                size = by_class_size(values[known], every.numpy()[known], counts)
                found.setdefault(quantity, []).append(size)
    return [Measured(quantity, tuple(sizes)) for quantity, sizes in found.items()]


def _mean(values: Sequence[float] | Values) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _values(tensor: Tensor) -> Values:
    return tensor.detach().double().numpy()
