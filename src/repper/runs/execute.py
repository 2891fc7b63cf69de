"""A whole run, from images to a personal classifier per client, as a generator of events.

The caller shows progress or stops; nothing here prints.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repper.config import Config
from repper.datasets.dataset import Dataset
from repper.encoders.encoder import AVERAGED, SHARED, encoder_origin
from repper.engines import ENGINES, BuildEngine
from repper.engines.engine import Engine, Personal
from repper.errors import RepperError
from repper.evaluate import summarize
from repper.federate import Round, federate
from repper.methods.method import Method, initial_own
from repper.params import (
    Params,
    WeightedMean,
    clone,
    is_encoder,
    params_of,
    select,
)
from repper.partition import Partition, read_partition
from repper.private import PrivateStore
from repper.runs import run_folder
from repper.runs.plan import Plan, plan
from repper.runs.result import read_result, write_result
from repper.runs.rounds import (
    Checkpoint,
    check_private,
    read_checkpoint,
    read_chosen,
    read_rounds,
    write_round,
)
from repper.runs.run import Run
from repper.runs.tensorboard import open_board


@dataclass(frozen=True)
class Started:
    """The run is set up; of its `rounds`, `finished_rounds` were done before it was resumed."""

    config: Config
    folder: Path
    data: Dataset
    partition: Partition
    rounds: int
    finished_rounds: int


@dataclass(frozen=True)
class RoundDone:
    """A round is finished and in the folder; `record` is its line in the log."""

    record: dict[str, Any]
    checkpoint: Checkpoint


@dataclass(frozen=True)
class ClientDone:
    """A client has its head, after the last round (`final`) or on the way."""

    personal: Personal
    final: bool


@dataclass(frozen=True)
class Finished:
    run: Run


Event = Started | RoundDone | ClientDone | Finished


def execute(
    config: Config,
    data: Dataset | None = None,
    partition: Partition | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    engine: BuildEngine | None = None,
) -> Iterator[Event]:
    """Run both stages, and yield what has happened.

    Settings, data and folder are all checked before anything is written. `engine` is used instead
    of the one that the settings name.
    """
    planned = plan(config, data, partition)
    config, folder = planned.config, planned.folder
    run_folder.check_folder(folder, config, resume=resume, overwrite=overwrite)
    build = engine or ENGINES[config.engine]  # before anything is written: it may not be installed
    with run_folder.locked(folder):
        run_folder.prepare(folder, overwrite=overwrite)
        checkpoint = _begin(planned)
        rounds = config.build_schedule().rounds
        yield Started(config, folder, planned.data, planned.partition, rounds, checkpoint.number)
        if (folder / run_folder.RESULT).is_file():
            yield Finished(Run(folder))
            return
        events = open_board(folder / run_folder.BOARD, checkpoint.number, wanted=config.tensorboard)
        with events as board, build(planned.task, planned.data, config.workers) as fleet:
            for event in stage1(fleet, config, planned.method, folder, checkpoint):
                if isinstance(event, RoundDone):
                    checkpoint = event.checkpoint
                    board.round(event.record)
                yield event
            final, number = checkpoint.shared, checkpoint.number
            if checkpoint.chosen:
                number = checkpoint.chosen
                final = read_chosen(folder, number)
            began = time.perf_counter()
            personal = yield from _personalize(fleet, final, config, number, folder)
            board.finish(number, [p.test for p in personal])
        _finish(planned, final, number, personal, time.perf_counter() - began)
        yield Finished(Run(folder))


def _begin(planned: Plan) -> Checkpoint:
    """The point to go on from; for a new run, round 0 with the initial parameters."""
    folder, config, method = planned.folder, planned.config, planned.method
    initial = clone(select(params_of(planned.network), method.shared))
    if not (folder / run_folder.CONFIG).is_file():
        if planned.task.private:
            store = PrivateStore(planned.task.private)
            store.begin(clone(initial_own(method, planned.network)))
            _bring_clients(config, store)
        run_folder.write_start(folder, config, planned.data, planned.partition)
        return Checkpoint(0, initial)
    before = read_partition(folder / run_folder.PARTITION, planned.data)
    if before.hash != planned.partition.hash:
        raise RepperError(f"{folder} was begun with another partition: choose another --out")
    run_folder.check_init(folder, config)
    checkpoint = read_checkpoint(folder, initial) or Checkpoint(0, initial)
    check_private(folder, method, checkpoint.number)
    result = read_result(folder)
    # Some methods make fewer rounds of those asked for.
    too_far = checkpoint.number > config.build_schedule().rounds
    if too_far or (result is not None and result["rounds"] > config.rounds):
        done = result["rounds"] if result else run_folder.read_run_config(folder).rounds
        raise RepperError(f"{folder} has {done} rounds already, more than --rounds {config.rounds}")
    if result is not None and result["rounds"] < config.rounds:
        (folder / run_folder.RESULT).unlink()
    run_folder.write_start(folder, config, planned.data, planned.partition)
    return checkpoint


def _personalize(
    engine: Engine, shared: Params, config: Config, number: int, folder: Path | None
) -> Generator[ClientDone, None, list[Personal]]:
    """Let every client fit its head, as of round `number`; with a folder, they are kept there."""
    found = []
    heads = folder / run_folder.HEADS if folder else None
    for one in engine.personalize(shared, range(config.clients), number, heads):
        found.append(one)
        yield ClientDone(one, final=folder is not None)
    return sorted(found, key=lambda p: p.client)


def _finish(
    planned: Plan, final: Params, number: int, personal: Sequence[Personal], seconds: float
) -> None:
    """Write what the run came to, after round `number` and the `seconds` of stage 2."""
    config, folder, private = planned.config, planned.folder, planned.task.private
    facts = _facts(planned, personal, read_rounds(folder), number)
    facts["seconds"]["pcl"] = seconds
    store = PrivateStore(private) if private else None
    encoder, origin = encoder_for_newcomers(final, store, planned.partition, number)
    if config.init and not number:
        origin = encoder_origin(Path(config.init))
    write_result(
        folder, config, planned.spec, planned.data, final, (encoder, origin), personal, facts
    )


def stage1(
    engine: Engine, config: Config, method: Method, folder: Path, checkpoint: Checkpoint
) -> Iterator[RoundDone | ClientDone]:
    """Run the rounds that are left, and write each to the folder before going on."""
    schedule = config.build_schedule()
    rounds = federate(
        engine,
        checkpoint.shared,
        clients=[config.clients] if method.pooled else config.stage1(),
        participation=schedule.participation,
        rounds=schedule.rounds,
        seed=config.seed,
        start=checkpoint.number + 1,
    )
    began = time.perf_counter()
    for done in rounds:
        record = _record(done, method, config.upload) | {"knn": engine.probe(done.shared)}
        chosen, best = checkpoint.chosen, checkpoint.chosen_accuracy
        if config.evaluate_every and done.number % config.evaluate_every == 0:
            personal = yield from _personalize(engine, done.shared, config, done.number, None)
            record["accuracy"] = summarize([p.test for p in personal])
            held_out = [p.validation for p in personal if p.validation is not None]
            if held_out:
                record["validation"] = mean = summarize(held_out)["mean"] or 0.0
                if mean > best:
                    chosen, best = done.number, mean
        checkpoint = Checkpoint(done.number, done.shared, chosen, best)
        record["seconds"] = time.perf_counter() - began
        write_round(folder, record, checkpoint)
        began = time.perf_counter()
        yield RoundDone(record, checkpoint)


def _record(done: Round, method: Method, upload: str) -> dict[str, Any]:
    """A round's line in the log; its bytes are those of all parameters that travel."""
    size = 0 if method.pooled else sum(t.numel() * t.element_size() for t in done.shared.values())
    absent = {str(one.client): one.reason for one in done.absent}
    record = {
        "round": done.number,
        "cohort": [client for client in done.cohort if str(client) not in absent],
        "examples": done.examples,
        "images": done.examples * sum(phase.epochs * phase.views for phase in method.phases()),
        "bytes_up": size * (len(done.cohort) - len(absent)) // (2 if upload == "float16" else 1),
        "bytes_down": size * len(done.cohort),
        "loss": done.loss,
    }
    return record | ({"absent": absent} if absent else {})


