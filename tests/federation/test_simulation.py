"""Flower's simulation: Ray's processes, which take half a minute to start, so not in `make test`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("ray")

from conftest import last_json
from settings.test_own import check_a_class_of_a_script

from .conftest import free_port, until

SETTINGS = (
    "run", "--data", "digits", "--clients", 4, "--rounds", 2, "--epochs", 1, "--width", 0.25,
    "--participation", 0.5, "--method", "fedrep", "--personalize", "keep", "--workers", 2, "--json",
)  # fmt: skip
"""A method that keeps parameters at the clients."""


@pytest.fixture
def results(repper_process):
    """The results of an engine, by name, with these variables."""

    def result(engine: str, *more: str, **variables: str) -> dict:
        out = f"{engine}{len(variables)}"
        found = last_json(
            repper_process(
                *SETTINGS, *more, "--engine", engine, "--out", out, env=variables, timeout=600
            )
        )
        return {name: found[name] for name in ("encoder_digest", "heads_digest", "accuracy")}

    return result


def test_the_simulation_is_the_serial_run(results):
    assert results("flower") == results("serial")


@pytest.mark.parametrize("where", ["server", "site"])
def test_the_simulation_hides_clients_by_the_same_noise(repper_process, where):
    digests = []
    for engine in ("serial", "flower"):
        process = repper_process(
            "run", "--clients", 4, "--rounds", 2, "--epochs", 1, "--width", 0.25, "--participation",
            0.5, "--norm", "group", "--personalize", "common", "--common-rounds", 2, "--clip", 1,
            "--noise", 1, "--delta", 0.1, "--noise-at", where, "--engine", engine, "--workers", 2,
            "--json", "--out", engine, timeout=600,
        )  # fmt: skip
        digests.append(last_json(process)["encoder_digest"])
    assert digests[0] == digests[1]


def test_clients_attack_in_the_simulation_as_in_the_serial_run(results):
    attack = ("--attack", "backdoor", "--participation", "1")
    assert results("flower", *attack) == results("serial", *attack)


@contextmanager
def ray_node(log: Path, *arguments: str):
    """A node of a Ray cluster with one core, for as long as the block lasts."""
    command = [
        str(Path(sys.executable).parent / "ray"), "start", "--block", "--num-cpus=1",
        "--object-store-memory=100000000", *arguments,
    ]  # fmt: skip
    variables = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with log.open("w") as file:
        node = subprocess.Popen(
            command, env=variables, stdout=file, stderr=file, start_new_session=True
        )
    try:
        until(lambda: "Ray runtime started" in log.read_text(), "no node of Ray", 120)
        yield
    finally:
        # Ray's own `ray stop` would end every cluster of this machine.
        os.killpg(node.pid, signal.SIGTERM)
        node.wait()


def test_a_cluster_of_two_nodes_gives_the_serial_run(results, tmp_path):
    """Two nodes that were started apart have one core each, so that both must work."""
    address = f"127.0.0.1:{free_port()}"
    port = address.rpartition(":")[2]
    with ExitStack() as cluster:
        cluster.enter_context(
            ray_node(tmp_path / "head.log", "--head", f"--port={port}", "--include-dashboard=false")
        )
        cluster.enter_context(
            ray_node(tmp_path / "other.log", f"--address={address}", "--node-ip-address=127.0.0.2")
        )
        found = results("flower", RAY_ADDRESS=address)
    assert found == results("serial")


def test_a_class_of_a_script_reaches_rays_workers(tmp_path):
    check_a_class_of_a_script(tmp_path, "flower")
