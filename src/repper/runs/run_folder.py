"""The files of a run folder, written so that a crash at any moment loses no finished round.

PyTorch is imported inside functions only, so that `repper runs` is quick.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from repper.basics.documents import build, check_kinds, read_json, write_json
from repper.basics.errors import RepperError
from repper.basics.files import InUseError, check_one_of, check_same, clear_leftovers, lock_file
from repper.settings.config import Config
from repper.settings.config_file import read_config, write_config

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
MLFLOW_RUN = "mlflow.json"
"""Which of MLflow's runs is the one in this folder."""
LEDGER = "privacy.json"
NOISE_KEY = "noise.key"
LOCK = ".lock"
TRAINING = "training.json"
TRAININGS = "trainings"
BEFORE_CONFIG = {PARTITION, ENVIRONMENT, TRAINING, "checkpoint", HEADS, PRIVATE, SITES, LOCK}
ENVIRONMENT_REMEDY = "restore it, or begin again with --overwrite"
OWN = BEFORE_CONFIG | {CONFIG, ROUNDS, ENCODER, COMMON, SCORES, CURVES, RESULT, EMBEDDING, BOARD}
OWN |= {LEDGER, NOISE_KEY, MLFLOW_RUN}


@dataclass(frozen=True)
class _Made:
    """What is read of where a run was made."""

    python: str
    packages: dict[str, str]
    system: str
    processor: str
    cores: int
    device: str
    commit: str | None
    code: str = ""


@dataclass(frozen=True)
class _Environment(_Made):
    digests: dict[str, str] = field(default_factory=dict)
    earlier: list[dict[str, Any]] = field(default_factory=list)
    training: dict[str, Any] = field(default_factory=dict)
    reused: bool = False
    init: str = ""


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
            clear_leftovers(folder)
            yield
    except InUseError as error:
        raise RepperError(
            f"another process is running in {folder}: wait for it, or use another --out"
        ) from error


def training_of(folder: Path) -> Path:
    """The folder of the run's training: its own folder, or another one that it names.

    Rounds, checkpoint, private parameters and privacy ledger are there. A run that trains for
    itself alone has them beside its heads.
    """
    path = folder / TRAINING
    if not path.is_file():
        return folder
    remedy = f"restore it, or remove {folder} and give its command again"
    found = read_json(path, remedy)
    check_kinds(path, found, {"folder": str}, remedy)
    training = Path(os.path.normpath(folder / found.get("folder", "")))
    if training == folder or not (training / CONFIG).is_file():
        raise RepperError(f"{folder} needs the training in {training}, which is missing: {remedy}")
    return training


def point_to(training: Path, folder: Path) -> None:
    """Note in a run's folder that its training is in another one."""
    write_json(folder / TRAINING, {"folder": os.path.relpath(training, folder)})


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
    """Whether a folder holds more than a lock, and an unfinished first file."""
    if not folder.is_dir():
        return False
    return any(p.name != LOCK and not p.name.endswith(".tmp") for p in folder.iterdir())


def prepare(folder: Path, training: Path | None = None, *, overwrite: bool) -> None:
    """Make the folders of a run; with `overwrite`, without what an earlier run left there.

    `training` is the folder of its training, unless that is its own.
    """
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
        ((training or folder) / CHECKPOINT).parent.mkdir(parents=True, exist_ok=True)
        (folder / HEADS).mkdir(exist_ok=True)
    except OSError as error:
        raise RepperError(f"cannot write to {folder}: {error.strerror or error}") from error


def _check_same(old: Config, new: Config, folder: Path, *, heads: bool) -> None:
    """Refuse to resume with other settings; those of heads may change until there are `heads`."""
    compared = Config.identity if heads or new.evaluate_every else Config.training
    check_same(folder, "run", compared(old), compared(new))


