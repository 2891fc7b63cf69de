"""Has a change of the code made stage 1 slower? Compares this checkout with a commit.

    .venv/bin/python benchmarks/same_speed.py --against HEAD

Rounds of `small` with batches of 256, and of 100 clients of 20 digits, where nearly all time is
overhead: both versions in turn, in processes of their own. Prints the ratio of images per second,
this checkout over the commit. Give the machine nothing else to do.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from same_bits import ROOT, environment, worktree
from speed.measure import interleaved, medians

RATE = """
import repper
from speed.measure import random_data
from speed.stage1 import ours
assert repper.__file__.startswith({src!r}), repper.__file__
data = random_data({clients} * {images}, channels={channels}, size={size})
partition = repper.split(data, "iid", clients={clients}, seed=0)
print("RATE", ours(data, partition, {rounds}, **{settings}))
"""
SCENARIOS = {
    "8 clients of 1,024 CIFAR-sized images": {
        "clients": 8, "images": 1024, "channels": 3, "size": 32, "rounds": 4, "settings": {},
    },
    "100 clients of 20 digits": {
        "clients": 100, "images": 20, "channels": 1, "size": 8, "rounds": 6,
        "settings": {"method": "fedavg", "augment": "none"},
    },
}  # fmt: skip


def rate(src: Path, scenario: dict[str, object]) -> float:
    """Images per second of whole rounds, by the version in `src`."""
    variables = environment(src)
    variables["PYTHONPATH"] += f":{Path(__file__).parent}"
    code = RATE.format(src=str(src), **scenario)
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, check=True, stdout=subprocess.PIPE, text=True
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="COMMIT", required=True)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="same-speed-", ignore_cleanup_errors=True) as home,
        worktree(options.against, Path(home) / "worktree") as old,
    ):
        for name, scenario in SCENARIOS.items():
            middle = medians(
                interleaved(
                    options.repeats,
                    checkout=lambda scenario=scenario: rate(ROOT / "src", scenario),
                    commit=lambda scenario=scenario: rate(old / "src", scenario),
                )
            )
            ratio = middle["checkout"] / middle["commit"]
            rates = ", ".join(f"{who} {value:.0f}" for who, value in middle.items())
            print(f"{name}: {ratio:.3f} (images/s: {rates})", flush=True)


if __name__ == "__main__":
    main()
