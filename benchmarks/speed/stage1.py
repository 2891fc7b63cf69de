"""Whole rounds of stage 1 against the best raw loop, and against the way of a tutorial."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch.utils.data import DataLoader, Dataset, Subset

import repper
from repper.basics.hardware import resolve_precision
from repper.encoders.encoder import EncoderSpec
from repper.methods.losses import supcon
from repper.runs.execute import RoundDone
from speed.measure import Measure, interleaved, medians, random_data
from speed.raw import images_per_second

COHORT = 8


SETTINGS = {"batch": 256, "augment": "strong", "loss": "usual"}
"""What raw loops and the tutorial's way do, whatever `repper run` does by default."""


def ours(
    data: repper.Dataset, partition: repper.Partition, rounds: int = 4, **settings: Any
) -> float:
    """Images per second of whole rounds on all cores; the first, in which workers start, apart."""
    moments: list[tuple[float, int]] = []

    def watch(event: object) -> None:
        if isinstance(event, RoundDone):
            moments.append((time.perf_counter(), event.record["examples"]))

    with tempfile.TemporaryDirectory() as folder:
        repper.run(
            data, partition, watch=watch, rounds=rounds, out=Path(folder) / "run",
            participation=1.0, epochs=1, knn=0, **(SETTINGS | settings),
        )  # fmt: skip
    images = sum(examples for _, examples in moments[1:])
    return images / (moments[-1][0] - moments[0][0])


def efficiency(
    encoder: str, reach: float, repeats: int, *, images: int, batch: int, rounds: int
) -> list[Measure]:
    """Rounds of eight clients over the best raw loop on the same cores.

    The best of one process with all threads and one process a core, and of PyTorch as it comes and
    with memory kept as our workers do.
    """
    data = random_data(COHORT * images)
    equal = repper.split(data, "iid", clients=COHORT, seed=0)
    skewed = repper.split(data, "dirichlet", clients=COHORT, alpha=0.5, seed=0)
    count = torch.get_num_threads()
    settings = {"encoder": encoder, "batch": batch}
    middle = medians(
        interleaved(
            repeats,
            equal=lambda: ours(data, equal, rounds, **settings),
            skewed=lambda: ours(data, skewed, rounds, **settings),
            one_process=lambda: images_per_second(encoder, batch, 1, count),
            per_core=lambda: images_per_second(encoder, batch, count, 1),
            per_core_keeping_memory=lambda: images_per_second(encoder, batch, count, 1, True),
        )
    )
    best = max(value for name, value in middle.items() if name not in ("equal", "skewed"))
    details = {"batch": batch, "images": images, "images/s": middle}
    return [
        Measure(f"stage 1 efficiency, {encoder}", middle["equal"] / best, reach, details=details),
        Measure(
            f"  clients by alpha 0.5, {encoder}", middle["skewed"] / best, None, details=details
        ),
    ]


class TutorialViews(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Two views of an image, made one by one with Pillow."""

    def __init__(self, split: repper.Split) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        image = Image.fromarray(self.split.images[row].transpose(1, 2, 0))
        return self.view(image), self.view(image), int(self.split.labels[row])

    def view(self, image: Image.Image) -> torch.Tensor:
        random = np.random
        side = int(np.sqrt(random.uniform(0.2, 1.0)) * image.width)
        left, top = random.randint(0, image.width - side + 1, 2)
        image = image.resize(
            (image.width, image.height), Image.Resampling.BILINEAR,
            box=(left, top, left + side, top + side),
        )  # fmt: skip
        if random.rand() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if random.rand() < 0.8:
            for kind in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
                image = kind(image).enhance(random.uniform(0.6, 1.4))
            hue, saturation, value = image.convert("HSV").split()
            turn = random.randint(-25, 26)
            hue = hue.point(lambda h: (h + turn) % 256)
            image = Image.merge("HSV", (hue, saturation, value)).convert("RGB")
        if random.rand() < 0.2:
            image = image.convert("L").convert("RGB")
        return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy()).float() / 127.5 - 1


def tutorial(data: repper.Dataset, partition: repper.Partition) -> float:
    """Images per second of the same round as one would write it down first."""
    shared = EncoderSpec("small", 3, 32).build().to(memory_format=torch.contiguous_format)
    began = time.perf_counter()
    weights = {name: t.clone() for name, t in shared.state_dict().items()}
    updates = []
    for rows in partition.train:
        shared.load_state_dict(weights)
        loader = DataLoader(Subset(TutorialViews(data.train), rows.tolist()), 256, shuffle=True)
        optimizer = torch.optim.Adam(shared.parameters(), lr=1e-3, weight_decay=1e-4)
        for one, two, labels in loader:
            optimizer.zero_grad()
            supcon(shared(torch.cat([one, two])), labels.repeat(2), 0.1, "usual").backward()
            optimizer.step()
        updates.append({name: t.clone() for name, t in shared.state_dict().items()})
    mean = {
        name: torch.stack([u[name].float() for u in updates]).mean(0).to(weights[name].dtype)
        for name in weights
    }
    shared.load_state_dict(mean)
    return sum(map(len, partition.train)) / (time.perf_counter() - began)


def gain_over_tutorial(repeats: int) -> list[Measure]:
    data = random_data(COHORT * 512)
    partition = repper.split(data, "iid", clients=COHORT, seed=0)
    middle = medians(
        interleaved(
            repeats,
            ours=lambda: ours(data, partition),
            compiled=lambda: ours(data, partition, compile=True),
            auto=lambda: ours(data, partition, precision="auto"),
            auto_compiled=lambda: ours(data, partition, precision="auto", compile=True),
            tutorial=lambda: tutorial(data, partition),
        )
    )
    best = max(middle["auto"], middle["auto_compiled"])
    details = {"images/s": middle, "auto is": resolve_precision("auto", "cpu")}
    gains = {
        "gain over a tutorial's way": (best, 4.5),
        "  over a tutorial, in float32": (middle["ours"], None),
        "  over a tutorial, in float32 with --compile": (middle["compiled"], None),
        "  over a tutorial, --precision auto": (middle["auto"], None),
        "  over a tutorial, --precision auto --compile": (middle["auto_compiled"], None),
    }
    return [
        Measure(name, value / middle["tutorial"], reach, details=details)
        for name, (value, reach) in gains.items()
    ]


def gain_of_auto(repeats: int) -> list[Measure]:
    """Rounds with `--precision auto` over those in float32, where the CPU multiplies bfloat16."""
    has_half = resolve_precision("auto", "cpu") == "bfloat16"
    found = []
    for encoder, batch, images, reach in (
        ("small", 256, 1024, 1.7), ("small", 64, 1024, 1.5), ("resnet18", 64, 128, 1.8),
    ):  # fmt: skip
        data = random_data(COHORT * images)
        equal = repper.split(data, "iid", clients=COHORT, seed=0)
        settings = {"encoder": encoder, "batch": batch}
        middle = medians(
            interleaved(
                repeats,
                auto=lambda d=data, e=equal, s=settings: ours(d, e, 3, precision="auto", **s),
                float32=lambda d=data, e=equal, s=settings: ours(d, e, 3, **s),
            )
        )
        name = f"--precision auto over float32, {encoder}, batches of {batch}"
        details = {"images/s": middle, "auto is": resolve_precision("auto", "cpu")}
        gain = middle["auto"] / middle["float32"]
        found.append(Measure(name, gain, reach if has_half else None, details=details))
    return found
