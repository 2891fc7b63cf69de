"""The two halves that Flower starts: the server app, and the client app of every node.

The same app serves a simulation, in which every node is a client of one data set, and a federation
of sites, whose images lie at the sites. `federation` in the run's configuration says which.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from repper.config import OPTIONS, Config
from repper.datasets.dataset import Dataset
from repper.engines.client import Clients, Task
from repper.errors import RepperError, unknown
from repper.flower import PREFIX, wire
from repper.flower.app_folder import OF_THE_FEDERATION
from repper.flower.grid_engine import GridEngine, Patience, Place, SimulatedNodes
from repper.flower.handlers import answering, fitted, personalized
from repper.flower.server import Federation, run_federation
from repper.flower.site import Part, Site
from repper.runs.execute import Finished, RoundDone, execute
from repper.runs.plan import plan

LAST_WORDS = 1.0
"""Seconds in which the last line of the log gets to those who watch."""


def config_in(given: Mapping[str, Any]) -> Config:
    """The settings in a run's configuration; what is empty there is left to its default."""
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
        config = config_in(given)
        if given["federation"] == "sites":
            run_federation(_federation(given, config), grid, _tell)
        elif given["federation"] == "simulation":
            _simulate(grid, config, given)
        else:
            raise unknown("federation", given["federation"], ("simulation", "sites"))
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


def _simulate(grid: Grid, config: Config, given: Mapping[str, Any]) -> None:
    """The whole of `repper run`, with the nodes of a simulation as its clients."""

    def engine(task: Task, data: Dataset, workers: int) -> GridEngine:
        def nodes() -> dict[int, Place]:
            # Any of them can be any client, so two are enough.
            here = sorted(grid.get_node_ids())
            all_clients = range(task.partition.clients + 1)
            return {c: Place(here[c % len(here)]) for c in all_clients} if here else {}

        return SimulatedNodes(grid, task, data, nodes)

    resume, overwrite = bool(given["resume"]), bool(given["overwrite"])
    for event in execute(config, resume=resume, overwrite=overwrite, engine=engine):
        if isinstance(event, RoundDone):
            _tell("round", **event.record)
        elif isinstance(event, Finished):
            _tell("over", **event.run.result, folder=str(event.run.folder.absolute()))


@lru_cache(maxsize=1)
def _simulated(settings: str) -> Clients:
    """The clients of a simulation, once per process."""
    planned = plan(config_in(json.loads(settings)))
    return Clients.of(planned.task, planned.data)


def _clients(context: Context) -> Clients:
    return _simulated(json.dumps(dict(context.run_config)))


def _part(message: Message, context: Context) -> Part | None:
    """The part of a site, on a node that is one; a simulated node has no home."""
    home = context.node_config.get("home")
    return Site.open(Path(str(home))).part_in(wire.told_in(message)) if home else None


@client.query("who")
@answering
def who(message: Message, context: Context) -> Message:
    part = _part(message, context)
    if part is None:
        raise RepperError("this node is not a site: start it with repper node")
    return wire.said({"examples": part.examples}, message)


@client.train("fit")
@answering
def fit(message: Message, context: Context) -> Message:
    part, told = _part(message, context), wire.told_in(message)
    clients = part.clients if part else _clients(context)
    if part:
        part.go_back_to(told["last"])
    return fitted(clients, message)


@client.evaluate("personalize")
@answering
def personalize(message: Message, context: Context) -> Message:
    part, told = _part(message, context), wire.told_in(message)
    if part is None:
        return personalized(_clients(context), message)
    part.go_back_to(told["last"])
    one = part.personalize(wire.shared_in(message), told["round"])
    if not part.site.share_scores:
        return wire.said({"done": True}, message)
    accuracy = {} if one.test.accuracy is None else {"accuracy": one.test.accuracy}
    return wire.said({"done": True, "private": one.private_digest, **accuracy}, message)
