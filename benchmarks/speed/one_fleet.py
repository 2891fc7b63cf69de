"""Rounds of 20 clients out of a fleet, in a process of its own so that its memory can be told.

Prints the median seconds of a round after the first, and the peak megabytes of this process.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import repper
from repper.engines.pool import PoolEngine
from repper.federate import federate
from repper.runs.plan import plan
from speed.measure import random_data

IMAGES, EACH, COHORT, ROUNDS = 20_000, 2, 20, 6


def main() -> None:
    clients = int(sys.argv[1])
    data = random_data(IMAGES)
    rows = np.arange(clients * EACH).reshape(clients, EACH)
    empty = np.zeros(0, np.int64)
    partition = repper.Partition(tuple(rows), (empty,) * clients)
    config = repper.Config(rounds=ROUNDS, epochs=5, knn=0, participation=COHORT / clients)
    planned = plan(config, data, partition)
    [stage] = planned.work.stages
    moments = []
    with PoolEngine(planned.work, data, 0) as engine:
        for _ in federate(engine, planned.enter(0), stage, seed=0):
            moments.append(time.perf_counter())
    seconds = statistics.median(np.diff(moments))
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)


if __name__ == "__main__":
    main()
