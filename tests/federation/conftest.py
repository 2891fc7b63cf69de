"""One server and its sites as real processes on this machine, with TLS and node keys on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from repper.data import load

SETTINGS = ("--epochs", 1, "--width", 0.25, "--participation", 1, "--image-size", 8)
"""Rounds in which starting the processes is most of the work."""
SITES = ("north", "south")
CLASSES = "0,1,2,3,4,5,6,7,8,9"
MISCHIEF = Path(__file__).parent / "mischief"
LONG = 400.0
"""Seconds after which nothing that is waited for will come any more."""


def until(holds: Callable[[], object], what: str, seconds: float = LONG) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            pytest.fail(f"in {seconds:g} s: {what}")
        time.sleep(0.2)


def environment(**more: str) -> dict[str, str]:
    # Without compiled files, every one of the many short processes would compile all of repper.
    # And as a user's terminal has it: output into a pipe is kept back, unless we see to it.
    given = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    return {**given, "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "", **more}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "repper", *map(str, arguments)]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _heed_interrupts() -> None:
    """Whoever starts these tests in the background has told them to ignore interruptions."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Process:
    """A process and all that it starts, with its output in a file."""

    def __init__(self, arguments: list[str], log: Path, **more: str) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                arguments, env=environment(**more), stdout=file, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_heed_interrupts,
            )  # fmt: skip

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def says(self, text: str, seconds: float = LONG) -> None:
        until(lambda: text in self.said(), f"no {text!r} in:\n{self.said()[-3000:]}", seconds)

    def end(self, seconds: float = LONG) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds:g} s:\n{self.said()[-3000:]}")

    def kill(self) -> None:
        """End it and all that it has started, at once and without a word."""
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def family(self) -> set[int]:
        """The processes of its session: it, and all that it has started."""
        found = set()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and os.getsid(int(entry.name)) == self.process.pid:
                    found.add(int(entry.name))
        return found

    def kill_alone(self) -> None:
        self.process.kill()
        self.process.wait()


class Node:
    """A site: its folder of images, its home, and the process that stands for it."""

    def __init__(self, federation: Federation, name: str, images: Path, *flags: str) -> None:
        self.federation, self.name, self.images, self.flags = federation, name, images, flags
        self.home = federation.folder / "homes" / name
        self.tricks = federation.folder / "tricks" / name
        self.tricks.mkdir(parents=True)
        self.process: Process | None = None

    def arguments(self) -> list[object]:
        server = self.federation
        return [
            "node", self.home, "--server", f"127.0.0.1:{server.port}", "--data", self.images,
            "--ca", server.home / "ca.crt", *self.flags,
        ]  # fmt: skip

    def admit(self) -> None:
        self.federation.repper(*self.arguments(), "--key-only")
        self.federation.repper(
            "serve", self.federation.home, "--admit", f"{self.name}={self.home / 'site.pub'}"
        )

    def start(self) -> Process:
        path = os.pathsep.join(filter(None, [str(MISCHIEF), os.environ.get("PYTHONPATH")]))
        self.process = Process(
            command(*self.arguments()), self.federation.folder / f"{self.name}.log",
            PYTHONPATH=path, MISCHIEF=str(self.tricks),
        )  # fmt: skip
        return self.process

    def come_back(self) -> None:
        """Start again after a sudden death, which Flower believes after a minute."""
        before = self.process.said().count("SuperNode ID") if self.process else 0
        said = self.start().said
        until(
            lambda: said().count("SuperNode ID") > before, f"{self.name} is not let in again", 200
        )

    def spoil(self, *todo: str) -> None:
        (self.tricks / "hanging").unlink(missing_ok=True)
        (self.tricks / "todo").write_text("".join(f"{line}\n" for line in todo))

    def hangs(self) -> None:
        until((self.tricks / "hanging").exists, f"{self.name} does not hang")

    def behave(self) -> None:
        (self.tricks / "todo").unlink(missing_ok=True)

    def run_folder(self, run: Path) -> Path:
        """Where the site keeps its part of a federation."""
        return self.home / "runs" / json.loads((run / "sites.json").read_text())["run"]


