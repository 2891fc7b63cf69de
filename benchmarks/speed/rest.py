"""Stage 2, many clients, and the start of the program."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from repper.data.augment import normalize
from repper.edge.saved_head import Array, SavedHead
from repper.encoders.encoder import EncoderSpec
from repper.engines.client import MOST_AT_ONCE
from repper.engines.engine import one_thread
from repper.heads import HEADS
from repper.heads.convex import LogisticHead
from repper.heads.descent import LinearHead
from repper.heads.head import Head
from repper.heads.personalize import Features, FitHead, HeadInputs, personalize
from speed.measure import Measure, interleaved, medians, random_images

EPOCHS = 50
NAMES = tuple("abcdefghij")


def features_once(repeats: int) -> Measure:
    """A client's head on features that were extracted once, or through the encoder every epoch."""
    split = random_images(512)
    encoder = EncoderSpec("small", 3, 32).build().eval()
    images = normalize(torch.from_numpy(split.images))

    def once() -> float:
        began = time.perf_counter()
        with torch.no_grad():
            r = torch.cat([encoder(part) for part in images.split(256)])
        HEADS["linear"](epochs=EPOCHS).fit(r.numpy(), split.labels)
        return time.perf_counter() - began

    def every_epoch() -> float:
        began = time.perf_counter()
        head = nn.Linear(encoder.features, 10)
        optimizer = torch.optim.Adam(head.parameters(), lr=0.01, weight_decay=1e-4)
        labels = torch.from_numpy(split.labels)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(labels)).split(256):
                with torch.no_grad():
                    r = encoder(images[rows])
                optimizer.zero_grad()
                nn.functional.cross_entropy(head(r), labels[rows]).backward()
                optimizer.step()
        return time.perf_counter() - began

    with one_thread():
        middle = medians(interleaved(repeats, once=once, every_epoch=every_epoch))
    gain = middle["every_epoch"] / middle["once"]
    return Measure("stage 2, features once", gain, 10.0, details={"seconds": middle})


def many_heads(repeats: int) -> list[Measure]:
    """Heads of 1,000 clients, on one core, by us and by scikit-learn one after another.

    All get centred and scaled features (--head-scale); without that scikit-learn would need
    several times as long.
    """
    clients, tests = _clients_with_features(1000)
    scaled = [LinearHead(scale=True).prepared(one.train.r, one.train.labels)[0] for one in clients]
    kinds: dict[str, type[Head]] = {"logistic": LogisticHead, "linear": LinearHead}
    heads: dict[str, list[Callable[[Array], Array]]] = {}

    def ours(kind: str) -> float:
        began = time.perf_counter()
        personalizer, alike = FitHead(kinds[kind], (("scale", True),)), defaultdict(list)
        for place, one in enumerate(clients):
            alike[kinds[kind]().alike(one.train.r, one.train.labels)].append(place)
        found: dict[int, SavedHead] = {}
        for places in alike.values():
            for start in range(0, len(places), MOST_AT_ONCE):
                part = places[start : start + MOST_AT_ONCE]
                fitted = personalize([(personalizer, clients[i]) for i in part], NAMES)
                found.update((part[at], head) for at, _, head in fitted)
        took = time.perf_counter() - began
        heads[kind] = [found[i].predict for i in range(len(clients))]
        return took

    def theirs() -> float:
        began = time.perf_counter()
        found = [
            LogisticRegression(max_iter=1000).fit(x, one.train.labels)
            for x, one in zip(scaled, clients, strict=True)
        ]
        took = time.perf_counter() - began
        heads["scikit-learn"] = [model.predict for model in found]
        return took

    with one_thread():
        ways = {kind: lambda kind=kind: ours(kind) for kind in kinds}
        middle = medians(interleaved(repeats, **ways, **{"scikit-learn": theirs}))
    accuracy = dict.fromkeys(heads, 0.0)
    for place, (one, (r, labels)) in enumerate(zip(clients, tests, strict=True)):
        mean = one.train.r.mean(0)
        scale = np.sqrt(((one.train.r - mean) ** 2).mean())
        for name in heads:
            x = (r - mean) / scale if name == "scikit-learn" else r
            accuracy[name] += 100 * float((heads[name][place](x) == labels).mean()) / len(tests)
    details = {"seconds": middle, "accuracy": accuracy}
    found = []
    for kind in kinds:
        gain = middle["scikit-learn"] / middle[kind]
        behind = accuracy["scikit-learn"] - accuracy[kind]
        name = f"1,000 {kind} heads, against scikit-learn"
        found.append(Measure(name, gain, 5.0 if kind == "logistic" else None, details=details))
        name = f"  points of accuracy of {kind} behind scikit-learn"
        found.append(Measure(name, behind, 0.5, True, details))
    return found


