"""A whole run, from its plan to a personal classifier per client, as a generator of events.

Every run goes this way, whatever its engine, and a federation over sites, too. The caller shows
progress or stops; nothing here prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from repper.basics.errors import RepperError
from repper.basics.names import is_encoder, is_weight
from repper.basics.params import Params, WeightedMean, digest, select
from repper.basics.switches import default_switches, each_step
from repper.data.dataset import Dataset
from repper.data.partition import Partition
from repper.encoders.encoder import AVERAGED, SHARED, encoder_origin
from repper.encoders.published import ORIGIN, is_published
from repper.engines import ENGINES, BuildEngine
from repper.engines.engine import Engine, Personal
from repper.engines.private import PrivateStore
from repper.heads.scores import summarize
from repper.methods.method import phases_of
from repper.methods.stage import Stage, rounds_of, stage_at
from repper.privacy.accountant import Release
from repper.runs import run_folder
from repper.runs.attacked import attack_facts
from repper.runs.plan import Plan, plan
from repper.runs.result import read_result, write_common, write_result
from repper.runs.round_log import (
    Checkpoint,
    check_private,
    go_back,
    keep_stage,
    log_digest,
    read_checkpoint,
    read_chosen,
    read_rounds,
    write_round,
)
from repper.runs.run import Run
from repper.runs.tracking import open_trackers
from repper.server.round_loop import Round, Served, federate
from repper.settings.config import Config


@dataclass(frozen=True)
class Started:
    """The run is set up; of its `rounds`, `finished_rounds` were done before it was resumed."""

    plan: Plan
    finished_rounds: int

    @property
    def config(self) -> Config:
        return self.plan.config

    @property
    def folder(self) -> Path:
        return self.plan.folder

    @property
    def data(self) -> Dataset:
        return self.plan.dealt.data

    @property
    def partition(self) -> Partition:
        return self.plan.dealt.partition

    @property
    def rounds(self) -> int:
        return self.plan.rounds


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
OpenFleet = Callable[[Plan], Engine]


def execute(
    config: Config,
    data: Dataset | None = None,
    partition: Partition | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    engine: BuildEngine | None = None,
    training: Path | None = None,
) -> Iterator[Event]:
    """Run all stages on this machine, and yield events.

    Settings, data and folder are all checked before anything is written. `engine` is used instead
    of the one that the settings name. With `training`, the encoder is trained in that folder, or
    has been: only heads and what they score are in the run's own. Global switches of the caller
    change no result.
    """
    events = _execute(
        config, data, partition,
        resume=resume, overwrite=overwrite, engine=engine, training=training,
    )  # fmt: skip
    return each_step(default_switches, events)


def _execute(
    config: Config,
    data: Dataset | None,
    partition: Partition | None,
    *,
    resume: bool,
    overwrite: bool,
    engine: BuildEngine | None,
    training: Path | None,
) -> Generator[Event, None, None]:
    planned = plan(config, data, partition)
    if training is not None:
        planned = planned.in_folder(training)
    run_folder.check_folder(planned.folder, planned.config, resume=resume, overwrite=overwrite)
    build = engine or ENGINES[config.engine]  # before anything is written: it may not be installed

    def fleet(planned: Plan) -> Engine:
        return build(planned.work, planned.dealt.images, config.workers)

    yield from carry_out(planned, fleet, resume=resume, overwrite=overwrite)


def carry_out(planned: Plan, fleet: OpenFleet, *, resume: bool, overwrite: bool) -> Iterator[Event]:
    """Begin or resume a run: its stages, then the clients' heads, into its folder."""
    config, folder, stages = planned.config, planned.folder, planned.work.stages
    run_folder.check_folder(folder, config, resume=resume, overwrite=overwrite)
    if overwrite and planned.elsewhere:
        planned = planned.in_folder()
    with ExitStack() as locks:
        for one in dict.fromkeys([folder, planned.training]):
            locks.enter_context(run_folder.locked(one))
        run_folder.prepare(folder, planned.elsewhere, overwrite=overwrite)
        planned = planned.tied()
        checkpoint = _begin(planned)
        yield Started(planned, checkpoint.number)
        if (folder / run_folder.RESULT).is_file():
            yield Finished(Run(folder))
            return
        with open_trackers(folder, config, checkpoint.number) as trackers:
            with fleet(planned) as engine:
                for event in train(engine, planned, checkpoint):
                    if isinstance(event, RoundDone):
                        checkpoint = event.checkpoint
                        for tracker in trackers:
                            tracker.round(event.record)
                    yield event
                number = checkpoint.number
                served = _in_last_stage(planned, checkpoint)
                final, index = served.used(planned.rule), len(stages) - 1
                if checkpoint.chosen:
                    number = checkpoint.chosen
                    final, index = read_chosen(folder, number), stage_at(stages, number)[0]
                began = time.perf_counter()
                personal = yield from _personalize(engine, final, planned, number, index, folder)
            _finish(planned, final, number, personal, time.perf_counter() - began)
            for tracker in trackers:
                tracker.finish(Run(folder))
        yield Finished(Run(folder))


