"""Folders that repper has written: runs, comparisons and models, their sizes, and who needs whom.

This file needs no PyTorch, so that `repper runs` is quick.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from repper.basics.documents import read_json, read_toml
from repper.basics.errors import RepperError
from repper.basics.files import LEFTOVER, InUseError, alone_in, is_alive, lock_file
from repper.basics.registry import is_reference, short_reference
from repper.edge.model_folder import FILES, MODEL, read_model
from repper.runs.run_folder import (
    BOARD,
    CONFIG,
    ENVIRONMENT,
    HEADS,
    LOCK,
    OWN,
    PARTITION,
    PRIVATE,
    RESULT,
    ROUNDS,
    SITES,
    TRAININGS,
    training_of,
)

RUN, TRAINED, JOINED, FEDERATION, SITE = "run", "training", "joined", "federation", "site"
COMPARISON, SWEEP, REPRODUCTION, MODEL_FOLDER = "comparison", "sweep", "reproduction", "model"
MARKS = {
    "reproduction.json": REPRODUCTION, "sweep.json": SWEEP, "comparison.toml": COMPARISON,
    CONFIG: RUN, MODEL: MODEL_FOLDER,
}  # fmt: skip
"""The file by which a folder is known, for each kind of folder."""
CELLS = "cells"
JOINED_CELLS = "joined"
CELL = re.compile(r"(?P<row>.*)-seed(?P<seed>[0-9]+)")


@dataclass(frozen=True)
class Folder:
    """A folder that repper has written, and what is in it.

    `done` of `asked` rounds are finished: of a comparison, a sweep or a reproduction, runs. What
    nobody has written down is None. `points_to` are the folders and files elsewhere that it needs.
    """

    path: Path
    kind: str
    rows: tuple[str, ...] = ()
    data: str = ""
    done: int | None = None
    asked: int | None = None
    seeds: int | None = None
    finished: bool = False
    points_to: tuple[Path, ...] = ()
    damage: str = ""

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """All files in it, also those that repper has not written; links are not followed."""
        return tuple(_files_in(self.path))

    @property
    def size(self) -> int:
        """Bytes on the disk; a file with two names in it counts once."""
        return size_of(self.files)

    @property
    def age(self) -> float:
        """Seconds since anything in it was last written."""
        now, changed = time.time(), list[float]()
        for file in self.files:
            with suppress(OSError):  # taken away meanwhile
                changed += [file.lstat().st_mtime] if file.name != LOCK else []
        return max(0.0, now - max(changed, default=now))

    @property
    def own(self) -> tuple[Path, ...]:
        """The files that repper has written, by their names; links are not among them.

        What killed processes have left of such files is.
        """
        pattern = re.compile(_own_pattern(self))

        def is_own(file: Path) -> bool:
            named = whole_name(file) if is_leftover(file) else file
            return pattern.fullmatch(named.relative_to(self.path).as_posix()) is not None

        return tuple(file for file in self.files if not file.is_symlink() and is_own(file))

    @property
    def strange(self) -> tuple[Path, ...]:
        """The files that repper has not written."""
        own = set(self.own)
        return tuple(file for file in self.files if file not in own)

    @property
    def in_use(self) -> bool:
        """Whether a process is writing here now."""
        try:
            if self.kind == MODEL_FOLDER:
                with alone_in(self.path):
                    return False
            for lock in self.locks:
                with suppress(OSError), lock_file(lock, wait=False):
                    pass
        except (InUseError, RepperError):
            return True
        return False

    @property
    def locks(self) -> tuple[Path, ...]:
        return tuple(file for file in self.files if file.name == LOCK)


def is_leftover(file: Path) -> bool:
    """Whether a file is the unfinished copy of a process that has ended."""
    left = LEFTOVER.fullmatch(file.name)
    return left is not None and not is_alive(int(left["process"]))


def whole_name(leftover: Path) -> Path:
    """The file that this is an unfinished copy of."""
    return leftover.with_name(leftover.name[1:].rsplit(".", 2)[0])


def size_of(files: Sequence[Path]) -> int:
    """Bytes of files; a file with several names counts once."""
    sizes = {}
    for file in files:
        with suppress(OSError):
            found = file.lstat()
            sizes[found.st_dev, found.st_ino] = found.st_size
    return sum(sizes.values())


def folders_in(root: Path) -> Iterator[Folder]:
    """All folders of repper in a folder, or the folder itself; hidden folders are skipped.

    Those within a comparison, a sweep or a reproduction are part of it.
    """
    if not root.is_dir():
        raise RepperError(f"there is no folder {root}")
    yield from _found_in(root)


def _found_in(root: Path) -> Iterator[Folder]:
    found = folder_at(root)
    if found is not None:
        yield found
        if found.kind not in (RUN, JOINED, FEDERATION):
            return
    with suppress(OSError):
        for inner in sorted(root.iterdir()):
            own = found is not None and inner.name in OWN
            if not (own or inner.name.startswith(".") or inner.is_symlink()) and inner.is_dir():
                yield from _found_in(inner)


def folder_at(path: Path) -> Folder | None:
    """The folder of repper at this path, if there is one."""
    for mark, kind in MARKS.items():
        if (path / mark).is_file():
            try:
                return READERS[kind](path)
            except (RepperError, KeyError, TypeError, ValueError, AttributeError) as error:
                return Folder(path, kind, damage=str(error) or f"{path / mark} is damaged")
    return None


def unneeded_trainings(folder: Folder) -> Iterator[Path]:
    """The trainings in a comparison, a sweep or a reproduction that none of its runs points to."""
    runs = {file.parent for file in folder.files if file.name == CONFIG}
    trainings = {one for one in runs if one.parent.name == TRAININGS}
    try:
        needed = {training_of(one).resolve() for one in runs - trainings}
    except RepperError:
        return  # a run has lost its training: which ones are needed is not known
    yield from sorted(one for one in trainings if one.resolve() not in needed)


def whole_of(path: Path) -> Folder | None:
    """The comparison, sweep or reproduction that a folder is a part of."""
    whole = None
    for above in path.absolute().parents:
        found = folder_at(above)
        if found is not None and found.kind in (COMPARISON, SWEEP, REPRODUCTION):
            whole = found
    return whole


def needing(target: Path, among: Sequence[Folder]) -> list[Folder]:
    """The folders outside of `target` that point to something in it."""
    inner = target.resolve()
    return [
        one
        for one in among
        if inner not in (one.path.resolve(), *one.path.resolve().parents)
        and any(inner in (p.resolve(), *p.resolve().parents) for p in one.points_to)
    ]


def _run(path: Path) -> Folder | None:
    if not any((path / name).is_file() for name in (ENVIRONMENT, RESULT)):
        return None  # somebody's settings, of whatever
    settings = read_toml(path / CONFIG)
    data = settings.get("data", "")
    joined = "init" in settings and settings.get("rounds") == 0
    kind = JOINED if joined else FEDERATION if (path / SITES).is_file() else RUN
    if not any((path / name).exists() for name in (ENVIRONMENT, PARTITION, SITES)):
        kind = SITE
    elif path.absolute().parent.name == TRAININGS:
        kind = TRAINED
    finished = (path / RESULT).is_file()
    asked = settings.get("rounds")
    training = training_of(path)
    done = asked if finished else _lines(training / ROUNDS)
    elsewhere = () if training == path else (training.absolute(),)
    return Folder(
        path, kind, (_row(settings),), _shown(data), done, asked, 1, finished,
        (*elsewhere, *_pointers(path, [settings])),
    )  # fmt: skip


def _comparison(path: Path) -> Folder:
    common = read_toml(path / "comparison.toml")
    table = path / "table.json"
    asked = read_json(table) if table.is_file() else {}
    cells = [one for one in _cells(path) if (one / CONFIG).is_file()]
    done = [one for one in cells if (one / RESULT).is_file()]
    names = {found["row"] for one in cells if (found := CELL.fullmatch(one.name))}
    seeds = {found["seed"] for one in cells if (found := CELL.fullmatch(one.name))}
    rows = tuple(map(str, asked.get("asked_rows", ()))) or tuple(sorted(names))
    known = asked.get("asked_seeds")
    runs = len(rows) * int(known) if known is not None else None
    settings = [read_toml(one / CONFIG) for one in cells]
    return Folder(
        path, COMPARISON, rows, _shown(common.get("data", "")), len(done), runs,
        int(known) if known is not None else len(seeds), runs is not None and len(done) >= runs,
        _pointers(path, [common, *settings]),
    )  # fmt: skip


def _cells(path: Path) -> Iterator[Path]:
    for part in (CELLS, f"tuning/{CELLS}", JOINED_CELLS):
        if (path / part).is_dir():
            yield from sorted((path / part).iterdir())


def _sweep(path: Path) -> Folder:
    found = read_json(path / "sweep.json")
    values = [f"{found['setting']}={value}" for value in found["values"]]
    return _together(path, SWEEP, values, [path / name for name in found["folders"]])


def _reproduction(path: Path) -> Folder:
    found = read_json(path / "reproduction.json")
    panels = path / "panels"
    parts = sorted(panels.iterdir()) if panels.is_dir() else []
    name = f"{found['experiment']}, {found['preset']}"
    return _together(path, REPRODUCTION, [name], parts)


def _together(path: Path, kind: str, rows: Sequence[str], folders: Sequence[Path]) -> Folder:
    """Read a folder of several comparisons as one."""
    parts = [_comparison(one) for one in folders if (one / "comparison.toml").is_file()]
    runs = [one.asked for one in parts]
    return Folder(
        path, kind, tuple(rows), ", ".join(dict.fromkeys(one.data for one in parts)),
        sum(one.done or 0 for one in parts),
        None if None in runs else sum(one or 0 for one in runs),
        max((one.seeds or 0 for one in parts), default=None),
        bool(parts) and all(one.finished for one in parts),
        tuple(dict.fromkeys(p for one in parts for p in one.points_to if not _within(p, path))),
    )  # fmt: skip


def _model(path: Path) -> Folder:
    notes = read_model(path)
    head = notes.head.kind if notes.head else "no head"
    return Folder(path, MODEL_FOLDER, (f"{notes.encoder.architecture}+{head}",), finished=True)


READERS = {
    RUN: _run, COMPARISON: _comparison, SWEEP: _sweep, REPRODUCTION: _reproduction,
    MODEL_FOLDER: _model,
}  # fmt: skip


def _row(settings: Mapping[str, Any]) -> str:
    names = [settings.get(key) for key in ("method", "personalize")]
    found = [one.get("name") if isinstance(one, Mapping) else one for one in names]
    return "+".join(_shown(one) for one in found if one)


def _shown(value: object) -> str:
    text = str(value)
    return short_reference(text) if is_reference(text) else text


def _pointers(path: Path, settings: Sequence[Mapping[str, Any]]) -> tuple[Path, ...]:
    """The files outside the run that its settings name: an initial encoder and a partition."""
    found: dict[Path, None] = {}
    for one in settings:
        named = [one.get("init"), one.get("partition")]
        for text in named:
            if isinstance(text, str) and (text is named[0] or text.endswith(".json")):
                found[_placed(Path(text), path, one.get("out"))] = None
    return tuple(one for one in found if not _within(one, path))


def _placed(named: Path, folder: Path, out: object) -> Path:
    """Resolve a path that was typed beside --out: relative to the folder that --out was."""
    here = folder.absolute()
    if not named.is_absolute() and isinstance(out, str) and not Path(out).is_absolute():
        parts = Path(out).parts
        if here.parts[-len(parts) :] == parts and ".." not in parts:
            return Path(*here.parts[: -len(parts)]) / named
    return named.absolute()


def _within(path: Path, folder: Path) -> bool:
    return folder.resolve() in (path.resolve(), *path.resolve().parents)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def _files_in(folder: Path) -> Iterator[Path]:
    for inner, folders, names in os.walk(folder):
        folders.sort()
        links = [name for name in folders if Path(inner, name).is_symlink()]
        yield from (Path(inner, name) for name in sorted([*names, *links]))


def _any(*patterns: str) -> str:
    return f"(?:{'|'.join(patterns)})"


_TENSORS = r"\.safetensors"
_RUN = _any(
    *(re.escape(name) for name in sorted(OWN) if "." in name),
    rf"checkpoint/{_any('last', r'chosen-[0-9]+', r'before-stage-[0-9]+')}{_TENSORS}",
    rf"{HEADS}/[0-9]+{_TENSORS}",
    rf"{PRIVATE}/{_any('initial', '[0-9]+/[0-9]+')}{_TENSORS}",
    rf"{BOARD}/events\.out\.tfevents\.[^/]+",
)
_LOCK = re.escape(LOCK)
_COMPARISON = _any(
    rf"{_any(CELLS, JOINED_CELLS, TRAININGS)}/[^/]+/{_RUN}", r"comparison\.toml", r"tuning\.json",
    r"rounds\.csv", r"table\.(?:json|md|csv|tex)", _LOCK,
)  # fmt: skip
_COMPARISON = rf"(?:tuning/)?{_COMPARISON}"
_FIGURES = _any(
    "tsne-methods", "tsne-clients", "accuracy-per-class", "new-clients", r"gradients-[^/]+",
    r"bubbles-[^/]+",
)  # fmt: skip
_OWN = {
    RUN: _RUN,
    TRAINED: _RUN,
    JOINED: _RUN,
    FEDERATION: _RUN,
    COMPARISON: _COMPARISON,
    SWEEP: _any(r"sweep\.(?:json|md|csv|tex)", _LOCK, rf"[^/]+=[^/]*/{_COMPARISON}"),
    REPRODUCTION: _any(
        r"(?:reproduction|found)\.json", r"(?:table|order|claims)\.csv", r"table\.(?:md|tex)",
        _LOCK, rf"figures/{_FIGURES}\.(?:png|svg)", rf"panels/[^/]+/{_COMPARISON}",
    ),
    MODEL_FOLDER: _any(
        *(re.escape(name).replace(r"\.", r"(?:-[0-9a-f]{12})?\.") for name in FILES)
    ),
}  # fmt: skip
"""Patterns of the files that repper writes, by their paths in each kind of folder."""


def _own_pattern(folder: Folder) -> str:
    if folder.kind != REPRODUCTION:
        return _OWN.get(folder.kind, r"(?!)")
    titles: list[Any] = []
    with suppress(RepperError, KeyError, TypeError, ValueError):
        titles = [extra["title"] for extra in read_json(folder.path / "found.json")["extras"]]
    tables = [re.escape(re.sub(r"[^a-z0-9.]+", "-", str(one).lower())) for one in titles]
    return _any(_OWN[REPRODUCTION], *(rf"{name}\.csv" for name in tables))
