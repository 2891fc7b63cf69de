"""What is run with faults: each task has a command, one that goes on after it, and its outcome."""

from __future__ import annotations

import csv
import hashlib
import json
import pickle
import re
import shutil
import struct
import tarfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from commands import Ended, count_changes, end_when_logging, expect, run, start
from PIL import Image

TINY = tuple("--clients 3 --epochs 1 --width 0.25 --participation 0.67 --engine serial".split())
DIGITS = ("--data", "digits", "--train-images", "300", *TINY)
CHANGES = {"seconds", "milliseconds", "megabytes", "reused", "seal", "digests"}
"""What differs between equal runs, wherever it stands in a JSON file."""
VOLATILE = {"environment.json", ".lock", "report.html", "time.csv"}
FREE_NAME = r"-[0-9a-f]{12}(?=\.(safetensors|onnx))"
Content = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A command that is disturbed. `given` are folders of the store that it begins with."""

    name: str
    argv: tuple[str, ...]
    again: tuple[str, ...] = ()
    """What goes on with it, or does it again."""
    out: str = "run"
    given: tuple[str, ...] = ()
    undisturbed: Content | None = None
    seconds: float = 0.0
    changes: int = 0
    said: str = ""
    """What it printed."""


def content_of(folder: Path) -> Content:
    """All that a folder holds and that equal commands write equally."""
    found: Content = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.name in VOLATILE or path.suffix == ".png":
            continue
        if path.name == "rounds.jsonl" and not path.stat().st_size:
            continue  # of no rounds, as good as none
        # Files of a model that was replaced have other names than those of a new one.
        name = re.sub(FREE_NAME, "", str(path.relative_to(folder)))
        found[name if name not in found else f"{name} twice"] = _content(path)
    return found


def _content(path: Path) -> Any:
    data = path.read_bytes()
    if path.suffix == ".csv":
        rows = csv.DictReader(data.decode(errors="replace").splitlines())
        return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    if path.name == "config.toml":  # in a pool or not, and a seal over that
        lines = data.decode(errors="replace").splitlines()
        return [line for line in lines if not line.startswith(("engine =", "# seal"))]
    if path.suffix == ".md":
        text = re.sub(r"\d+ (s|min|h)\b", "TIME", data.decode(errors="replace"))
        return re.sub(r"\| [\d,.]+ \|$", "| seconds |", text, flags=re.MULTILINE)
    with suppress(ValueError, RecursionError):
        if path.suffix == ".json":
            return _constant(json.loads(re.sub(FREE_NAME.encode(), b"", data)))
        if path.suffix == ".jsonl":
            return [_constant(json.loads(line)) for line in data.splitlines()]
    return hashlib.sha256(data).hexdigest()


def _constant(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _constant(value) for key, value in found.items() if key not in CHANGES}
    return [_constant(value) for value in found] if isinstance(found, list) else found


def check_equal(found: Content, expected: Content, what: str) -> None:
    """The same files with the same content."""
    more = sorted(found.keys() - expected.keys())
    less = sorted(expected.keys() - found.keys())
    expect(not more, f"{what}: files too many, {', '.join(more)}")
    expect(not less, f"{what}: files missing, {', '.join(less)}")
    other = [name for name in expected if found[name] != expected[name]]
    expect(not other, f"{what}: other content than undisturbed, {', '.join(other)}")


def tasks() -> dict[str, Task]:
    """All tasks by name."""
    found = []

    def add(name: str, text: str, again: str = "--resume", **more: Any) -> None:
        argv = tuple(text.split())
        found.append(Task(name, argv, (*argv, *again.split()), **more))

    digits = " ".join(DIGITS)
    add("run", f"run {digits} --rounds 3 --out run")
    add("run chosen", f"run {digits} --rounds 3 --validation 0.2 --evaluate-every 1 --out run")
    add("run private", f"run {digits} --rounds 3 --method fedrep --personalize keep --out run")
    add(
        "run stages",
        f"run {digits} --rounds 2 --personalize common --common-rounds 2 --server fedadam "
        "--out run",
    )
    add("run pool", f"run {digits} --rounds 12 --workers 2 --epochs 2 --out run")
    add(
        "compare",
        f"compare {digits} --rounds 2 --out all "
        "--methods repper+linear,fedrep+keep,fedavg+finetune",
        out="all",
    )
    add("reproduce", "reproduce table2 --engine serial --out table", out="table")
    add("join", "join --run run --clients 3 --seed 5 --out new", out="new", given=("run",))
    add(
        "export", "export run --client 0 --no-measure --images 40 --out model", "--overwrite",
        out="model", given=("run",),
    )  # fmt: skip
    add(
        "personalize", "personalize --encoder encoder.onnx --images photos --out mine",
        "--overwrite", out="mine", given=("encoder.onnx", "photos"),
    )  # fmt: skip
    add("add", "add mine --images more", "", out="mine", given=("mine", "more"))
    add("remove", "remove mine --class dog", "", out="mine", given=("mine",))
    return {task.name: task for task in found}


class Store:
    """The folders that cases begin with, made once, and tasks with their undisturbed outcomes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tasks = tasks()
        self.half: dict[str, tuple[str, ...]] = {}
        """Unfinished runs by folder, and the command that goes on with each."""
        self.ends: dict[str, Content] = {}
        """What unfinished runs come to."""

    def path(self, name: str) -> Path:
        return self.root / name

    def copy(self, names: Sequence[str], into: Path) -> None:
        for name in names:
            source, target = self.path(name), into / name
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy(source, target)

    def make(self) -> None:
        """Run everything once without a fault."""
        use_a_small_table()
        self.root.mkdir(parents=True)
        write_photos(self.path("photos"), 8)
        write_photos(self.path("more"), 3, skip=8)
        write_photos(self.path("asked"), 2, skip=20)
        self._do("run", keep="run")
        self._do("export", keep="model")
        shutil.copy(self.path("model") / "encoder.onnx", self.path("encoder.onnx"))
        self._do("personalize", keep="mine")
        self._do("compare", keep="all")
        self._do("reproduce", keep="table")
        for name in self.tasks.keys() - {"run", "export", "personalize", "compare", "reproduce"}:
            self._do(name)
        for name in ("run chosen", "run private", "run stages"):
            self._leave_half(f"half {name}", self.tasks[name].argv)
        write_data(self.root)
        use_small_cifar(self.root)
        for name, argv in DATA.items():
            text = f"run {argv} {' '.join(TINY)} --min-train 2 --rounds 2 --out run"
            self._leave_half(f"half {name}", tuple(text.split()), at=2, given=(name,))
        unpacked = self.path("half archive") / "archive" / "cifar-10-batches-py"
        shutil.rmtree(unpacked)  # else the archive would not be read again
        self._leave_half_with_settings()

    def _do(self, name: str, keep: str = "") -> None:
        task, case = self.tasks[name], self.root / ".case" / "work"
        case.mkdir(parents=True)
        self.copy(task.given, case)
        counted = case.parent / "counted"
        started = start(case, task.argv, inside=count_changes(counted))
        ended = started.end()
        self._must_work(ended, task.argv)
        self.tasks[name] = replace(
            task, undisturbed=content_of(case / task.out), said=ended.out,
            seconds=time.monotonic() - started.began, changes=int(counted.read_text()),
        )  # fmt: skip
        if keep:
            shutil.copytree(case / task.out, self.path(keep))
        shutil.rmtree(case.parent)

    def _leave_half(
        self, name: str, argv: tuple[str, ...], at: int = 3, given: tuple[str, ...] = ()
    ) -> None:
        """Keep a run as a kill leaves it, with what it reads, and what it comes to in the end."""
        case = self.root / ".case" / "work"
        case.mkdir(parents=True)
        self.copy(given, case)
        killed = run(case, argv, end_when_logging(at))
        if killed.code != -9:
            raise RuntimeError(f"{argv} was not killed: {killed.err}")
        shutil.copytree(case, self.path(name))
        self.half[name] = (*argv, "--resume")
        self._must_work(run(case, self.half[name]), argv)
        self.ends[name] = content_of(case / "run")
        shutil.rmtree(case.parent)

    def _leave_half_with_settings(self) -> None:
        """One of settings in a file, and of a partition's manifest."""
        given = self.path("settings")
        given.mkdir()
        argv = ("partition", *DIGITS[:4], "--clients", "3", "--out", "settings/who.json")
        self._must_work(run(self.root, argv), argv)
        (given / "my.toml").write_text(
            'data = "digits"\ntrain-images = 300\npartition = "settings/who.json"\nlr = 0.0017\n'
            'width = 0.25\nepochs = 1\nengine = "serial"\nseed = 3\n\n[clients]\ncount = 3\n'
        )
        text = "run --config settings/my.toml --rounds 2 --participation 0.67 --out run"
        self._leave_half("half settings", tuple(text.split()), at=2, given=("settings",))

    def _must_work(self, ended: Ended, argv: Sequence[str]) -> None:
        if ended.code != 0 or ended.left:
            raise RuntimeError(f"undisturbed, {' '.join(argv)} ends with {ended.code}: {ended.err}")


