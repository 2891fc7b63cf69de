"""Rounds of FedAvg in other simulators, and views by another library, against ours.

Peers live in virtual environments of their own, in benchmarks/.peers, made when first needed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import repper
from repper.basics.hardware import resolve_precision
from repper.data.augment import augment
from repper.engines.engine import one_thread
from repper.engines.processes import cores
from repper.runs.execute import RoundDone
from speed.measure import Measure, interleaved, medians, random_data

HERE = Path(__file__).parents[1]
PACKAGES = {
    "flower": ["flwr[simulation]==1.41.0"],
    "pfl": ["pfl==0.6.0"],
    "kornia": ["kornia==0.9.0"],
}


def environment_of(peer: str) -> Path:
    """The folder of programs of the peer's environment, which is made if there is none."""
    folder = HERE / ".peers" / peer
    if not (folder / "ready").is_file():
        print(f"(installing {', '.join(PACKAGES[peer])} for the comparison)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        lines = (HERE.parent / "constraints.txt").read_text().splitlines()
        exact = [line for line in lines if line.startswith("torch==")]
        for packages in (exact, ["numpy", *PACKAGES[peer]]):
            pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages]
            subprocess.run(pip, check=True)
        (folder / "ready").touch()
    return folder / "bin"


class Scenario:
    """Equal clients whose images follow one another, for ours and, in files, for peers."""

    def __init__(self, clients: int, each: int, cohort: int, channels: int, size: int) -> None:
        self.clients, self.cohort, self.rounds = clients, cohort, 6
        self.data = random_data(clients * each, channels=channels, size=size)
        rows = np.arange(clients * each).reshape(clients, each)
        empty = np.zeros(0, np.int64)
        self.partition = repper.Partition(tuple(rows), (empty,) * clients)

    def write(self, folder: Path) -> None:
        np.save(folder / "images.npy", self.data.train.images)
        np.save(folder / "labels.npy", self.data.train.labels)
        settings = {
            "clients": self.clients, "cohort": self.cohort, "rounds": self.rounds,
            "epochs": 1, "batch": 256,
        }  # fmt: skip
        (folder / "settings.json").write_text(json.dumps(settings))

    def ours(self, **settings: str) -> float:
        """Seconds of a round, after the first."""
        moments: list[float] = []

        def watch(event: object) -> None:
            if isinstance(event, RoundDone):
                moments.append(time.perf_counter())

        with tempfile.TemporaryDirectory() as folder:
            repper.run(
                self.data, self.partition, watch=watch, out=Path(folder) / "run", method="fedavg",
                rounds=self.rounds, epochs=1, participation=self.cohort / self.clients,
                augment="none", batch=256, knn=0, **settings,
            )  # fmt: skip
        return statistics.median(np.diff(moments))

    def theirs(self, command: list[str], extra: dict[str, str] | None = None) -> float:
        with tempfile.TemporaryDirectory() as folder:
            self.write(Path(folder))
            [seconds] = _answers(command, {"SCENARIO": folder, **(extra or {})})
        return statistics.median(json.loads(seconds))


# Arithmetic dominates the one, what a simulator does between clients the other.
LARGE = "20 clients of 500 CIFAR-sized images"
SCENARIOS = {
    LARGE: lambda: Scenario(20, 500, 8, 3, 32),
    "1,000 clients of 20 digits": lambda: Scenario(1000, 20, 100, 1, 8),
}


def flower(repeats: int) -> list[Measure]:
    program = [str(environment_of("flower") / "python"), "flower.py"]
    return _simulators("Flower's simulation", program, (2.2, 12.0), repeats)


def pfl(repeats: int) -> list[Measure]:
    torchrun = str(environment_of("pfl") / "torchrun")
    program = [torchrun, "--nproc-per-node", str(cores()), "pfl_research.py"]
    return _simulators("pfl-research", program, (1.7, 2.5), repeats, best=1.0)


def _simulators(
    name: str,
    command: list[str],
    reaches: tuple[float, float],
    repeats: int,
    best: float | None = None,
) -> list[Measure]:
    """Ours over theirs, both as they come; ours with `--precision auto`, which float32 is beside.

    With `best`, what is to be reached where they compute in bfloat16, too.
    """
    found = []
    for (what, make), reach in zip(SCENARIOS.items(), reaches, strict=True):
        scenario = make()
        ways = {
            "auto": lambda s=scenario: s.ours(precision="auto"),
            "float32": lambda s=scenario: s.ours(),
            "theirs": lambda s=scenario: s.theirs(command),
        }
        large = what == LARGE
        if best is not None and large:
            ways["theirs in bfloat16"] = lambda s=scenario: s.theirs(command, {"HALF": "1"})
        middle = medians(interleaved(repeats, **ways))
        details = {"seconds": middle, "auto is": resolve_precision("auto", "cpu")}
        # Small clients are trained together in float32.
        ours = middle["auto"] if large else min(middle["auto"], middle["float32"])
        found.append(Measure(f"{name}, {what}", middle["theirs"] / ours, reach, details=details))
        gain = middle["theirs"] / middle["float32"]
        found.append(
            Measure(
                f"  ours in float32 over {name}, {scenario.clients:,} clients",
                gain,
                None,
                details=details,
            )
        )
        if "theirs in bfloat16" in middle:
            gain = min(middle["theirs"], middle["theirs in bfloat16"]) / middle["auto"]
            found.append(Measure(f"  over {name} at its best", gain, best, details=details))
    return found


def kornia(repeats: int) -> list[Measure]:
    program = [str(environment_of("kornia") / "python"), "kornia_views.py"]
    images = torch.randint(0, 256, (256, 3, 32, 32), dtype=torch.uint8)
    random = torch.Generator().manual_seed(0)

    def ours() -> float:
        seconds = []
        for _ in range(12):
            began = time.perf_counter()
            torch.cat([augment(images, "strong", True, random) for _ in range(2)])
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds[2:])

    with one_thread():
        found = interleaved(repeats, ours=ours, kornia=lambda: float(_answers(program, {})[0]))
    middle = medians(found)
    gain = middle["kornia"] / middle["ours"]
    return [Measure("strong views, against kornia", gain, 3.0, details={"seconds": middle})]


def _answers(command: list[str], extra: dict[str, str]) -> list[str]:
    """What a peer's program says it measured; it is to reach no network."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    folder = HERE / "peers"
    process = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600,
        env={**os.environ, **quiet, **extra, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    lines = [line for line in process.stdout.splitlines() if "SECONDS" in line]
    if not lines:  # some abort when they end, after they have measured
        raise RuntimeError(f"{command} failed:\n{process.stdout[-2000:]}{process.stderr[-2000:]}")
    return [line.split("SECONDS", 1)[1] for line in lines[:1]]
