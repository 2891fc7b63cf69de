"""The round loop: stage 1 as a generator, so that the caller logs, saves or stops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from repper.engines.engine import Absent, Engine, Update
from repper.errors import RepperError
from repper.methods.schedule import cohort_size
from repper.params import Params, WeightedMean, check_update
from repper.seeds import Purpose, stream


@dataclass(frozen=True)
class Round:
    """What a round leaves: the new shared parameters, who took part, and their mean loss.

    `absent` are those of the cohort that it had to do without, and why.
    """

    number: int
    shared: Params
    cohort: tuple[int, ...]
    examples: int
    loss: float
    absent: tuple[Absent, ...] = ()


def federate(
    engine: Engine,
    shared: Params,
    *,
    clients: Sequence[int],
    participation: float | Fraction,
    rounds: int,
    seed: int,
    start: int = 1,
) -> Iterator[Round]:
    """Run rounds `start` to `rounds` (Algorithm 1, stage 1, Server executes)."""
    for number in range(start, rounds + 1):
        cohort = choose_cohort(clients, participation, stream(seed, Purpose.COHORT, number))
        absent: list[Absent] = []
        updates = in_cohort_order(engine.fit(shared, cohort, number), cohort, absent)
        shared, examples, loss = aggregate(updates, shared, number)
        yield Round(number, shared, cohort, examples, loss, tuple(absent))


def choose_cohort(
    clients: Sequence[int], participation: float | Fraction, random: np.random.Generator
) -> tuple[int, ...]:
    """Different clients at random, in ascending order."""
    size = cohort_size(len(clients), participation)
    return tuple(sorted(int(c) for c in random.choice(clients, size, replace=False)))


def in_cohort_order(
    updates: Iterable[Update | Absent], cohort: Sequence[int], absent: list[Absent]
) -> Iterator[Update]:
    """Updates in the order of the cohort, because a sum of floats depends on its order.

    Clients without one are added to `absent`.
    """
    early: dict[int, Update | Absent] = {}
    arriving = iter(updates)
    for client in cohort:
        while client not in early:
            update = next(arriving, None)
            if update is None:
                raise RepperError(f"client {client} was asked for an update but sent none")
            early[update.client] = update
        found = early.pop(client)
        if isinstance(found, Absent):
            absent.append(found)
        else:
            yield found


def aggregate(updates: Iterable[Update], like: Params, number: int) -> tuple[Params, int, float]:
    """The mean of the updates weighted by examples (section 4, Server Update), and of their losses.

    Every update is checked.
    """
    mean, loss = WeightedMean(like), 0.0
    for update in updates:
        check(update, like, number)
        mean.add(update.shared, update.examples)
        loss += update.examples * update.loss
    if not mean.examples:
        raise RepperError(f"no client gave an update in round {number}")
    return mean.value(), mean.examples, loss / mean.examples


def check(update: Update, like: Params, number: int) -> None:
    """Refuse an update and say whose it was.

    One with wrong names or shapes, with values that are not finite, or without a positive number of
    examples.
    """
    who = f"client {update.client} in round {number}"
    if type(update.examples) is not int or update.examples < 1:
        raise RepperError(f"the update of {who} counts {update.examples!r} examples")
    if not math.isfinite(update.loss):
        raise RepperError(
            f"the loss of {who} is {update.loss}: its training diverged, try a lower --lr"
        )
    check_update(update.shared, like, who)