def _begin(planned: Plan) -> Checkpoint:
    """The checkpoint to resume from; for a new run, round 0 with the initial parameters."""
    folder, config = planned.folder, planned.config
    checkpoint = _begin_training(planned)
    if planned.elsewhere:
        if (folder / run_folder.CONFIG).is_file():
            planned.clientele.check(folder)
            run_folder.check_init(folder, config)
        else:
            planned.clientele.begin(folder)
            run_folder.point_to(planned.elsewhere, folder)
        run_folder.write_start(folder, config, planned.digests, planned.elsewhere)
    return checkpoint


def _begin_training(planned: Plan) -> Checkpoint:
    folder = planned.training
    config = replace(planned.config, out=str(folder)) if planned.elsewhere else planned.config
    if not (folder / run_folder.CONFIG).is_file():
        if planned.work.private:
            store = PrivateStore(planned.work.private, planned.work.run)
            store.begin(planned.first_kept())
            _bring_clients(config, store)
        planned.clientele.begin(folder)
        run_folder.write_start(folder, config, planned.digests)
        return Checkpoint(0, planned.enter(0))
    planned.clientele.check(folder)
    run_folder.check_init(folder, config)
    before = run_folder.read_run_config(folder)
    if not run_folder.name_of(folder):  # of an older version: what is written now will be tied
        run_folder.write_start(folder, before, planned.digests)
    if planned.elsewhere and before.rounds != config.rounds:
        raise RepperError(
            f"{planned.folder} shares its training of {before.rounds} rounds with other runs: "
            f"choose another --out for {config.rounds} rounds"
        )
    if planned.elsewhere and folder.name != planned.name_of_training:
        raise RepperError(
            f"{planned.folder} shares its training with other runs, and these settings need "
            f"another training: choose another --out"
        )
    if before.rounds < config.rounds:
        go_back(folder, 1)  # more rounds are more of the first stage
    read = read_checkpoint(folder, planned.shared_after, planned.work.run)
    checkpoint = read or Checkpoint(0, planned.enter(0))
    if planned.ledger:
        planned.ledger.begin(checkpoint.number)
    if planned.work.private:
        check_private(folder, planned.work.stages, planned.holds, checkpoint.number)
    if planned.elsewhere:
        return checkpoint
    result = read_result(folder)
    # Some methods make fewer rounds of those asked for.
    if checkpoint.number > planned.rounds or (result and result["rounds"] > config.rounds):
        done = result["rounds"] if result else run_folder.read_run_config(folder).rounds
        raise RepperError(f"{folder} has {done} rounds already, more than --rounds {config.rounds}")
    if result is not None and result["rounds"] < config.rounds:
        (folder / run_folder.RESULT).unlink()
    run_folder.write_start(folder, config, planned.digests)
    return checkpoint


def train(
    engine: Engine, planned: Plan, checkpoint: Checkpoint
) -> Iterator[RoundDone | ClientDone]:
    """Run the remaining rounds, stage by stage, and write each to the folder."""
    stages, served = planned.work.stages, checkpoint.served
    for index, stage in enumerate(stages):
        before = rounds_of(stages[:index])
        if checkpoint.number >= before + stage.rounds and index < len(stages) - 1:
            continue
        if index and checkpoint.number == before:
            keep_stage(planned.training, index)
            served = planned.enter(index, served)
        rounds = federate(
            engine,
            served,
            stage,
            seed=planned.config.seed,
            rule=planned.rule_of(index),
            settling=planned.work.settling,
            index=index,
            before=before,
            start=checkpoint.number - before + 1,
            limits=planned.limits,
            counts=planned.counts,
        )
        for event in _each_round(engine, planned, checkpoint, rounds, index):
            if isinstance(event, RoundDone):
                checkpoint = event.checkpoint
                served = checkpoint.served
            yield event


