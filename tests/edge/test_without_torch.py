"""Installed as on a device: neither PyTorch nor more than a command needs, in a fresh environment.

This test installs from the package index, and takes some minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

from repper.heads import DEVICE_HEADS

from .tiny_model import pixel_encoder, write_model

ROOT = Path(__file__).parents[2]
WATCH = """
import atexit, os, sys

@atexit.register
def note():
    with open(os.environ.get("LOADED", os.devnull), "w") as file:
        file.write(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""
"""A sitecustomize.py: what was loaded is written down."""


class Environment:
    """A virtual environment with the checkout in it, which gets its extras later."""

    def __init__(self, folder):
        self.folder = folder / "environment"
        venv.create(self.folder, with_pip=True)
        self.python = self.folder / ("Scripts" if os.name == "nt" else "bin") / "python"
        self.source = source(folder)
        self.install("")
        (self.packages / "sitecustomize.py").write_text(WATCH)

    def install(self, extra):
        """The checkout, as a user would: `pip install 'repper[extra]'`."""
        self.pip("install", "-c", ROOT / "constraints.txt", f"{self.source}{extra}")

    def names(self):
        return {path.name.split("-")[0].lower() for path in self.packages.iterdir()}

    def pip(self, *arguments):
        command = [self.python, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, check=False, timeout=900
        )
        if "No matching distribution" in done.stderr:
            pytest.skip("pip finds no package index: fresh installations are not tested")
        assert done.returncode == 0, done.stderr

    @property
    def packages(self):
        [found] = self.folder.glob("lib/python*/site-packages")
        return found

    def megabytes(self):
        """All that is installed, without pip and setuptools."""
        return sum(
            path.stat().st_size
            for path in self.packages.rglob("*")
            if path.is_file()
            and path.relative_to(self.packages).parts[0].split("-")[0]
            not in ("pip", "setuptools", "pkg_resources", "_distutils_hack")
        ) / 1e6  # fmt: skip

    def run(self, *arguments, cwd):
        """A command of repper, and which packages it has loaded."""
        loaded = cwd / "loaded.txt"
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            [str(self.python), "-m", "repper", *map(str, arguments)],
            cwd=cwd, env={**env, "LOADED": str(loaded)}, capture_output=True, text=True,
            check=False, timeout=240,
        )  # fmt: skip
        return done, set(loaded.read_text().split())


def source(folder):
    """A copy of the checkout to build from: building leaves files behind."""
    copy = folder / "source"
    if not copy.exists():
        copy.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        shutil.copytree(
            ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    return copy


def test_each_extra_brings_just_what_its_commands_need(tmp_path, place, capsys):
    environment, sizes = Environment(tmp_path), {}
    check_base(environment, place, tmp_path)
    sizes["repper"] = environment.megabytes()
    environment.install("[predict]")
    check_predict(environment, place, tmp_path)
    sizes["repper[predict]"] = environment.megabytes()
    environment.install("[edge]")
    check_edge(environment, place, tmp_path)
    sizes["repper[edge]"] = environment.megabytes()
    with capsys.disabled():
        print("".join(f"\n{name}: {size:.0f} MB" for name, size in sizes.items()))  # noqa: T201
    assert sizes["repper"] < 150
    assert sizes["repper"] < sizes["repper[predict]"] < sizes["repper[edge]"] < 500


def check_edge(edge, place, tmp_path):
    """A device does everything without PyTorch."""
    assert not edge.names() & {"torch", "onnx"}
    write_model(tmp_path / "exported", pixel_encoder())
    photo = sorted((place / "tests").glob("*/*"))[0]
    for kind in DEVICE_HEADS:
        commands = [
            ("personalize", "--encoder", "exported", "--images", place / "photos", "--out", kind,
             "--head", kind, "--json"),
            ("add", kind, "--images", place / "more", "--json"),
            ("remove", kind, photo.parents[2] / "more" / "6", "--json"),
            ("evaluate", kind, "--images", place / "tests", "--json"),
        ]  # fmt: skip
        for command in commands:
            done, loaded = edge.run(*command, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, "")
            said = json.loads(done.stdout)
            assert not loaded & {"torch", "onnx", "matplotlib", "pyarrow"}
        assert said["accuracy"] > 90
        done, loaded = edge.run("predict", kind, photo, "--json", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        [row] = json.loads(done.stdout)["predictions"]
        assert max(row["chances"], key=row["chances"].get) == "0"
        assert not loaded & {"torch", "onnx", "sklearn", "scipy", "joblib", "rich"}
    done, loaded = edge.run("play", "linear", "--html", "page.html", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not loaded & {"torch", "onnxruntime", "sklearn", "scipy"}
    assert (tmp_path / "page.html").stat().st_size > 1e6


def check_predict(predicting, place, tmp_path):
    """Predicting and evaluating work; to fit a head, the sentence says what to install."""
    assert not predicting.names() & {"torch", "sklearn", "scikit_learn", "scipy"}
    photo = sorted((place / "tests").glob("*/*"))[0]
    done, _ = predicting.run("predict", place / "model", photo, "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    [row] = json.loads(done.stdout)["predictions"]
    assert row["class"] in ("0", None)
    done, _ = predicting.run("evaluate", place / "model", "--images", place / "tests", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for command in (
        ("personalize", "--encoder", place / "model", "--images", place / "photos", "--out", "m"),
        ("add", place / "model", "--images", place / "more"),
        ("remove", place / "model", "--class", "6"),
    ):
        done, _ = predicting.run(*command, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert done.stderr.endswith(f"pip install '{predicting.source.resolve()}[edge]'\n")


def check_base(base, place, tmp_path):
    """What is missing is said with the command that brings it."""
    photo = sorted((place / "tests").glob("*/*"))[0]
    commands = {
        ("run",): "train",
        ("compare", "--methods", "fedavg"): "train",
        ("partition", "--data", "digits"): "train",
        ("predict", "--run", "r", "--client", "1", photo): "train",
        ("report", "r"): "train",
        ("export", "r", "--out", "m"): "export",
        ("predict", place / "model", photo): "predict",
        ("evaluate", place / "model", "--images", place / "tests"): "predict",
        ("personalize", "--encoder", place / "model", "--images", place / "photos", "--out", "m"):
            "edge",
        ("add", place / "model", "--images", place / "more"): "edge",
    }  # fmt: skip
    for command, extra in commands.items():
        done, _ = base.run(*command, cwd=tmp_path)
        assert done.returncode == 2, (command, done.stderr)
        assert done.stderr.count("\n") == 1
        assert done.stderr.endswith(f"pip install '{base.source.resolve()}[{extra}]'\n"), command
    for command in (
        ("--help",),
        ("personalize", "--help"),
        ("play", place / "model", "--html", "p"),
    ):
        done, loaded = base.run(*command, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert not loaded & {"torch", "sklearn", "scipy", "onnxruntime"}
