"""Why is a head that goes on from the method's better than a new one: by its start, or features?

    repper compare --data cifar10 --methods fedavg+finetune --seeds 3 --out runs/c
    .venv/bin/python benchmarks/head_start.py runs/c/cells/fedavg+finetune-*

`finetune` starts from the head that the method has trained and takes features as they are; `linear`
starts from zero, and with --head-scale centres and scales its features. Here are the four ways
between, on the same encoders, with the same steps; of a method without a head, as RepPer,
those from zero. Given are finished runs that differ by their seed.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np

import repper
from repper.basics.params import read_params
from repper.data.partition import read_partition
from repper.encoders.encoder import features_of, read_encoder
from repper.heads.batched import LinearLayer
from repper.heads.descent import LinearHead
from repper.runs.build import load_data
from repper.runs.run_folder import CHECKPOINT, PARTITION, training_of

WAYS = tuple(product(("zero", "the method's"), ("plain", "scaled")))


def accuracies(folder: Path) -> dict[tuple[str, str], float]:
    """The mean accuracy over clients with each way of coming to a head."""
    data = load_data(repper.open_run(folder).config)
    partition = read_partition(folder / PARTITION, data)
    spec, params = read_encoder(folder)
    shared, _ = read_params(training_of(folder) / CHECKPOINT)
    trained = None
    if "head.weight" in shared:
        trained = shared["head.weight"].numpy(), shared["head.bias"].numpy()
    found: dict[tuple[str, str], list[float]] = {
        way: [] for way in WAYS if trained or way[0] == "zero"
    }
    for train, test in zip(partition.train, partition.test, strict=True):
        x, new = (
            features_of(spec, params, split.images[rows])
            for split, rows in ((data.train, train), (data.test, test))
        )
        zero = np.zeros((len(data.classes), x.shape[1]), np.float32)
        for way in found:
            start = trained if trained and way[0] != "zero" else (zero, zero[:, 0])
            predicted = predict(start, way[1], x, data.train.labels[train], new)
            found[way].append(100 * float((predicted == data.test.labels[test]).mean()))
    return {way: float(np.mean(each)) for way, each in found.items()}


def predict(
    start: LinearLayer, features: str, x: np.ndarray, labels: np.ndarray, new: np.ndarray
) -> np.ndarray:
    """The labels of new features by a head that was trained from this start."""
    mean, scale = np.zeros(x.shape[1], np.float32), np.float32(1)
    if features == "scaled":
        mean = x.mean(0)
        scale = np.sqrt(((x - mean) ** 2).mean())
    weight, bias = start
    # The same function of the features as they are, written for those that are scaled.
    first = weight * scale, bias + weight @ mean
    head = LinearHead()
    [(_, [(weight, bias)])] = head.solved([head.problem((x - mean) / scale, labels, first)])
    return ((new - mean) / scale @ weight.T + bias).argmax(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    found = [accuracies(folder) for folder in parser.parse_args().runs]
    print("| start | features | accuracy | by run |\n|---|---|---|---|")
    for way in found[0]:
        each = [run[way] for run in found]
        listed = ", ".join(f"{one:.1f}" for one in each)
        print("|", " | ".join(way), f"| {np.mean(each):.1f} | {listed} |")


if __name__ == "__main__":
    main()