def _each_round(
    engine: Engine, planned: Plan, checkpoint: Checkpoint, rounds: Iterator[Round], index: int
) -> Iterator[RoundDone | ClientDone]:
    """Measure each round of a stage, and write its record and checkpoint."""
    every = planned.config.evaluate_every
    if not planned.has_heads_to_begin_with(index):
        every = 0
    began = time.perf_counter()
    for done in rounds:
        used = done.served.used(planned.rule)
        record = _record(done, planned, index) | {"knn": engine.probe(used, index)}
        chosen, best = checkpoint.chosen, checkpoint.chosen_accuracy
        if every and done.number % every == 0:
            personal = yield from _personalize(engine, used, planned, done.number, index, None)
            record["accuracy"] = summarize([p.test for p in personal if p.test is not None])
            held_out = [p.validation for p in personal if p.validation is not None]
            if held_out:
                record["validation"] = mean = summarize(held_out)["mean"] or 0.0
                if mean > best:
                    chosen, best = done.number, mean
        checkpoint = Checkpoint(done.number, done.served, chosen, best)
        record["seconds"] = time.perf_counter() - began
        if ledger := planned.ledger:
            release = Release(len(planned.work.stages[index].clients), done.cohort)
            spent = ledger.add(done.number, release, digest(done.shared))
            record["epsilon"] = spent if isfinite(spent) else None
        write_round(planned.training, record, checkpoint, used, planned.work.run)
        began = time.perf_counter()
        yield RoundDone(record, checkpoint)


def _in_last_stage(planned: Plan, checkpoint: Checkpoint) -> Served:
    """The server's state after the last stage, also if that stage has no rounds."""
    stages, served = planned.work.stages, checkpoint.served
    for index in range(1, len(stages)):
        if checkpoint.number == rounds_of(stages[:index]):
            served = planned.enter(index, served)
    return served


def _personalize(
    engine: Engine, used: Params, planned: Plan, number: int, index: int, folder: Path | None
) -> Generator[ClientDone, None, list[Personal]]:
    """Let every client fit its head, as of round `number`; with a folder, save the heads there."""
    found = []
    heads = folder / run_folder.HEADS if folder else None
    for one in engine.personalize(used, planned.personalized, number, heads, index):
        found.append(one)
        yield ClientDone(one, final=folder is not None)
    return sorted(found, key=lambda p: p.client)


def _finish(
    planned: Plan, final: Params, number: int, personal: Sequence[Personal], seconds: float
) -> None:
    """Write the result of the run, after round `number` and the `seconds` of stage 2."""
    config, folder, private = planned.config, planned.folder, planned.work.private
    facts = _facts(planned, personal, read_rounds(folder), number)
    facts["seconds"]["pcl"] = seconds
    store = PrivateStore(private, planned.work.run) if private else None
    held = planned.dealt.partition if store else planned.work.partition
    encoder, origin = encoder_for_newcomers(final, store, held, number)
    if config.init and not number:
        path = Path(config.init)
        origin = ORIGIN if is_published(path) else encoder_origin(path)
    facts |= planned.clientele.facts(personal, read_rounds(folder))
    if planned.rounds and planned.privacy and planned.ledger:
        spent = planned.ledger.spent
        facts["privacy"] = asdict(planned.privacy) | {
            "epsilon": spent if isfinite(spent) else None,
            "rounds": planned.rounds,
            "repeated": planned.ledger.repeated(),
        }
    if (hostile := planned.work.hostile) is not None:

        def encoder_of(client: int) -> Params:
            own = store.encoder_of(client, number) if store else {}
            return select(final, lambda name: is_encoder(name) and is_weight(name)) | own

        facts["attack"] = attack_facts(planned, hostile, folder / run_folder.HEADS, encoder_of)
    if any(one.needs_common for one in planned.work.personalizers.all):
        layer = planned.work.stages[-1].method.classifier(final)
        if layer is not None:
            write_common(folder, layer, digest(select(final, is_encoder)))
    write_result(
        folder, config, planned.work, final, (encoder, origin), personal, facts,
        log=log_digest(folder),
        keeps_private=any(holds.keeps_private for holds in planned.holds),
    )  # fmt: skip


