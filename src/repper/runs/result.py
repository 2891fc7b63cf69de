"""The result of a run, and the scores of its clients."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet
from torch import Tensor, nn

from repper.basics.documents import build, read_json, write_json
from repper.basics.errors import RepperError
from repper.basics.files import write_atomically
from repper.basics.params import Params, digest, params_of, read_params, save_params
from repper.basics.tensor_files import check_ties, read_notes
from repper.encoders.encoder import save_encoder
from repper.engines.engine import Personal
from repper.engines.task import Work
from repper.heads.scores import Score, mean_of, summarize
from repper.runs.run_folder import COMMON, CURVES, ENCODER, HEADS, RESULT, ROUNDS, SCORES
from repper.settings.config import Config

SCORE_COLUMNS = ("client", "head", "class", "n_train", "n", "correct")
CURVE_COLUMNS = ("client", "epoch", "accuracy")
REMEDY = "delete it and resume the run"


@dataclass(frozen=True)
class _Accuracy:
    """What `summarize` gives."""

    mean: float | None
    std: float | None
    worst: float | None
    worst_tenth: float | None
    weighted: float | None
    balanced: float | None
    head_classes: float | None
    tail_classes: float | None


@dataclass(frozen=True)
class _Group:
    clients: int
    accuracy: _Accuracy | None


@dataclass(frozen=True)
class _Groups:
    took_part: _Group
    never_took_part: _Group


@dataclass(frozen=True)
class _Cost:
    images: int
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class _Seconds:
    crl: float
    pcl: float


@dataclass(frozen=True)
class _Attack:
    """What `attack_facts` gives; the last three are of a backdoor."""

    name: str
    clients: list[int]
    honest: int
    target: str = ""
    success: float | None = None
    without_mark: float | None = None


@dataclass(frozen=True)
class _SiteResult:
    """What is read of the result that a site of a federation keeps; it may have other keys."""

    client: int
    method: str
    personalize: str
    rounds: int
    chosen_round: int
    accuracy: _Accuracy
    clients: int
    classes: list[str]
    digests: dict[str, str]


@dataclass(frozen=True)
class _Result:
    """What is read of any other result; it may have other keys."""

    run: str
    method: str
    personalize: str
    rounds: int
    chosen_round: int
    accuracy: _Accuracy
    encoder_digest: str
    heads_digest: str | None
    encoder_origin: str
    clients: int
    classes: list[str]
    seconds: _Seconds
    cost: _Cost
    groups: _Groups
    digests: dict[str, str] = field(default_factory=dict)
    sites: dict[str, float | None] = field(default_factory=dict)
    attack: _Attack = _Attack("", [], 0)


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result of a finished run, or None if it is not finished."""
    if not (folder / RESULT).is_file():
        return None
    result = read_json(folder / RESULT, REMEDY)
    kind: type[_SiteResult | _Result] = _SiteResult if "client" in result else _Result
    build(kind, result, folder / RESULT, REMEDY)
    return dict(result)


def write_common(folder: Path, layer: tuple[Tensor, Tensor], encoder: str) -> None:
    """Save the head that all clients have trained together, for clients that join later."""
    weight, bias = layer
    params = {"common.weight": weight, "common.bias": bias}
    save_params(folder / COMMON, params, {"encoder": encoder})


def read_common(folder: Path) -> Params:
    """The head that the clients of a run have trained together."""
    if not (folder / COMMON).is_file():
        raise RepperError(
            f"{folder} has no common head: choose another --personalize, or train one by repeating "
            f"its run with --personalize common"
        )
    params, notes = read_params(folder / COMMON)
    known = (read_result(folder) or {}).get("digests", {})
    check_ties(folder / COMMON, notes, digest=known.get(COMMON, ""))
    return params


def refuse_sites(folder: Path, result: Mapping[str, Any]) -> None:
    """Refuse to read scores and heads at a federation's server, which has none."""
    if "sites" in result:
        raise RepperError(
            f"{folder} is the run folder of a federation's server: heads and scores are at the "
            f"sites"
        )


