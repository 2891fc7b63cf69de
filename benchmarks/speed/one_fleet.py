"""Rounds of 100 clients out of a fleet, in a process of its own so that its memory can be told.

Prints the median seconds of a round after the first, the peak megabytes of this process, the
megabytes of its run folder, and the seconds of the whole run.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import repper
from repper.runs.execute import RoundDone
from speed.measure import random_data

IMAGES, EACH, COHORT, ROUNDS = 200_000, 2, 100, 8


def main() -> None:
    clients = int(sys.argv[1])
    data = random_data(IMAGES, test=1000, channels=1, size=8)
    rows = np.arange(clients * EACH).reshape(clients, EACH)
    tested = np.arange(clients) % 1000 if clients <= 1000 else None
    tests = (
        [np.array([t]) for t in tested]
        if tested is not None
        else [np.array([c]) if c < 1000 else np.zeros(0, np.int64) for c in range(clients)]
    )
    partition = repper.Partition(tuple(rows), tuple(tests))
    moments = []

    def watch(event: object) -> None:
        if isinstance(event, RoundDone):
            moments.append(time.perf_counter())

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        repper.run(
            data, partition, watch=watch, rounds=ROUNDS, epochs=5, knn=0, method="fedavg",
            augment="none", participation=COHORT / clients, personalize="linear",
            personalize_clients=100, out=Path(folder) / "run",
        )  # fmt: skip
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    took = time.perf_counter() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(statistics.median(np.diff(moments)), memory, size / 1e6, took)


if __name__ == "__main__":
    main()
