"""The server of a federation of sites: the round loop over Flower's grid, into a run folder.

It never sees an image, a label, a class count or the head that a site fits for itself.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, final

import numpy as np
from flwr.app import Error, Message
from flwr.serverapp import Grid

from repper.basics.documents import read_json, write_json
from repper.basics.errors import RepperError
from repper.basics.names import is_encoder
from repper.basics.registry import is_reference
from repper.data.partition import Partition
from repper.engines.engine import Engine, Personal
from repper.engines.task import Work
from repper.flower import wire
from repper.flower.grid_engine import (
    AWAY,
    PATIENT,
    UNANSWERED,
    Asking,
    GridEngine,
    Patience,
    Place,
)
from repper.flower.replies import Replies, patiently, replies_of
from repper.flower.site import spec_of_sites, travelling
from repper.methods.common_head import common_stages
from repper.methods.network import Holds, holdings
from repper.methods.stage import cohort_size
from repper.privacy import SITE
from repper.privacy.secret import secret_key
from repper.runs import run_folder
from repper.runs.budget import OF_SITES, check_clients_hidden, find_noise
from repper.runs.build import asked_stages, build_stages
from repper.runs.execute import Finished, RoundDone, Started, carry_out
from repper.runs.plan import (
    Clientele,
    Plan,
    check_cohorts,
    check_hidden,
    initial_networks,
    make_work,
    settled,
)
from repper.runs.round_log import read_rounds
from repper.settings.config import Config
from repper.settings.things import KINDS_OF_THINGS


@dataclass(frozen=True)
class Federation:
    """What the operator who starts a federation decides.

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
"""Maximum number of images that a site may declare."""
GROWTH = 30.0
"""How much larger values may become in a round (`repper.basics.params.check_growth`)."""
MOST_SHARE = 0.5
"""A site that declares a larger share of all images dominates the mean: a note names it."""
ASK_AGAIN = 30.0
"""Seconds after which a site that could not take part is asked again."""
Tell = Callable[..., None]
"""Takes the kind of an event and its values: `tell("round", number=3)`."""


class Sites:
    """Which node is which site, while a federation waits for its sites.

    A site has the name under which the server has admitted its key; it cannot choose another. How
    many images it trains on, it says itself.
    """

    def __init__(self, grid: Grid, replies: Replies, question: wire.Told, tell: Tell) -> None:
        self._grid, self._tell = grid, tell
        self._asking = Asking(
            grid, replies, lambda _, node: wire.question(wire.WHO, node, question)
        )
        self._examples: dict[int, int] = {}
        self._unfit: dict[int, tuple[Place, float]] = {}
        self._ended: Counter[int] = Counter()
        self._why: dict[int, str] = {}

    def ready(self) -> tuple[dict[str, int], dict[str, str]]:
        """The declared number of examples of every ready site, and why others are not ready."""
        here = places(self._grid)
        names = {place.node: name for name, place in here.items()}
        asked = self._asking.ask(
            {
                place.node: place
                for place in here.values()
                if place.node not in self._examples and not self._is_unfit(place)
            }
        )
        for node in asked:
            self._why.setdefault(node, f"connected, but {UNANSWERED}")
        for node, reply in self._asking.answers():
            problem = self._learn(node, reply)
            if problem and node in names:
                why = f"cannot take part: {wire.one_line(problem)}"
                self._unfit[node] = here[names[node]], time.monotonic()
                if self._why.get(node) != why:
                    self._tell("note", text=f"{names[node]} {why}")
                self._why[node] = why
        known = {n: self._examples[p.node] for n, p in here.items() if p.node in self._examples}
        waiting = {n: self._why.get(p.node, "") for n, p in here.items() if n not in known}
        return known, waiting

    def close(self) -> None:
        self._asking.close()

    def _is_unfit(self, place: Place) -> bool:
        """Whether a site has answered here, less than `ASK_AGAIN` ago, that it cannot take part."""
        where, since = self._unfit.get(place.node, (None, 0.0))
        return where == place and time.monotonic() - since < ASK_AGAIN

    def _learn(self, node: int, reply: Message | Error) -> str:
        """Record a node's answer; return what is wrong with it, or an empty text."""
        if isinstance(reply, Error):
            if reply.code not in AWAY:
                return str(reply.reason)
            self._ended[node] += 1
            count = self._ended[node]
            often = "once" if count == 1 else f"{1 << (count.bit_length() - 1)} times or more"
            why = wire.one_line(str(reply.reason))
            self._why[node] = f"connected, but gave no answer, {often}; its own log says why: {why}"
            return ""
        if problem := wire.problem_in(reply):
            return problem
        try:
            examples = wire.told_in(reply).get("examples")
        except RepperError as error:
            return str(error)
        if type(examples) is not int or not 1 <= examples <= MOST_IMAGES:
            return f"it declares {examples!r} images"
        self._examples[node] = examples
        return ""


