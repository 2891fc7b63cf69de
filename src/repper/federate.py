"""The round loop: stage 1 as a generator, so that the caller logs, saves or stops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from repper.engines.engine import Engine, Update
from repper.errors import RepperError
from repper.methods.schedule import cohort_size
from repper.params import Params, WeightedMean, check_update
from repper.seeds import Purpose, stream


@dataclass(frozen=True)
class Round:
    """What a round leaves: the new shared parameters, who took part, and their mean loss."""

    number: int
    shared: Params
    cohort: tuple[int, ...]
    examples: int
    loss: float


def federate(
    engine: Engine,
    shared: Params,
    *,
    clients: Sequence[int],
    participation: float,
    rounds: int,
    seed: int,
    start: int = 1,
) -> Iterator[Round]:
    """Run rounds `start` to `rounds` (Algorithm 1, stage 1, Server executes)."""
    for number in range(start, rounds + 1):
        cohort = choose_cohort(clients, participation, stream(seed, Purpose.COHORT, number))
        updates = in_cohort_order(engine.fit(shared, cohort, number), cohort)
        shared, examples, loss = aggregate(updates, shared, number)
        yield Round(number, shared, cohort, examples, loss)


def choose_cohort(
    clients: Sequence[int], participation: float, random: np.random.Generator
) -> tuple[int, ...]:
    """Different clients at random, in ascending order."""
    size = cohort_size(len(clients), participation)
    return tuple(sorted(int(c) for c in random.choice(clients, size, replace=False)))


def in_cohort_order(updates: Iterable[Update], cohort: Sequence[int]) -> Iterator[Update]:
    """Updates in the order of the cohort, because a sum of floats depends on its order."""
    early: dict[int, Update] = {}
    arriving = iter(updates)
    for client in cohort:
        while client not in early:
            update = next(arriving, None)
            if update is None:
                raise RepperError(f"client {client} was asked for an update but sent none")
            early[update.client] = update
        yield early.pop(client)


def aggregate(updates: Iterable[Update], like: Params, number: int) -> tuple[Params, int, float]:
    """The mean of the updates weighted by examples (section 4, Server Update), and of their losses.

    Refuses an update with wrong names or shapes, with values that are not finite, or without a
    positive number of examples, and says whose it was.
    """
    mean, loss = WeightedMean(like), 0.0
    for update in updates:
        who = f"client {update.client} in round {number}"
        if type(update.examples) is not int or update.examples < 1:
            raise RepperError(f"the update of {who} counts {update.examples!r} examples")
        if not math.isfinite(update.loss):
            raise RepperError(
                f"the loss of {who} is {update.loss}: its training diverged, try a lower --lr"
            )
        check_update(update.shared, like, who)
        mean.add(update.shared, update.examples)
        loss += update.examples * update.loss
    return mean.value(), mean.examples, loss / mean.examples
