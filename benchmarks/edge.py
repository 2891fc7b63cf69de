"""What does a device gain without PyTorch? Time, memory and files, as one Markdown table.

    .venv/bin/python benchmarks/edge.py
    .venv/bin/python benchmarks/edge.py --run runs/a

Give the machine nothing else to do; it takes about three minutes. Without --run, encoders are
trained for one round on drawn images of 32 x 32: speed does not depend on what images show, but the
statistics of batch norm and the scales of int8 must be those of a training. With --run, the encoder
of a finished run is measured, with the head of its client 0.

PyTorch, fp32 and int8 take turns, with as many threads each, and a pause before each turn: threads
of the one before still look for work for a moment. Shown are medians, and minima in brackets; a
ratio is one of medians within this run. Memory is the largest that a new process needs, and the
time of `repper predict` that of a new process, with its files in the memory of the system.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from PIL import Image

import repper
from repper.edge.model_folder import ENCODER
from repper.encoders.encoder import extract
from repper.export.graph import network_of
from repper.export.source import Subject, evidence_of, natural, subject_of
from repper.export.write import Targets, export
from repper.heads import DEVICE_HEADS, HEADS
from repper.runs.environment import environment

ENCODERS = ("small", "resnet18", "mobilenet")
SIZE, CLASSES = 32, 10
REACH = {"fp32": 1.5, "int8": 2.5}
"""How many times as fast as PyTorch one image should be on `resnet18` and `mobilenet`."""
PAUSE = 0.05
Times = dict[str, list[float]]


def in_turns(ways: dict[str, Callable[[], object]], seconds: float) -> Times:
    """Seconds of single calls, in rounds in which each way has its turn."""
    found: Times = {name: [] for name in ways}
    for work in ways.values():
        work()
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 3 or (rounds < 10 and time.perf_counter() < end):
        rounds += 1
        for name, work in ways.items():
            time.sleep(PAUSE)
            work()  # its weights come back into the caches
            turn = time.perf_counter() + 0.1
            while True:
                begin = time.perf_counter()
                work()
                found[name].append(time.perf_counter() - begin)
                if time.perf_counter() > turn:
                    break
    return found


def row(name: str, found: Times, unit: float, reach: dict[str, float] | None = None) -> str:
    """A line of the table: each way, and how many times less than the first each other one is."""
    middle = {way: statistics.median(times) for way, times in found.items()}

    def cell(way: str) -> str:
        if way not in found:
            return ""
        text = figure(unit * middle[way])
        return f"{text} ({figure(unit * min(found[way]))})" if len(found[way]) > 1 else text

    def gain(way: str) -> str:
        if way not in found or "PyTorch" not in found:
            return ""
        times = middle["PyTorch"] / middle[way]
        least = (reach or {}).get(way, 0)
        return f"{times:.1f}x" + (f" (reach {least}x)" if times < least else "")

    cells = [name, *map(cell, ("PyTorch", "fp32", "int8")), *map(gain, ("fp32", "int8"))]
    return f"| {' | '.join(cells)} |"


def figure(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def trained(encoder: str, folder: Path) -> Path:
    """A run of one round on drawn images."""

    def split(count: int) -> repper.Split:
        return repper.Split(natural(count, 3, SIZE), np.arange(count) % CLASSES)

    data = repper.Dataset("drawn", tuple("abcdefghij"), split(60), split(20))
    repper.run(
        data, out=folder, encoder=encoder, clients=2, partition="iid", rounds=1, epochs=1,
        participation=1.0, method="repper", personalize="linear", engine="serial",
    )  # fmt: skip
    return folder


def session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def latencies(name: str, subject: Subject, models: dict[str, Path], seconds: float) -> None:
    encoder = network_of(subject.spec, subject.params)
    images = natural(32, subject.spec.channels, subject.spec.size)
    for threads in sorted({1, min(2, os.cpu_count() or 1)}):
        torch.set_num_threads(threads)
        sessions = {way: session(model / ENCODER, threads) for way, model in models.items()}
        for count in (1, 32):
            some = images[:count]
            given = {"images": np.ascontiguousarray(some.transpose(0, 2, 3, 1))}
            ways: dict[str, Callable[[], object]] = {
                "PyTorch": partial(extract, encoder, torch.from_numpy(some))
            }
            ways |= {way: partial(one.run, None, given) for way, one in sessions.items()}
            reach = REACH if count == 1 and name in ("resnet18", "mobilenet") else None
            what = f"{name}, {count} {'image' if count == 1 else 'images'}, {threads} "
            what += f"{'thread' if threads == 1 else 'threads'}: ms"
            print(row(what, in_turns(ways, seconds), 1000, reach), flush=True)


PEAK = """
import resource, sys
def peak():
    # Not ru_maxrss where it can be helped: it counts the process that started this one, too.
    try:
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
"""
PREDICT = (
    PEAK
    + """
