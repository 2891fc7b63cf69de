"""What a client does last: stage 2, personalized classification learning (RepPer, section 3.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from repper.edge.saved_head import Array, SavedHead, unit_rows
from repper.errors import RepperError
from repper.heads import HEADS

KEEP = "keep"
LinearLayer = tuple[Array, Array]
"""Weight (classes, d) and bias (classes,) of the head that a method has trained."""


def personalizer_names() -> tuple[str, ...]:
    return (KEEP, *HEADS)


@dataclass(frozen=True)
class Features:
    """What a client's images are to the encoder, extracted once: r of shape (n, d), and labels."""

    r: Array
    labels: NDArray[np.int64]
    encoder: str


class Personalizer(ABC):
    """How a client comes to its head. The encoder stays frozen (eq. 7)."""

    @abstractmethod
    def personal_head(
        self, train: Features, names: tuple[str, ...], method_head: LinearLayer | None, seed: int
    ) -> SavedHead: ...


@final
@dataclass(frozen=True)
class Keep(Personalizer):
    """Use the head the method itself has trained."""

    def personal_head(
        self, train: Features, names: tuple[str, ...], method_head: LinearLayer | None, seed: int
    ) -> SavedHead:
        if method_head is None:
            raise RepperError(
                "personalize 'keep' needs a method that trains a head, such as fedavg; "
                f"choose one of {', '.join(HEADS)}"
            )
        weight, bias = method_head
        arrays = {
            "mean": np.zeros(weight.shape[1], np.float32),
            "scale": np.ones(1, np.float32),
            "weight": weight,
            "bias": bias,
        }
        return SavedHead(KEEP, "linear", arrays, tuple(range(len(names))), names, train.encoder)


@final
@dataclass(frozen=True)
class FitHead(Personalizer):
    """Fit a head of one's own; `settings` are the arguments of its class."""

    kind: str
    settings: tuple[tuple[str, object], ...] = ()
    unit_input: bool = False

    def personal_head(
        self, train: Features, names: tuple[str, ...], method_head: LinearLayer | None, seed: int
    ) -> SavedHead:
        head = HEADS[self.kind](**dict(self.settings))
        if "random_state" in head.get_params():
            head.set_params(random_state=seed)
        x = unit_rows(train.r) if self.unit_input else train.r
        return head.fit(x, train.labels).saved(names, train.encoder, self.unit_input)
