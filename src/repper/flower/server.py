"""The server of a federation of sites: the round loop over Flower's grid, into a run folder.

It never sees an image, a label, a class count or the head that a site fits for itself.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

from repper.config import Config
from repper.config_file import write_config
from repper.encoders.encoder import SHARED, save_encoder
from repper.errors import RepperError
from repper.evaluate import mean_of
from repper.files import read_json, write_atomically
from repper.flower import wire
from repper.flower.grid_engine import AWAY, PATIENT, Asking, GridEngine, Patience, Place
from repper.flower.site import spec_of, travelling
from repper.methods.schedule import cohort_size
from repper.params import Params, clone, is_encoder, params_of, select
from repper.runs import run_folder
from repper.runs.environment import environment
from repper.runs.execute import RoundDone, stage1
from repper.runs.plan import initial_network, resolve_device
from repper.runs.result import digest_of_all
from repper.runs.rounds import Checkpoint, read_checkpoint, read_rounds


@dataclass(frozen=True)
class Federation:
    """What the one who starts a federation decides.

    `sites` names who must take part, or else the first `config.clients` that are connected do.
    `classes` are those that all agree on, which methods with a common head need.
    """

    config: Config
    folder: Path
    sites: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    patience: Patience = PATIENT
    resume: bool = False
    overwrite: bool = False


MOST_IMAGES = 10**9
"""No site has more; one that says so wants to own the mean."""
Tell = Callable[..., None]
"""Takes the kind of an event and what is to be said of it: `tell("round", number=3)`."""


class Sites:
    """Which node is which site, for as long as a federation gathers.

    A site has the name under which the server has admitted its key; it cannot choose another. How
    many images it trains on, it says itself.
    """

    def __init__(self, grid: Grid, question: wire.Told, tell: Tell) -> None:
        self._grid, self._tell = grid, tell
        self._asking = Asking(grid, lambda _, node: wire.question(wire.WHO, node, question))
        self._examples: dict[int, int] = {}
        self._unfit: dict[int, Place] = {}

    def ready(self) -> dict[str, int]:
        """The declared number of examples of every site that is here, as far as known by now."""
        here = places(self._grid)
        names = {place.node: name for name, place in here.items()}
        self._asking.ask(
            {
                place.node: place
                for place in here.values()
                if place.node not in self._examples and self._unfit.get(place.node) != place
            }
        )
        for node, reply in self._asking.answers():
            problem = self._learn(node, reply)
            if problem and node in names:
                problem = wire.one_line(problem)
                # It is asked again when it has been started again.
                self._unfit[node] = here[names[node]]
                self._tell("note", text=f"{names[node]} cannot take part: {problem}")
        return {n: self._examples[p.node] for n, p in here.items() if p.node in self._examples}

    def _learn(self, node: int, reply: Message | Error) -> str:
        """Take down what a node says; what is wrong with it, if something is."""
        if isinstance(reply, Error):
            return "" if reply.code in AWAY else str(reply.reason)
        if problem := wire.problem_in(reply):
            return problem
        try:
            examples = wire.told_in(reply).get("examples")
        except RepperError as error:
            return str(error)
        if type(examples) is not int or not 1 <= examples <= MOST_IMAGES:
            return f"it says that it has {examples!r} images"
        self._examples[node] = examples
        return ""


def places(grid: Grid) -> dict[str, Place]:
    """Where every site is that is connected now."""
    return {
        node.name or f"node {node.node_id}": Place(node.node_id, node.last_activated_at)
        for node in grid.get_nodes()
    }


class SitesEngine(GridEngine):
    """The sites of a federation as a fleet."""

    def __init__(
        self,
        grid: Grid,
        roster: Sequence[tuple[str, int]],
        settings: wire.Told,
        folder: Path,
        patience: Patience,
        tell: Tell,
    ) -> None:
        names = [name for name, _ in roster]
        declared = {client: examples for client, (_, examples) in enumerate(roster)}

        def nodes() -> Mapping[int, Place]:
            here = places(grid)
            return {c: here[name] for c, name in enumerate(names) if name in here}

        super().__init__(
            grid, nodes, settings, names=names, patience=patience, tell=tell, declared=declared
        )
        self._folder = folder

    def told_to(self, clients: Sequence[int]) -> Mapping[int, wire.Told]:
        """Which client a site is, and the last round it was part of.

        The site goes on from there: what it did since was not taken.
        """
        last = {c: r["round"] for r in read_rounds(self._folder) for c in r["cohort"]}
        return {client: {"client": client, "last": last.get(client, 0)} for client in clients}

    def let_personalize(self, shared: Params, number: int) -> Iterator[tuple[int, wire.Told]]:
        """Let every site fit its head; what it says of it, which may be nothing."""

        def read(reply: Message, client: int) -> tuple[int, wire.Told]:
            said = wire.told_in(reply)
            accuracy, private = said.get("accuracy"), said.get("private", "")
            if accuracy is not None and not (type(accuracy) is float and 0 <= accuracy <= 100):
                raise RepperError(f"it says that its accuracy is {accuracy!r}")
            if not re.fullmatch(r"(?:[0-9a-f]{64})?", str(private)):
                raise RepperError(f"it gives {private!r} as a digest")
            return client, said

        arrays, everyone = wire.arrays_of(shared), range(len(self._names))
        told: wire.Told = {"round": number}
        patience = replace(self._patience, least=0 if self._patience.least else None)
        for answer in self._ask(wire.PERSONALIZE, everyone, told, arrays, read, patience):
            if isinstance(answer, tuple):
                yield answer


def run_federation(federation: Federation, grid: Grid, tell: Tell) -> dict[str, Any]:
    """Run both stages with the sites that are connected, and return the result."""
    config = replace(
        federation.config,
        device=resolve_device("cpu"),
        knn=0,
        personalize=federation.config.personalize_as(-1),
        data="sites",
    )
    method, spec, folder = config.build_method(), spec_of(config), federation.folder
    _check(federation)
    network = initial_network(config, method, spec, max(2, len(federation.classes)))
    if network.linear_head is not None and not federation.classes:
        raise RepperError(
            f"{config.method} trains heads over all classes, so all sites must know the same ones: "
            f"name them with --classes"
        )
    shared = clone(select(params_of(network), method.shared))
    run_folder.check_folder(
        folder, config, resume=federation.resume, overwrite=federation.overwrite
    )
    with run_folder.locked(folder):
        run_folder.prepare(folder, overwrite=federation.overwrite)
        begun = (folder / run_folder.CONFIG).is_file()
        roster: dict[str, Any] = read_json(folder / run_folder.SITES) if begun else {}
        run = roster.get("run") or secrets.token_hex(16)
        asked = {
            "settings": travelling(config), "run": run, "classes": "\n".join(federation.classes),
        }  # fmt: skip
        sites = Sites(grid, {**asked, "client": 0}, tell)
        if begun:
            _check_same(folder, roster, federation)
        else:
            members = _gather(sites, federation, tell)
            roster = {"run": run, "classes": federation.classes, "sites": members}
            write_atomically(folder / run_folder.SITES, json.dumps(roster, indent=2))
            write_atomically(folder / run_folder.ENVIRONMENT, json.dumps(environment("cpu")))
        members = [(name, examples) for name, examples in roster["sites"]]
        checkpoint = read_checkpoint(folder, shared) or Checkpoint(0, shared)
        if checkpoint.number > (rounds := config.build_schedule().rounds):
            raise RepperError(
                f"{folder} has {checkpoint.number} rounds already, more than --rounds "
                f"{config.rounds}"
            )
        if checkpoint.number < rounds:
            (folder / run_folder.RESULT).unlink(missing_ok=True)
        write_config(folder / run_folder.CONFIG, config)
        tell("begun", sites=[n for n, _ in members], rounds=rounds, done=checkpoint.number)
        engine = SitesEngine(grid, members, asked, folder, federation.patience, tell)
        with engine:
            for done in stage1(engine, config, method, folder, checkpoint):
                if isinstance(done, RoundDone):
                    checkpoint = done.checkpoint
                    tell("round", **done.record)
            said = dict(engine.let_personalize(checkpoint.shared, checkpoint.number))
        result = _result(config, members, checkpoint, said, read_rounds(folder))
        if encoder := select(checkpoint.shared, is_encoder):
            save_encoder(folder / run_folder.ENCODER, spec, encoder, SHARED)
        write_atomically(folder / run_folder.RESULT, json.dumps(result, indent=2))
        tell("over", **result)
        return result


def _check_same(folder: Path, roster: Mapping[str, Any], federation: Federation) -> None:
    """Refuse to go on with other classes or sites: labels or clients would be others."""
    names = [name for name, _ in roster["sites"]]
    if list(roster["classes"]) != list(federation.classes):
        given = ",".join(roster["classes"]) or "none"
        raise RepperError(f"{folder} was begun with other classes: give --classes {given}")
    if federation.sites and sorted(federation.sites) != names:
        raise RepperError(f"{folder} was begun with other sites: give --sites {','.join(names)}")


def _check(federation: Federation) -> None:
    config = federation.config
    if config.init and config.build_method().private("encoder."):
        raise RepperError(
            f"with {config.method} every site has an encoder of its own, which --init does not "
            f"reach: leave it out"
        )
    if config.build_method().pooled:
        raise RepperError(f"{config.method} needs all images in one place: choose another --method")
    for name in ("evaluate_every", "validation", "head_curve"):
        if getattr(config, name):
            raise RepperError(
                f"--{name.replace('_', '-')} needs scores of sites on the way, which they do not "
                f"give: leave it out"
            )
    least = federation.patience.least
    most = cohort_size(config.clients, config.build_schedule().participation)
    if least is not None and not 1 <= least <= most:
        raise RepperError(f"--min-cohort must be 1 to {most}, the sites of a round, got {least}")


def _gather(sites: Sites, federation: Federation, tell: Tell) -> list[tuple[str, int]]:
    """Wait for those who are to take part; their names in order decide who is which client."""
    wanted = federation.sites
    before: list[str] | None = None
    while True:
        here = sites.ready()
        present = [name for name in sorted(here) if not wanted or name in wanted]
        if present != before:
            tell("gathering", wanted=federation.config.clients, present=present)
            before = present
        if len(present) >= federation.config.clients:
            chosen = present[: federation.config.clients]
            return [(name, here[name]) for name in chosen]
        time.sleep(1)


def _result(
    config: Config,
    members: Sequence[tuple[str, int]],
    checkpoint: Checkpoint,
    said: Mapping[int, wire.Told],
    log: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """What the server knows at the end; of scores, those that sites share."""
    scores = {
        name: said.get(client, {}).get("accuracy") for client, (name, _) in enumerate(members)
    }
    private = [f"{c} {said[c]['private']}" for c in sorted(said) if said[c].get("private")]
    # Of what sites keep for themselves, only those that share anything give a digest.
    silent = [name for c, (name, _) in enumerate(members) if "private" not in said.get(c, {})]
    whole = not (config.build_method().keeps_private and silent)
    return {
        "method": config.method,
        "personalize": config.personalize,
        "rounds": checkpoint.number,
        "sites": scores,
        "personalized": [members[client][0] for client in sorted(said)],
        "accuracy": {"mean": mean_of(scores.values())},
        "encoder_digest": digest_of_all(checkpoint.shared, private if whole else []),
        "digest_covers": "all that was trained" if whole else "shared parameters only",
        "cost": {n: sum(r[n] for r in log) for n in ("images", "bytes_up", "bytes_down")},
        "seconds": sum(record["seconds"] for record in log),
        "rounds_without": {
            record["round"]: {members[int(c)][0]: why for c, why in record["absent"].items()}
            for record in log
            if "absent" in record
        },
    }
