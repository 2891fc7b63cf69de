"""A device against the training side, on real images: the same clients, heads and test images.

.venv/bin/repper run --data cifar10 --train-images 10000 --alpha 0.5 --out runs/cifar10
.venv/bin/python benchmarks/personal.py runs/cifar10

Prints, over clients and seeds, the accuracy of heads fitted with and without PyTorch, how
often a head is right when it is sure, and how many images are called unknown: of the client's
own classes, of classes it has never seen, of drawn digits and of noise.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from repper import open_run
from repper.cli import main as cli
from repper.data.images import fitted
from repper.data.partition import read_partition
from repper.edge.onnx_encoder import OnnxEncoder
from repper.edge.saved_head import softmax
from repper.encoders.encoder import features_of, read_encoder
from repper.heads import DEVICE_HEADS, HEADS
from repper.personal.fit import cooled, fit_unknown, held_out, make_head
from repper.runs.build import load_data

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("run")
parser.add_argument("--clients", type=int, default=5)
parser.add_argument("--seeds", type=int, default=3)
options = parser.parse_args()

run = open_run(options.run)
data = load_data(run.config)
partition = read_partition(run.folder / "partition.json", data)
with tempfile.TemporaryDirectory() as folder:
    cli(["export", str(run.folder), "--out", f"{folder}/model"])
    onnx = OnnxEncoder.open(Path(folder) / "model" / "encoder.onnx")


def on_device(images):
    return onnx.features_of(np.ascontiguousarray(images.transpose(0, 2, 3, 1)))


spec, params = read_encoder(run.folder)
torch_side = [features_of(spec, params, split.images) for split in (data.train, data.test)]
device_side = [on_device(split.images) for split in (data.train, data.test)]
difference = max(np.abs(a - b).max() for a, b in zip(torch_side, device_side, strict=True))
print(f"largest difference of features {difference:.1e}, largest feature {torch_side[1].max():.2f}")

print("\n| head | PyTorch's side | without PyTorch | difference | sure | right |")
print("|---|---:|---:|---:|---:|---:|")
for kind in HEADS:
    scores = {"torch": [], "device": []}
    sure, right = [], []
    for client in range(options.clients):
        own, tested = partition.train[client], partition.test[client]
        labels, truth = data.train.labels[own], data.test.labels[tested]
        for seed in range(options.seeds if HEADS[kind].draws else 1):
            for side, heads, (x, t) in (
                ("torch", HEADS, torch_side),
                ("device", DEVICE_HEADS, device_side),
            ):
                head = heads[kind](**({"random_state": seed} if heads[kind].draws else {}))
                called = head.fit(x[own], labels).predict(t[tested])
                scores[side].append(100 * float((called == truth).mean()))
        head = make_head(kind)
        _, temperature = held_out(head, device_side[0][own], labels)
        saved = head.fit(device_side[0][own], labels).saved(data.classes, "", unit_input=False)
        chances = softmax(cooled(saved, temperature).scores(device_side[1][tested]))
        sure += list(chances.max(1))
        right += list(np.array(saved.classes)[chances.argmax(1)] == truth)
    both = [float(np.mean(scores[side])) for side in ("torch", "device")]
    print(
        f"| {kind} | {both[0]:.2f} | {both[1]:.2f} | {both[1] - both[0]:+.2f} | "
        f"{100 * np.mean(sure):.1f} % | {100 * np.mean(right):.1f} % |"
    )


def drawn(count=200):
    shown = [Image.fromarray((one * 15.9).astype(np.uint8)) for one in load_digits().images[:count]]
    return on_device(np.stack([fitted(one, spec.channels, spec.size) for one in shown]))


shape = (200, spec.channels, spec.size, spec.size)
noise = on_device(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
rates = {"own classes": [], "other classes of the data set": [], "digits": [], "noise": []}
for client in range(options.clients):
    own, tested = partition.train[client], partition.test[client]
    labels = data.train.labels[own]
    kept = np.isin(labels, np.unique(labels)[::2])  # every other class stays away
    rule = fit_unknown(device_side[0][own][kept], labels[kept], "")
    known = np.isin(data.test.labels, np.unique(labels[kept]))
    groups = (device_side[1][known], device_side[1][~known], drawn(), noise)
    if rule is not None:
        for name, features in zip(rates, groups, strict=True):
            rates[name].append(100 * float(rule.is_unknown(features).mean()))
print("\n| images | called unknown |\n|---|---:|")
for name, found in rates.items():
    print(f"| {name} | {np.mean(found):.0f} % |")
