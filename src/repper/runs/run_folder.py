"""The files of a run folder, written so that a crash at any moment loses no finished round."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import tomli_w
from pyarrow import parquet

from repper.config import Config
from repper.config_file import read_config
from repper.datasets.dataset import Dataset
from repper.encoders.encoder import EncoderSpec, read_encoder, save_encoder
from repper.engines.engine import Personal
from repper.errors import RepperError
from repper.evaluate import Score, summarize
from repper.files import check_one_of, read_json, write_atomically
from repper.methods.method import Method
from repper.params import Params, digest, read_params, save_params
from repper.partition import Partition
from repper.private import PrivateStore
from repper.runs.environment import environment

CONFIG = "config.toml"
PARTITION = "partition.json"
ENVIRONMENT = "environment.json"
ROUNDS = "rounds.jsonl"
CHECKPOINT = Path("checkpoint") / "last.safetensors"
CHOSEN = "chosen-{}.safetensors"
ENCODER = "encoder.safetensors"
HEADS = "heads"
PRIVATE = "private"
SITES = "sites.json"
SCORES = "clients.parquet"
CURVES = "curves.parquet"
RESULT = "result.json"
EMBEDDING = "embedding.json"
BOARD = "tensorboard"
LOCK = ".lock"
SCORE_COLUMNS = ("client", "head", "class", "n_train", "n", "correct")
CURVE_COLUMNS = ("client", "epoch", "accuracy")
RESULT_KEYS = {"rounds", "accuracy", "groups", "clients", "classes"}
BEFORE_CONFIG = {PARTITION, ENVIRONMENT, "checkpoint", HEADS, PRIVATE, SITES, LOCK}
OWN = BEFORE_CONFIG | {CONFIG, ROUNDS, ENCODER, SCORES, CURVES, RESULT, EMBEDDING, BOARD}


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands: the last finished round, and the one chosen on validation data so far."""

    number: int
    shared: Params
    chosen: int = 0
    chosen_accuracy: float = -1.0


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a run folder for this process; the lock ends with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise RepperError(f"cannot write to --out {folder}: {error.strerror}") from error
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RepperError(
                f"another process is running in {folder}: wait for it, or use another --out"
            ) from error
        yield


def read_run_config(folder: Path) -> Config:
    if not (folder / CONFIG).is_file():
        raise RepperError(f"{folder} is not a run folder: it has no {CONFIG}")
    return Config(**read_config(folder / CONFIG))


