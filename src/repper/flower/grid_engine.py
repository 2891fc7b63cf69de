"""A fleet behind Flower's grid: every client is a node, and this is the server's side of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import inf
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from flwr.app import ArrayRecord, Error, Message
from flwr.serverapp import Grid

from repper.basics.errors import RepperError
from repper.basics.params import Params, digest, select
from repper.data.dataset import Dataset
from repper.engines.client import Clients
from repper.engines.engine import Absent, Engine, Personal, Update
from repper.engines.task import Work
from repper.flower import wire
from repper.flower.replies import SMALL, Replies, Size, patiently, replies_of, size_of
from repper.methods.network import Holds, holdings, to_send
from repper.server.round_loop import check

PAUSE, LONGEST_PAUSE, PAUSE_SHARE = 0.05, 1.0, 40
"""Seconds between two polls for answers; the pause grows by a fortieth of the elapsed time."""
LOOK = 2.0
"""Seconds between two polls for nodes that have disconnected or connected."""
AT_ONCE = 64
"""Messages in one request to Flower."""
AWAY = (3, 4, 5, 8)
"""Flower's error codes that are not the client's fault: its message or process was lost."""

UNANSWERED, ABSENT = "it has not answered yet", "it is not connected"
GONE = "it is not connected any more"
WORD = 300.0
"""Without --round-timeout: seconds after which a note names the clients that a round waits for. The
next note comes after twice the time, and so on."""
MOST_NAMED = 5
"""Number of sites that such notes name."""

Answer = TypeVar("Answer")


class Place(NamedTuple):
    """A connected node. After a reconnect it is another place: its open questions are lost."""

    node: int
    since: str = ""


class Nodes(Protocol):
    """The place of every connected client."""

    def __contains__(self, client: object, /) -> bool: ...
    def __getitem__(self, client: int, /) -> Place: ...


@dataclass(frozen=True)
class Anywhere:
    """Nodes that can each be any client; clients are dealt to them in turn."""

    nodes: Sequence[int]

    def __contains__(self, client: object) -> bool:
        return bool(self.nodes)

    def __getitem__(self, client: int) -> Place:
        return Place(self.nodes[client % len(self.nodes)])


@dataclass(frozen=True)
class Patience:
    """What to do about clients that give no good answer within `seconds`.

    They are waited for, as long as it takes, and asked again when they come back. With `least`, a
    round goes on without them after that time if so many have answered.
    """

    seconds: float = inf
    least: int | None = None


PATIENT = Patience()


class Parcel:
    """The parameters of a question, with or without those of earlier stages.

    Those do not change any more, so a client that remembers them is only told their digest. `known`
    has the digest that each client has, and is kept by those who send parcels.
    """

    def __init__(self, received: Params, given: frozenset[str], known: dict[int, str]) -> None:
        self._received, self._given, self._known = received, given, known
        standing = select(received, given.__contains__)
        self._digest = digest(standing) if standing else ""

    @cached_property
    def _whole(self) -> ArrayRecord:
        return wire.arrays_of(self._received)

    @cached_property
    def _rest(self) -> ArrayRecord:
        return wire.arrays_of(select(self._received, lambda name: name not in self._given))

    def for_client(self, client: int) -> tuple[wire.Told, ArrayRecord]:
        if not self._digest:
            return {}, self._whole
        knows = self._known.get(client) == self._digest
        return {wire.GIVEN: self._digest}, self._rest if knows else self._whole

    def arrived(self, client: int) -> None:
        """After a good answer: the client has all parameters."""
        self._known[client] = self._digest

    def lost(self, client: int) -> None:
        """Without a good answer: send everything next time, as the client may have lost it."""
        self._known.pop(client, None)


class GridEngine(Engine):
    """An engine whose clients are nodes.

    `nodes` gives the place of every client that can be asked now, `settings` go with every
    question, and `tell` hears of those that are waited for. Clients may decline `voluntary` stages.
    Updates with values that have become more than `growth` times as large are refused.
    """

    remembers: ClassVar[bool] = False
    """Whether a client keeps the parameters of earlier stages between two questions."""

    def __init__(
        self,
        grid: Grid,
        nodes: Callable[[], Nodes],
        settings: wire.Told,
        holds: Sequence[Holds],
        *,
        names: Callable[[int], str],
        patience: Patience = PATIENT,
        tell: Callable[..., None] = lambda *what, **said: None,
        declared: Mapping[int, int] | None = None,
        voluntary: Collection[int] = (),
        growth: float = inf,
        replies: Replies | None = None,
    ) -> None:
        self._grid = grid
        self._growth = growth
        self._replies = replies or replies_of(grid)
        self._nodes = nodes
        self._settings = settings
        self._holds = holds
        self._name = names
        self._patience = patience
        self._tell = tell
        self._declared = declared or {}
        self._voluntary = voluntary
        self._known: dict[int, str] = {}

    def fit(
        self, received: Params, cohort: Sequence[int], number: int, stage: int = 0
    ) -> Iterator[Update | Absent]:
        like = to_send(received, self._holds[stage])

        def read(reply: Message, client: int) -> Update:
            update = wire.update_in(reply, client)
            check(update, like, number, self._growth)
            declared = self._declared.get(client, update.examples)
            if update.examples != declared:
                raise RepperError(
                    f"it counts {update.examples} examples, but declared {declared} before"
                )
            return update

        told: wire.Told = {"round": number, "stage": stage}
        parcel = self._parcel(received, stage)
        yield from self._ask(
            wire.FIT, cohort, told, parcel, read, self._patience, size_of(like),
            stage in self._voluntary,
        )  # fmt: skip

    def personalize(
        self,
        received: Params,
        clients: Sequence[int],
        number: int,
        save_to: Path | None,
        stage: int = 0,
    ) -> Iterator[Personal]:
        told: wire.Told = {
            "round": number, "stage": stage, "save_to": str(save_to) if save_to else "",
        }  # fmt: skip
        parcel, patience = self._parcel(received, stage), self.patience_for_heads
        for answer in self._ask(
            wire.PERSONALIZE, clients, told, parcel, self.personal_in, patience
        ):
            if isinstance(answer, Personal):
                yield answer

    def _parcel(self, received: Params, stage: int) -> Parcel:
        given = self._holds[stage].given if self.remembers else frozenset[str]()
        return Parcel(received, given, self._known)

    @property
    def patience_for_heads(self) -> Patience:
        return Patience(self._patience.seconds)

    def personal_in(self, reply: Message, client: int) -> Personal:
        """The result of a client's head, from its answer."""
        return wire.personal_in(wire.told_in(reply)["personal"])

    def told_to(self, clients: Sequence[int]) -> Mapping[int, wire.Told]:
        """The part of a question that is for one client only."""
        return {client: {"client": client} for client in clients}

    def probe(self, received: Params, stage: int = 0) -> float | None:
        return None

    def _ask(
        self,
        kind: str,
        clients: Sequence[int],
        told: wire.Told,
        parcel: Parcel,
        read: Callable[[Message, int], Answer],
        patience: Patience,
        size: Size = SMALL,
        voluntary: bool = False,
    ) -> Iterator[Answer | Absent]:
        """Ask each client until it has given a good answer, or the round goes on without it.

        A bad answer is asked for once more: one that is bad again would be so for ever. One that
        declines is not asked again. `size` is the most that an answer may have.
        """
        own = self.told_to(clients)

        def question(client: int, node: int) -> Message:
            given, arrays = parcel.for_client(client)
            return wire.question(kind, node, self._settings | told | own[client] | given, arrays)

        with closing(Asking(self._grid, self._replies, question, size)) as asking:
            yield from self._hear(asking, clients, parcel, read, patience, voluntary)

    def _hear(
        self,
        asking: Asking,
        clients: Sequence[int],
        parcel: Parcel,
        read: Callable[[Message, int], Answer],
        patience: Patience,
        voluntary: bool,
    ) -> Iterator[Answer | Absent]:
        waiting = dict.fromkeys(clients, ABSENT)
        willing, bad, hopeless = set(clients), set[int](), dict[int, str]()
        lost = Counter[int]()
        began, look = time.monotonic(), 0.0
        end, word = began + patience.seconds, WORD
        while waiting:
            now = time.monotonic()
            if now >= look:
                here = self._nodes()
                for client in asking.ask({c: here[c] for c in waiting if c in here}):
                    if waiting[client] in (UNANSWERED, GONE):
                        self._note(f"asking {self._name(client)} again: it has come back")
                    waiting[client] = UNANSWERED
                self._see_who_has_gone(waiting, here)
                look = now + LOOK
            for client, answer in asking.answers():
                if client not in waiting:
                    continue  # it has answered an earlier question meanwhile
                try:
                    if isinstance(answer, Error):
                        raise RepperError(str(answer.reason).strip() or f"error {answer.code}")
                    if problem := wire.problem_in(answer):
                        raise RepperError(problem)
                    if voluntary and (reason := wire.declined_in(answer)):
                        del waiting[client]
                        willing.remove(client)
                        parcel.arrived(client)
                        yield Absent(client, wire.one_line(reason), declined=True)
                        continue
                    good = read(answer, client)
                except RepperError as error:
                    parcel.lost(client)
                    waiting[client] = why = wire.one_line(str(error))
                    away = isinstance(answer, Error) and answer.code in AWAY
                    if client in bad and not away:
                        hopeless[client] = waiting.pop(client)
                    else:
                        bad |= set() if away else {client}
                        lost[client] += away
                        count = lost[client] if away else 1
                        if count.bit_count() == 1:  # not every two seconds for ever
                            often = f" ({count} times so far)" if count > 1 else ""
                            self._note(f"asking {self._name(client)} again: {why}{often}")
                else:
                    del waiting[client]
                    parcel.arrived(client)
                    yield good
            least = len(clients) if patience.least is None else patience.least
            least = min(least, len(willing))
            if len(willing) - len(hopeless) < least:
                raise RepperError(self._too_few(hopeless))
            done = len(willing) - len(hopeless) - len(waiting)
            if waiting and now >= end:
                if patience.least is not None and done >= least:
                    break
                self._name_all(waiting)
                end = now + patience.seconds
            if waiting and patience.seconds == inf and now - began >= word:
                self._name_all(waiting)
                word *= 2
            if waiting:
                time.sleep(min(LONGEST_PAUSE, PAUSE + (now - began) / PAUSE_SHARE))
        late = f"no answer within {patience.seconds:g} s: "
        yield from (Absent(client, late + why) for client, why in waiting.items())
        yield from (Absent(client, why) for client, why in hopeless.items())

    def _see_who_has_gone(self, waiting: dict[int, str], here: Nodes) -> None:
        for client, why in waiting.items():
            if why == UNANSWERED and client not in here:
                waiting[client] = GONE
                self._note(f"{self._name(client)}: {GONE}; the round waits for it")
            elif why == GONE and client in here:
                waiting[client] = UNANSWERED

    def _name_all(self, waiting: Mapping[int, str]) -> None:
        """Name the clients that the round is still waiting for, and why."""
        for client, why in islice(waiting.items(), MOST_NAMED):
            self._note(f"waiting for {self._name(client)}: {why}")
        if len(waiting) > MOST_NAMED:
            self._note(f"waiting for {len(waiting) - MOST_NAMED} more")

    def _note(self, text: str) -> None:
        self._tell("note", text=text)

    def _too_few(self, hopeless: Mapping[int, str]) -> str:
        each = "; ".join(f"{self._name(c)}, asked twice: {why}" for c, why in hopeless.items())
        return f"too few good answers: {each}"