class Federation:
    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.port = folder, folder / "server", free_port()
        self.nodes: dict[str, Node] = {}
        self.watching: list[Process] = []
        self.serve()

    def serve(self) -> None:
        self.server = Process(
            command("serve", self.home, "--host", "127.0.0.1", "--port", self.port),
            self.folder / "server.log",
        )
        before = self.server.said().count("Uvicorn running")
        until(lambda: self.server.said().count("Uvicorn running") > before, "no server", 120)

    def repper(self, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command(*arguments), cwd=self.folder, env=environment(), capture_output=True,
            text=True, timeout=LONG, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done

    def add(self, name: str, images: Path, *flags: str) -> Node:
        self.nodes[name] = node = Node(self, name, images, *flags)
        node.admit()
        node.start().says("SuperNode ID")
        return node

    def federate(self, out: Path, *arguments: object, sites: tuple[str, ...] = SITES) -> Process:
        """`repper federate`, watching."""
        log = self.folder / f"federate-{len(self.watching)}.log"
        more = ("--sites", ",".join(sites), *SETTINGS, "--out", out, "--json", *arguments)
        self.watching.append(Process(command("federate", self.home, *more), log))
        return self.watching[-1]

    def is_over(self) -> bool:
        """Whether Flower has closed the last run, by its own database."""
        with closing(sqlite3.connect(f"file:{self.home / 'link.db'}?mode=ro", uri=True)) as link:
            query = "SELECT finished_at FROM task ORDER BY pending_at DESC LIMIT 1"
            return bool(link.execute(query).fetchone()[0])

    def stop_federation(self) -> None:
        """Leave no federation behind that a failed test has begun."""
        subprocess.run(
            command("federate", self.home, "--stop"), env=environment(), capture_output=True,
            timeout=LONG, check=False,
        )  # fmt: skip

    def close(self) -> None:
        nodes = [node.process for node in self.nodes.values() if node.process]
        for process in [*self.watching, *nodes, self.server]:
            process.kill()


def result(watching: Process) -> dict:
    """What a federation that ends well says at the end."""
    assert watching.end() == 0, watching.said()[-3000:]
    return json.loads(watching.said().splitlines()[-1])


def write_images(folder: Path, rows: range) -> Path:
    """Real digits as small colour images, in a folder per class."""
    digits = load("digits")
    for row in rows:
        grey = digits.train.images[row][0]
        path = folder / str(digits.train.labels[row]) / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.stack([grey, grey // 2, 255 - grey], -1)).save(path)
    return folder


@pytest.fixture(scope="session")
def images(tmp_path_factory) -> Path:
    """Folders of images by site."""
    folder = tmp_path_factory.mktemp("images")
    for number, name in enumerate(SITES):
        write_images(folder / name, range(60 * number, 60 * number + 60))
    return folder


@pytest.fixture(scope="session")
def federation(tmp_path_factory, images) -> Iterator[Federation]:
    """A server and two sites that share their scores, all connected."""
    started = Federation(tmp_path_factory.mktemp("federation"))
    try:
        for name in SITES:
            started.add(name, images / name, "--share-scores")
        yield started
    finally:
        started.close()
        shutil.rmtree(started.folder, ignore_errors=True)


@pytest.fixture
def sites(federation) -> Iterator[dict[str, Node]]:
    """The sites, which behave when a test begins and are all there again when it ends."""
    yield federation.nodes
    if any(last.process.poll() != 0 for last in federation.watching[-1:]):
        federation.stop_federation()
    for node in federation.nodes.values():
        node.behave()
        if node.process is None or node.process.process.poll() is not None:
            node.come_back()


@pytest.fixture(scope="session")
def serial(tmp_path_factory, images, federation):
    """The result of the same settings on the same folders, in one process."""
    made: dict[tuple[object, ...], dict] = {}

    def run(*arguments: object, data: Path = images) -> dict:
        if arguments not in made:
            out = tmp_path_factory.mktemp("serial") / "run"
            done = federation.repper(
                "run", "--data", data, "--partition", "folders", "--engine", "serial", *SETTINGS,
                "--knn", 0, "--out", out, "--json", *arguments,
            )  # fmt: skip
            made[arguments] = json.loads(done.stdout.splitlines()[-1])
        return made[arguments]

    return run
