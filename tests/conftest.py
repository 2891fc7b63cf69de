"""What several tests need: real digits, tiny data, real images, and the command line as a process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import repper as api
from repper.cli import main
from repper.data import Dataset, Split, load

torch.set_num_threads(1)  # tests run side by side: threads of each would wait for the others'

CIFAR_MISSING = "REPPER_DATA is not set to a folder with cifar10: real images are not tested"

APART = ("federation", "edge", "hosts")
"""Folders of tests that take minutes, which only run when they are named."""


def pytest_ignore_collect(collection_path, config):
    """Leave these folders to `make test-federation`, `make test-edge` and `make test-hosts`."""
    if collection_path.name not in APART or collection_path.parent != Path(__file__).parent:
        return None
    asked = any(collection_path.name in Path(argument).parts for argument in config.args)
    return None if asked else True


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load("digits")


@pytest.fixture(scope="session")
def cifar10() -> Dataset:
    folder = os.environ.get("REPPER_DATA")
    if not folder or not (Path(folder) / "cifar10").is_dir():
        pytest.skip(CIFAR_MISSING)
    return load("cifar10")


def make_dataset(train=60, test=30, classes=3, channels=1, size=8) -> Dataset:
    """Random images, each a little brighter the higher its label."""
    random = np.random.default_rng(0)

    def split(count: int) -> Split:
        labels = np.arange(count) % classes
        noise = random.integers(0, 128, (count, channels, size, size))
        images = noise + (labels * (127 // classes))[:, None, None, None]
        return Split(images.astype(np.uint8), labels)

    return Dataset("toy", tuple(f"class {n}" for n in range(classes)), split(train), split(test))


@pytest.fixture(scope="session")
def reported(tmp_path_factory) -> Path:
    """A folder with a run, and with a comparison of three rows and two seeds, on digits."""
    folder = tmp_path_factory.mktemp("reported")
    settings = {
        "clients": 5, "rounds": 2, "epochs": 1, "width": 0.25, "engine": "serial",
        "evaluate_every": 1,
    }  # fmt: skip
    api.run("digits", out=folder / "run", **settings)
    rows = "repper+linear,fedavg+keep,fedavg+finetune"
    api.compare(rows, "digits", seeds=2, out=folder / "both", **settings)
    return folder


@pytest.fixture
def repper(tmp_path):
    """Run a command in an empty folder, and return what it printed and its exit code.

    It runs in this process: to load PyTorch anew takes longer than most commands.
    """

    def run(*arguments: object, env: dict[str, str] | None = None):
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, {"COLUMNS": "120", **(env or {})}),
            contextlib.chdir(tmp_path),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                code = main([str(argument) for argument in arguments])
            except SystemExit as stop:  # argparse's, after --help and --version
                code = int(stop.code or 0)
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def repper_process(tmp_path):
    """Run a command as its user would, in an empty folder; returns the finished process."""

    def run(*arguments: object, env: dict[str, str] | None = None, timeout: float = 240):
        return subprocess.run(
            [sys.executable, "-m", "repper", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "120", **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


def last_json(process: subprocess.CompletedProcess[str]) -> dict:
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


QUICK = (
    "--clients", 6, "--rounds", 3, "--epochs", 1, "--width", 0.5, "--participation", 0.5,
    "--engine", "serial",
)  # fmt: skip
"""Settings of a run on digits that takes a few seconds."""
