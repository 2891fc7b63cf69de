"""The rounds of a run: their log, and the checkpoint to resume from.

They are written so that a crash at any moment loses no finished round.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from repper.basics.documents import IN_JSON, build, from_json
from repper.basics.errors import RepperError
from repper.basics.files import write_atomically
from repper.basics.names import is_weight, named_parts, part_of
from repper.basics.params import Params, clone, read_params, save_params, select
from repper.basics.seal import BLANK, BLANK_SEAL, SEAL
from repper.basics.tensor_files import check_ties
from repper.engines.private import PrivateStore
from repper.methods.network import Holds
from repper.methods.stage import Stage, stage_at
from repper.runs.result import read_result
from repper.runs.run_folder import CHECKPOINT, PRIVATE, RESULT, ROUNDS, name_of, training_of
from repper.server.round_loop import Served

CHOSEN = "chosen-{}.safetensors"
STAGE = "before-stage-{}.safetensors"
RULE, GIVEN = "rule", "given"
"""Prefixes of names in a checkpoint: the state of the server's rule, and earlier stages."""


@dataclass(frozen=True)
class _Record:
    """What a line of the log holds."""

    round: int
    cohort: list[int]
    examples: int
    images: int
    bytes_up: int
    bytes_down: int
    loss: float | None
    knn: float | None
    seconds: float
    epsilon: float | None = None
    stage: int = 0
    declined: list[int] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    accuracy: dict[str, float | None] = field(default_factory=dict)
    validation: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands: the last finished round, and the one chosen on validation data so far."""

    number: int
    served: Served
    chosen: int = 0
    chosen_accuracy: float = -1.0


def write_round(
    folder: Path, record: dict[str, Any], checkpoint: Checkpoint, used: Params, run: str = ""
) -> None:
    """Log a finished round, then write its checkpoint.

    `used` are the parameters that were tested: those to keep if the round is chosen. `run` is what
    files are tied to.

    In this order a crash between the two leaves a line too many, which `read_checkpoint` drops, or
    a chosen round too many, which is chosen again or never asked for.
    """
    with (folder / ROUNDS).open("a+b") as file:
        file.write(_line(record, _last_seal(file, run)))
        file.flush()
        os.fsync(file.fileno())
    notes = {
        "round": str(checkpoint.number),
        "chosen": str(checkpoint.chosen),
        "chosen_accuracy": repr(checkpoint.chosen_accuracy),
        **({"run": run} if run else {}),
    }
    served = checkpoint.served
    if checkpoint.chosen == checkpoint.number:
        save_params(_chosen(folder, checkpoint.number), used, notes)
    beside = clone(named_parts({RULE: served.state, GIVEN: served.given}))
    params = served.shared | beside  # a copy, because a rule may keep the very tensors it gives
    save_params(folder / CHECKPOINT, params, notes)
    _forget_chosen(folder, checkpoint.chosen)


def keep_stage(folder: Path, index: int) -> None:
    """Keep a checkpoint of the start of stage `index`, from which other runs can continue."""
    if (folder / CHECKPOINT).is_file():
        write_atomically(stage_checkpoint(folder, index), (folder / CHECKPOINT).read_bytes())


def go_back(folder: Path, index: int) -> None:
    """Go back to the start of stage `index`, if the run has reached it."""
    if (kept := stage_checkpoint(folder, index)).is_file():
        read_params(kept)  # a damaged one is refused before anything is changed
        (folder / RESULT).unlink(missing_ok=True)  # it is of a longer log
        write_atomically(folder / CHECKPOINT, kept.read_bytes())


def stage_checkpoint(folder: Path, index: int) -> Path:
    return (folder / CHECKPOINT).with_name(STAGE.format(index))


def read_checkpoint(
    folder: Path, likes: Callable[[int], Params], run: str = ""
) -> Checkpoint | None:
    """The checkpoint to resume from, or None if no round was finished.

    `likes` gives what clients share after a round, for the names and shapes.
    The log is cut back to it: a crash may have come between a round's line and its checkpoint.
    """
    if not (folder / CHECKPOINT).is_file():
        write_rounds(folder, [], run)
        return None
    try:
        params, notes = read_params(folder / CHECKPOINT)
        check_ties(folder / CHECKPOINT, notes, run=run)
    except RepperError as error:
        raise RepperError(f"{error}; restore it, or begin again with --overwrite") from error
    number = int(notes["round"])
    like, served = likes(number), _served(params)
    if {n: t.shape for n, t in served.shared.items()} != {n: t.shape for n, t in like.items()}:
        raise RepperError(f"{folder / CHECKPOINT} does not hold the parameters of this run")
    checkpoint = Checkpoint(number, served, int(notes["chosen"]), float(notes["chosen_accuracy"]))
    keep = read_rounds(folder)[: checkpoint.number]
    if len(keep) < checkpoint.number:
        raise RepperError(
            f"{folder / ROUNDS} lacks rounds that the checkpoint has; restore it, or begin again "
            f"with --overwrite"
        )
    write_rounds(folder, keep, run)
    _forget_chosen(folder, checkpoint.chosen)  # a crash may have come before this, too
    return checkpoint


def _served(params: Params) -> Served:
    state, given = part_of(params, RULE), part_of(params, GIVEN)
    beside = tuple(f"{part}:" for part in (RULE, GIVEN))
    return Served({n: t for n, t in params.items() if not n.startswith(beside)}, state, given)


def read_served(folder: Path) -> tuple[int, Served]:
    """The last round, and the server's state after it."""
    path = training_of(folder) / CHECKPOINT
    params, notes = read_params(path)
    check_ties(path, notes, run=name_of(folder))
    return int(notes["round"]), _served(params)


