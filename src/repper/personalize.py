"""What a client does last: stage 2, personalized classification learning (RepPer, section 3.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, final

import numpy as np
from numpy.typing import NDArray

from repper.edge.saved_head import Array, SavedHead, unit_rows
from repper.errors import RepperError
from repper.heads import HEADS

if TYPE_CHECKING:
    from repper.heads.descent import LinearHead
    from repper.heads.head import Head
    from repper.heads.together import LinearLayer

KEEP = "keep"
FINETUNE = "finetune"
NEED_A_HEAD = (KEEP, FINETUNE)
"""Those that begin with the head that the method itself has trained."""


def personalizer_names() -> tuple[str, ...]:
    return (KEEP, FINETUNE, *HEADS)


@dataclass(frozen=True)
class Features:
    """What a client's images are to the encoder, extracted once: r of shape (n, d), and labels."""

    r: Array
    labels: NDArray[np.int64]
    encoder: str


@dataclass(frozen=True)
class Learner:
    """What a client comes to its head from. `head` is the method's, where it has trained one."""

    train: Features
    head: LinearLayer | None
    seed: int


Stop = tuple[int, list[SavedHead]]
"""An epoch, and the heads after it: one per learner. Use them before asking for the next stop."""


class Personalizer(ABC):
    """How clients come to their heads. The encoder stays frozen (eq. 7)."""

    def alike(self, learner: Learner) -> Hashable:
        """Learners with an equal answer can be taught at once; None is for those taught alone."""
        return None

    @abstractmethod
    def heads(
        self, learners: Sequence[Learner], names: tuple[str, ...], every: int = 0
    ) -> Iterator[Stop]:
        """The heads after every `every`-th epoch (0: none), and after the last: the result.

        What a learner gets does not depend on who is taught beside it.
        """


@final
@dataclass(frozen=True)
class Keep(Personalizer):
    """Use the head the method itself has trained."""

    def heads(
        self, learners: Sequence[Learner], names: tuple[str, ...], every: int = 0
    ) -> Iterator[Stop]:
        yield 1, [_over_all_classes(KEEP, _present(KEEP, one), names, one) for one in learners]


@final
@dataclass(frozen=True)
class FineTune(Personalizer):
    """Train the head further that the method has trained (the paper's +FT)."""

    settings: tuple[tuple[str, object], ...] = ()

    def alike(self, learner: Learner) -> Hashable:
        classes = len(_present(FINETUNE, learner)[1])
        images, features = learner.train.r.shape
        return self._trainer(learner).alike(classes, features, images)

    def heads(
        self, learners: Sequence[Learner], names: tuple[str, ...], every: int = 0
    ) -> Iterator[Stop]:
        trainer = self._trainer(learners[0])
        problems = [
            trainer.problem(one.train.r, one.train.labels, _present(FINETUNE, one))
            for one in learners
        ]
        for epoch, layers in trainer.solved(problems, every):
            pairs = zip(layers, learners, strict=True)
            yield epoch, [_over_all_classes(FINETUNE, layer, names, one) for layer, one in pairs]

    def _trainer(self, learner: Learner) -> LinearHead:
        return cast("LinearHead", _head("linear", self.settings, learner.seed))


@final
@dataclass(frozen=True)
class FitHead(Personalizer):
    """Fit a head of one's own; `settings` are the arguments of its class."""

    kind: str
    settings: tuple[tuple[str, object], ...] = ()
    unit_input: bool = False

    def alike(self, learner: Learner) -> Hashable:
        classes = len(np.unique(learner.train.labels))
        if self.kind != "linear" or classes == 1:
            return None
        images, features = learner.train.r.shape
        head = cast("LinearHead", _head(self.kind, self.settings, learner.seed))
        return head.alike(classes, features, images)

    def heads(
        self, learners: Sequence[Learner], names: tuple[str, ...], every: int = 0
    ) -> Iterator[Stop]:
        heads = [_head(self.kind, self.settings, one.seed) for one in learners]
        for epoch in self._fits(heads, learners, every):
            yield (
                epoch,
                [
                    head.saved(names, one.train.encoder, self.unit_input)
                    for head, one in zip(heads, learners, strict=True)
                ],
            )

    def _fits(
        self, heads: Sequence[Head], learners: Sequence[Learner], every: int
    ) -> Iterator[int]:
        data = [
            (unit_rows(one.train.r) if self.unit_input else one.train.r, one.train.labels)
            for one in learners
        ]
        if len(heads) == 1:
            yield from heads[0].fits(*data[0], every)
            return
        layers = [cast("LinearHead", head) for head in heads]
        problems = [h.problem(*h.scaled(x, y)) for h, (x, y) in zip(layers, data, strict=True)]
        for epoch, solved in layers[0].solved(problems, every):
            for head, layer in zip(layers, solved, strict=True):
                head.take(layer)
            yield epoch


def _head(kind: str, settings: tuple[tuple[str, object], ...], seed: int) -> Head:
    draws = {"random_state": seed} if HEADS[kind].draws else {}
    return HEADS[kind](**dict(settings), **draws)


def _present(name: str, learner: Learner) -> LinearLayer:
    if learner.head is None:
        raise RepperError(
            f"personalize {name!r} needs a method that trains a head, such as fedavg; "
            f"choose one of {', '.join(HEADS)}"
        )
    return learner.head


def _over_all_classes(
    kind: str, layer: LinearLayer, names: tuple[str, ...], learner: Learner
) -> SavedHead:
    """A layer that takes features as they are and knows every class."""
    weight, bias = layer
    arrays = {
        "mean": np.zeros(weight.shape[1], np.float32),
        "scale": np.ones(1, np.float32),
        "weight": weight,
        "bias": bias,
    }
    return SavedHead(kind, "linear", arrays, tuple(range(len(names))), names, learner.train.encoder)