from repper.cli import main
if main(sys.argv[1:]):
    sys.exit(1)
print(peak())
"""
)
FIT = (
    PEAK
    + """
import time
import numpy as np
from repper.heads import DEVICE_HEADS, HEADS
heads, kind, width = {"device": DEVICE_HEADS, "torch": HEADS}[sys.argv[1]], *sys.argv[2:]
random = np.random.default_rng(0)
labels = np.arange(500) % 10
means = random.normal(size=(10, int(width)))
x = np.maximum(means[labels] + 2 * random.normal(size=(500, int(width))), 0).astype(np.float32)
head = heads[kind]()
begin = time.perf_counter()
head.fit(x, labels)
print(time.perf_counter() - begin, peak())
"""
)


def fresh(code: str, *arguments: object) -> tuple[float, list[float]]:
    """Seconds of a new process from start to end, and the numbers in its last line."""
    begin = time.perf_counter()
    process = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    if process.returncode:
        raise RuntimeError(process.stderr.strip() or process.stdout.strip())
    return seconds, [float(word) for word in process.stdout.splitlines()[-1].split()]


def predictions(name: str, run: Path, models: dict[str, Path], image: Path, repeats: int) -> None:
    """`repper predict` in new processes."""
    ways: dict[str, tuple[object, ...]] = {
        "PyTorch": ("predict", "--run", run, "--client", 0, image)
    }
    ways |= {way: ("predict", model, image) for way, model in models.items()}
    seconds: Times = {way: [] for way in ways}
    memory: Times = {way: [] for way in ways}
    for repeat in range(repeats + 1):
        for way, arguments in ways.items():
            took, (most,) = fresh(PREDICT, *arguments)
            if repeat:  # the first one reads files from the disk
                seconds[way].append(took)
                memory[way].append(most)
    print(row(f"{name}, repper predict, 1 image: s", seconds, 1))
    print(row(f"{name}, repper predict, 1 image: MB of memory", memory, 1), flush=True)


def heads(features: int, repeats: int) -> None:
    """Heads on 500 rows: as a device fits them, and as PyTorch does where that is another way."""
    for kind in DEVICE_HEADS:
        places = {"fp32": "device"}
        if DEVICE_HEADS[kind] is not HEADS[kind]:
            places = {"PyTorch": "torch", **places}
        seconds: Times = {way: [] for way in places}
        memory: Times = {way: [] for way in places}
        for _ in range(repeats):
            for way, place in places.items():
                _, (took, most) = fresh(FIT, place, kind, features)
                seconds[way].append(took)
                memory[way].append(most)
        name = f"{kind} head, 500 x {features} features"
        print(row(f"{name}: s to fit", seconds, 1))
        print(row(f"{name}: MB of memory", memory, 1), flush=True)


def exported(run: Path, folder: Path) -> tuple[Subject, dict[str, Path]]:
    subject = subject_of(run, 0)
    evidence = evidence_of(subject, None, 64)
    models = {way: folder / way for way in ("fp32", "int8")}
    for way, model in models.items():
        quantize = way == "int8"
        export(
            subject, evidence, Targets(model), quantize=quantize, accept_loss=True, measure=False
        )
    return subject, models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, metavar="RUN", help="measure this finished run")
    parser.add_argument("--encoders", nargs="+", choices=ENCODERS, default=list(ENCODERS))
    parser.add_argument("--seconds", type=float, default=3.0, help="for each line of latencies")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each kind")
    options = parser.parse_args()
    machine = environment("cpu")
    print(f"{machine['processor']}, {machine['cores']} cores: {machine['instructions']}")
    print(f"PyTorch {torch.__version__}, onnxruntime {onnxruntime.__version__}\n")
    print("| median (minimum) | PyTorch | onnxruntime, fp32 | onnxruntime, int8 | fp32 | int8 |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in options.encoders if options.run is None else ("",):
            run = options.run or trained(name, folder / f"{name}-run")
            subject, models = exported(run, folder / (name or "model"))
            name = name or subject.spec.name
            latencies(name, subject, models, options.seconds)
            sizes = {"PyTorch": [(run / "encoder.safetensors").stat().st_size]}
            sizes |= {way: [(model / ENCODER).stat().st_size] for way, model in models.items()}
            print(row(f"{name}, file: MB", sizes, 1e-6))
            image = folder / "image.png"
            pixels = natural(1, subject.spec.channels, subject.spec.size)[0].transpose(1, 2, 0)
            Image.fromarray(pixels.squeeze()).save(image)
            predictions(name, run, models, image, options.repeats)
        heads(512, min(2, options.repeats))


if __name__ == "__main__":
    main()
