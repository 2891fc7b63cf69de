"""Estimate the time of an experiment on this machine, from a step of each of its trainings."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from repper.basics.errors import RepperError
from repper.data.dataset import Dataset
from repper.data.partition import Partition
from repper.engines.client import Clients
from repper.engines.engine import one_thread
from repper.engines.processes import cores
from repper.methods.stage import cohort_size
from repper.paper.events import Estimate
from repper.paper.experiment import Experiment, Preset
from repper.paper.panels import Loaded, panel_config, panels_of
from repper.runs.execute import passes
from repper.runs.plan import plan
from repper.runs.time_left import epochs_in
from repper.settings.config import Config

STEPS = 3


def estimate(
    experiment: Experiment,
    preset: Preset,
    *,
    seeds: int = 1,
    only: str | None = None,
    how: Mapping[str, Any] | None = None,
) -> Iterator[Estimate]:
    """Time a step of every training, and estimate the time of all of them."""
    loaded = Loaded()
    timed: dict[tuple[object, ...], float] = {}
    for panel in panels_of(experiment, only):
        config = panel_config(experiment, preset, panel, Path("nowhere"), how)
        try:
            data = loaded.data_of(config)
        except RepperError as error:
            yield Estimate(panel, None, str(error))
            continue
        seconds = 0.0
        for row in {row.training: row for row in panel.rows}.values():
            one = row.config(config, config.seed, Path("nowhere"))
            key = (one.method, one.encoder, one.width, len(data.classes), data.size)
            if key not in timed:
                timed[key] = _seconds_per_view(one, data)
            images = len(data.train) / one.clients
            seconds += epochs_in(one) * images * timed[key]
        # A round cannot run more clients in parallel than it has.
        workers = int((how or {}).get("workers") or cores())
        at_once = min(workers, cohort_size(config.clients, config.participation))
        if (how or {}).get("engine") == "serial":
            at_once = 1
        yield Estimate(panel, seeds * seconds / at_once)


def _seconds_per_view(config: Config, data: Dataset) -> float:
    """The seconds of one core for a view of an image in training: the median of some steps."""
    count = min(config.batch, len(data.train))
    rows = np.arange(count)
    partition = Partition((rows,), (np.zeros(0, np.int64),))
    one = Config(**{**config.__dict__, "clients": 1, "epochs": 1, "participation": 1.0})
    planned = plan(one, data, partition)
    with one_thread():
        clients = Clients.of(replace(planned.work, private=None), data)
        clients.receive(planned.enter(0).received)
        clients.fit(0, 1)  # the first takes longer
        times = []
        for _ in range(STEPS):
            began = time.perf_counter()
            clients.fit(0, 1)
            times.append(time.perf_counter() - began)
    return statistics.median(times) / (count * passes(planned.work.stages[0]))
