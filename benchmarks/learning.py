"""Does it learn? RepPer beside baselines and two controls, over several seeds, as a Markdown table.

    .venv/bin/python benchmarks/learning.py --data digits --seeds 5
    .venv/bin/python benchmarks/learning.py --data cifar10 --seeds 3 --rounds 15

Every row has the same data, partition, seeds, rounds and local epochs. Finished runs are kept in
--out and not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import repper

ROWS = {
    "RepPer + linear": {"method": "repper", "personalize": "linear"},
    "RepPer + common": {"method": "repper", "personalize": "common"},
    "FedAvg": {"method": "fedavg", "personalize": "keep"},
    "FedAvg + finetune": {"method": "fedavg", "personalize": "finetune"},
    "FedRep + finetune": {"method": "fedrep", "personalize": "finetune"},
    "FedAvg's encoder + linear": {"personalize": "linear", "rounds": 0, "init": "FedAvg"},
    # Features that nobody has trained are tiny: heads learn little from them as they are.
    "untrained encoder + linear": {"personalize": "linear", "rounds": 0, "head_scale": True},
    "raw pixels + logistic": {
        "encoder": "pixels",
        "personalize": "logistic",
        "rounds": 0,
        "head_scale": True,
    },
}
COLUMNS = ("mean", "worst", "balanced", "tail_classes")


def folder(options: argparse.Namespace, row: str, seed: int) -> str:
    return str(options.out / options.data / row.replace(" ", "-") / str(seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    options = parser.parse_args()
    data = repper.load(options.data)
    print("| |", " | ".join(name.replace("_", " ") for name in COLUMNS), "|")
    print("|---|" + "---|" * len(COLUMNS))
    for row, settings in ROWS.items():
        runs = []
        for seed in range(options.seeds):
            given = {"rounds": options.rounds, "seed": seed, **settings}
            if "init" in given:
                given["init"] = folder(options, given["init"], seed)
            runs.append(repper.run(data, out=folder(options, row, seed), resume=True, **given))
        figures = [[run.accuracy[column] for run in runs] for column in COLUMNS]
        cells = [f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}" for values in figures]
        print(f"| {row} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
