"""Which head suits a client's few images? Measured without a test image, as a Markdown table.

    repper run --data cifar10 --train-images 20000 --clients 40 --stage1-clients 20 --out runs/a
    .venv/bin/python benchmarks/heads.py runs/a

Heads are cross-validated, in five parts, on the training images of clients that had no part in
stage 1: the encoder has not seen these images, and settings that are chosen here are not chosen on
the images that results are reported on. Given are finished runs with --stage1-clients.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.model_selection import KFold, cross_val_score

import repper
from repper.data.partition import read_partition
from repper.encoders.encoder import features_of, read_encoder
from repper.heads import HEADS
from repper.runs.build import load_data
from repper.runs.run_folder import PARTITION

SETTINGS: dict[str, list[dict[str, float]]] = {
    "linear": [{}],
    "mlp": [{}],
    "svm": [{"c": c} for c in (1, 0.1, 0.01, 0.001)],
    "logistic": [{"c": c} for c in (1, 0.1, 0.01, 0.001)],
}
FOLDS = 5


def client_features(folder: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features and labels of the training images of each client that was not in stage 1."""
    config = repper.open_run(folder).config
    data = load_data(config)
    partition = read_partition(folder / PARTITION, data)
    spec, params = read_encoder(folder)
    trained = config.stage1()
    return [
        (features_of(spec, params, data.train.images[rows]), data.train.labels[rows])
        for client, rows in enumerate(partition.train)
        if client not in trained
    ]


def accuracy(kind: str, settings: dict[str, float], x: np.ndarray, labels: np.ndarray) -> float:
    parts = KFold(min(FOLDS, len(x)), shuffle=True, random_state=0)
    return 100 * float(cross_val_score(HEADS[kind](**settings), x, labels, cv=parts).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    runs = parser.parse_args().runs
    found = [client_features(folder) for folder in runs]
    for folder, clients in zip(runs, found, strict=True):
        if not clients:
            parser.error(f"{folder}: every client was in stage 1; train with --stage1-clients")
    print("| head | features |", " | ".join(folder.name for folder in runs), "|")
    print("|---|---|" + "---|" * len(runs))
    for kind, each in SETTINGS.items():
        for settings in each:
            for scale in (False, True):
                name = f"{kind}, C {settings['c']:g}" if settings else kind
                means = [
                    np.mean([accuracy(kind, {**settings, "scale": scale}, *one) for one in clients])
                    for clients in found
                ]
                cells = " | ".join(f"{mean:.1f}" for mean in means)
                print(f"| {name} | {'scaled' if scale else 'as they are'} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
