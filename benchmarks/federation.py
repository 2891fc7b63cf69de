"""What does a round over real Flower processes cost, with TLS and keys, on one machine?

    .venv/bin/python benchmarks/federation.py --rounds 5 --sites 4

FedAvg on random images, everyone in every round: repper federate; a bare Flower app with the same
encoder, images and epochs on the same server and nodes; repper run with the pool engine on the same
folders. Give the machine nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import tomli_w
from PIL import Image

from repper.errors import RepperError
from repper.flower.deployment import LINK, Server
from repper.flower.programs import program

CLASSES = tuple("abcdefghij")
PEERS = Path(__file__).parent / "peers"
REPPER = [sys.executable, "-m", "repper"]


def write_images(root: Path, sites: int, each: int) -> None:
    random = np.random.default_rng(0)
    for site in range(sites):
        for number in range(each):
            folder = root / f"site{site}" / CLASSES[number % len(CLASSES)]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")


@contextmanager
def running(command: list[str], log: Path) -> Iterator[None]:
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            yield
        finally:
            process.terminate()


def repper(*arguments: object) -> str:
    command = [*REPPER, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-600:]}")
    return done.stdout


def wait_for(server: Server, sites: int) -> None:
    """Wait until all sites are connected, and if there are none, until the server answers."""
    for _ in range(120):
        try:
            here = [site for site in server.sites(lambda text: None) if site.status == "online"]
        except RepperError:
            here = None
        if here is not None and len(here) >= sites:
            return
        time.sleep(1)
    raise RuntimeError("server or sites do not answer")


@contextmanager
def federation(root: Path, sites: int) -> Iterator[Server]:
    """A server and its sites, as real processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(root / "server")
    with ExitStack() as stack:
        serve = [*REPPER, "serve", str(server.home), "--host", "127.0.0.1", "--port", str(port)]
        stack.enter_context(running(serve, root / "server.log"))
        wait_for(server, 0)
        for site in range(sites):
            home = root / "homes" / f"site{site}"
            node = [
                "node", str(home), "--server", f"127.0.0.1:{port}",
                "--data", str(root / "images" / f"site{site}"), "--ca", str(server.home / "ca.crt"),
            ]  # fmt: skip
            repper(*node, "--key-only")
            repper("serve", server.home, "--admit", f"site{site}={home / 'site.pub'}")
            stack.enter_context(running([*REPPER, *node], root / f"site{site}.log"))
        wait_for(server, sites)
        yield server


def seconds_in(folder: Path) -> list[float]:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines]


def digest_in(folder: Path) -> str:
    digest: str = json.loads((folder / "result.json").read_text())["encoder_digest"]
    return digest


def bare(server: Server, root: Path, config: dict[str, int | str]) -> list[float]:
    """Seconds of every round of the bare app, on the server that runs already."""
    app = root / "bare"
    (app / "bare").mkdir(parents=True)
    for name in ("flower_app.py", "plain.py"):
        shutil.copy(PEERS / name, app / "bare" / name)
    (app / "bare" / "__init__.py").touch()
    project = {
        "project": {
            "name": "bare", "version": "1.0.0", "license": {"file": "LICENSE"},
            "dependencies": ["flwr>=1.41,<1.43"],
        },
        "tool": {"flwr": {"app": {
            "publisher": "repper", "fab-format-version": 1, "flwr-version-target": "1.41.0",
            "components": {
                "serverapp": "bare.flower_app:server", "clientapp": "bare.flower_app:client",
            },
            "config": config,
        }}},
    }  # fmt: skip
    (app / "pyproject.toml").write_text(tomli_w.dumps(project))
    (app / "LICENSE").write_text("Apache-2.0\n")
    run = server.flwr("run", str(app), LINK, say=lambda text: None, named=True)["run-id"]
    log = subprocess.run(
        [program("flwr"), "log", str(run), LINK, "--stream"],
        env=server.environment, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    for line in log.splitlines():
        if (at := line.find("SECONDS ")) >= 0:
            seconds: list[float] = json.loads(line[at + len("SECONDS ") :])
            return seconds
    raise RuntimeError(f"the bare app failed: {log[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--images", type=int, default=500, help="of each site")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    rounds, sites, epochs = options.rounds, options.sites, options.epochs
    settings = [
        "--method", "fedavg", "--personalize", "keep", "--augment", "none", "--participation", 1,
        "--batch", 256, "--image-size", 32, "--rounds", rounds, "--epochs", epochs,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_images(root / "images", sites, options.images)
        repper(
            "run", "--data", root / "images", "--partition", "folders", "--engine", "pool",
            "--knn", 0, *settings, "--out", root / "pool",
        )  # fmt: skip
        names = ",".join(f"site{site}" for site in range(sites))
        with federation(root, sites) as server:
            repper(
                "federate", server.home, "--sites", names, "--classes", ",".join(CLASSES),
                *settings, "--out", root / "ours",
            )  # fmt: skip
            config = {"sites": sites, "rounds": rounds, "epochs": epochs}
            theirs = bare(server, root, {**config, "classes": ",".join(CLASSES)})
        ours, pool = seconds_in(root / "ours"), seconds_in(root / "pool")
        same = digest_in(root / "ours") == digest_in(root / "pool")
    base = statistics.median(theirs)
    print(f"{'median seconds of a round':40} {'seconds':>8} {'to bare':>8}")
    for name, found in (
        ("repper federate, real processes", ours),
        ("a bare Flower app, the same processes", theirs),
        ("repper run, pool engine", pool),
    ):
        middle = statistics.median(found)
        print(f"{name:40} {middle:8.2f} {middle / base:8.2f}   all: {np.round(found, 2).tolist()}")
    print(f"{sites} sites of {options.images} images, {rounds} rounds of {epochs} epochs; "
          f"federation and pool gave {'the same' if same else 'different'} weights")  # fmt: skip


if __name__ == "__main__":
    main()
