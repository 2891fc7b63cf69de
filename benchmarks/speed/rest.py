"""Stage 2, many clients, and the start of the program."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

from repper.augment import normalize
from repper.encoders.encoder import EncoderSpec
from repper.engines.engine import one_thread
from repper.heads import HEADS
from speed.measure import Measure, interleaved, medians, random_images

EPOCHS = 50


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


def constant_in_clients(repeats: int) -> list[Measure]:
    """A round of 20 clients of 100 and of 10,000, each with as many images."""
    found = interleaved(
        repeats,
        few=lambda: _round_of(100)[0],
        many=lambda: _round_of(10_000)[0],
    )
    middle = medians(found)
    memory = {n: _round_of(n)[1] for n in (100, 10_000)}
    return [
        Measure(
            "round time, 10,000 over 100 clients", middle["many"] / middle["few"], 1.1, True,
            {"seconds": middle},
        ),
        Measure(
            "memory, 10,000 over 100 clients", memory[10_000] / memory[100], 1.2, True,
            {"MB": memory},
        ),
    ]  # fmt: skip


def _round_of(clients: int) -> tuple[float, float]:
    """Seconds of a later round, and the peak memory of the server's process, in one of its own.

    Both have the 20,000 images in memory, of which each client holds two.
    """
    script = Path(__file__).parent / "one_fleet.py"
    answer = subprocess.run(
        [sys.executable, script, str(clients)], capture_output=True, text=True, check=True
    )
    seconds, megabytes = answer.stdout.split()[-2:]
    return float(seconds), float(megabytes)


def start(repeats: int) -> list[Measure]:
    def seconds(*arguments: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        return time.perf_counter() - began

    found = interleaved(
        repeats,
        help=lambda: seconds("-m", "repper", "--help"),
        python=lambda: seconds("-c", "import repper"),
    )
    middle = medians(found)
    return [
        Measure("seconds of repper --help", middle["help"], 0.5, True),
        Measure("seconds of import repper", middle["python"], 0.5, True),
    ]