def check_folder(folder: Path, config: Config, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that this run may not be written to; write nothing."""
    check_one_of(resume, overwrite)
    try:
        found = {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return
    except OSError as error:
        raise RepperError(f"cannot use --out {folder}: {error.strerror}") from error
    if CONFIG not in found:
        # A crash at the very start leaves some of our files, but not yet the configuration.
        strange = [name for name in found - BEFORE_CONFIG if not name.endswith(".tmp")]
        if strange or _holds_any(folder / "checkpoint") or _holds_any(folder / HEADS):
            raise RepperError(
                f"--out {folder} is not empty and holds no run with a {CONFIG}: "
                f"choose another folder"
            )
    elif resume:
        _check_same(read_run_config(folder), config, folder, heads=RESULT in found)
    elif not overwrite:
        raise RepperError(
            f"{folder} already holds a run: add --resume to go on with it, "
            f"--overwrite to replace it, or choose another --out"
        )


def _holds_any(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def holds_more(folder: Path) -> bool:
    """Whether a folder holds more than a lock, and what a crash has left of a first file."""
    if not folder.is_dir():
        return False
    return any(p.name != LOCK and not p.name.endswith(".tmp") for p in folder.iterdir())


def prepare(folder: Path, *, overwrite: bool) -> None:
    """Make the folders of a run; with `overwrite`, without what an earlier run left there."""
    try:
        if overwrite and (folder / CONFIG).is_file():
            # The result first and the configuration last: a crash on the way leaves an unfinished
            # run, which can be overwritten again.
            for name in (RESULT, *sorted(OWN - {RESULT, CONFIG, LOCK}), CONFIG):
                path = folder / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        (folder / CHECKPOINT).parent.mkdir(parents=True, exist_ok=True)
        (folder / HEADS).mkdir(exist_ok=True)
    except OSError as error:
        raise RepperError(f"cannot write to {folder}: {error.strerror or error}") from error


def _check_same(old: Config, new: Config, folder: Path, *, heads: bool) -> None:
    """Refuse to go on with other settings; those of heads may be others until there are `heads`."""
    compared = Config.identity if heads or new.evaluate_every else Config.training
    before, now = compared(old), compared(new)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            raise RepperError(
                f"{folder} holds another run: its {key} is {before.get(key)}, not {now.get(key)}; "
                f"choose another --out"
            )


def check_private(folder: Path, method: Method, number: int) -> None:
    """Refuse a run of `number` rounds in which what clients keep for themselves was lost."""
    if not method.keeps_private:
        return
    store = PrivateStore(folder / PRIVATE)
    trained = {
        c: record["round"] for record in read_rounds(folder)[:number] for c in record["cohort"]
    }
    for client, last in trained.items():
        if not store.path(client, last).is_file():
            raise RepperError(
                f"{store.path(client, last)} is missing: client {client} has its own parameters "
                f"there; restore it, or begin again with --overwrite"
            )


def write_start(folder: Path, config: Config, data: Dataset, partition: Partition) -> None:
    """Write what is known before the first round. The configuration goes last: it marks a run."""
    partition.save(folder / PARTITION, data)
    before = read_json(folder / ENVIRONMENT) if (folder / ENVIRONMENT).is_file() else {}
    trained = {key: before[key] for key in ("training", "reused") if key in before}
    now = environment(config.device) | trained
    if config.init:
        now["init"] = _init_digest(config)
    write_atomically(folder / ENVIRONMENT, json.dumps(now, indent=2))
    write_atomically(folder / CONFIG, tomli_w.dumps(config.to_toml()))


def check_init(folder: Path, config: Config) -> None:
    """Refuse a run that began with another encoder than --init has now."""
    before = read_json(folder / ENVIRONMENT).get("init") if config.init else None
    if before is not None and before != _init_digest(config):
        raise RepperError(
            f"{folder} was begun with another encoder than {config.init} has now: restore it, or "
            f"choose another --out"
        )


def _init_digest(config: Config) -> str:
    return digest(read_encoder(Path(str(config.init)))[1])


def write_round(folder: Path, record: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Log a finished round, then make it the one to resume from.

    In this order a crash between the two leaves a line too many, which `read_checkpoint` drops, or
    a chosen round too many, which is chosen again or never asked for.
    """
    with (folder / ROUNDS).open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())
    notes = {
        "round": str(checkpoint.number),
        "chosen": str(checkpoint.chosen),
        "chosen_accuracy": repr(checkpoint.chosen_accuracy),
    }
    if checkpoint.chosen == checkpoint.number:
        save_params(_chosen(folder, checkpoint.number), checkpoint.shared, notes)
    save_params(folder / CHECKPOINT, checkpoint.shared, notes)
    for path in (folder / CHECKPOINT).parent.glob(CHOSEN.format("*")):
        if path != _chosen(folder, checkpoint.chosen):
            path.unlink()


def read_checkpoint(folder: Path, like: Params) -> Checkpoint | None:
    """Where to go on from, or None if no round was finished.

    The log is cut back to it: a crash may have come between a round's line and its checkpoint.
    """
    if not (folder / CHECKPOINT).is_file():
        write_atomically(folder / ROUNDS, "")
        return None
    try:
        params, notes = read_params(folder / CHECKPOINT)
    except RepperError as error:
        raise RepperError(f"{error}; restore it, or begin again with --overwrite") from error
    if {n: t.shape for n, t in params.items()} != {n: t.shape for n, t in like.items()}:
        raise RepperError(f"{folder / CHECKPOINT} does not hold the parameters of this run")
    checkpoint = Checkpoint(
        int(notes["round"]), params, int(notes["chosen"]), float(notes["chosen_accuracy"])
    )
    keep = read_rounds(folder)[: checkpoint.number]
    if len(keep) < checkpoint.number:
        raise RepperError(
            f"{folder / ROUNDS} lacks rounds that the checkpoint has; restore it, or begin again "
            f"with --overwrite"
        )
    write_atomically(folder / ROUNDS, "".join(json.dumps(record) + "\n" for record in keep))
    return checkpoint


