"""What each attack costs, what each robust rule saves, and what a rule costs when nobody attacks.

    .venv/bin/python benchmarks/attacks.py --out runs/attacks

FedAvg on 2,000 training and 2,000 test images of CIFAR-10 (in REPPER_DATA) at 16 x 16 pixels, 10
clients of which 2 attack, all in each of 10 rounds, encoder `small` of half its width: every rule
with every attack, three seeds, some 135 trainings of 3 CPU seconds. Scored is the classifier that
all share, on the test images of the 8 honest clients, also where nobody attacks. A second table has
personal heads. Begun again, it goes on; `--table` prints what is there, `--only 1` makes one seed.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

import repper
from repper.evaluate import mean_of
from repper.runs.compare import rows_of
from repper.runs.run import Run
from repper.text_table import markdown_table

RULES = ("mean", "median", "trimmed", "krum", "multikrum", "geometric", "clip")
ATTACKS = ("none", "label-flip", "sign-flip", "noise", "scale", "backdoor")
SETTINGS = {
    "clients": 10, "alpha": 1.0, "participation": 1.0, "rounds": 10, "epochs": 1, "batch": 32,
    "augment": "weak", "width": 0.5, "precision": "auto", "knn": 0, "attackers": 0.2,
    "engine": "serial",
}  # fmt: skip
TRAIN_IMAGES, TEST_IMAGES, SIZE = 2000, 2000, 16
PERSONAL = [("mean", "none"), ("mean", "sign-flip"), ("multikrum", "sign-flip")]


def row(rule: str, attack: str, method: str = "fedavg", last: str = "keep") -> str:
    own = [f"server={rule}"] * (rule != "mean") + [f"attack={attack}"] * (attack != "none")
    return f"{method}[{' '.join(own)}]+{last}" if own else f"{method}+{last}"


def rows() -> list[str]:
    shared = [row(rule, attack) for rule in RULES for attack in ATTACKS]
    heads = [("fedavg", "finetune"), ("repper", "linear")]
    return shared + [row(*one, *head) for head in heads for one in PERSONAL]


def run_all(out: Path, seed: int) -> None:
    """One comparison per seed, so that several can be made at once."""
    data = repper.load("cifar10", train_images=TRAIN_IMAGES, image_size=SIZE)
    test = repper.Split(data.test.images[:TEST_IMAGES], data.test.labels[:TEST_IMAGES])
    folder = out / f"seed{seed}"
    begun = (folder / "comparison.toml").is_file()

    def watch(event: object) -> None:
        if type(event).__name__ == "CellStarted":
            print(f"{event.number}/{event.cells} {event.row.name}, seed {event.seed}", flush=True)

    repper.compare(
        rows(), replace(data, test=test), seed=seed, out=folder, resume=begun, watch=watch,
        **SETTINGS,
    )  # fmt: skip


def found(out: Path, name: str, seeds: int) -> list[Run]:
    [one] = rows_of(name)
    runs = [Run(one.cell(out / f"seed{seed}", seed)) for seed in range(seeds)]
    return [run for run in runs if run.finished]


def accuracy(run: Run, attackers: dict[int, list[int]]) -> float:
    """The mean over the clients that are honest whenever some attack."""
    scores = run.scores()
    hostile = attackers[run.config.seed]
    return mean_of(s.accuracy for s in scores if s.client not in hostile) or 0.0


def text(values: list[float]) -> str:
    if not values:
        return "-"
    deviation = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{deviation}"


def print_tables(out: Path, seeds: int) -> None:
    attacked = found(out, row("mean", "sign-flip"), seeds)
    attackers = {run.config.seed: run.result["attack"]["clients"] for run in attacked}
    table = [["rule", *ATTACKS, "backdoor works", "without mark", "seeds"]]
    for rule in RULES:
        cells = {attack: found(out, row(rule, attack), seeds) for attack in ATTACKS}
        cells = {a: [r for r in runs if r.config.seed in attackers] for a, runs in cells.items()}
        line = [text([accuracy(run, attackers) for run in runs]) for runs in cells.values()]
        for key in ("success", "without_mark"):
            line.append(text([run.result["attack"][key] for run in cells["backdoor"]]))
        table.append([rule, *line, str(min(map(len, cells.values())))])
    print(markdown_table(table, right=True))
    print()
    table = [["row", "rule", "attack", "accuracy"]]
    for method, last in (("fedavg", "keep"), ("fedavg", "finetune"), ("repper", "linear")):
        for rule, attack in PERSONAL:
            runs = found(out, row(rule, attack, method, last), seeds)
            runs = [run for run in runs if run.config.seed in attackers]
            scores = [accuracy(run, attackers) for run in runs]
            table.append([f"{method}+{last}", rule, attack, text(scores)])
    print(markdown_table(table))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the comparison")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", type=int, metavar="SEED", help="train with this seed only")
    parser.add_argument("--table", action="store_true", help="train nothing, print what is there")
    options = parser.parse_args()
    if not options.table:
        for seed in [options.only] if options.only is not None else range(options.seeds):
            run_all(options.out, seed)
    print_tables(options.out, options.seeds)


if __name__ == "__main__":
    main()