def places(grid: Grid) -> dict[str, Place]:
    """Where every site is that is connected now."""
    return {
        node.name or f"node {node.node_id}": Place(node.node_id, node.last_activated_at)
        for node in patiently(grid.get_nodes)
    }


class SitesEngine(GridEngine):
    """The sites of a federation as a fleet."""

    remembers = True

    def __init__(
        self,
        grid: Grid,
        roster: Sequence[tuple[str, int]],
        settings: wire.Told,
        holds: Sequence[Holds],
        folder: Path,
        patience: Patience,
        tell: Tell,
        voluntary: Collection[int],
        growth: float = GROWTH,
        replies: Replies | None = None,
    ) -> None:
        names = [name for name, _ in roster]
        declared = {client: examples for client, (_, examples) in enumerate(roster)}

        def nodes() -> Mapping[int, Place]:
            here = places(grid)
            return {c: here[name] for c, name in enumerate(names) if name in here}

        super().__init__(
            grid, nodes, settings, holds,
            names=names.__getitem__, patience=patience, tell=tell, declared=declared,
            voluntary=voluntary, growth=growth, replies=replies,
        )  # fmt: skip
        self._folder = folder

    def told_to(self, clients: Sequence[int]) -> Mapping[int, wire.Told]:
        """Which client a site is, and the last round it was part of.

        The site goes on from there: what it did since was not taken.
        """
        last = {c: r["round"] for r in read_rounds(self._folder) for c in r["cohort"]}
        return {client: {"client": client, "last": last.get(client, 0)} for client in clients}

    @property
    def patience_for_heads(self) -> Patience:
        return replace(self._patience, least=0 if self._patience.least else None)

    def personal_in(self, reply: Message, client: int) -> Personal:
        """What a site reports about its head, which may be nothing."""
        said = wire.told_in(reply)
        accuracy, private = said.get("accuracy"), said.get("private")
        if accuracy is not None and not (type(accuracy) is float and 0 <= accuracy <= 100):
            raise RepperError(f"it reports an accuracy of {accuracy!r}")
        if private is not None and not re.fullmatch(r"(?:[0-9a-f]{64})?", str(private)):
            raise RepperError(f"it reports {private!r} as a digest")
        return Personal(client, None, None, None, private, told=accuracy)


