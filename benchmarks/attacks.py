"""What each attack costs, what each robust rule saves, and what a rule costs when nobody attacks.

    .venv/bin/python benchmarks/attacks.py --out runs/attacks

FedAvg on 1,500 training and 1,500 test images of CIFAR-10 (in REPPER_DATA) at 16 x 16 pixels, 10
clients of which 2 attack, all in each of 8 rounds, encoder `small` of half its width: every rule
with every attack, three seeds, some 140 trainings of 2 CPU seconds. Scored is the classifier that
all share, on the test images of the 8 honest clients, also where nobody attacks. A second table has
personal heads. Begun again, it goes on; `--table` prints what is there, `--only 1` makes one seed.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import repper
from repper.basics.table import Number, Table
from repper.heads.scores import mean_of
from repper.runs.run import Run

RULES = ("mean", "median", "trimmed", "krum", "multikrum", "geometric", "clip")
ATTACKS = ("none", "sign-flip", "label-flip", "noise", "scale", "backdoor")
ALL_SHARE = "fedavg+keep"
PERSONAL = {"fedavg+finetune": ("mean", "multikrum"), "repper+linear": ("mean", "multikrum")}
"""Rows whose clients have heads of their own, and the rules they meet turned updates with."""
SETTINGS = {
    "clients": 10, "alpha": 1.0, "participation": 1.0, "rounds": 8, "epochs": 1, "batch": 32,
    "augment": "weak", "width": 0.5, "precision": "auto", "knn": 0, "engine": "serial",
}  # fmt: skip
TRAIN_IMAGES, TEST_IMAGES, SIZE = 1500, 1500, 16
Cell = tuple[str, str, str]
"""A row, a server rule and an attack."""


def cells() -> list[Cell]:
    """What the goal is about comes first."""
    asked = [(ALL_SHARE, rule, attack) for attack in ATTACKS[:2] for rule in RULES]
    for row, rules in PERSONAL.items():
        asked += [(row, "mean", "none"), *((row, rule, "sign-flip") for rule in rules)]
    return asked + [(ALL_SHARE, rule, attack) for attack in ATTACKS[2:] for rule in RULES]


def folder_of(out: Path, cell: Cell, seed: int) -> Path:
    return out / f"{'-'.join(cell)}-seed{seed}"


def run_all(out: Path, seeds: list[int]) -> None:
    data = repper.load("cifar10", train_images=TRAIN_IMAGES, image_size=SIZE)
    test = repper.Split(data.test.images[:TEST_IMAGES], data.test.labels[:TEST_IMAGES])
    data = replace(data, test=test)
    for cell in cells():
        for seed in seeds:
            (row, rule, attack), folder = cell, folder_of(out, cell, seed)
            method, _, last = row.partition("+")
            began = time.process_time()
            run = repper.run(
                data, method=method, personalize=last, server=rule, seed=seed, out=folder,
                attack=None if attack == "none" else attack, resume=folder.exists(), **SETTINGS,
            )  # fmt: skip
            seconds = time.process_time() - began
            print(*cell, seed, run.accuracy["mean"], f"{seconds:.1f} CPU s", flush=True)


class Found:
    """The finished runs of the seeds whose attackers are known."""

    def __init__(self, out: Path, seeds: int) -> None:
        self._out = out
        known = [
            run.result["attack"]["clients"]
            if (run := Run(folder_of(out, (ALL_SHARE, "mean", "sign-flip"), seed))).finished
            else None
            for seed in range(seeds)
        ]
        self._hostile = {seed: clients for seed, clients in enumerate(known) if clients is not None}

    def runs(self, cell: Cell) -> list[Run]:
        found = [Run(folder_of(self._out, cell, seed)) for seed in self._hostile]
        return [run for run in found if run.finished]

    def accuracies(self, cell: Cell) -> list[float]:
        """By seed, the mean over the clients that are honest whenever some attack."""
        return [
            mean_of(
                score.accuracy
                for score in run.scores()
                if score.client not in self._hostile[run.config.seed]
            )
            or 0.0
            for run in self.runs(cell)
        ]


def cell(values: list[float]) -> Number:
    if not values:
        return Number(None)
    deviation = float(np.std(values, ddof=1)) if values[1:] else None
    return Number(float(np.mean(values)), "{:.1f}", deviation)


def print_tables(out: Path, seeds: int) -> None:
    found = Found(out, seeds)
    rows = []
    for rule in RULES:
        line = [cell(found.accuracies((ALL_SHARE, rule, attack))) for attack in ATTACKS]
        for key in ("success", "without_mark"):
            backdoors = found.runs((ALL_SHARE, rule, "backdoor"))
            line.append(cell([run.result["attack"][key] for run in backdoors]))
        rows.append([rule, *line])
    print(Table.of(["rule", *ATTACKS, "marked", "unmarked"], rows).markdown(), end="\n\n")
    rows = []
    for row in (ALL_SHARE, *PERSONAL):
        shown = [("mean", "none"), ("mean", "sign-flip"), ("multikrum", "sign-flip")]
        rows.append([row, *(cell(found.accuracies((row, *one))) for one in shown)])
    columns = ["row", "mean, none", "mean, sign-flip", "multikrum, sign-flip"]
    print(Table.of(columns, rows).markdown())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", type=int, metavar="SEED", help="train with this seed only")
    parser.add_argument("--table", action="store_true", help="train nothing, print what is there")
    options = parser.parse_args()
    if not options.table:
        only = options.only
        run_all(options.out, [*range(options.seeds)] if only is None else [only])
    print_tables(options.out, options.seeds)


if __name__ == "__main__":
    main()
