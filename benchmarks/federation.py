"""What does a round over real Flower processes cost, with TLS and keys, on one machine?

    .venv/bin/python benchmarks/federation.py --rounds 4 --sites 4

FedAvg on random images, everyone in every round: repper federate; a bare Flower app with the same
encoder, images and epochs on a server and nodes of Flower's own; repper run with the pool engine on
the same folders. Also the memory of a node, how long `federate` shows nothing, and the processor
time of a round by kind of process, which a busy machine changes less than seconds. `--only ours`
leaves the others out, for many sites. Give the machine nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import tomli_w
from PIL import Image

from repper.basics.errors import RepperError
from repper.flower import warm
from repper.flower.homes import LINK, Server, node_command, node_environment
from repper.flower.keys import make_site_key
from repper.flower.pace import LOOK_FOR_WORK
from repper.flower.programs import program
from repper.flower.site import Site

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
def running(
    command: list[str], log: Path, environment: dict[str, str] | None = None
) -> Iterator[int]:
    """A process and all that it starts; its session."""
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, stdout=file, stderr=file, env=environment, start_new_session=True
        ) as process,
    ):
        try:
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def megabytes(sessions: list[int]) -> float:
    """The memory of sessions; what processes share is counted once."""
    found = 0
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdecimal() and os.getsid(int(process.name)) in sessions:
                lines = (process / "smaps_rollup").read_text().splitlines()
                found += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found / 1024


KINDS = {
    "fork_server": "the app, at sites and server", "repper.flower.superlink": "Flower's server",
    "repper.flower.watched": "Flower's nodes", "superexec": "Flower's starters of processes",
}  # fmt: skip


def processor_seconds(sessions: list[int]) -> Counter[str]:
    """What sessions have used, with what has ended in them, by kind of process."""
    found, tick = Counter[str](), os.sysconf("SC_CLK_TCK")
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdecimal() and os.getsid(int(process.name)) in sessions:
                command = (process / "cmdline").read_text(errors="replace")
                kind = next((name for key, name in KINDS.items() if key in command), "others")
                times = (process / "stat").read_text().rpartition(")")[2].split()[11:15]
                found[kind] += sum(map(int, times)) / tick
    return found


def repper(*arguments: object) -> str:
    command = [*REPPER, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-600:]}")
    return done.stdout


def wait_for(server: Server, sites: int) -> None:
    """Wait until all sites are connected, and if there are none, until the server answers."""
    for _ in range(600):
        try:
            here = [site for site in server.sites(lambda text: None) if site.status == "online"]
        except RepperError:
            here = None
        if here is not None and len(here) >= sites:
            return
        time.sleep(1)
    raise RuntimeError("server or sites do not answer")


def since(began: float) -> float:
    return time.monotonic() - began


def as_flower_has_it(environment: dict[str, str]) -> dict[str, str]:
    """Without our warm processes and our shorter pauses."""
    own, _, path = environment["PATH"].partition(os.pathsep)
    if not own.endswith(warm.FOLDER):
        raise ValueError("the shim's folder is not the first in the PATH")
    left = {name: value for name, value in environment.items() if name not in LOOK_FOR_WORK}
    return left | {"PATH": path}


@contextmanager
def federation(
    root: Path, sites: int, plain: bool = False
) -> Iterator[tuple[Server, int, list[int]]]:
    """A server and its sites, as real processes, with the sessions of both."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server, sessions = Server(root / "server"), []
    with ExitStack() as stack:
        if plain:
            server.prepare("127.0.0.1", port, [])
            command, variables = server.command(), as_flower_has_it(server.environment)
        else:
            command = [*REPPER, "serve", str(server.home), "--port", str(port)]
            variables = None
        ours = stack.enter_context(running(command, root / "server.log", variables))
        wait_for(server, 0)
        nodes = []
        for site in range(sites):
            home = root / "homes" / f"site{site}"
            node = [
                "node", str(home), "--server", f"127.0.0.1:{port}",
                "--data", str(root.parent / "images" / f"site{site}"),
                "--ca", str(server.home / "ca.crt"),
            ]  # fmt: skip
            make_site_key(home / "site.key")
            server.admit(home.name, home / "site.pub", lambda text: None)
            nodes.append((home, node))
        began = time.monotonic()
        for home, node in nodes:
            command, variables = [*REPPER, *node], None
            if plain:
                # The bare app finds its images where `repper node` would have written them down.
                Site(home, str(root.parent / "images" / home.name)).save()
                with socket.socket() as free:
                    free.bind(("127.0.0.1", 0))
                    own = free.getsockname()[1]
                ca = server.home / "ca.crt"
                command = node_command(home, f"127.0.0.1:{port}", ca, own)
                variables = as_flower_has_it(node_environment(home))
            log = root / f"{home.name}.log"
            sessions.append(stack.enter_context(running(command, log, variables)))
        wait_for(server, sites)
        print(f"{sites} nodes that started at once were connected in {since(began):.0f} s")
        yield server, ours, sessions


