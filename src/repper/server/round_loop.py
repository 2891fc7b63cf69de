"""The round loop as a generator, so that the caller logs, saves or stops."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from repper.basics.errors import RepperError
from repper.basics.names import is_weight, named_parts, part_of
from repper.basics.params import (
    Params,
    WeightedMean,
    check_growth,
    check_update,
    clone,
    is_finite,
    read_params,
    save_params,
    select,
)
from repper.basics.seeds import Purpose, stream, torch_seed
from repper.engines.engine import Absent, Engine, Update
from repper.engines.task import Work
from repper.methods.method import Method
from repper.methods.network import Holds, Network, first_received, holdings, to_send
from repper.methods.stage import Stage, choose_cohort, cohort_size
from repper.server import Mean, Rule, Sent
from repper.updates.transforms import Transform


@dataclass(frozen=True)
class Served:
    """The server's state between rounds: shared parameters, and everything needed to continue.

    `shared` are weights, and what travels beside them; `state` is that of the server's rule;
    `given` are parameters of earlier stages, which clients get and do not send back.
    """

    shared: Params
    state: Params = field(default_factory=dict)
    given: Params = field(default_factory=dict)

    @property
    def received(self) -> Params:
        """The parameters that a client receives."""
        return self.given | self.shared

    def used(self, rule: Rule) -> Params:
        """The model that is tested, and that clients fit their heads on."""
        weights = select(self.shared, is_weight)
        return self.received | rule.use(self.state, weights)


@dataclass(frozen=True)
class Round:
    """The result of a round: the server's new parameters, the cohort, and the mean loss.

    `absent` are those of the cohort that it had to do without, and why.
    """

    number: int
    served: Served
    cohort: tuple[int, ...]
    examples: int
    loss: float
    absent: tuple[Absent, ...] = ()

    @property
    def shared(self) -> Params:
        return self.served.shared


LARGEST_LOSS = 1e9
"""No training that has not diverged has a mean loss like that; its sum stays finite."""
IN_MEMORY = 16
"""Updates that may wait in memory for those of clients before them; more wait on the disk."""


@dataclass(frozen=True)
class Limits:
    """Limits on the influence of one client in a round.

    `share` is its largest share of the mean. No value that it sends may be more than `growth` times
    as large as the largest one it got (`check_growth`).
    """

    share: float = 1.0
    growth: float = math.inf

    def most_examples(self, counts: Sequence[int]) -> int:
        """The largest number of examples that one client may count in a cohort.

        With fewer clients than the share allows for, all count the same.
        """
        low, high = 1, max(counts)
        while low < high:
            middle = (low + high + 1) // 2
            if middle <= self.share * sum(min(count, middle) for count in counts):
                low = middle
            else:
                high = middle - 1
        return low


UNLIMITED = Limits()


def begin(network: Network, method: Method, holds: Holds, rule: Rule) -> Served:
    """The server's state at the start of a stage, from a network's current values."""
    received = clone(first_received(method, network, holds))
    shared = to_send(received, holds)
    given = select(received, lambda name: name not in shared)
    return Served(shared, rule.init(select(shared, is_weight)), given)


def begin_anew(work: Work, rule: Rule, seed: int) -> Served:
    """The server's state at the start of the first stage, with initial values from a seed."""
    networks = work.networks(torch_seed(seed, Purpose.INIT))
    holds = holdings(work.stages, networks, work.local_norm)
    return begin(networks[0], work.stages[0].method, holds[0], rule)


def federate(
    engine: Engine,
    served: Served,
    stage: Stage,
    *,
    seed: int,
    rule: Rule | None = None,
    settling: Sequence[Transform] = (),
    index: int = 0,
    before: int = 0,
    start: int = 1,
    limits: Limits = UNLIMITED,
    counts: Mapping[int, int] | None = None,
) -> Iterator[Round]:
    """Run a stage's rounds from `start` on (Algorithm 1, stage 1, Server executes).

    The stage is number `index` of the run, and `before` is the number of rounds of those before
    it, through which rounds are counted. `settling` changes what the rule has made of a round. A
    round that all of its cohort decline changes nothing. `counts` are the examples of every client,
    which a limit on the share of one client needs.
    """
    rule = rule or Mean()
    share = cohort_size(len(stage.clients), stage.participation) / len(stage.clients)
    for number in range(before + start, before + stage.rounds + 1):
        random = stream(seed, Purpose.COHORT, number)
        cohort = choose_cohort(stage.clients, stage.participation, random)
        absent: list[Absent] = []
        answers = engine.fit(served.received, cohort, number, index)
        updates = in_cohort_order(answers, cohort, absent)
        first = next(updates, None)
        if first is None and absent and all(one.declined for one in absent):
            yield Round(number, served, cohort, 0, 0.0, tuple(absent))
            continue
        updates = chain(filter(None, [first]), updates)
        del first  # only one update is in memory at a time
        most = None
        if limits.share < 1 and counts is not None:
            most = limits.most_examples([counts[client] for client in cohort])
        settled, examples, loss = settle(
            updates, served, rule, stage.method, share, number, limits.growth, most
        )
        for transform in settling:
            noise = torch_seed(seed, Purpose.SETTLE, number)
            settled = Served(
                transform(settled.shared, served.shared, noise), settled.state, settled.given
            )
        served = settled
        yield Round(number, served, cohort, examples, loss, tuple(absent))


