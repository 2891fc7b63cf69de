"""What a client does last: stage 2, personalized classification learning (RepPer, section 3.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from repper.edge.saved_head import Array, SavedHead, unit_rows
from repper.errors import RepperError
from repper.heads import HEADS

KEEP = "keep"
FINETUNE = "finetune"
NEED_A_HEAD = (KEEP, FINETUNE)
"""Those that begin with the head that the method itself has trained."""
LinearLayer = tuple[Array, Array]
"""Weight (classes, d) and bias (classes,) of the head that a method has trained."""


def personalizer_names() -> tuple[str, ...]:
    return (KEEP, FINETUNE, *HEADS)


@dataclass(frozen=True)
class Features:
    """What a client's images are to the encoder, extracted once: r of shape (n, d), and labels."""

    r: Array
    labels: NDArray[np.int64]
    encoder: str


class Personalizer(ABC):
    """How a client comes to its head. The encoder stays frozen (eq. 7)."""

    @abstractmethod
    def personal_heads(
        self, train: Features, names: tuple[str, ...], method_head: LinearLayer | None, seed: int
    ) -> Iterator[SavedHead]:
        """The head after every epoch, if it is trained in epochs; the last one is the result.

        Each is to be used before the next is asked for: they may share their memory.
        """


@final
@dataclass(frozen=True)
class Keep(Personalizer):
    """Use the head the method itself has trained."""

    def personal_heads(
        self, train: Features, names: tuple[str, ...], method_head: LinearLayer | None, seed: int
    ) -> Iterator[SavedHead]:
        yield _over_all_classes(KEEP, _present(KEEP, method_head), names, train.encoder)


@final
@dataclass(frozen=True)
class FineTune(Personalizer):
    """Train the head further that the method has trained (the paper's +FT)."""

    settings: tuple[tuple[str, object], ...] = ()

    def personal_heads(
        self, train: Features, names: tuple[str, ...], method_head: LinearLayer | None, seed: int
    ) -> Iterator[SavedHead]:
        start = _present(FINETUNE, method_head)
        trainer = HEADS["linear"](**dict(self.settings), random_state=seed)
        for layer in trainer.continued(start, train.r, train.labels):
            yield _over_all_classes(FINETUNE, layer, names, train.encoder)


@final
@dataclass(frozen=True)
class FitHead(Personalizer):
    """Fit a head of one's own; `settings` are the arguments of its class."""

    kind: str
    settings: tuple[tuple[str, object], ...] = ()
    unit_input: bool = False

    def personal_heads(
        self, train: Features, names: tuple[str, ...], method_head: LinearLayer | None, seed: int
    ) -> Iterator[SavedHead]:
        head = HEADS[self.kind](**dict(self.settings))
        if "random_state" in head.get_params():
            head.set_params(random_state=seed)
        x = unit_rows(train.r) if self.unit_input else train.r
        for fitted in head.fits(x, train.labels):
            yield fitted.saved(names, train.encoder, self.unit_input)


def _present(name: str, head: LinearLayer | None) -> LinearLayer:
    if head is None:
        raise RepperError(
            f"personalize {name!r} needs a method that trains a head, such as fedavg; "
            f"choose one of {', '.join(HEADS)}"
        )
    return head


def _over_all_classes(
    kind: str, layer: LinearLayer, names: tuple[str, ...], encoder: str
) -> SavedHead:
    """A layer that takes features as they are and knows every class."""
    weight, bias = layer
    arrays = {
        "mean": np.zeros(weight.shape[1], np.float32),
        "scale": np.ones(1, np.float32),
        "weight": weight,
        "bias": bias,
    }
    return SavedHead(kind, "linear", arrays, tuple(range(len(names))), names, encoder)