def read_scores(folder: Path, result: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The columns of the table of scores that a result was written with."""
    return _read_table(folder / SCORES, SCORE_COLUMNS, result)


def read_curves(folder: Path, result: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The columns of the table of accuracies after each epoch; empty if none were asked for."""
    if not (folder / CURVES).is_file() and CURVES not in result.get("digests", {}):
        return {name: [] for name in CURVE_COLUMNS}
    return _read_table(folder / CURVES, CURVE_COLUMNS, result)


def _read_table(
    path: Path, columns: Sequence[str], result: Mapping[str, Any]
) -> dict[str, list[Any]]:
    try:
        content = path.read_bytes()
        known = result.get("digests", {}).get(path.name)
        if known not in (None, hashlib.sha256(content).hexdigest()):
            raise OSError(f"{RESULT} was written with another one")
        table = parquet.read_table(pyarrow.BufferReader(content))
        return {name: table[name].to_pylist() for name in columns}
    except (OSError, pyarrow.ArrowException, KeyError) as error:
        raise RepperError(
            f"{path} is missing or damaged: delete {RESULT} beside it and resume the run"
        ) from error


def write_result(
    folder: Path,
    config: Config,
    work: Work,
    shared: Params,
    encoder: tuple[Params, str],
    personal: Sequence[Personal],
    facts: dict[str, Any],
    *,
    log: str,
    keeps_private: bool,
) -> None:
    """Write encoder, scores and result; the result goes last: it marks a finished run.

    It has digests of all other files of the run; that of the log is given.

    `encoder` is the one for newcomers, if there is one, and how it came about. With
    `keeps_private`, clients have trained parameters of their own, which the digest covers too.
    """
    digests = {ROUNDS: log}
    if (folder / COMMON).is_file():
        digests[COMMON] = read_notes(folder / COMMON)["digest"]
    if encoder[0].keys() == params_of(nn.ModuleDict({"encoder": work.spec.build()})).keys():
        save_encoder(folder / ENCODER, work.spec, *encoder)
        digests[ENCODER] = digest(encoder[0])
    scores = [p.test for p in personal if p.test is not None]
    if scores:
        digests[SCORES] = _write_table(folder / SCORES, SCORE_COLUMNS, _score_rows(scores))
    curves = [(p.client, epoch, accuracy) for p in personal for epoch, accuracy in p.curve]
    if curves:
        digests[CURVES] = _write_table(folder / CURVES, CURVE_COLUMNS, curves)
    accuracy = summarize(scores)
    if not scores:
        accuracy["mean"] = mean_of(p.told for p in personal)
    private = {p.client: p.private_digest for p in personal}
    whole = not keeps_private or (len(private) == config.clients and None not in private.values())
    own = [f"{client} {found}" for client, found in private.items() if found and whole]
    heads = [p.head_digest for p in personal]
    digests |= {f"{HEADS}/{p.client}.safetensors": p.head_digest for p in personal if p.head_digest}
    result = {
        "run": str(folder),
        "method": config.shown("method"),
        "personalize": config.shown("personalize"),
        "rounds": config.rounds,
        "accuracy": accuracy,
        "encoder_digest": digest_of_all(shared, own),
        "digest_covers": "all that was trained" if whole else "shared parameters only",
        "heads_digest": None if None in heads else _digest_of(heads),
        "encoder_origin": encoder[1],
        "clients": config.clients,
        "classes": list(work.classes),
        **facts,
        "digests": digests,
    }
    write_json(folder / RESULT, result)


def _digest_of(heads: Iterable[str | None]) -> str:
    return hashlib.sha256("".join(filter(None, heads)).encode()).hexdigest()


def digest_of_all(shared: Params, private: Sequence[str]) -> str:
    """One digest of all trained parameters: the shared ones, then each client's own."""
    if not private:
        return digest(shared)
    return hashlib.sha256("\n".join([digest(shared), *private]).encode()).hexdigest()


def _score_rows(scores: Iterable[Score]) -> list[tuple[Any, ...]]:
    return [
        (s.client, s.personalize, label, s.train[label], s.tested[label], s.correct[label])
        for s in scores
        for label in np.flatnonzero(s.train + s.tested)
    ]


def _write_table(path: Path, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    """Write a table, and return the SHA-256 of its file."""
    table = pyarrow.table(dict(zip(columns, zip(*rows, strict=True), strict=True)))
    content = pyarrow.BufferOutputStream()
    parquet.write_table(table, content)
    packed: bytes = content.getvalue().to_pybytes()
    write_atomically(path, packed)
    return hashlib.sha256(packed).hexdigest()