DATA = {
    "idx": "--data fashion-mnist --data-dir idx",
    "gzip": "--data fashion-mnist --data-dir gzip",
    "cifar": "--data cifar10 --data-dir cifar",
    "pickle": "--data cifar10 --data-dir pickle",
    "archive": "--data cifar10 --data-dir archive",
    "hub": "--data cifar10 --data-dir hub",
    "images": "--data images --image-size 8",
}
"""Data sets that a run reads, by the folder of the store that they lie in."""


def use_a_small_table() -> None:
    """`repper reproduce table2` with a table that takes a second, instead of the paper's."""
    from repper.paper import EXPERIMENTS
    from repper.paper.experiment import PRESETS, Experiment, Panel, Preset
    from repper.runs.row import Row

    rows = (Row("repper", "linear"), Row("fedavg", "keep"), Row("fedavg", "finetune"))
    panels = [
        Panel(("data", "alpha"), {"data": "digits", "alpha": alpha}, rows, {rows[0]: 90.0})
        for alpha in (1.0, 10.0)
    ]
    table = Experiment("table2", "Two panels", tuple(panels), {}, ("A note.",))
    common = {"clients": 3, "rounds": 1, "epochs": 1, "participation": 0.67, "width": 0.25}
    EXPERIMENTS["table2"] = lambda: table
    PRESETS["small"] = Preset("small", common | {"train_images": 300, "knn": 0}, scaled=False)