def read_chosen(folder: Path, number: int) -> Params:
    """The parameters of the round that was chosen on validation data."""
    return read_params(_chosen(folder, number))[0]


def _chosen(folder: Path, number: int) -> Path:
    return (folder / CHECKPOINT).parent / CHOSEN.format(number)


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result of a finished run, or None if it is not finished."""
    if not (folder / RESULT).is_file():
        return None
    result = read_json(folder / RESULT)
    if isinstance(result, dict) and "sites" in result:
        raise RepperError(
            f"{folder} is that of a federation's server: heads and scores are at the sites"
        )
    if not isinstance(result, dict) or not result.keys() >= RESULT_KEYS:
        raise RepperError(f"{folder / RESULT} is damaged: delete it and resume the run")
    return result


def read_scores(folder: Path) -> dict[str, list[Any]]:
    """The columns of the table of scores."""
    return _read_table(folder / SCORES, SCORE_COLUMNS)


def read_curves(folder: Path) -> dict[str, list[Any]]:
    """The columns of the table of accuracies after each epoch; empty if none were asked for."""
    if not (folder / CURVES).is_file():
        return {name: [] for name in CURVE_COLUMNS}
    return _read_table(folder / CURVES, CURVE_COLUMNS)


def _read_table(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    try:
        table = parquet.read_table(path)
        return {name: table[name].to_pylist() for name in columns}
    except (OSError, pyarrow.ArrowException, KeyError) as error:
        raise RepperError(
            f"{path} is missing or damaged: delete {RESULT} beside it and resume the run"
        ) from error


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """The log of every round; a last line that a crash has cut off is left out."""
    path = folder / ROUNDS
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    records = []
    for position, line in enumerate(lines):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and record.get("round") == position + 1:
            records.append(record)
        elif position < len(lines) - 1:
            raise RepperError(
                f"{path} is damaged in line {position + 1}; restore it, or begin again with "
                f"--overwrite"
            )
    return records


def write_result(
    folder: Path,
    config: Config,
    spec: EncoderSpec,
    data: Dataset,
    shared: Params,
    encoder: tuple[Params, str],
    personal: Sequence[Personal],
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Write encoder, scores and result; the result goes last: it marks a finished run.

    `encoder` is the one for newcomers, and how it came about.
    """
    save_encoder(folder / ENCODER, spec, *encoder)
    scores = [p.test for p in personal]
    _write_table(folder / SCORES, SCORE_COLUMNS, _score_rows(scores))
    curves = [(p.client, epoch, accuracy) for p in personal for epoch, accuracy in p.curve]
    if curves:
        _write_table(folder / CURVES, CURVE_COLUMNS, curves)
    heads = hashlib.sha256("".join(p.head_digest for p in personal).encode()).hexdigest()
    result = {
        "run": str(folder),
        "method": config.method,
        "personalize": config.personalize,
        "rounds": config.rounds,
        "accuracy": summarize(scores),
        "encoder_digest": digest_of_all(
            shared, [f"{p.client} {p.private_digest}" for p in personal if p.private_digest]
        ),
        "heads_digest": heads,
        "encoder_origin": encoder[1],
        **facts,
        "clients": len(personal),
        "classes": list(data.classes),
    }
    write_atomically(folder / RESULT, json.dumps(result, indent=2))
    return result


def digest_of_all(shared: Params, private: Sequence[str]) -> str:
    """One digest of all that was trained: what is shared, then each client's own."""
    if not private:
        return digest(shared)
    return hashlib.sha256("\n".join([digest(shared), *private]).encode()).hexdigest()


def _score_rows(scores: Iterable[Score]) -> list[tuple[Any, ...]]:
    return [
        (s.client, s.personalize, label, s.train[label], s.tested[label], s.correct[label])
        for s in scores
        for label in np.flatnonzero(s.train + s.tested)
    ]


def _write_table(path: Path, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    table = pyarrow.table(dict(zip(columns, zip(*rows, strict=True), strict=True)))
    content = pyarrow.BufferOutputStream()
    parquet.write_table(table, content)
    write_atomically(path, content.getvalue().to_pybytes())
