"""Class counts of a client from what it sends: by a trained attack, and by a crafted head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from leaking.victim import Fleet
from repper.server.round_loop import Served

Shares = NDArray[np.float64]
DEEP = 20.0
"""How far a crafted head pushes a class down: its logit, against 0 of all others."""
DECAYS = 10.0 ** np.arange(-4, 5)


def shares(labels: NDArray[np.int64], classes: int) -> Shares:
    return np.bincount(labels, minlength=classes) / len(labels)


def read_off(updates: Shares, mixes: Shares, victims: Shares) -> Shares:
    """The class shares behind the victims' updates, one a row, learned from those of others.

    Ridge regression on all numbers of an update. How much it is held back is chosen by leaving out
    one update after the other.
    """
    middle, mean = updates.mean(0), mixes.mean(0)
    x, y, new = updates - middle, mixes - mean, victims - middle
    scale = np.sqrt(np.mean(x**2, axis=0))
    x, new = (part / np.maximum(scale, 1e-3 * scale.max()) for part in (x, new))
    kernel, across = x @ x.T, new @ x.T
    size = np.trace(kernel) / len(kernel)

    def left_out(decay: float) -> float:
        hat = kernel @ np.linalg.inv(kernel + decay * size * np.eye(len(kernel)))
        return float(np.mean(((y - hat @ y) / (1 - np.diag(hat))[:, None]) ** 2))

    decay = min(DECAYS, key=left_out)
    guess = across @ np.linalg.solve(kernel + decay * size * np.eye(len(kernel)), y) + mean
    guess = np.maximum(guess, 0)
    return guess / np.maximum(guess.sum(1, keepdims=True), 1e-12)


def counts_from_losses(fleet: Fleet, served: Served, client: int) -> NDArray[np.int64]:
    """A client's count of every class, exactly, by a server that sends heads of its own making.

    A head that is sure that nothing is of class k has a mean loss that grows with the share of k,
    and the mean loss is sent. It needs a round per class, all images in one batch, and a head.
    """
    classes, found = len(fleet.data.classes), []
    for k in range(classes):
        bias = torch.zeros(classes)
        bias[k] = -DEEP
        crafted = {"head.weight": 0 * served.shared["head.weight"], "head.bias": bias}
        update = fleet.update(replace(served, shared=served.shared | crafted), client)
        share = (update.loss - float(bias.logsumexp(0))) / DEEP
        found.append(round(share * update.examples))
    return np.array(found)


def errors(guess: Shares, truth: Shares) -> dict[str, float]:
    """Mean absolute error in points, and how well the guess ranks shares over clients."""
    off = 100 * float(np.abs(guess - truth).mean())
    spread = guess.std() * truth.std()
    together = float(np.corrcoef(guess.ravel(), truth.ravel())[0, 1]) if spread > 1e-12 else 0.0
    return {"error": off, "correlation": together}
