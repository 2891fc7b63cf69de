"""The parsers of bytes that somebody else wrote: files, and messages of a federation.

Each takes any bytes, and either reads them or raises a `RepperError`. `tests/test_foreign.py` and
`fuzz/` give them bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pyarrow
import torch
from PIL import Image
from pyarrow import parquet

from repper.basics.errors import RepperError
from repper.basics.params import read_params, save_params
from repper.basics.tensor_files import sealed
from repper.data import Dataset, Split
from repper.data.cifar import read_binary
from repper.data.fashion import read_idx
from repper.data.fetch import unpack
from repper.data.hub import HubCopy
from repper.data.images import read_image
from repper.data.location import Request
from repper.data.partition import read_partition, split
from repper.data.unpickle import read_arrays
from repper.edge.model_folder import read_model
from repper.edge.onnx_file import MARK, check
from repper.edge.saved_head import SavedHead, read_head
from repper.edge.unknown import Unknown, read_unknown
from repper.heads.scores import summarize
from repper.personal.album import Album, read_album
from repper.runs.result import read_result, read_scores
from repper.runs.round_log import read_rounds
from repper.settings.config import Config
from repper.settings.config_file import read_config

Parser = Callable[[bytes, Path], object]
"""Reads bytes; it may write them into an empty folder first."""
DIGEST = "ab" * 32


def _toy() -> Dataset:
    labels = np.arange(24) % 3
    return Dataset("toy", ("a", "b", "c"), *(Split(np.zeros((24, 1, 2, 2), np.uint8), labels),) * 2)


TOY = _toy()


def _file(read: Callable[[Path], object], name: str = "file") -> Parser:
    """A parser of a file with this name."""

    def parse(data: bytes, folder: Path) -> object:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return parse


def _in_folder(read: Callable[[Path], object], name: str) -> Parser:
    """A parser of a folder with one file of this name."""
    return _file(lambda path: read(path.parent), name)


def _read_hub(folder: Path) -> object:
    copy = HubCopy("plain_text", "img", "label", 3, 8)
    (folder / "test-0.parquet").write_bytes((folder / "train-0.parquet").read_bytes())
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(folder)):
        return copy.read([folder], Request(folder))


def _onnx(data: bytes, _folder: Path) -> None:
    """A file with these bytes after the mark of ours; its checksum is right, so all is read."""
    with suppress(RepperError):
        check(data, "file")
    blank = b"\x08\x08\x12\x06repper" + data + b"\x72\x51" + MARK + b"0" * 64
    check(blank[:-64] + sha256(blank).hexdigest().encode(), "file")


def _parsers() -> dict[str, Parser]:
    album = SimpleNamespace(digest=DIGEST, features=2)
    found: dict[str, Parser] = {
        "params": _file(read_params),
        "head": _file(read_head),
        "album": _file(lambda path: read_album(path, album)),  # type: ignore[arg-type]
        "unknown": _file(lambda path: read_unknown(path, DIGEST)),
        "idx": _file(read_idx),
        "cifar-pickle": _file(read_arrays),
        "cifar-binary": _file(lambda path: read_binary(path, 1, 10)),
        "archive": _file(lambda path: unpack(path, ".", path.with_name("out"))),
        "hub": _in_folder(_read_hub, "train-0.parquet"),
        "image": _file(lambda path: read_image(path, 3, 8)),
        "config": _file(lambda path: Config(**read_config(path))),
        "manifest": _file(lambda path: read_partition(path, TOY)),
        "result": _in_folder(read_result, "result.json"),
        "rounds": _in_folder(read_rounds, "rounds.jsonl"),
        "scores": _in_folder(lambda folder: read_scores(folder, {}), "clients.parquet"),
        "model": _in_folder(read_model, "model.json"),
        "onnx": _onnx,
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries that Flower imports
            from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
            from flwr.supercore.task_identity import TaskIdentity

            from repper.flower import wire
            from repper.flower.site import Site
    except ImportError:
        return found

    def message(**content: object) -> Message:
        """A message; Flower sets who we are in a process of its own."""
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        try:
            return Message(RecordDict(content), 1, wire.FIT)
        finally:
            TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = None

    def array(data: bytes, _folder: Path) -> object:
        packed = Array("uint8", (len(data),), wire.PACKING, data)
        told = ConfigRecord({"examples": 3, "loss": 0.5})
        params = ArrayRecord({wire.PACKED: packed})
        return wire.update_in(message(**{wire.PARAMS: params, wire.TOLD: told}), 0)

    def question(data: bytes, folder: Path) -> object:
        """What a site is asked, after it was sent."""
        told = {"settings": data.decode(errors="replace"), "run": DIGEST, "client": 0,
                "classes": "a\nb"}  # fmt: skip
        asked = message(**{wire.TOLD: ConfigRecord(told)})
        return Site(folder, "photos").part_in(wire.told_in(asked))

    def site(data: bytes, folder: Path) -> object:
        (folder / "site.toml").write_bytes(data)
        told = {"settings": '{"clients": 2, "rounds": 3, "width": 0.5}', "run": DIGEST, "client": 0,
                "classes": "a\nb"}  # fmt: skip
        return Site.open(folder).part_in(told)

    return found | {"array": array, "question": question, "site": site}


PARSERS: Mapping[str, Parser] = _parsers()


def _saved(write: Callable[[Path], object], folder: Path) -> bytes:
    write(folder / "sample")
    return (folder / "sample").read_bytes()


def _table(**columns: list[object]) -> bytes:
    content = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), content)
    return content.getvalue()


def _picture(kind: str) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (8, 8), (1, 2, 3)).save(content, kind)
    return content.getvalue()


def samples(folder: Path) -> dict[str, list[bytes]]:
    """Small files that each parser reads: what the corpus in `fuzz/` was made of."""
    pixels = np.arange(12, dtype=np.uint8)
    idx = struct.pack(">BBBBIII", 0, 0, 8, 3, 3, 2, 2) + pixels.tobytes()
    head = SavedHead(
        "linear", "linear",
        {"mean": np.zeros(2), "scale": np.ones(2), "weight": np.eye(2), "bias": np.zeros(2)},
        (0, 2), ("cat", "dog"), DIGEST,
    )  # fmt: skip
    features = np.ones((2, 2), np.float32)
    album = Album(DIGEST, features, ("a" * 64, "b" * 64), ("cat", "dog"), ("1.png", "2.png"))
    rule = Unknown(np.zeros((2, 2), np.float32), np.eye(2, dtype=np.float32), 1.5, DIGEST)
    accuracy = summarize([])
    group = {"clients": 0, "accuracy": None}
    result = {"run": "a", "method": "fedavg", "personalize": "keep", "rounds": 1, "chosen_round": 1,
              "accuracy": accuracy, "encoder_digest": DIGEST, "heads_digest": DIGEST,
              "encoder_origin": "shared", "clients": 2, "classes": ["a"],
              "seconds": {"crl": 1.0, "pcl": 1.0},
              "cost": {"images": 6, "bytes_up": 8, "bytes_down": 8},
              "groups": {"took_part": group, "never_took_part": group}}  # fmt: skip
    of_site = {"client": 0, "digests": {}} | {
        key: result[key]
        for key in (
            "method",
            "personalize",
            "rounds",
            "chosen_round",
            "accuracy",
            "clients",
            "classes",
        )
    }
    record = {"cohort": [0], "examples": 3, "images": 6, "bytes_up": 8, "bytes_down": 8,
              "loss": 0.5, "knn": None, "seconds": 0.1}  # fmt: skip
    log = [json.dumps({"round": number, **record}) + "\n" for number in (1, 2)]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo("folder/file")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    scores = ("client", "head", "class", "n_train", "n", "correct")
    config = (
        b'data = "digits"\nrounds = 3\n[method]\nname = "fedprox"\nmu = 0.1\n[clients]\ncount = 4\n'
    )
    model = {
        "format": "repper-model-1",
        "encoder": {
            "sha256": DIGEST, "digest": DIGEST, "precision": "fp32", "architecture": "tiny",
            "features": 2, "origin": "random weights", "file": "encoder.onnx",
        },
        "input": {"size": 8, "channels": 1}, "classes": None, "head": None, "unknown": None,
        "scores": None, "versions": {},
    }  # fmt: skip
    found = {
        "params": [_saved(lambda p: save_params(p, {"a": torch.ones(2)}, {"round": "1"}), folder)],
        "head": [_saved(head.save, folder)],
        "album": [_saved(album.save, folder)],
        "unknown": [_saved(rule.save, folder)],
        "idx": [idx, gzip.compress(idx, mtime=0)],
        "cifar-pickle": [pickle.dumps({"data": pixels, "labels": [1, 2]}, protocol=3)],
        "cifar-binary": [bytes(3073)],
        "archive": [gzip.compress(archive.getvalue(), mtime=0)],
        "hub": [_table(img=[{"bytes": _picture("png"), "path": "x"}], label=[1])],
        "image": [_picture(kind) for kind in ("png", "jpeg", "bmp", "webp")],
        "config": [config],
        "manifest": [_saved(lambda path: split(TOY, "iid", clients=2).save(path, TOY), folder)],
        "result": [json.dumps(one).encode() for one in (result, of_site)],
        "rounds": ["".join(log).encode()],
        "scores": [_table(**{name: [1, 2] for name in scores})],
        "model": [json.dumps(model).encode()],
        "onnx": [b"\x72\x21\x0a\x0drepper.format\x12\x10repper-encoder-1\x3a\x02\x0a\x00"],
        "array": [b'{"encoder.x": ["float32", [2, 2]]}\n' + features.tobytes()],
        "question": [b'{"clients": 2, "rounds": 3, "method": "fedrep", "seed": 1}'],
        "site": [b'data = "photos"\nshare_scores = true\n[limits]\nrounds = 20\n'],
    }
    return {name: found[name] for name in PARSERS}


def resealed(data: bytes) -> bytes:
    """A safetensors file with another seal, which is right for what its header says now."""
    try:
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        header["__metadata__"].pop("seal", None)
        text = json.dumps(header).encode()
        return sealed(len(text).to_bytes(8, "little") + text + data[end:])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return data


SEALED = {"params", "head", "album", "unknown"}
