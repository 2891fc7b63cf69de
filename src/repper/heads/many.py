"""Fit many heads in one call: heads that are alike at once, the others one by one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from repper.edge.saved_head import Array
from repper.heads.head import Head

OF_ONE = ("random_state", "start")
"""Arguments in which heads may differ that are fitted at once."""


def fit_many(
    heads: Sequence[Head], data: Sequence[tuple[Array, Array]], every: int = 0
) -> Iterator[tuple[int, int]]:
    """Fit each head on its features and labels, which are float32 and were checked before.

    Yields the place of a head and an epoch, after every `every`-th epoch (0: none) and after the
    head's last: look at it before asking for the next. What a head comes to does not depend on
    which others there are.
    """
    groups: dict[Hashable, list[int]] = {}
    for place, (head, own) in enumerate(zip(heads, data, strict=True)):
        alike = head.alike(*own)
        settings = [(k, v) for k, v in head.get_params().items() if k not in OF_ONE]
        key = ("alone", place) if alike is None else (head.kind, *settings, alike)
        groups.setdefault(key, []).append(place)
    for places in groups.values():
        first = heads[places[0]]
        if len(places) == 1:
            epochs = first.fits(*data[places[0]], every)
        else:
            alike_data = [data[place] for place in places]
            epochs = first.fit_alike([heads[place] for place in places], alike_data, every)
        for epoch in epochs:
            for place in places:
                yield place, epoch
