"""Random streams by purpose: draws do not depend on order or on workers."""

from __future__ import annotations

from enum import IntEnum, unique

import numpy as np


@unique
class Purpose(IntEnum):
    """The purpose of a stream. Results depend on the numbers: never renumber them."""

    PARTITION = 1
    INIT = 2
    COHORT = 3
    TRAIN = 4
    HEAD = 5
    VALIDATION = 6
    PROBE = 7
    SEND = 8
    SETTLE = 9
    PERSONALIZE = 10
    TUNING = 11
    SHIFT = 12
    ATTACK = 13
    DATA_PART = 20


def stream(seed: int, purpose: Purpose, *key: int) -> np.random.Generator:
    """The numpy generator for a purpose and a key such as (round, client)."""
    return np.random.default_rng(_sequence(seed, purpose, *key))


def torch_seed(seed: int, purpose: Purpose, *key: int) -> int:
    """A seed for a torch generator, for the same purposes and keys."""
    return int(_sequence(seed, purpose, *key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sequence(seed: int, purpose: Purpose, *key: int) -> np.random.SeedSequence:
    # A spawn key, not more entropy: numpy pads entropy with zeros, so [7] and [7, 0] collide.
    return np.random.SeedSequence(seed, spawn_key=(int(purpose), *key))