def read_trained(folder: Path) -> Params:
    """The parameters of the network after the last round."""
    return select(read_served(folder)[1].received, is_weight)


def read_chosen(folder: Path, number: int) -> Params:
    """The parameters of the round that was chosen on validation data."""
    path = _chosen(training_of(folder), number)
    if not path.is_file():
        raise RepperError(
            f"{path}, the checkpoint of the chosen round, is missing; restore it, or begin again "
            f"with --overwrite"
        )
    params, notes = read_params(path)
    check_ties(path, notes, run=name_of(folder), round=number)
    return params


def _forget_chosen(folder: Path, but: int) -> None:
    """Remove the parameters of rounds chosen earlier."""
    for path in (folder / CHECKPOINT).parent.glob(CHOSEN.format("*")):
        if path != _chosen(folder, but):
            path.unlink()


def _chosen(folder: Path, number: int) -> Path:
    return (folder / CHECKPOINT).parent / CHOSEN.format(number)


def write_rounds(folder: Path, records: Sequence[Mapping[str, Any]], run: str) -> None:
    """Replace the log by these rounds."""
    content, before = b"", run.encode()
    for record in records:
        content += (line := _line(record, before))
        before = IN_JSON.seal_in(line) if run else b""
    write_atomically(folder / ROUNDS, content)


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """The log of every round; a last line that a crash has cut off is left out.

    Every line has a seal, which covers the seal of the line before; the first one's, the run.
    """
    path, result = training_of(folder) / ROUNDS, read_result(folder)
    content = path.read_bytes() if path.is_file() else b""
    lines = content.splitlines(keepends=True)
    records, before = [], name_of(folder).encode()
    for number, line in enumerate(lines, start=1):
        try:
            sealed = IN_JSON.is_sealed(line, before)
            record = from_json(line, is_sealed=sealed)
            build(_Record, record, path)
            if record["round"] != number:
                raise ValueError("it is of another round")
            before = IN_JSON.seal_in(line) if sealed else b""
        except (ValueError, KeyError, RecursionError, RepperError) as error:
            if number == len(lines) and not line.endswith(b"\n") and result is None:
                break
            raise RepperError(
                f"{path} is damaged in line {number}; restore it, or begin again with --overwrite"
            ) from error
        records.append(record)
    known = (result or {}).get("digests", {}).get(ROUNDS)
    if known is not None and known != before.decode():
        raise RepperError(
            f"{path} is not the log that {RESULT} beside it was written with; restore it"
        )
    return records


def log_digest(folder: Path) -> str:
    """The last seal of the log, which covers all of it; without rounds, the run's name."""
    run, path = name_of(folder), training_of(folder) / ROUNDS
    if not path.is_file():
        return run
    with path.open("rb") as file:
        return _last_seal(file, run).decode()


TAIL = len(f'{BLANK.decode()}"}}\n')
"""How much of a sealed line begins with its seal."""


def _line(record: Mapping[str, Any], before: bytes) -> bytes:
    """A line of the log after that with the seal `before`; without a seal if there is no run."""
    sealed = {**record, SEAL: BLANK_SEAL} if before else record
    line = json.dumps(sealed).encode() + b"\n"
    return IN_JSON.filled(line, before) if before else line


def _last_seal(file: IO[bytes], run: str) -> bytes:
    """The seal of the last line; of an empty log, the run's name."""
    size = file.seek(0, os.SEEK_END)
    if not size or not run:
        return run.encode()
    file.seek(max(0, size - TAIL))
    return file.read(len(BLANK))


def check_private(
    folder: Path, stages: Sequence[Stage], holds: Sequence[Holds], number: int
) -> None:
    """Refuse a run of `number` rounds in which private parameters of clients are missing."""
    store = PrivateStore(training_of(folder) / PRIVATE, name_of(folder))
    trained = {
        c: record["round"]
        for record in read_rounds(folder)[:number]
        if holds[stage_at(stages, record["round"])[0]].keeps_private
        for c in record["cohort"]
    }
    for client, last in trained.items():
        if not store.path(client, last).is_file():
            raise RepperError(
                f"{store.path(client, last)} is missing: client {client} has its own parameters "
                f"there; restore it, or begin again with --overwrite"
            )
