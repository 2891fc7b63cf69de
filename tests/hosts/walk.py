"""Walks through docs/deploy.md: its commands, read from the page and typed at the hosts."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from federation.conftest import until

from .conftest import CHECKOUT, SITES, Fleet, Host

PAGE = CHECKOUT / "docs" / "deploy.md"
STEP = re.compile(r"<!-- walk: ([\w-]+), (\w+) -->\n```\n(.*?)```", re.DOTALL)
STEPS = "server server sites server sites server hospital-a"


def said_in(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def walk(fleet: Fleet) -> dict[str, str]:
    """Do all that the page says; returns what each step printed, by `NUMBER HOST`."""
    steps = STEP.findall(PAGE.read_text())
    assert " ".join(where for where, _, _ in steps) == STEPS
    said: dict[str, str] = {}
    home = fleet.server.path("/srv/repper")
    for number, (where, user, text) in enumerate(steps):
        for host in fleet.sites if where == "sites" else [fleet[where]]:
            said[f"{number} {host.name}"] = _type(host, user, text)
        # What the page says in words, between the commands.
        if number == 0:
            until(lambda: "Uvicorn running" in said_in(home / "serve.log"), "no server", 300)
            shutil.copytree(CHECKOUT / "deploy", home / "deploy")
            for name in (*SITES, "outsider"):
                fleet.copy("server:/srv/repper/server/ca.crt", f"{name}:/srv/repper/ca.crt")
            fleet.server.nginx()
        if number == 2:
            for name in SITES:
                fleet.copy(f"{name}:/srv/repper/site/site.pub", f"server:/srv/repper/{name}.pub")
        if number == 4:
            for host in fleet.sites:
                log = host.path("/srv/repper/node.log")
                until(lambda log=log: "SuperNode ID" in said_in(log), f"{host.name} is away", 300)
    return said


def _type(host: Host, user: str, commands: str) -> str:
    """Type commands at a host; those that end with & stay."""
    if commands.rstrip().endswith("&"):
        host.start("stays", "sh", "-c", commands.rstrip()[:-1], user=host.user(user))
        return ""
    return host.run("sh", "-ec", commands, user=host.user(user)).stdout