def in_cohort_order(
    updates: Iterable[Update | Absent], cohort: Sequence[int], absent: list[Absent]
) -> Iterator[Update]:
    """Sort updates into the cohort's order, because a sum of floats depends on its order.

    Clients without one are added to `absent`. Of updates that come before their turn, most wait on
    the disk, so memory does not grow with the cohort.
    """
    early: dict[int, Update | Absent | Path] = {}
    arriving = iter(updates)
    with ExitStack() as stack:
        folder: Path | None = None
        for client in cohort:
            while client not in early:
                found = next(arriving, None)
                if found is None:
                    raise RepperError(f"client {client} sent no update in this round")
                early[found.client] = found
                waiting = sum(isinstance(one, Update) for one in early.values())
                if waiting > IN_MEMORY and found.client != client and isinstance(found, Update):
                    folder = folder or Path(stack.enter_context(TemporaryDirectory()))
                    early[found.client] = _put_aside(found, folder)
            kept = early.pop(client)
            if isinstance(kept, Absent):
                absent.append(kept)
            else:
                yield _fetch_back(client, kept) if isinstance(kept, Path) else kept


def _put_aside(update: Update, folder: Path) -> Path:
    path = folder / str(update.client)
    notes = {"examples": json.dumps(update.examples), "loss": repr(update.loss)}
    save_params(path, update.sent, notes)
    return path


def _fetch_back(client: int, path: Path) -> Update:
    sent, notes = read_params(path)
    path.unlink()
    return Update(client, sent, json.loads(notes["examples"]), float(notes["loss"]))


def settle(
    updates: Iterable[Update],
    served: Served,
    rule: Rule,
    method: Method,
    share: float,
    number: int,
    growth: float = math.inf,
    most: int | None = None,
) -> tuple[Served, int, float]:
    """Apply the rule to a round's updates (section 4, Server Update); also the mean loss.

    Every update is checked, and counts as `most` examples at most. The rule has the weights; what
    travels beside them is averaged and given to the method. Unless the rule needs them all, one
    update is in memory at a time.
    """
    weights = select(served.shared, is_weight)
    parts = {name: value for name, value in served.shared.items() if name not in weights}
    beside, loss = WeightedMean(parts), 0.0

    def checked() -> Iterator[Sent]:
        nonlocal loss
        for update in updates:
            check(update, served.shared, number, growth)
            counted = update.examples if most is None else min(update.examples, most)
            beside.add(update.sent, counted)
            loss += counted * update.loss
            sent = update.sent if not parts else select(update.sent, is_weight)
            yield Sent(update.client, sent, counted)
        if not beside.examples:
            raise RepperError(f"no client sent an update in round {number}")

    arriving = checked()
    state, new = rule.apply(served.state, weights, arriving if rule.streams else tuple(arriving))
    if next(arriving, None) is not None:
        raise TypeError(f"{type(rule).__name__} has not looked at every update")
    _check_model(new, weights, rule)
    mean = beside.value()
    names = dict.fromkeys(name.partition(":")[0] for name in parts)
    absorbed = {
        part: method.absorb(part, part_of(parts, part), part_of(mean, part), share)
        for part in names
    }
    shared = new | named_parts(absorbed)
    return Served(shared, state, served.given), beside.examples, loss / beside.examples


def _check_model(new: Params, like: Params, rule: Rule) -> None:
    """Refuse a rule's new model if its names, shapes or values are wrong."""
    for name in sorted(new.keys() ^ like.keys()):
        what = "lacks" if name in like else "has an unexpected"
        raise RepperError(f"the model returned by {type(rule).__name__} {what} {name}")
    for name, tensor in like.items():
        if (shape := getattr(new[name], "shape", None)) != tensor.shape:
            raise RepperError(
                f"the model returned by {type(rule).__name__} has {name} of shape {shape}, "
                f"expected {tuple(tensor.shape)}"
            )
        if not is_finite(new[name]):
            raise RepperError(f"the model returned by {type(rule).__name__} has NaN or infinity")


def check(update: Update, like: Params, number: int, growth: float = math.inf) -> None:
    """Check an update; the error names its client.

    One with wrong names or shapes, with values that are not finite or have grown too much since the
    client got them in `like`, or without a positive number of examples.
    """
    who = f"client {update.client} in round {number}"
    if type(update.examples) is not int or update.examples < 1:
        raise RepperError(f"the update of {who} counts {update.examples!r} examples")
    if not math.isfinite(update.loss):
        raise RepperError(
            f"the loss of {who} is {update.loss}: its training diverged, try a lower --lr"
        )
    if abs(update.loss) > LARGEST_LOSS:
        raise RepperError(f"the loss of {who} is {update.loss:g}, which is not plausible")
    check_update(update.sent, like, who)
    if growth < math.inf:
        check_growth(update.sent, like, growth, who)
