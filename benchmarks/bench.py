"""How fast is it? Ratios of medians, measured in one run, each with the value it should reach.

    make bench

Give the machine nothing else to do. Results go to benchmarks/results/<date>.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from speed import peers, rest, stage1
from speed.measure import Measure

from repper.runs.environment import environment


def measures(repeats: int) -> dict[str, Callable[[], list[Measure]]]:
    return {
        "start": lambda: rest.start(repeats),
        "small": lambda: stage1.efficiency(
            "small", 0.95, repeats, images=1024, batch=256, rounds=4
        ),
        "auto": lambda: stage1.gain_of_auto(repeats),
        "tutorial": lambda: stage1.gain_over_tutorial(repeats),
        "features": lambda: [rest.features_once(repeats)],
        "heads": lambda: rest.many_heads(repeats),
        "views": lambda: peers.kornia(repeats),
        "clients": lambda: rest.constant_in_clients(repeats),
        "pfl": lambda: peers.pfl(repeats),
        "flower": lambda: peers.flower(repeats),
        # Batches of 64, or it would take an hour.
        "resnet34": lambda: stage1.efficiency(
            "resnet34", 1.0, repeats, images=128, batch=64, rounds=2
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(measures(1)), default=list(measures(1)))
    options = parser.parse_args()
    now = datetime.datetime.now(datetime.UTC)
    path = Path(__file__).parent / "results" / f"{now:%Y-%m-%d}.json"
    machine = environment("cpu")
    print(f"{machine['processor']}, {machine['cores']} cores: {machine['instructions']}")
    print(f"{'measure':58} {'value':>8} {'reach':>8}")
    for name in options.only:
        try:
            found = measures(options.repeats)[name]()
        except (RuntimeError, subprocess.SubprocessError) as error:
            print(f"{name:58} failed: {error}", flush=True)
            continue
        for measure in found:
            print(measure, flush=True)
            keep(path, measure, options.repeats)
    print(f"written to {path}")


def keep(path: Path, measure: Measure, repeats: int) -> None:
    """Add a measure to the day's file, in place of an earlier one of its name."""
    path.parent.mkdir(exist_ok=True)
    rows = json.loads(path.read_text()) if path.is_file() else []
    row = {
        "name": measure.name.strip(),
        "value": measure.value,
        "reach": measure.reach,
        "reached": measure.reached,
        "settings": {"repeats": repeats, **measure.details},
        "versions": environment("cpu"),
    }
    rows = [other for other in rows if other["name"] != row["name"]] + [row]
    path.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