@final
class Roster(Clientele):
    """The sites that take part in a federation, in the order of their names, in `sites.json`."""

    def __init__(self, federation: Federation, grid: Grid, replies: Replies, tell: Tell) -> None:
        self._federation, self._grid, self._tell = federation, grid, tell
        self._replies = replies
        self._found: dict[str, Any] = {}

    @property
    def members(self) -> list[tuple[str, int]]:
        """The name of every site, and how many images it declares."""
        return [(name, examples) for name, examples in self._found["sites"]]

    @property
    def question(self) -> wire.Told:
        """The values that are sent with every question to a site."""
        return self._question(self._found["run"])

    def _question(self, run: str) -> wire.Told:
        federation = self._federation
        classes = "\n".join(federation.classes)
        return {"settings": travelling(federation.config), "run": run, "classes": classes}

    def begin(self, folder: Path) -> None:
        run = secrets.token_hex(16)
        question = {**self._question(run), "client": 0}
        with closing(Sites(self._grid, self._replies, question, self._tell)) as sites:
            members = _gather(sites, self._federation, self._tell)
        self._found = {"run": run, "classes": list(self._federation.classes), "sites": members}
        write_json(folder / run_folder.SITES, self._found)

    def check(self, folder: Path) -> None:
        """Refuse to resume with other classes or sites: labels or client numbers would change."""
        self._found = read_json(folder / run_folder.SITES)
        names, federation = [name for name, _ in self.members], self._federation
        if list(self._found["classes"]) != list(federation.classes):
            given = ",".join(self._found["classes"]) or "none"
            raise RepperError(f"{folder} was begun with other classes: give --classes {given}")
        if federation.sites and sorted(federation.sites) != names:
            raise RepperError(
                f"{folder} was begun with other sites: give --sites {','.join(names)}"
            )
        result = folder / run_folder.RESULT
        if result.is_file() and len(read_json(result).get("personalized", ())) < len(names):
            result.unlink()  # some sites have no head yet

    def noise_key(self, folder: Path, seed: int) -> bytes:
        """A secret of the server: its sites know the seed."""
        return secret_key(folder / run_folder.NOISE_KEY)

    def counts(self, work: Work) -> Mapping[int, int]:
        return {client: examples for client, (_, examples) in enumerate(self.members)}

    def facts(
        self, personal: Sequence[Personal], log: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        names, told = [name for name, _ in self.members], {p.client: p.told for p in personal}
        return {
            "classes": list(self._found["classes"]),
            "sites": {name: told.get(client) for client, name in enumerate(names)},
            "personalized": [names[client] for client in sorted(told)],
            "rounds_without": {
                record["round"]: {names[int(c)]: why for c, why in record["absent"].items()}
                for record in log
                if "absent" in record
            },
        }


def run_federation(federation: Federation, grid: Grid, tell: Tell) -> dict[str, Any]:
    """Run all stages with the sites that are connected, and return the result."""
    if federation.config.precision == "auto":
        raise RepperError(
            "--precision auto is not available in a federation: sites have CPUs of their own, "
            "choose float32 or bfloat16"
        )
    config = settled(replace(federation.config, device="cpu", knn=0, data=OF_SITES))
    if config.is_hidden:
        asked = asked_stages(config)
        check_clients_hidden(config, asked)
        config = find_noise(config, asked)
    federation = replace(federation, config=config)
    _check(federation)
    replies = replies_of(grid)
    roster = Roster(federation, grid, replies, tell)
    nobody = (np.zeros(0, np.int64),) * config.clients
    classes = federation.classes or ("0", "1")  # two stand for those that only sites know
    work = make_work(config, spec_of_sites(config), Partition(nobody, nobody), classes, flip=False)
    holds = holdings(work.stages, work.networks(), work.local_norm)
    if config.init and any(map(is_encoder, holds[0].private)):
        raise RepperError(
            f"with {config.method} every site has private parameters in its encoder, which --init "
            f"does not set: leave out --init"
        )
    networks, rule = initial_networks(config, work), config.build_rule()
    check_cohorts(rule, work.stages)
    if config.is_hidden:
        check_hidden(config, work, networks, rule)
    if any(network.classifier is not None for network in networks) and not federation.classes:
        raise RepperError(
            f"{config.method} trains heads over all classes, so all sites must know the same ones: "
            f"name them with --classes"
        )
    planned = Plan(config, federation.folder, work, networks, rule, roster)

    def fleet(planned: Plan) -> Engine:
        return SitesEngine(
            grid, roster.members, roster.question, planned.holds, planned.folder,
            federation.patience, tell, common_stages(planned.work.stages),
            config.max_growth or (inf if config.noise_at == SITE else GROWTH), replies,
        )  # fmt: skip

    for event in carry_out(
        planned, fleet, resume=federation.resume, overwrite=federation.overwrite
    ):
        if isinstance(event, Started):
            tell(
                "begun", sites=[name for name, _ in roster.members],
                images=[images for _, images in roster.members],
                rounds=planned.rounds, done=event.finished_rounds,
            )  # fmt: skip
            if text := _too_heavy(roster.members, config):
                tell("note", text=text)
        elif isinstance(event, RoundDone):
            tell("round", **event.record)
        elif isinstance(event, Finished):
            result: dict[str, Any] = read_json(federation.folder / run_folder.RESULT)
    tell("over", **result)
    return result


def _check(federation: Federation) -> None:
    config = federation.config
    method = config.build_method()
    if method.pooled:
        raise RepperError(f"{config.method} needs all images in one place: choose another --method")
    for name in ("evaluate_every", "validation", "head_curve"):
        if getattr(config, name):
            raise RepperError(
                f"--{name.replace('_', '-')} is not available in a federation: sites report at "
                f"most a final score"
            )
    for name in KINDS_OF_THINGS:
        if is_reference(getattr(config, name)):
            raise RepperError(
                f"--{name} {config.shown(name)} is not available in a federation: sites run no "
                f"code that a server names"
            )
    least = federation.patience.least
    most = cohort_size(config.clients, build_stages(config)[0].participation)
    if least is not None and not 1 <= least <= most:
        raise RepperError(f"--min-cohort must be 1 to {most}, the sites of a round, got {least}")


def _too_heavy(members: Sequence[tuple[str, int]], config: Config) -> str:
    """A warning if one site has declared most of all images, else an empty text."""
    total = sum(images for _, images in members)
    name, images = max(members, key=lambda one: one[1])
    if config.max_weight is not None or len(members) < 3 or images <= MOST_SHARE * total:
        return ""
    return (
        f"Careful: {name} declares {100 * images / total:.0f} % of all images, so it dominates the "
        f"mean: check this number, or limit its weight by --max-weight {MOST_SHARE}"
    )


def _gather(sites: Sites, federation: Federation, tell: Tell) -> list[tuple[str, int]]:
    """Wait for the sites that take part; clients are numbered in the order of their names."""
    wanted = federation.sites
    before: object = None
    while True:
        here, waiting = sites.ready()
        present = [name for name in sorted(here) if not wanted or name in wanted]
        missing = {
            name: waiting.get(name, "not connected")
            for name in sorted(wanted or waiting)
            if name not in here
        }
        if (present, missing) != before:
            tell("gathering", wanted=federation.config.clients, present=present, missing=missing)
            before = present, missing
        if len(present) >= federation.config.clients:
            chosen = present[: federation.config.clients]
            return [(name, here[name]) for name in chosen]
        time.sleep(1)
