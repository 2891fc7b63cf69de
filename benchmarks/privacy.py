"""Accuracy against epsilon, for 20, 200 and 1,000 clients with 10,000 images of CIFAR-10.

    python benchmarks/privacy.py encoder heads encoders --seeds 3 --out runs/privacy

`encoder` trains an encoder on CIFAR-100, which stands for public images. `heads` hides clients
while they train a common head on it, `encoders` while they train an encoder of their own (RepPer).
Both are compared with what needs no privacy at all: heads that each client fits alone, on the
public encoder, and on one that was never trained. Each run is written to a folder and is not made
twice; the tables are printed from what is there.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import repper
from repper.runs.run import Run

DELTAS = {20: 1e-2, 200: 1e-3, 1000: 1e-4}
COMMON = {
    "alpha": 2.0, "min_train": 2, "min_test": 0, "norm": "group", "width": 0.5, "batch": 32,
    "augment": "weak", "knn": 0, "engine": "serial", "device": "cpu", "epochs": 1,
}  # fmt: skip
HEADS = {"rounds": 0, "personalize": "common", "common_rounds": 10, "common_epochs": 1}
ENCODERS = {"rounds": 10, "participation": 0.2, "personalize": "linear"}
CLIP_HEADS, CLIP_ENCODERS = 1.0, 0.3


def rows(part: str, clients: int, encoder: Path) -> dict[str, dict[str, object]]:
    delta = DELTAS[clients]
    if part == "heads":
        base = {"init": str(encoder), **HEADS}
        # Features as they are make gradients small; the clip bounds what a step comes to.
        hidden = {**base, "clip": CLIP_HEADS, "common_lr": 1.0}
        found = {
            "heads alone, no privacy needed": {**base, "personalize": "linear"},
            "common head, open": base,
            "common head, clipped, no noise": {**hidden, "noise": 0.0},
        }
        budgets: tuple[float, ...] = (8.0, 2.0)
    else:
        hidden = {**ENCODERS, "clip": CLIP_ENCODERS}
        found = {
            "encoder never trained, no privacy needed": {**ENCODERS, "rounds": 0},
            "encoder, open": ENCODERS,
            "encoder, clipped, no noise": {**hidden, "noise": 0.0},
        }
        budgets = (8.0,)
    for budget in budgets:
        found[f"epsilon {budget:g}"] = {**hidden, "epsilon": budget, "delta": delta}
    return found


def folder(out: Path, part: str, clients: int, seed: int, row: str) -> Path:
    return out / part / f"{clients}-{seed}-{row.replace(' ', '-').replace(',', '')}"


def train_encoder(out: Path) -> Path:
    target = out / "encoder"
    if not Run(target).finished:
        repper.run(
            "cifar100", train_images=10_000, clients=20, rounds=12, participation=0.5, lr=2e-3,
            personalize="linear", personalize_clients=1, out=target, overwrite=True, **COMMON,
        )  # fmt: skip
    return target


def run_all(part: str, out: Path, seeds: int, counts: list[int], only: str) -> None:
    for seed in range(seeds):
        for clients in counts:
            for row, given in rows(part, clients, out / "encoder").items():
                target = folder(out, part, clients, seed, row)
                if only not in row or Run(target).finished:
                    continue
                began = time.process_time()
                done = repper.run(
                    "cifar10", train_images=10_000, clients=clients, seed=seed, out=target,
                    overwrite=target.exists(), **COMMON, **given,
                )  # fmt: skip
                took = time.process_time() - began
                print(f"{target.name}: {done.accuracy['mean']:.2f} %, {took:.0f} s", flush=True)


def table(part: str, out: Path, seeds: int, counts: list[int]) -> None:
    print(f"\n| {part} | " + " | ".join(f"{n} clients" for n in counts) + " |")
    print("|---" * (len(counts) + 1) + "|")
    for row in rows(part, counts[0], out / "encoder"):
        cells = []
        for clients in counts:
            runs = [Run(folder(out, part, clients, seed, row)) for seed in range(seeds)]
            found = [run for run in runs if run.finished]
            if not found:
                cells.append("")
                continue
            means = [run.accuracy["mean"] for run in found]
            cell = f"{np.mean(means):.1f}"
            if len(means) > 1:
                cell += f" ± {np.std(means, ddof=1):.1f}"
            if noise := found[0].result.get("privacy", {}).get("noise"):
                cell += f" (noise {noise:g})"
            cells.append(cell)
        print(f"| {row} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=("encoder", "heads", "encoders"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[*DELTAS])
    parser.add_argument("--only", default="", help="only rows whose names contain this")
    parser.add_argument("--out", type=Path, default=Path("runs/privacy"))
    options = parser.parse_args()
    if "encoder" in options.parts:
        train_encoder(options.out)
    for part in (part for part in options.parts if part != "encoder"):
        run_all(part, options.out, options.seeds, options.clients, options.only)
        table(part, options.out, options.seeds, options.clients)


if __name__ == "__main__":
    main()
