"""How near the common head of a few rounds comes to that of all images in one place.

.venv/bin/repper compare --data cifar100 --train-images 10000 --alpha 0.5 --rounds 30 --epochs 4 --lr 0.003 \
    --augment weak --server window --methods fedavg+common --tune tries.toml --out runs/common
.venv/bin/python benchmarks/common_head.py runs/common/tuning/cells/fedavg*-seed1000

A try of a tuned comparison has images set apart to score on, so no test image is looked at. Any
tries.toml with a share of 0.2 will do, such as one try, `[every]` with `lr = [0.003]`.
"""  # noqa: E501

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from repper import open_run
from repper.basics.seeds import Purpose, stream
from repper.data.dataset import set_apart
from repper.data.partition import read_partition
from repper.encoders.encoder import features_of, read_encoder
from repper.heads.class_frequencies import log_prior
from repper.runs.build import load_data

ROUNDS, DECAY, SMOOTHING = 15, 0.003, 0.5
WAYS = (
    ("Adam", 2, 64, 0.01),
    ("momentum", 2, 64, 0.1),
    ("momentum", 2, 64, 0.3),
    ("momentum", 4, 32, 0.1),
)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("run", type=Path)
run = open_run(parser.parse_args().run)
data = set_apart(load_data(run.config), 0.2, stream(0, Purpose.TUNING))
partition = read_partition(run.folder / "partition.json", data)
encoder = read_encoder(run.folder)
train, test = (features_of(*encoder, split.images) for split in (data.train, data.test))
classes, counts = len(data.classes), partition.counts(data)[0]

mean = train.mean(0)
scale = np.sqrt(((train - mean) ** 2).mean())


def scaled(x):
    return torch.cat([torch.tensor((x - mean) / scale), torch.ones(len(x), 1)], 1)


clients = [
    (
        scaled(train[rows]),
        torch.tensor(data.train.labels[rows]),
        torch.log(torch.tensor(count) / count.sum()).clamp(min=-60).float(),
    )
    for rows, count in zip(partition.train, counts, strict=True)
]


def score(weight):
    """Mean over clients on the images set apart, each with its own class frequencies."""
    logits, right = (scaled(test) @ weight.T).numpy(), []
    for rows, own in zip(partition.test, partition.train, strict=True):
        prior = log_prior(data.train.labels[own], classes, SMOOTHING)
        right.append(100 * ((logits[rows] + prior).argmax(1) == data.test.labels[rows]).mean())
    return float(np.mean(right))


def in_one_place():
    weight = torch.zeros(classes, train.shape[1] + 1, requires_grad=True)
    descent = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")
    total = sum(len(labels) for _, labels, _ in clients)

    def loss():
        descent.zero_grad()
        value = DECAY / 2 * weight.square().sum()
        for x, labels, prior in clients:
            value = value + cross_entropy(x @ weight.T + prior, labels, reduction="sum") / total
        value.backward()
        return value

    descent.step(loss)
    return weight.detach()


def in_rounds(kind, epochs, batch, lr):
    weight, random = torch.zeros(classes, train.shape[1] + 1), torch.Generator().manual_seed(0)
    sizes = torch.tensor([float(len(labels)) for _, labels, _ in clients])
    for at in range(ROUNDS):
        now, found = lr * 0.1 ** (at / ROUNDS), []
        for x, labels, prior in clients:
            own = weight.clone().requires_grad_(True)
            descent = (
                torch.optim.Adam([own], now, weight_decay=DECAY)
                if kind == "Adam"
                else torch.optim.SGD([own], now, momentum=0.9, weight_decay=DECAY)
            )
            for _ in range(epochs):
                for rows in torch.randperm(len(labels), generator=random).split(batch):
                    descent.zero_grad()
                    cross_entropy(x[rows] @ own.T + prior, labels[rows]).backward()
                    descent.step()
            found.append(own.detach())
        weight = torch.einsum("c,ckd->kd", sizes / sizes.sum(), torch.stack(found))
    return weight


torch.set_num_threads(1)
print(f"this run's heads ({run.result['personalize']}): {run.result['accuracy']['mean']:.1f}")
for kind, epochs, batch, lr in WAYS:
    found = score(in_rounds(kind, epochs, batch, lr))
    print(f"{kind}, {epochs} epochs, batches of {batch}, learning rate {lr}: {found:.1f}")
print(f"all images in one place: {score(in_one_place()):.1f}")
