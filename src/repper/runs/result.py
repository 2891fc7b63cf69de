"""The result of a run, and the scores of its clients."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from repper.config import Config
from repper.datasets.dataset import Dataset
from repper.encoders.encoder import EncoderSpec, save_encoder
from repper.engines.engine import Personal
from repper.errors import RepperError
from repper.evaluate import Score, summarize
from repper.files import read_json, write_atomically
from repper.params import Params, digest
from repper.runs.run_folder import CURVES, ENCODER, RESULT, SCORES

SCORE_COLUMNS = ("client", "head", "class", "n_train", "n", "correct")
CURVE_COLUMNS = ("client", "epoch", "accuracy")
RESULT_KEYS = {"rounds", "accuracy", "groups", "clients", "classes"}


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


def write_result(
    folder: Path,
    config: Config,
    spec: EncoderSpec,
    data: Dataset,
    shared: Params,
    encoder: tuple[Params, str],
    personal: Sequence[Personal],
    facts: dict[str, Any],
) -> None:
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
