"""The two halves that Flower starts: the server app, and the client app of every site."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from repper.basics.errors import RepperError
from repper.flower import PREFIX, wire
from repper.flower.app_folder import OF_THE_FEDERATION
from repper.flower.grid_engine import Patience
from repper.flower.handlers import answering
from repper.flower.server import Federation, run_federation
from repper.flower.site import Part, Site
from repper.settings.config import OPTIONS, Config

LAST_WORDS = 1.0
"""Seconds for the last line of the log to reach `repper federate`."""


def config_in(given: Mapping[str, Any]) -> Config:
    """The settings in a run's configuration; empty values get their defaults."""
    settings: dict[str, Any] = {}
    for key, value in given.items():
        if key in OF_THE_FEDERATION or value == "":
            continue
        if (name := key.replace("-", "_")) not in OPTIONS:
            raise RepperError(f"the run's configuration has {key!r}, which is no setting")
        settings[name] = value
    return Config(**settings)


def _tell(kind: str, **said: Any) -> None:
    print(PREFIX + json.dumps({"event": kind, **said}), flush=True)  # noqa: T201


server = ServerApp()
client = ClientApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    given = dict(context.run_config)
    try:
        run_federation(_federation(given, config_in(given)), grid, _tell)
    except RepperError as error:
        # An exit would take the log with it; Flower sends it on only after an exception.
        _tell("error", text=str(error))
        raise
    finally:
        # Flower takes the log away a little later, and what it has not taken by our end is lost.
        time.sleep(LAST_WORDS)


def _federation(given: Mapping[str, Any], config: Config) -> Federation:
    least = int(given["min-cohort"])
    if config.out is None:
        raise RepperError("a federation needs a folder to write to: give --out")
    return Federation(
        replace(config, out=None),
        Path(config.out),
        tuple(filter(None, str(given["sites"]).split(","))),
        tuple(filter(None, str(given["classes"]).split(","))),
        Patience(float(given["round-timeout"]) or inf, least or None),
        resume=bool(given["resume"]),
        overwrite=bool(given["overwrite"]),
    )


def _part(message: Message, context: Context) -> Part:
    """The part of the site that this node is."""
    home = context.node_config.get("home")
    if not home:
        raise RepperError("this node is not a site: start it with repper node")
    return Site.open(Path(str(home))).part_in(wire.told_in(message))


@client.query("who")
@answering
def who(message: Message, context: Context) -> Message:
    return wire.said({"examples": _part(message, context).examples}, message)


@client.train("fit")
@answering
def fit(message: Message, context: Context) -> Message:
    part, told = _part(message, context), wire.told_in(message)
    received = part.whole(wire.received_in(message), told["stage"], wire.given_in(told))
    if reason := part.declines(told["stage"]):
        return wire.said({"declined": reason}, message)
    part.go_back_to(told["last"])
    part.clients.receive(received, told["stage"])
    update = part.clients.fit(told["client"], told["round"])
    part.spend(told["round"], update.sent)
    return wire.update_reply(update, message, part.clients.wire)


@client.evaluate("personalize")
@answering
def personalize(message: Message, context: Context) -> Message:
    part, told = _part(message, context), wire.told_in(message)
    part.go_back_to(told["last"])
    received = part.whole(wire.received_in(message), told["stage"], wire.given_in(told))
    one = part.personalize(received, told["round"], told["stage"])
    if not part.site.share_scores or one.test is None:
        return wire.said({"done": True}, message)
    accuracy = {} if one.test.accuracy is None else {"accuracy": one.test.accuracy}
    return wire.said({"done": True, "private": one.private_digest or "", **accuracy}, message)