def _facts(
    planned: Plan, personal: Sequence[Personal], log: Sequence[dict[str, Any]], chosen: int
) -> dict[str, Any]:
    """What is known of a finished run besides its scores."""
    took_part = {client for record in log[:chosen] for client in record["cohort"]}
    if planned.partition.clients in took_part:  # the one who holds the images of all in stage 1
        took_part = set(planned.config.stage1())
    groups = {
        "took_part": [p.test for p in personal if p.client in took_part],
        "never_took_part": [p.test for p in personal if p.client not in took_part],
    }
    costs = ("images", "bytes_up", "bytes_down")
    return {
        "seconds": {"crl": sum(record["seconds"] for record in log)},
        "cost": {name: sum(record[name] for record in log) for name in costs},
        "chosen_round": chosen,
        "groups": {
            name: {"clients": len(scores), "accuracy": summarize(scores) if scores else None}
            for name, scores in groups.items()
        },
    }


def encoder_for_newcomers(
    shared: Params, store: PrivateStore | None, partition: Partition, number: int
) -> tuple[Params, str]:
    """The encoder that a client would take who comes after round `number`, and its origin.

    Where every client has an encoder of its own there is no common one: it is the mean of those
    that were trained, weighted by images. Only a simulation can know it.
    """
    common = select(shared, is_encoder)
    if common or store is None:
        return common, SHARED
    trained = store.clients(number)
    if not trained:
        return store.encoder_of(0, number), "not trained"
    mean = WeightedMean(store.encoder_of(trained[0], number))
    for client in trained:
        mean.add(store.encoder_of(client, number), len(partition.train[client]))
    return mean.value(), AVERAGED


def _bring_clients(config: Config, store: PrivateStore) -> None:
    """With `--init-clients same`, give clients the encoders of their own from the earlier run."""
    if config.init_clients == "same" and config.init is not None:
        earlier = Run(Path(config.init))
        theirs = PrivateStore(earlier.folder / run_folder.PRIVATE)
        if theirs.folder.is_dir():
            theirs.copy_to(store, earlier.result["chosen_round"], lambda name: "encoder." in name)
