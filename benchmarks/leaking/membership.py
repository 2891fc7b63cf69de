"""Was this image among those that an encoder has learned from?

The attack learns on a shadow: an encoder that the attacker has trained itself, in the same way, on
images of its own. It looks at how near the views of an image are to each other (EncoderMI, Liu et
al. 2021), how near it lies to its class, and, with a head, at its loss (Yeom et al. 2018).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.preprocessing import StandardScaler
from torch.nn import functional

from repper.basics.names import is_weight
from repper.basics.params import Params, load_params, select
from repper.data.augment import augment
from repper.data.dataset import Split
from repper.encoders.encoder import extract
from repper.engines.task import Work

VIEWS = 8
RARE = 0.01
"""The share of strangers that may be taken for members."""

Signs = NDArray[np.float64]
"""What the attack looks at, a row per image."""


@torch.no_grad()
def signs(work: Work, params: Params, images: Split, known: Split, seed: int) -> Signs:
    """What a model gives away of images. `known` are images of the attacker, of all classes."""
    network = work.networks()[0]
    load_params(network, select(params, is_weight))
    network.eval()
    pixels, labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)
    r, theirs = (
        extract(network.encoder, torch.from_numpy(part.images)) for part in (images, known)
    )
    random = torch.Generator().manual_seed(seed)
    views = torch.stack(
        [network.encoder(augment(pixels, "medium", work.flip, random)) for _ in range(VIEWS)]
    )
    unit = functional.normalize(views, dim=2)
    plain = functional.normalize(r, dim=1)
    pairs = (unit.sum(0).square().sum(1) - VIEWS) / (VIEWS * (VIEWS - 1))
    towards = (unit * plain).sum(2)
    of = torch.from_numpy(known.labels)
    middles = torch.stack(
        [functional.normalize(theirs, dim=1)[of == k].mean(0) for k in of.unique()]
    )
    near = functional.normalize(middles, dim=1)[torch.searchsorted(of.unique(), labels)]
    closest = (plain @ functional.normalize(middles, dim=1).T).topk(2, 1).values
    found = [
        pairs, towards.mean(0), towards.amin(0), r.norm(dim=1).log(),
        (plain * near).sum(1), ((unit * near).sum(2)).mean(0), closest[:, 0] - closest[:, 1],
    ]  # fmt: skip
    if network.classifier is not None:
        weight, bias = network.classifier
        for features in (r[None], views):
            logits = functional.linear(features, weight, bias)
            loss = functional.cross_entropy(
                logits.flatten(0, 1), labels.repeat(len(features)), reduction="none"
            )
            found.append(loss.view(len(features), -1).mean(0))
    return torch.stack(found, 1).double().numpy()


def attack(shadow: tuple[Signs, Signs], target: tuple[Signs, Signs]) -> tuple[float, float]:
    """AUC, and the share of members found with `RARE` false alarms.

    Each pair has the signs of members and of strangers. The attack never sees the target's.
    """
    x, y = _together(shadow)
    scaler = StandardScaler().fit(x)
    model = LogisticRegression(C=1.0, max_iter=1000).fit(scaler.transform(x), y)
    x, y = _together(target)
    return rates(model.decision_function(scaler.transform(x)), y)


@torch.no_grad()
def probe(work: Work, params: Params, known: Split, tested: Split) -> float:
    """What the encoder is good for: the accuracy of a head fitted on the attacker's images."""
    network = work.networks()[0]
    load_params(network, select(params, is_weight))
    x, t = (
        extract(network.encoder.eval(), torch.from_numpy(part.images)).numpy()
        for part in (known, tested)
    )
    scaler = StandardScaler().fit(x)
    head = LogisticRegression(C=0.1, max_iter=500).fit(scaler.transform(x), known.labels)
    return 100 * float(head.score(scaler.transform(t), tested.labels))


def rates(score: NDArray[np.float64], member: NDArray[np.bool_]) -> tuple[float, float]:
    false, true, _ = roc_curve(member, score)
    return float(roc_auc_score(member, score)), float(true[false <= RARE].max())


def _together(pair: tuple[Signs, Signs]) -> tuple[Signs, NDArray[np.bool_]]:
    members, strangers = pair
    return np.concatenate(pair), np.arange(len(members) + len(strangers)) < len(members)
