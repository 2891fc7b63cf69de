"""Colours and markers: one of each per method, the same in every picture.

The colours were searched for so that people with each kind of colour-blindness can tell any two
apart, and each stands out from its paper (contrast of at least 3); a test measures both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from repper.methods import METHODS

LIGHT = (
    "#1b1f24", "#0f3bb7", "#0d9aec", "#b58b2b", "#277750", "#eb64a7", "#613277", "#883c01",
)  # fmt: skip
DARK = (
    "#e6edf3", "#2a5cda", "#2fd1ff", "#f5c252", "#369d58", "#dc74a4", "#7457a3", "#b93004",
)  # fmt: skip
MARKERS = "osD^vPX*"
"""In Matplotlib's letters."""
MANY_CLASSES = 2 * len(LIGHT)
"""Filled markers and empty ones."""


@dataclass(frozen=True)
class Look:
    """How something is drawn: a palette index, and a counter that separates things sharing it.

    The first of a colour has filled markers and whole lines, others empty ones and dashes.
    """

    colour: int
    turn: int = 0

    @classmethod
    def of(cls, number: int) -> Look:
        """The look of number `n` among many.

        Colours of a later turn begin elsewhere: things that are alike, such as airplane and ship
        or automobile and truck, often are eight numbers apart.
        """
        turn = number // len(LIGHT)
        return cls((number + 3 * turn) % len(LIGHT), turn)

    @property
    def light(self) -> str:
        return LIGHT[self.colour]

    @property
    def face(self) -> str:
        """The fill colour of its markers, for Matplotlib."""
        return "none" if self.turn else self.light

    @property
    def marker(self) -> str:
        return MARKERS[self.colour]


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The looks of methods, or of rows such as `fedavg+finetune` in their method's colour."""
    found, seen, known = dict[str, Look](), dict[str, int](), list(METHODS)
    for name in names:
        method = name.partition(" ")[0].partition("+")[0].partition("[")[0]
        if method not in known:
            known.append(method)  # the user's own come after ours
        own = Look.of(known.index(method))
        # Methods of one colour differ by one turn, so that a row's is none of theirs.
        found[name] = Look(own.colour, own.turn + 2 * seen.get(method, 0))
        seen[method] = seen.get(method, 0) + 1
    return found


def class_looks(labels: NDArray[np.int64]) -> dict[int, Look]:
    """The looks of classes: all, or of very many those with the most images."""
    found, counts = np.unique(labels, return_counts=True)
    if len(found) > MANY_CLASSES:
        found = np.sort(found[np.argsort(-counts, kind="stable")[: len(LIGHT)]])
        return {int(label): Look(place) for place, label in enumerate(found)}
    # A class looks the same whoever holds it, as long as there are looks enough.
    few = max(found, default=0) < MANY_CLASSES
    return {int(n): Look.of(int(n) if few else place) for place, n in enumerate(found)}
