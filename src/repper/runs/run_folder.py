"""The files of a run folder, written so that a crash at any moment loses no finished round."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from repper.config import Config
from repper.config_file import read_config, write_config
from repper.encoders.encoder import read_encoder
from repper.errors import RepperError
from repper.files import (
    InUseError,
    check_one_of,
    check_same,
    lock_file,
    read_json,
    write_atomically,
)
from repper.params import digest
from repper.runs.environment import environment

CONFIG = "config.toml"
PARTITION = "partition.json"
ENVIRONMENT = "environment.json"
ROUNDS = "rounds.jsonl"
CHECKPOINT = Path("checkpoint") / "last.safetensors"
ENCODER = "encoder.safetensors"
COMMON = "common.safetensors"
HEADS = "heads"
PRIVATE = "private"
SITES = "sites.json"
SCORES = "clients.parquet"
CURVES = "curves.parquet"
RESULT = "result.json"
EMBEDDING = "embedding.json"
BOARD = "tensorboard"
LOCK = ".lock"
BEFORE_CONFIG = {PARTITION, ENVIRONMENT, "checkpoint", HEADS, PRIVATE, SITES, LOCK}
OWN = BEFORE_CONFIG | {CONFIG, ROUNDS, ENCODER, COMMON, SCORES, CURVES, RESULT, EMBEDDING, BOARD}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a run folder for this process; the lock ends with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).touch()
    except OSError as error:
        raise RepperError(f"cannot write to --out {folder}: {error.strerror}") from error
    try:
        with lock_file(folder / LOCK, wait=False):
            yield
    except InUseError as error:
        raise RepperError(
            f"another process is running in {folder}: wait for it, or use another --out"
        ) from error


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
    check_same(folder, "run", compared(old), compared(new))


def write_start(folder: Path, config: Config) -> None:
    """Write what is known before the first round. The configuration goes last: it marks a run."""
    before = read_json(folder / ENVIRONMENT) if (folder / ENVIRONMENT).is_file() else {}
    trained = {key: before[key] for key in ("training", "reused") if key in before}
    now = environment(config.device) | trained
    if config.init:
        now["init"] = _init_digest(config)
    write_atomically(folder / ENVIRONMENT, json.dumps(now, indent=2))
    write_config(folder / CONFIG, config)


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


def shift_seed(config: Config, dealing: Mapping[str, Any]) -> int:
    """The seed of how clients' images differ: that of the run in which the clients were new.

    `dealing` are the settings of the partition.
    """
    if config.shift != "none" and config.init_clients == "same" and config.init is not None:
        folder = Path(config.init)
        return shift_seed(read_run_config(folder), read_json(folder / PARTITION)["settings"])
    return int(dealing.get("seed", config.seed))
