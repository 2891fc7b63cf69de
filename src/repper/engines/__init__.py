"""Engines by name: they decide where clients run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from repper.basics.registry import Registry

if TYPE_CHECKING:
    from repper.data.dataset import Dataset
    from repper.engines.engine import Engine
    from repper.engines.task import Work


class BuildEngine(Protocol):
    def __call__(self, work: Work, data: Dataset, workers: int) -> Engine: ...


ENGINES: Registry[BuildEngine] = Registry(
    "engine",
    {
        "serial": "repper.engines.serial:SerialEngine",
        "pool": "repper.engines.pool:PoolEngine",
        "flower": "repper.flower.simulation:SimulationEngine",
    },
)
