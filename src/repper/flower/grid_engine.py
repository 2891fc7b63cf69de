"""A fleet behind Flower's grid: every client is a node, and this is the server's side of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TypeVar

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from repper.engines.engine import Absent, Engine, Personal, Update
from repper.errors import RepperError
from repper.federate import check
from repper.flower import wire
from repper.params import Params

PAUSE = 0.1
"""Seconds between two looks for answers."""
AT_ONCE = 64
"""Messages in one request to Flower."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Patience:
    """What to do about clients that give no good answer within `seconds`.

    They are asked again, as often as it takes. With `least`, a round goes on without them once so
    many have answered.
    """

    seconds: float = inf
    least: int | None = None


PATIENT = Patience()


class GridEngine(Engine):
    """Asks nodes to do what the clients of an engine do.

    `nodes` gives the node of every client that can be asked now, `settings` go with every question,
    and `tell` hears of those that must be asked again.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: Callable[[], Mapping[int, int]],
        settings: wire.Told,
        *,
        names: Sequence[str],
        patience: Patience = PATIENT,
        tell: Callable[..., None] = lambda *what, **said: None,
        declared: Mapping[int, int] | None = None,
    ) -> None:
        self._grid = grid
        self._nodes = nodes
        self._settings = settings
        self._names = names
        self._patience = patience
        self._tell = tell
        self._declared = declared or {}

    def fit(self, shared: Params, cohort: Sequence[int], number: int) -> Iterator[Update | Absent]:
        def read(reply: Message, client: int) -> Update:
            update = wire.update_in(reply, client)
            check(update, shared, number)
            declared = self._declared.get(client, update.examples)
            if update.examples != declared:
                raise RepperError(
                    f"it counts {update.examples} examples, but declared {declared} before"
                )
            return update

        arrays = wire.arrays_of(shared)
        yield from self._ask(wire.FIT, cohort, {"round": number}, arrays, read, self._patience)

    def personalize(
        self, shared: Params, clients: Sequence[int], number: int, save_to: Path | None
    ) -> Iterator[Personal]:
        def read(reply: Message, client: int) -> Personal:
            return wire.personal_in(wire.told_in(reply)["personal"])

        told: wire.Told = {"round": number, "save_to": str(save_to) if save_to else ""}
        arrays, patience = wire.arrays_of(shared), Patience(self._patience.seconds)
        for answer in self._ask(wire.PERSONALIZE, clients, told, arrays, read, patience):
            if isinstance(answer, Personal):
                yield answer

    def told_to(self, client: int) -> wire.Told:
        """What a question says to one client only."""
        return {"client": client}

    def probe(self, shared: Params) -> float | None:
        return None

    def _ask(
        self,
        kind: str,
        clients: Sequence[int],
        told: wire.Told,
        arrays: ArrayRecord,
        read: Callable[[Message, int], Answer],
        patience: Patience,
    ) -> Iterator[Answer | Absent]:
        """Ask each client until it has given a good answer, or can be done without."""
        waiting, refused = list(clients), set[int]()
        while waiting:
            reasons = dict.fromkeys(waiting, f"no answer within {patience.seconds:g} s")
            for client, answer in self._answers(
                kind, waiting, told, arrays, patience.seconds, reasons
            ):
                try:
                    if problem := wire.problem_in(answer):
                        raise RepperError(problem)
                    good = read(answer, client)
                except RepperError as error:
                    reasons[client] = str(error)
                    if client in refused and patience.least is None:
                        # It would give the same answer for ever.
                        raise RepperError(f"{self._names[client]}, asked twice: {error}") from error
                    refused.add(client)
                else:
                    waiting.remove(client)
                    yield good
            done = len(clients) - len(waiting)
            if patience.least is not None and done >= patience.least:
                yield from (Absent(client, reasons[client]) for client in waiting)
                return
            for client in waiting:
                self._tell("note", text=f"asking {self._names[client]} again: {reasons[client]}")
            if waiting:
                time.sleep(PAUSE)

    def _answers(
        self,
        kind: str,
        clients: Sequence[int],
        told: wire.Told,
        arrays: ArrayRecord,
        seconds: float,
        reasons: dict[int, str],
    ) -> Iterator[tuple[int, Message]]:
        """Ask every client once; what keeps one from answering goes into `reasons`."""
        end = time.monotonic() + seconds
        asked: dict[str, int] = {}
        nodes = self._nodes()
        for client in [c for c in clients if c not in nodes]:
            reasons[client] = "it is not connected"
        present = [client for client in clients if client in nodes]
        for first in range(0, len(present), AT_ONCE):
            part = present[first : first + AT_ONCE]
            messages = [
                wire.question(kind, nodes[c], self._settings | told | self.told_to(c), arrays)
                for c in part
            ]
            asked |= dict(zip(self._grid.push_messages(messages), part, strict=True))
        while asked and time.monotonic() < end:
            replies = list(self._grid.pull_messages(list(asked)))
            for reply in replies:
                client = asked.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    reasons[client] = str(reply.error.reason).strip() or f"error {reply.error.code}"
                else:
                    yield client, reply
            if asked and not replies:
                time.sleep(PAUSE)