def use_small_cifar(root: Path) -> None:
    """Take our own archive and batches for CIFAR-10's, which are known by their checksums."""
    from repper.data import cifar
    from repper.data.location import md5

    python, binary = cifar.CIFAR10_BATCHES
    archive = root / "archive" / python.archive.name
    files = (root / "pickle" / python.folder).iterdir()
    small = replace(
        python,
        archive=replace(python.archive, md5=md5(archive)),
        md5={file.name: md5(file) for file in files},
    )
    cifar.CIFAR10_BATCHES = (small, binary)


def write_photos(folder: Path, count: int, skip: int = 0) -> None:
    """Small pictures of three classes: stripes of one direction each, and noise."""
    for number, name in enumerate(("cat", "dog", "fish")):
        (folder / name).mkdir(parents=True)
        for photo in range(skip, skip + count):
            random = np.random.default_rng([number, photo])
            grid = np.mgrid[0:12, 0:12]
            wave = np.sin(grid[0] * np.cos(number) + grid[1] * np.sin(number))
            pixels = np.clip(120 + 50 * wave + random.normal(0, 25, (12, 12)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{photo}.png")


def write_data(root: Path) -> None:
    """A small data set in every format that is read."""
    import gzip
    import io

    import pyarrow
    from pyarrow import parquet

    random = np.random.default_rng(0)
    for name, pack in (("idx", bytes), ("gzip", lambda content: gzip.compress(content, mtime=0))):
        (root / name).mkdir()
        end = ".gz" if name == "gzip" else ""
        for part, count in (("train", 90), ("t10k", 30)):
            images = random.integers(0, 256, (count, 28, 28), np.uint8)
            labels = np.arange(count, dtype=np.uint8) % 10
            header = struct.pack(">BBBBIII", 0, 0, 8, 3, count, 28, 28)
            (root / name / f"{part}-images-idx3-ubyte{end}").write_bytes(
                pack(header + images.tobytes())
            )
            header = struct.pack(">BBBBI", 0, 0, 8, 1, count)
            (root / name / f"{part}-labels-idx1-ubyte{end}").write_bytes(
                pack(header + labels.tobytes())
            )
    batches = root / "cifar" / "cifar-10-batches-bin"
    batches.mkdir(parents=True)
    for name in (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"):
        records = random.integers(0, 256, (20, 3073), np.uint8)
        records[:, 0] = np.arange(20) % 10
        (batches / name).write_bytes(records.tobytes())
    batches = root / "pickle" / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        pixels = random.integers(0, 256, (20, 3072), np.uint8)
        content = pickle.dumps({"data": pixels, "labels": [n % 10 for n in range(20)]}, protocol=3)
        (batches / name).write_bytes(content)
    (root / "archive").mkdir()
    with tarfile.open(root / "archive" / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(batches, batches.name)
    hub = root / "hub" / "plain_text"
    hub.mkdir(parents=True)
    for part, count in (("train", 90), ("test", 30)):
        images = []
        for pixels in random.integers(0, 256, (count, 32, 32, 3), np.uint8):
            content = io.BytesIO()
            Image.fromarray(pixels).save(content, "png")
            images.append({"bytes": content.getvalue(), "path": "x.png"})
        table = pyarrow.table({"img": images, "label": [n % 10 for n in range(count)]})
        parquet.write_table(table, hub / f"{part}-00000-of-00001.parquet")
    write_photos(root / "images", 20)