class _Open(NamedTuple):
    """An unanswered question: its client, its place and its digest."""

    client: int
    place: Place
    digest: str


class Asking:
    """Questions to clients that are open, each at the place where its client was asked.

    `size` is the most that an answer may have.
    """

    def __init__(
        self,
        grid: Grid,
        replies: Replies,
        question: Callable[[int, int], Message],
        size: Size = SMALL,
    ) -> None:
        self._grid, self._replies, self._question, self._size = grid, replies, question, size
        self._open: dict[str, _Open] = {}
        self._asked: dict[int, Place] = {}

    def ask(self, places: Mapping[int, Place]) -> list[int]:
        """Ask those clients that have no open question at this place, and name them."""
        new = [client for client, place in places.items() if self._asked.get(client) != place]
        reached: list[int] = []
        for first in range(0, len(new), AT_ONCE):
            part = new[first : first + AT_ONCE]
            questions = [self._question(client, places[client].node) for client in part]
            digests = [wire.digest_of(question) for question in questions]
            sent = patiently(self._grid.push_messages, questions)
            # A node that was dismissed meanwhile takes no message.
            taken = [one for one in zip(sent, part, digests, strict=True) if one[0]]
            self._open |= {n: _Open(client, places[client], d) for n, client, d in taken}
            self._asked |= {client: places[client] for _, client, _ in taken}
            reached += [client for _, client, _ in taken]
        return reached

    def answers(self) -> Iterator[tuple[int, Message | Error]]:
        """The answers that have arrived; their clients can be asked again."""
        sizes = dict.fromkeys(self._open, self._size)
        for number, answer in self._replies.arrived(sizes):
            client, place, digest = self._open.pop(number)
            if self._asked.get(client) == place:
                del self._asked[client]
            elif isinstance(answer, Error):
                continue  # it was lost with the place, and the client has been asked elsewhere
            if isinstance(answer, Message) and wire.answered_in(answer) != digest:
                answer = Error(0, "it answers another question")
            yield client, answer

    def close(self) -> None:
        """Drop all open questions."""
        self._replies.forget(self._open)
        self._open.clear()
        self._asked.clear()


class SimulatedNodes(GridEngine):
    """Nodes that can each be any client of one data set, which is here, too, for probes."""

    def __init__(
        self, grid: Grid, work: Work, data: Dataset, nodes: Callable[[], Sequence[int]]
    ) -> None:
        holds = holdings(work.stages, work.networks(), work.local_norm)
        super().__init__(
            grid, lambda: Anywhere(tuple(nodes())), {}, holds, names=lambda n: f"client {n}"
        )
        self._probes = Clients.of(work, data)

    def probe(self, received: Params, stage: int = 0) -> float | None:
        self._probes.receive(received, stage)
        return self._probes.probe()
