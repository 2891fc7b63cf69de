"""What an attacker reaches: the walk's federation is there, and goes on."""

from __future__ import annotations

import ast
import re

import pytest

from federation.conftest import until
from repper.flower.kept import GIVEN_UP

from .conftest import CHECKOUT, FIGURES, Process, memory

FORGED = (
    "-H", "flwr-public-key: " + "A" * 288, "-H", "flwr-timestamp: 2030-01-01T00:00:00.0+00:00",
    "-H", "flwr-signature: " + "A" * 140, "-H", "content-type: application/protobuf",
)  # fmt: skip
NODE = ("--server", "server.example:8443", "--data", "/srv/images", "--ca", "/srv/repper/ca.crt")


@pytest.fixture
def outsider(fleet, walked):
    """A host on the same network, with the server's certificate and images, and no key admitted."""
    host = fleet.outsider
    host.path("/srv/images/0").mkdir(exist_ok=True)
    return host


def test_only_the_fleet_api_passes_and_only_with_what_looks_like_a_signature(outsider):
    refused = [
        "/v1/control/list-nodes", "/v1/control/start-run", "/v1/runtime/pull-task", "/docs",
        "/openapi.json", "/health", "/", "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes", "/v1/fleet//../control/list-nodes",
    ]  # fmt: skip
    for path in refused:
        assert outsider.curl(path, "--path-as-is", "-d", "", *FORGED) == 403, path
    pull = "/v1/fleet/pull-messages"
    assert outsider.curl(pull, "-d", "") == 403
    assert outsider.curl(pull, "-d", "", *FORGED[:4]) == 403
    assert outsider.curl(pull, *FORGED) == 403  # GET
    assert outsider.curl(pull, "-d", "", *FORGED) == 401
    # Thousands of parts that an answer is said to have would lock Flower's database.
    announce, body = "/v1/fleet/push-messages", outsider.path("/tmp/body")
    for size, status in ((20_000, 401), (40_000, 413)):
        body.write_bytes(bytes(size))
        found = outsider.curl(announce, "--data-binary", "@/tmp/body", *FORGED)
        assert found == status or (status, found) == (401, 400), (size, found)
    # Past the proxy there is nothing.
    direct = outsider.run("curl", "-sk", "-m", 5, "https://server.example:8000/health", check=False)
    assert direct.returncode == 7


def attack(outsider, kind: str, connections: int, seconds: float) -> Process:
    outsider.path("/tmp/flood.py").write_text((CHECKOUT / "tests/hosts/flood.py").read_text())
    return outsider.start(
        kind, "/opt/repper/bin/python", "/tmp/flood.py", kind, connections, seconds
    )


def statuses(process: Process) -> set[int]:
    assert process.end(300) == 0, process.said()
    return set(ast.literal_eval(process.said().splitlines()[-1]))


@pytest.mark.parametrize(
    ("kind", "answered"),
    [("bare", {413}), ("forged", {413}), ("endless", {413, 503}), ("small", {400, 503})],
)
def test_bodies_without_a_key_do_not_fill_the_servers_memory(fleet, outsider, kind, answered):
    """Directly to Flower's port, 20 connections of 30 MB cost 550 MB."""
    [link] = fleet.server.pids("repper.flower.superlink")[:1]
    before = most = memory(link)
    flood = attack(outsider, kind, 20, 8)
    while flood.process.poll() is None:
        most = max(most, memory(link))
    FIGURES.append(f"server's memory, {kind}: {before:.0f} MB before, {most:.0f} MB at most")
    # A connection may be closed while it still sends: then its answer is lost, and counts as 0.
    assert statuses(flood) - {0} <= answered
    assert most - before < 120, f"{before:.0f} MB, then {most:.0f} MB"


def test_slow_requests_hold_nobody_up(fleet, outsider):
    slow = [attack(outsider, kind, 150, 30) for kind in ("slow-head", "slow-body")]
    until(lambda: held(fleet.server) > 100, "the attack does not begin", 60)
    # A site, whose requests look so from outside, is answered at once.
    done = fleet["hospital-a"].run(
        "curl", "-s", "-m", 5, "--cacert", "ca.crt", "-d", "", *FORGED, "-o", "/dev/null",
        "-w", "%{http_code}", "https://server.example:8443/v1/fleet/pull-messages",
    )  # fmt: skip
    assert done.stdout == "401"
    for process in slow:
        assert process.end(300) == 0
    until(lambda: held(fleet.server) < 50, "slow connections are not closed", 60)


def held(server) -> int:
    """How many connections the proxy has."""
    return server.run("ss", "-Htn", "state", "established", "sport", "=", ":8443").stdout.count(
        "8443"
    )


def test_keys_that_are_not_admitted_or_no_longer(fleet, outsider):
    node = outsider.start("node", "repper", "node", "site", *NODE)
    assert node.end(300) == GIVEN_UP
    assert "has not admitted the key of this site" in node.said().splitlines()[-1]

    fleet.copy("outsider:/srv/repper/site/site.pub", "server:/srv/repper/late.pub")
    fleet.server.repper("serve", "server", "--admit", "late=late.pub")
    node = outsider.start("admitted", "repper", "node", "site", *NODE)
    node.says("SuperNode ID", 300)
    fleet.server.repper("serve", "server", "--revoke", "late")
    assert node.end(300) == GIVEN_UP
    assert "no longer admits the key of this site" in node.said().splitlines()[-1]
    # It does not come back.
    node = outsider.start("revoked", "repper", "node", "site", *NODE)
    assert node.end(300) == GIVEN_UP
    assert "has not admitted the key of this site" in node.said().splitlines()[-1]
    again = fleet.server.repper("serve", "server", "--admit", "again=late.pub", code=2)
    assert "Public key already in use" in again.stderr


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        ("+20s", r"clock is (19|20|21) s ahead of"),
        ("-600s", r"clock is (599|600|601) s behind"),
        ("+900d", r"is not accepted \(certificate has expired"),
    ],
)
def test_a_clock_that_is_wrong_is_named(fleet, outsider, clock, expected):
    """By real clocks: whoever cannot be believed for the time is not told of the key."""
    node = outsider.start("clock", "repper", "node", "site", *NODE, clock=clock)
    assert node.end(300) == GIVEN_UP
    assert re.search(expected, node.said().splitlines()[-1])
