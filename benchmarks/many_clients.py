"""Do many clients with private parameters cost the server memory, and how much disk do they take?

    .venv/bin/python benchmarks/many_clients.py --clients 1000
    .venv/bin/python benchmarks/many_clients.py --clients 10000

Random images, two for each client; three rounds of 100 clients; each has an encoder of its own.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

import repper


def images(count: int) -> repper.Split:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return repper.Split(pixels, np.arange(count) % 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--method", default="lg-fedavg")
    options = parser.parse_args()
    classes = tuple("abcdefghij")
    data = repper.Dataset("random", classes, images(20_000), images(5_000))
    partition = repper.split(data, "iid", clients=options.clients, min_train=2, min_test=0, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        repper.run(
            data, partition, method=options.method, personalize="keep", rounds=3, epochs=1,
            participation=100 / options.clients, knn=0, out=Path(folder) / "run",
        )  # fmt: skip
        private = Path(folder) / "run" / "private"
        files = list(private.glob("*/*.safetensors"))
        size = sum(path.stat().st_size for path in files)
        # Kilobytes on Linux. Workers are other processes and not counted.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        print(
            f"{options.method}, {options.clients} clients: {time.perf_counter() - began:.0f} s, "
            f"server's peak {peak:.0f} MB, {len(files)} private files of {size / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()
