"""Compare onnxruntime with PyTorch: features, predictions, time, memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from repper.edge.saved_head import Array, SavedHead
from repper.encoders.encoder import extract
from repper.export.graph import network_of
from repper.export.source import Evidence, Images, Judge, Subject

LEAST_AGREEMENT = 99.9
"""More than this percentage of the predictions must stay the same in float32."""


@dataclass(frozen=True)
class Agreement:
    """How far two encoders agree: `percent` of predictions, and the features' difference."""

    percent: float
    images: int
    difference: float
    largest: float
    """The largest feature, to compare the difference with."""

    @property
    def enough(self) -> bool:
        """Whether two encoders agree as well as equal encoders must."""
        return self.percent > LEAST_AGREEMENT


@dataclass(frozen=True)
class Loss:
    """The loss of accuracy in points, with a 95 % interval of paired differences."""

    before: float
    after: float
    points: float
    interval: float
    images: int


def session(model: bytes) -> Any:
    """Open a model in onnxruntime, with as many threads as PyTorch has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def outputs_of(running: Any, images: Images, *, pixels: bool = False) -> Array:
    """The outputs of a session for images (NCHW); with `pixels`, it takes floats."""
    name = running.get_inputs()[0].name
    parts = [images[at : at + 64] for at in range(0, len(images), 64)]
    found = []
    for part in parts:
        given: Array = part.astype(np.float32) / 127.5 - 1
        if not pixels:
            given = np.ascontiguousarray(part.transpose(0, 2, 3, 1))
        found.append(running.run(None, {name: given})[0])
    return np.concatenate(found)


def agreement(evidence: Evidence, heads: list[SavedHead], before: Array, after: Array) -> Agreement:
    """Compare predictions of the same heads on two kinds of features.

    Every head looks at its own images, and the first one at all that are nobody's.
    """
    owned = np.concatenate([judge.rows for judge in evidence.judges])
    others = np.setdiff1d(np.arange(len(evidence.images)), owned)
    same = []
    for place, (judge, head) in enumerate(zip(evidence.judges, heads, strict=True)):
        rows = np.concatenate([judge.rows, others]) if place == 0 else judge.rows
        if len(rows):
            same.append(head.predict(before[rows]) == head.predict(after[rows]))
    each = np.concatenate(same)
    return Agreement(
        percent=100 * float(each.mean()),
        images=len(each),
        difference=float(np.abs(before - after).max()),
        largest=float(np.abs(before).max()),
    )


def right(evidence: Evidence, heads: list[SavedHead], features: Array) -> NDArray[np.bool_]:
    """Which images each head classifies correctly, one head after the other."""
    if evidence.labels is None:
        raise TypeError("images without labels")
    return np.concatenate([
        head.predict(features[judge.rows]) == evidence.labels[judge.rows]
        for judge, head in zip(evidence.judges, heads, strict=True)
        if len(judge.rows)
    ])  # fmt: skip


def loss_of(before: NDArray[np.bool_], after: NDArray[np.bool_]) -> Loss:
    """The loss of accuracy, with an interval of the paired differences per image."""
    each = before.astype(float) - after
    spread = float(each.std(ddof=1)) if len(each) > 1 else 1.0
    return Loss(
        before=100 * float(before.mean()),
        after=100 * float(after.mean()),
        points=100 * float(each.mean()),
        interval=196 * spread / len(each) ** 0.5,
        images=len(each),
    )


def fitted(judge: Judge, features: Callable[[Images], Array], encoder: str) -> SavedHead | None:
    """The judge's head, fitted on the features of its training images; None if it cannot be."""
    if judge.fit is None or judge.train is None:
        return None
    return judge.fit(features(judge.train.images), judge.train.labels, encoder)


def milliseconds(
    ways: Mapping[str, Callable[[], object]], seconds: float = 2.0
) -> dict[str, float]:
    """The median time of each function, interleaved, so that a slow moment affects all of them."""
    for work in ways.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in ways}
    end = time.perf_counter() + seconds
    for done in range(25):
        if done >= 5 and time.perf_counter() > end:
            break
        for name, work in ways.items():
            begin = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - begin)
    return {name: 1000 * float(np.median(found)) for name, found in times.items()}


def latency(subject: Subject, running: Any, images: Images) -> dict[str, float]:
    """Milliseconds for 1 and 32 images in PyTorch and onnxruntime, with equally many threads."""
    encoder = network_of(subject.spec, subject.params)
    name = running.get_inputs()[0].name
    found = dict[str, float]()
    for count in (1, 32):
        some = np.resize(images, (count, *images.shape[1:]))
        tensor, given = torch.from_numpy(some), np.ascontiguousarray(some.transpose(0, 2, 3, 1))
        ways: dict[str, Callable[[], object]] = {
            f"pytorch {count}": partial(extract, encoder, tensor),
            f"onnxruntime {count}": partial(running.run, None, {name: given}),
        }
        found |= milliseconds(ways)
    return found


_PEAK = """
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(int(line.split()[1]) // 1024)
"""
_ONNXRUNTIME = """
import sys, numpy, onnxruntime
model = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
size, channels = model.get_inputs()[0].shape[2:]
model.run(None, {"images": numpy.zeros((1, size, size, channels), numpy.uint8)})
"""
_PYTORCH = """
import sys, numpy
from pathlib import Path
from repper.encoders.encoder import features_of, read_encoder
spec, params = read_encoder(Path(sys.argv[1]))
features_of(spec, params, numpy.zeros((1, spec.channels, spec.size, spec.size), numpy.uint8))
"""


def memory(encoder: Path, onnx: Path) -> dict[str, int]:
    """Peak memory in MB of a new process that classifies one image, if the system reports it."""
    found = {}
    for name, code, path in (("pytorch", _PYTORCH, encoder), ("onnxruntime", _ONNXRUNTIME, onnx)):
        process = subprocess.run(
            [sys.executable, "-c", code + _PEAK, str(path)],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        if process.returncode == 0 and process.stdout.strip().isdecimal():
            found[name] = int(process.stdout)
    return found