def _record(done: Round, planned: Plan, index: int) -> dict[str, Any]:
    """A round's line in the log; its bytes count all parameters that are sent and received.

    What an earlier stage has trained is sent to each client once.
    """
    stages = planned.work.stages
    stage, sending = stages[index], planned.work.sending
    wire = getattr(torch, sending[-1].wire if sending else "float32").itemsize
    up, given = (
        sum(t.numel() for t in params.values()) if stage.travels else 0
        for params in (done.shared, done.served.given)
    )
    new = set(done.cohort)
    if given:
        earlier = (one for one in read_rounds(planned.folder) if one.get("stage") == index)
        new -= {c for one in earlier for c in (*one["cohort"], *one.get("declined", ()))}
    down = up * len(done.cohort) + given * len(new)
    absent = {str(one.client): one.reason for one in done.absent}
    record = {
        "round": done.number,
        "cohort": [client for client in done.cohort if str(client) not in absent],
        "examples": done.examples,
        "images": done.examples * passes(stage),
        "bytes_up": up * wire * (len(done.cohort) - len(absent)),
        "bytes_down": down * torch.float32.itemsize,
        # The mean loss has no noise: it would reveal clients that are hidden.
        "loss": None if planned.privacy else done.loss,
    }
    record |= {"stage": index} if len(stages) > 1 else {}
    declined = [one.client for one in done.absent if one.declined]
    record |= {"declined": declined} if declined else {}
    return record | ({"absent": absent} if absent else {})


def passes(stage: Stage) -> int:
    """How often a client's images are used in a round; images without augmentation count once."""
    return sum(phase.epochs * phase.views if phase.views else 1 for phase in phases_of(stage))


def _facts(
    planned: Plan, personal: Sequence[Personal], log: Sequence[dict[str, Any]], chosen: int
) -> dict[str, Any]:
    """The facts of a finished run besides its scores."""
    trained = {client for record in log[:chosen] for client in record["cohort"]}
    took_part = {one for client in trained for one in planned.work.members(client)}
    groups = {
        "took_part": [p for p in personal if p.client in took_part],
        "never_took_part": [p for p in personal if p.client not in took_part],
    }
    costs = ("images", "bytes_up", "bytes_down")
    return {
        "seconds": {"crl": sum(record["seconds"] for record in log)},
        "cost": {name: sum(record[name] for record in log) for name in costs},
        "chosen_round": chosen,
        "groups": {
            name: {
                "clients": len(some),
                "accuracy": summarize([p.test for p in some if p.test]) if some else None,
            }
            for name, some in groups.items()
        },
    }


def encoder_for_newcomers(
    shared: Params, store: PrivateStore | None, partition: Partition, number: int
) -> tuple[Params, str]:
    """The encoder for a client that joins after round `number`, and its origin.

    Where every client has an encoder of its own, or some layers of one, there is no common one: it
    is the mean of those that were trained, weighted by images. Only a simulation can know it.
    """
    common = select(shared, lambda name: is_encoder(name) and is_weight(name))
    own = store.encoder_of(0, number) if store is not None else {}
    missing = {name: tensor for name, tensor in own.items() if name not in common}
    if store is None or not missing:
        return common, SHARED
    trained = store.clients(number)
    if not trained:
        return common | missing, "not trained"
    mean = WeightedMean(missing)
    for client in trained:
        mean.add(store.encoder_of(client, number), len(partition.train[client]))
    return common | mean.value(), AVERAGED


def _bring_clients(config: Config, store: PrivateStore) -> None:
    """With `--init-clients same`, give clients the encoders of their own from the earlier run."""
    if config.init_clients == "same" and config.init is not None:
        earlier = Run(Path(config.init))
        theirs = earlier.private
        if theirs.folder.is_dir():
            theirs.copy_to(store, earlier.result["chosen_round"], lambda name: "encoder." in name)