def write_start(
    folder: Path, config: Config, digests: Mapping[str, str], training: Path | None = None
) -> None:
    """Write what is known before the first round. The configuration goes last: it marks a run.

    `digests` are those of what the run begins with; of one that has begun before they stay, and
    of a run whose `training` is in another folder they are those there. Where a finished run was
    made stays, too; where earlier parts of another one were made is noted.
    """
    from repper.runs.environment import SAME_DIGITS, environment

    before = read_environment(folder) if (folder / CONFIG).is_file() else {}
    finished = (folder / RESULT).is_file()
    if training is not None and not finished:
        made = read_environment(training)
        before = {"training": made} | made
    now = {"digests": dict(digests)} | before
    if not (before and finished):
        now |= environment(config.device)
        part = {key: before.get(key) for key in SAME_DIGITS}
        if before and part != {key: now[key] for key in SAME_DIGITS}:
            now["earlier"] = [*before.get("earlier", []), part]
    if config.init:
        now["init"] = _init_digest(config)
    write_json(folder / ENVIRONMENT, now)
    write_config(folder / CONFIG, config)


def read_environment(folder: Path) -> dict[str, Any]:
    """The environment of a run; empty if it is not known."""
    path = folder / ENVIRONMENT
    if not path.is_file():
        if (folder / RESULT).is_file() and (folder / PARTITION).is_file():
            raise RepperError(f"{path} is missing: {ENVIRONMENT_REMEDY}")
        return {}  # a site's folder has none
    found: dict[str, Any] = read_json(path, ENVIRONMENT_REMEDY)
    build(_Environment, found, path, ENVIRONMENT_REMEDY)
    if "training" in found:
        build(_Made, found["training"], path, ENVIRONMENT_REMEDY, "training")
    return found


def read_manifest(folder: Path) -> dict[str, Any]:
    """The run's own manifest of its partition."""
    path = folder / PARTITION
    found: dict[str, Any] = read_json(path)
    check_kinds(path, found, {"settings": dict[str, Any], "hash": str})
    known = read_environment(folder).get("digests", {}).get("partition")
    if not {"settings", "hash"} <= found.keys() or known not in (None, found["hash"]):
        raise RepperError(f"{path} is not the partition of this run: restore it")
    return found


def check_whole(folder: Path) -> None:
    """Refuse a run's folder that has lost one of its descriptions; a site's has neither."""
    if any((folder / name).is_file() for name in (PARTITION, ENVIRONMENT)):
        read_manifest(folder)


def training_digest(config: Config) -> str:
    """A SHA-256 of the settings that decide what is trained, but for the rounds."""
    tested = config if config.validation else replace(config, evaluate_every=0)
    # As TOML may or may not write a whole number with a point.
    whole = {key: float(v) if type(v) is int else v for key, v in tested.training().items()}
    return _sha256(whole)


def name_of_run(digests: Mapping[str, str]) -> str:
    """The id of a run, in each of its files: a digest of settings, partition and data.

    Runs that are equal have the same, and so have those which differ in their heads only.
    """
    return _sha256({key: digests.get(key) for key in ("settings", "partition", "data")})


def name_of(folder: Path) -> str:
    """The run id in the files of a folder; empty if an older version began the run."""
    if not (folder / CONFIG).is_file():
        return ""
    digests = read_environment(folder).get("digests")
    return name_of_run(digests) if digests else ""


def _sha256(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def check_init(folder: Path, config: Config) -> None:
    """Refuse to resume a run if the encoder of --init has changed."""
    before = read_environment(folder).get("init") if config.init else None
    if before is not None and before != _init_digest(config):
        raise RepperError(
            f"the encoder in {config.init} has changed since {folder} was begun: restore it, or "
            f"choose another --out"
        )


def _init_digest(config: Config) -> str:
    from repper.basics.params import digest
    from repper.encoders.encoder import read_encoder
    from repper.encoders.published import is_published

    path = Path(str(config.init))
    if not is_published(path):
        return digest(read_encoder(path)[1])
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shift_seed(config: Config, dealing: Mapping[str, Any]) -> int:
    """The seed of the shift: that of the run in which the clients were new.

    `dealing` are the settings of the partition.
    """
    if config.shift != "none" and config.init_clients == "same" and config.init is not None:
        folder = Path(config.init)
        return shift_seed(read_run_config(folder), read_manifest(folder)["settings"])
    return int(dealing.get("seed", config.seed))
