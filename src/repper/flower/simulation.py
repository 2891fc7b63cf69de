"""Flower's simulation as an engine: Ray's workers, on this machine or on a cluster of them.

Flower calls a server app with a grid; here the app only hands the grid over, so that the loop of
`federate` runs in this thread as it does with every other engine.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from queue import Queue
from typing import Any, Self, final

import ray
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from repper.basics.errors import RepperError
from repper.basics.params import Params
from repper.data.dataset import Dataset
from repper.engines.by_value import ByValue
from repper.engines.client import Clients
from repper.engines.engine import Absent, Engine, Personal, Update
from repper.engines.processes import KEEP_MEMORY, cores
from repper.engines.task import Work
from repper.flower import programs
from repper.flower.grid_engine import PAUSE, SimulatedNodes
from repper.flower.handlers import client_app

QUIET = programs.QUIET | {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Otherwise Ray hides a machine's accelerators from our workers, and warns about it.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Nothing of Flower or Ray may report to anybody."""


@dataclass(frozen=True)
class Fleet:
    """Work and images in Ray's store, which all workers of a machine share."""

    content: Any

    def __call__(self) -> Clients:
        return _clients(self.content)


@lru_cache(maxsize=1)
def _clients(content: Any) -> Clients:
    """The clients of this process, built once for all its messages."""
    packed, *arrays = ray.get(content)
    with warnings.catch_warnings():
        # Ray's arrays cannot be written to; images and labels never are.
        warnings.simplefilter("ignore", UserWarning)
        images, labels, test_images, test_labels = map(torch.from_numpy, arrays)
    return Clients(packed.open(), (images, labels), (test_images, test_labels))


@final
class SimulationEngine(Engine):
    """One node per client; Ray assigns work to workers, and each message names its client.

    With the environment's RAY_ADDRESS it joins that cluster, whose machines must all see the run
    folder; otherwise Ray is started on this machine, for as long as the engine lasts.
    """

    def __init__(self, work: Work, data: Dataset, workers: int) -> None:
        # Workers of a cluster may have been started elsewhere.
        private = work.private.absolute() if work.private else None
        self._work, self._data = replace(work, private=private), data
        self._workers = min(workers or cores(), work.partition.clients)
        self._over = threading.Event()

    def __enter__(self) -> Self:
        super().__enter__()
        os.environ.update(QUIET)
        logging.getLogger("flwr").setLevel(logging.ERROR)
        if not ray.is_initialized():
            self._stack.callback(ray.shutdown)
            _start_ray(self._workers)
        arrays = [a for s in (self._data.train, self._data.test) for a in (s.images, s.labels)]
        fleet = Fleet(ray.put((ByValue.pack(self._work), *arrays)))
        self._grid = self._open_grid(fleet)
        self._engine = SimulatedNodes(self._grid, self._work, self._data, self._nodes)
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(timeout=60)
        super().__exit__(*error)

    def _open_grid(self, fleet: Fleet) -> Grid:
        """Start the simulation in a thread, and take the grid that it gives its server app."""
        given: Queue[Grid | BaseException] = Queue()
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            given.put(grid)
            self._over.wait()

        def simulate() -> None:
            try:
                run_simulation(
                    server, client_app(fleet),
                    num_supernodes=self._work.partition.clients,
                    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
                )  # fmt: skip
            except BaseException as error:  # to be raised where somebody waits for it
                given.put(error)

        self._thread = threading.Thread(target=simulate, name="flower simulation", daemon=True)
        self._thread.start()
        found = given.get()
        if isinstance(found, BaseException):
            raise RepperError(f"Flower's simulation did not start: {found}") from found
        return found

    def _nodes(self) -> list[int]:
        """Flower's nodes, once all are connected."""
        clients = self._work.partition.clients
        while len(nodes := sorted(self._grid.get_node_ids())) < clients:
            if not self._thread.is_alive():
                raise RepperError("Flower's simulation has ended by itself: see its output")
            time.sleep(PAUSE)
        return nodes

    def fit(
        self, received: Params, cohort: Sequence[int], number: int, stage: int = 0
    ) -> Iterator[Update | Absent]:
        return self._engine.fit(received, cohort, number, stage)

    def personalize(
        self,
        received: Params,
        clients: Sequence[int],
        number: int,
        save_to: Path | None,
        stage: int = 0,
    ) -> Iterator[Personal]:
        save_to = save_to.absolute() if save_to else None
        return self._engine.personalize(received, clients, number, save_to, stage)

    def probe(self, received: Params, stage: int = 0) -> float | None:
        return self._engine.probe(received, stage)


def _start_ray(workers: int) -> None:
    variables = {**KEEP_MEMORY, **QUIET}
    settings: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    if "RAY_ADDRESS" not in os.environ:
        # Without this, Ray would join any cluster that it finds traces of on this machine.
        settings |= {"address": "local", "num_cpus": workers}
    ray.init(runtime_env={"env_vars": variables}, logging_level=logging.ERROR, **settings)
