"""A figure with the value it should reach, and the medians it is made of."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import repper


@dataclass(frozen=True)
class Measure:
    """`value` is to be at least `reach`, or at most if `lower_is_better`.

    Without `reach` it is only told.
    """

    name: str
    value: float
    reach: float | None
    lower_is_better: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reached(self) -> bool | None:
        if self.reach is None:
            return None
        return self.value <= self.reach if self.lower_is_better else self.value >= self.reach

    def __str__(self) -> str:
        if self.reach is None:
            return f"{self.name:58} {self.value:8.2f}"
        bound = "<=" if self.lower_is_better else ">="
        verdict = "" if self.reached else "  not reached"
        return f"{self.name:58} {self.value:8.2f} {bound:>3}{self.reach:5.2f}{verdict}"


def interleaved(repeats: int, **ways: Callable[[], float]) -> dict[str, list[float]]:
    """What each way measures, in turn, so that a slow moment of the machine hits all of them."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            found[name].append(way())
    return found


def medians(found: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: float(statistics.median(values)) for name, values in found.items()}


def random_images(count: int, channels: int = 3, size: int = 32, classes: int = 10) -> repper.Split:
    """Speed does not depend on what images show."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (count, channels, size, size), dtype=np.uint8)
    return repper.Split(pixels, np.arange(count) % classes)


def random_data(train: int, test: int = 100, channels: int = 3, size: int = 32) -> repper.Dataset:
    return repper.Dataset(
        "random",
        tuple("abcdefghij"),
        random_images(train, channels, size),
        random_images(test, channels, size),
    )
