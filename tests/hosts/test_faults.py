"""Faults of lines, hosts, disks and the server: the encoder is that of one machine in the end."""

from __future__ import annotations

import json
import os
import signal
import time

from federation.conftest import CLASSES, result, until

from .conftest import CHECKOUT, FIGURES, SETTINGS, SITES, Fleet, Process

NODE = (
    "repper", "node", "site", "--server", "server.example:8443", "--data", "/srv/images",
    "--ca", "ca.crt", "--share-scores",
)  # fmt: skip
LONGEST = 400.0
"""Seconds that a round may take on a busy machine of two cores, with a fault of a minute in it."""


def federate(fleet: Fleet, out: str, *arguments: object, log: str = "") -> Process:
    return fleet.server.start(
        f"federate-{log or out}", "repper", "federate", "server", "--sites", ",".join(SITES),
        *SETTINGS, "--out", out, "--json", *arguments,
    )  # fmt: skip


def longest_round(fleet: Fleet, out: str) -> float:
    log = fleet.server.path(f"/srv/repper/{out}/rounds.jsonl").read_text()
    longest = max(json.loads(line)["seconds"] for line in log.splitlines())
    FIGURES.append(f"longest round of {out}: {longest:.0f} s")
    return longest


def test_bad_lines_a_cut_one_and_a_crash_change_nothing(fleet, walked, serial):
    slow, cut, crashed = fleet.sites
    settings = ("--rounds", 3, "--personalize", "linear")

    # hospital-a's line is slow, and loses packets.
    fleet.outsider.path("/tmp/relay.py").write_text((CHECKOUT / "tests/hosts/relay.py").read_text())
    relay = fleet.outsider.start("relay", "/opt/repper/bin/python", "/tmp/relay.py", 0.1)
    relay.says("passing on", 60)
    slow.crash()
    names = slow.path("/etc/hosts")
    names.write_text(names.read_text().replace("10.77.0.1 ", "10.77.0.5 "))
    slow.lose(0.05)
    slow.start("slow", *NODE).says("SuperNode ID", 300)

    watching = federate(fleet, "run-b", *settings)
    watching.says("round 1/3", 300)
    cut.cut()
    crashed.crash()
    again = crashed.start("again", *NODE)
    # Flower takes the crashed node for alive for a minute; ours tries until it is let in.
    again.says("it still counts an earlier node of the site as connected", 300)
    again.says("SuperNode ID", 300)
    cut.cut("up")
    done = result(watching)
    slow.lose_nothing()

    assert done["encoder_digest"] == serial(*SETTINGS, *settings)["encoder_digest"]
    assert done["rounds_without"] == {}
    assert longest_round(fleet, "run-b") < LONGEST


def test_a_full_disk_and_a_killed_server_lose_nothing(fleet, walked, serial):
    settings = ("--method", "fedrep", "--rounds", 4, "--personalize", "keep")
    classes = ("--classes", CLASSES)
    full = fleet["hospital-b"]
    first = federate(fleet, "run-c", *settings, *classes)
    first.says("round 1/4", 300)
    full.run("dd", "if=/dev/zero", "of=/srv/repper/fill", "bs=1M", check=False)
    assert first.end() == 2
    last = first.said().strip().splitlines()[-1]
    assert last.startswith("repper: too few good answers: hospital-b, asked twice"), last
    full.path("/srv/repper/fill").unlink()

    second = federate(fleet, "run-c", *settings, *classes, "--resume", log="again")
    second.says("\nround ", 300)
    for pid in fleet.server.pids("repper.flower.superlink"):
        os.kill(pid, signal.SIGKILL)
    assert second.end() == 2
    assert "--resume continues" in second.said()
    serving = fleet.server.start("serve", "repper", "serve", "server", "--name", "server.example")
    serving.says("Uvicorn running", 300)
    until(lambda: _stop(fleet) == "repper: no federation is running", "the killed one runs on", 180)
    third = federate(fleet, "run-c", *settings, *classes, "--resume", log="last")
    if third.end() == 2 and "another process is running" in third.said():
        # The app of the killed server keeps its folder until it has noticed that nobody answers.
        time.sleep(60)
        third = federate(fleet, "run-c", *settings, *classes, "--resume", log="at last")
    third = result(third)

    assert third["encoder_digest"] == serial(*SETTINGS, *settings)["encoder_digest"]
    assert third["rounds_without"] == {}
    assert longest_round(fleet, "run-c") < LONGEST


def _stop(fleet: Fleet) -> str:
    done = fleet.server.run("repper", "federate", "server", "--stop", check=False)
    return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