def federate(*arguments: object, sessions: list[int]) -> float:
    """Run `repper federate`, and return the seconds before the server app's first line.

    Prints what the sessions used in a round, the first one left out.
    """
    command = [*REPPER, "federate", *map(str, arguments)]
    variables = {name: v for name, v in os.environ.items() if name != "PYTHONUNBUFFERED"}
    began, first, used = time.monotonic(), 0.0, list[Counter[str]]()
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr or ():
            if "connected: " in line:
                first = first or since(began)
            if line.startswith("round "):
                used.append(processor_seconds(sessions))
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    if len(used) > 1:
        spent = {kind: (used[-1][kind] - used[0][kind]) / (len(used) - 1) for kind in used[-1]}
        each = ", ".join(f"{kind} {seconds:.2f}" for kind, seconds in spent.items())
        print(f"processor seconds of a round: {sum(spent.values()):.2f} ({each})")
    return first


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
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--images", type=int, default=500, help="of each site")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--only", choices=["ours"])
    options = parser.parse_args()
    rounds, sites, epochs = options.rounds, options.sites, options.epochs
    settings = [
        "--method", "fedavg", "--personalize", "keep", "--augment", "none", "--participation", 1,
        "--batch", 256, "--image-size", 32, "--rounds", rounds, "--epochs", epochs,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_images(root / "images", sites, options.images)
        (root / "warm").mkdir()
        (root / "plain").mkdir()
        repper(
            "run", "--data", root / "images", "--partition", "folders", "--engine", "pool",
            "--knn", 0, *settings, "--out", root / "pool",
        )  # fmt: skip
        names = ",".join(f"site{site}" for site in range(sites))
        with federation(root / "warm", sites) as (server, ours_at, sessions):
            idle = megabytes(sessions) / sites
            first = federate(
                server.home, "--sites", names, "--classes", ",".join(CLASSES), *settings,
                "--out", root / "ours", sessions=[ours_at, *sessions],
            )  # fmt: skip
            waiting = megabytes(sessions) / sites
            time.sleep(warm.IDLE + 5)
            later = megabytes(sessions) / sites
        ours, pool = seconds_in(root / "ours"), seconds_in(root / "pool")
        same = digest_in(root / "ours") == digest_in(root / "pool")
        found = [("repper federate", ours), ("repper run, pool engine", pool)]
        print(
            f"a node: {idle:.0f} MB before its first message, {waiting:.0f} after its "
            f"last, {later:.0f} from {warm.IDLE} s after its last"
        )
        print(f"repper federate showed its first line after {first:.1f} s")
        if options.only is None:
            with federation(root / "plain", sites, plain=True) as (server, _, sessions):
                print(f"Flower's own node: {megabytes(sessions) / sites:.0f} MB")
                config = {"sites": sites, "rounds": rounds, "epochs": epochs}
                theirs = bare(server, root, {**config, "classes": ",".join(CLASSES)})
            found.insert(1, ("a bare Flower app on Flower's own processes", theirs))
    base = statistics.median(pool)
    print(f"{'median seconds of a round':44} {'seconds':>8} {'to pool':>8}")
    for name, seconds in found:
        middle = statistics.median(seconds)
        print(
            f"{name:44} {middle:8.2f} {middle / base:8.2f}   all: {np.round(seconds, 2).tolist()}"
        )
    print(f"{sites} sites of {options.images} images, {rounds} rounds of {epochs} epochs; "
          f"federation and pool gave {'the same' if same else 'different'} weights")  # fmt: skip


if __name__ == "__main__":
    main()