def _clients_with_features(count: int) -> tuple[list[HeadInputs], list[tuple[Array, Array]]]:
    """Clients with 2 to 8 of ten classes, and features of 256 numbers that overlap somewhat."""
    random = np.random.default_rng(0)
    centres = 0.15 * random.normal(size=(10, 256))
    clients, tests = [], []
    for _ in range(count):
        own = random.permutation(10)[: random.integers(2, 9)]

        def features(images: int, own: Array = own) -> tuple[Array, Array]:
            labels = np.concatenate([own, random.choice(own, images)])
            r = np.maximum(centres[labels] + random.normal(size=(len(labels), 256)), 0)
            return r.astype(np.float32), labels

        clients.append(HeadInputs(Features(*features(random.integers(10, 90)), "random"), None, 0))
        tests.append(features(50))
    return clients, tests


FEW, MANY = 1000, 100_000


def constant_in_clients(repeats: int) -> list[Measure]:
    """A round of 100 clients of 1,000 and of 100,000, out of as many images in memory."""
    found: dict[str, list[tuple[float, ...]]] = {"few": [], "many": []}
    interleaved(
        repeats,
        few=lambda: found["few"].append(_fleet(FEW)) or 0.0,
        many=lambda: found["many"].append(_fleet(MANY)) or 0.0,
    )
    few, many = (np.median(found[name], axis=0).tolist() for name in ("few", "many"))
    names = ("seconds of a round", "MB", "MB of the run folder", "seconds in all")
    details = {
        "few": dict(zip(names, few, strict=True)),
        "many": dict(zip(names, many, strict=True)),
    }
    return [
        Measure("round time, 100,000 over 1,000 clients", many[0] / few[0], 1.1, True, details),
        Measure("memory, 100,000 over 1,000 clients", many[1] / few[1], 1.3, True, details),
        Measure("  MB of a run folder of 100,000 clients", many[2], None, True, details),
        Measure("  seconds of the whole run with 100,000", many[3], None, True, details),
    ]


def _fleet(clients: int) -> tuple[float, ...]:
    """What one_fleet.py prints, of a process of its own."""
    script = Path(__file__).parent / "one_fleet.py"
    answer = subprocess.run(
        [sys.executable, script, str(clients)], capture_output=True, text=True, check=True
    )
    return tuple(map(float, answer.stdout.split()[-4:]))


def start(repeats: int) -> list[Measure]:
    def seconds(*arguments: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        return time.perf_counter() - began

    data = "cifar10" if "REPPER_DATA" in os.environ else "digits"
    first_round(data)  # decoded images are in the cache from now on
    found = interleaved(
        repeats,
        help=lambda: seconds("-m", "repper", "--help"),
        python=lambda: seconds("-c", "import repper"),
        torch=lambda: seconds("-c", "import torch"),
        run=lambda: first_round(data),
    )
    middle = medians(found)
    over = middle["run"] - middle["torch"]
    return [
        Measure("seconds of repper --help", middle["help"], 0.5, True),
        Measure("seconds of import repper", middle["python"], 0.5, True),
        Measure(f"seconds to round 1 over import torch, {data}", over, 3.0, True, middle),
    ]


def first_round(data: str) -> float:
    """Seconds from `repper run` to the beginning of its first round."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "repper", "run", "--data", data, "--rounds", "1", "--epochs", "1",
            "--participation", "0.05", "--knn", "0", "--out", f"{folder}/run",
        ]  # fmt: skip
        began = time.perf_counter()
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr or ():
                if line.startswith("round 1/"):
                    took = time.perf_counter() - began
                    process.kill()
                    # "round 1/1  loss 2.3  0.8 s  0:00 left"
                    return took - float(line.partition(" s ")[0].split()[-1])
    raise RuntimeError(f"repper run --data {data} has made no round")
