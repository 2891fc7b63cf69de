"""Stage 2: personalized classification learning (RepPer, section 3.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from repper.basics.errors import RepperError
from repper.edge.saved_head import Array, SavedHead, unit_rows
from repper.heads import HEADS
from repper.heads.class_frequencies import log_prior

if TYPE_CHECKING:
    from repper.heads.batched import LinearLayer
    from repper.heads.head import Head

KEEP = "keep"
FINETUNE = "finetune"
COMMON = "common"
COMMON_TUNED = "common+finetune"
NEED_COMMON = (COMMON, COMMON_TUNED)
"""Those that begin with the head that all clients have trained together, in a last stage."""
NEED_A_HEAD = (KEEP, FINETUNE)
"""Those that begin with the head that the method itself has trained."""
Settings = tuple[tuple[str, object], ...]


def personalizer_names() -> tuple[str, ...]:
    return (KEEP, FINETUNE, *NEED_COMMON, *HEADS)


@dataclass(frozen=True)
class Features:
    """Features of a client's images, extracted once: r of shape (n, d), and labels."""

    r: Array
    labels: NDArray[np.int64]
    encoder: str


@dataclass(frozen=True)
class HeadInputs:
    """Inputs for fitting one client's head. `head` is the method's, where it has trained one."""

    train: Features
    head: LinearLayer | None
    seed: int


class Personalizer(ABC):
    """How a client gets its head. The encoder stays frozen (eq. 7)."""

    needs_a_head: bool = False
    """Whether it begins with the head that the method has trained."""
    needs_common: bool = False
    """Whether it begins with the head that all clients have trained together, in a last stage."""
    unit_input: bool = False
    """Whether the head takes features at length one: z instead of r."""

    @abstractmethod
    def begin(self, client: HeadInputs) -> Head | None:
        """The head to fit; None if there is nothing to fit."""

    def inputs(self, client: HeadInputs) -> Array:
        """The features that the head is fitted on."""
        return client.train.r

    def saved(self, head: Head | None, client: HeadInputs, names: tuple[str, ...]) -> SavedHead:
        """The fitted head as plain arrays."""
        if head is None:
            raise TypeError("there is no head to save")
        return head.saved(names, client.train.encoder, self.unit_input)


@final
@dataclass(frozen=True)
class Keep(Personalizer):
    """Keep the head that the method has trained."""

    needs_a_head = True

    def begin(self, client: HeadInputs) -> None:
        return None

    def saved(self, head: Head | None, client: HeadInputs, names: tuple[str, ...]) -> SavedHead:
        return _linear(KEEP, *_trained(KEEP, client), names, client.train.encoder)


@final
@dataclass(frozen=True)
class UseCommon(Personalizer):
    """Use the common head, with the client's own class frequencies.

    Where clients differ in nothing but their class mix, this is the best there is: the common head
    knows all images, and the frequencies never leave the client. `smoothing` images of every class
    are added to a client's own, so that it may answer with a class it has not seen yet.
    """

    smoothing: float

    needs_common = True

    def begin(self, client: HeadInputs) -> None:
        return None

    def saved(self, head: Head | None, client: HeadInputs, names: tuple[str, ...]) -> SavedHead:
        weight, bias = _trained(COMMON, client)
        prior = log_prior(client.train.labels, len(names), self.smoothing).astype(np.float32)
        return _linear(COMMON, weight, bias + prior, names, client.train.encoder)


@final
@dataclass(frozen=True)
class TuneCommon(Personalizer):
    """Add a personal residual to the common head, regularized by cross-validation.

    Where clients' images differ, and not only their class mix, this can be better than `UseCommon`.
    """

    smoothing: float

    needs_common = True

    def begin(self, client: HeadInputs) -> Head:
        from repper.heads.common_and_personal import PulledHead

        return PulledHead(smoothing=self.smoothing, start=_trained(COMMON_TUNED, client))


@final
@dataclass(frozen=True)
class FineTune(Personalizer):
    """Fine-tune the head that the method has trained (the paper's +FT)."""

    settings: Settings = ()

    needs_a_head = True

    def begin(self, client: HeadInputs) -> Head:
        from repper.heads.descent import TunedHead

        start = _trained(FINETUNE, client)
        own = {name: value for name, value in self.settings if name != "scale"}
        return TunedHead(**own, random_state=client.seed, start=start)  # type: ignore[arg-type]


@final
@dataclass(frozen=True)
class FitHead(Personalizer):
    """Fit a new head; `settings` are the arguments of its class."""

    kind: type[Head]
    settings: Settings = ()
    unit_input: bool = False

    def begin(self, client: HeadInputs) -> Head:
        draws = {"random_state": client.seed} if self.kind.draws else {}
        return self.kind(**dict(self.settings), **draws)

    def inputs(self, client: HeadInputs) -> Array:
        return unit_rows(client.train.r) if self.unit_input else client.train.r


@dataclass(frozen=True)
class Personalizers:
    """The personalizer of each client: one default, and exceptions."""

    common: Personalizer
    single: Mapping[int, Personalizer] = field(default_factory=dict)

    def of(self, client: int) -> Personalizer:
        return self.single.get(client, self.common)

    @property
    def all(self) -> tuple[Personalizer, ...]:
        return (self.common, *self.single.values())


def personalize(
    clients: Sequence[tuple[Personalizer, HeadInputs]], names: tuple[str, ...], every: int = 0
) -> Iterator[tuple[int, int, SavedHead]]:
    """Fit every client's head: yields the client's index, an epoch, and the head after it.

    There is one after every `every`-th epoch (0: none), and after the last: the result.
    """
    from repper.heads.many import fit_many

    heads = [personalizer.begin(client) for personalizer, client in clients]
    to_fit = [(place, head) for place, head in enumerate(heads) if head is not None]
    data = [
        (clients[place][0].inputs(clients[place][1]), clients[place][1].train.labels)
        for place, _ in to_fit
    ]

    def saved(place: int) -> SavedHead:
        personalizer, client = clients[place]
        return personalizer.saved(heads[place], client, names)

    for place, head in enumerate(heads):
        if head is None:
            yield place, 1, saved(place)
    for fitted, epoch in fit_many([head for _, head in to_fit], data, every):
        place = to_fit[fitted][0]
        yield place, epoch, saved(place)


def _linear(
    kind: str, weight: Array, bias: Array, names: tuple[str, ...], encoder: str
) -> SavedHead:
    """A linear layer over all classes, on features as they are."""
    arrays = {
        "mean": np.zeros(weight.shape[1], np.float32),
        "scale": np.ones(1, np.float32),
        "weight": weight,
        "bias": bias,
    }
    return SavedHead(kind, "linear", arrays, tuple(range(len(names))), names, encoder)


def _trained(name: str, client: HeadInputs) -> LinearLayer:
    if client.head is None:
        raise RepperError(
            f"personalize {name!r} needs a method that trains a head, such as fedavg; "
            f"choose one of {', '.join(HEADS)}"
        )
    return client.head
