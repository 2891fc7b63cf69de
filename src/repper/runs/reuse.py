"""Reuse of trainings of finished runs, so that only heads are fitted again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from repper.basics.documents import write_json
from repper.basics.errors import RepperError
from repper.basics.params import read_params
from repper.basics.tensor_files import check_ties, read_notes
from repper.data.dataset import Dataset
from repper.data.partition import read_partition
from repper.engines.private import PrivateStore
from repper.methods.common_head import CommonHead
from repper.methods.stage import Stage, rounds_of
from repper.privacy.ledger import copy_ledger
from repper.runs.plan import plan
from repper.runs.round_log import check_private, read_rounds, stage_checkpoint, write_rounds
from repper.runs.run import Run
from repper.runs.run_folder import (
    CHECKPOINT,
    CONFIG,
    ENVIRONMENT,
    LEDGER,
    PARTITION,
    PRIVATE,
    RESULT,
    check_init,
    name_of,
    prepare,
    read_environment,
    read_run_config,
    training_of,
)
from repper.settings.config import Config
from repper.settings.config_file import write_config


def branch(source: Path, target: Path, *, elsewhere: bool) -> None:
    """Make `target` a copy of the training of the finished run `source`.

    What was in `target` stays until all is there, and altogether if it has come as far: its later
    rounds are not repeated. `elsewhere` is noted: the training was made by another command.
    """
    try:
        check_trained(source)
    except RepperError as error:
        raise RepperError(f"{error}; remove {source} to have it trained again") from error
    checkpoint, rounds = _trained_to(source, Run(source).stages_and_holds[0])
    if rounds and _rounds_of(target) >= rounds:
        return
    config = replace(_untested(read_run_config(source)), out=str(target))
    trained = training_of(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(made, ignore_errors=True)
    prepare(made, overwrite=False)
    if (trained / PRIVATE).is_dir():
        PrivateStore(trained / PRIVATE).link_to(made / PRIVATE)
    for name, path in ((CHECKPOINT, checkpoint), (PARTITION, source / PARTITION)):
        if path.is_file():
            shutil.copyfile(path, made / name)
    records = read_rounds(source)[:rounds]
    if not config.evaluate_every:  # heads that were tested on the way were others
        records = [{k: v for k, v in record.items() if k != "accuracy"} for record in records]
    if records:
        write_rounds(made, records, name_of(source))
    if (trained / LEDGER).is_file():
        copy_ledger(trained / LEDGER, made / LEDGER, rounds)
    before = read_environment(trained)
    training = before.get("training", before)
    reused = elsewhere or before.get("reused", False)
    content = before | {"training": training, "reused": reused}
    write_json(made / ENVIRONMENT, content)
    write_config(made / CONFIG, config)
    before_it = target.with_name(f".{target.name}.old.tmp")
    shutil.rmtree(before_it, ignore_errors=True)
    if target.exists():  # runs may point to it: it is gone for no longer than a rename takes
        target.replace(before_it)
    made.replace(target)
    shutil.rmtree(before_it, ignore_errors=True)


def is_trained(training: Path, rounds: int) -> bool:
    """Whether a training is finished."""
    return (training / CONFIG).is_file() and (not rounds or _rounds_of(training) == rounds)


def _rounds_of(training: Path) -> int:
    """The rounds of a training's checkpoint; 0 if there is none."""
    path = training / CHECKPOINT
    if not ((training / CONFIG).is_file() and path.is_file()):
        return 0
    number = read_notes(path).get("round", "")
    return int(number) if number.isdecimal() else 0


def check_trained(folder: Path) -> None:
    """Refuse a finished run if a part of its training's results is missing."""
    stages, holds = Run(folder).stages_and_holds
    path, rounds = _trained_to(folder, stages)
    if rounds:
        _, notes = read_params(path)
        check_ties(path, notes, run=name_of(folder))
        if notes.get("round") != str(rounds) or len(read_rounds(folder)) < rounds:
            raise RepperError(f"{folder} does not hold all {rounds} rounds of its training")
    check_private(folder, stages, holds, rounds)


def _trained_to(folder: Path, stages: Sequence[Stage]) -> tuple[Path, int]:
    """The checkpoint of a run's training, before any stage of heads, and its rounds.

    A common head is not among it: clients who do something else last have other ones, or none.
    """
    before = stages[:-1] if isinstance(stages[-1].method, CommonHead) else stages
    kept = len(before) < len(stages) and stages[-1].rounds
    trained = training_of(folder)
    path = stage_checkpoint(trained, len(before)) if kept else trained / CHECKPOINT
    return path, rounds_of(before)


@dataclass
class Trainings:
    """The finished runs somewhere in a folder, to take trainings from."""

    folder: Path
    _found: list[tuple[Path, Mapping[str, object]]] | None = None

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise RepperError(f"there is no folder {self.folder} to reuse trainings of")

    def find(self, cell: Config, data: Dataset, partition: str) -> tuple[Path | None, list[str]]:
        """A run that differs from the cell at most in its heads, if there is one.

        And what is wrong with those that would have been taken before it.
        """
        if self._found is None:
            self._found = list(self._runs())
        damaged: list[str] = []
        wanted = _training(plan(cell, data).config)  # as it would stand in the run's own folder
        for folder, training in self._found:
            try:
                if training != wanted or _partition(folder, data) != partition:
                    continue
                check_init(folder, cell)
                check_trained(folder)
                return folder, damaged
            except RepperError as error:
                damaged.append(str(error))
        return None, damaged

    def _runs(self) -> Iterator[tuple[Path, Mapping[str, object]]]:
        for path in sorted(self.folder.rglob(RESULT)):
            try:
                yield path.parent, _training(Run(path.parent).config)
            except RepperError:
                continue  # no run, or none of this version: nothing that could be taken


def _partition(folder: Path, data: Dataset) -> str | None:
    try:
        return read_partition(folder / PARTITION, data).hash
    except RepperError:
        return None  # of other images


def _training(config: Config) -> Mapping[str, object]:
    return _untested(config).training() | {"rounds": config.rounds}


def _untested(config: Config) -> Config:
    """The same training without evaluation between rounds, unless that chooses the round."""
    return config if config.validation else replace(config, evaluate_every=0)
