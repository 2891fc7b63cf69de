"""Write an export to a temporary place first, and move it when it is checked.

A file is replaced in one step. A folder takes two: the one before becomes `.NAME.PID.old`, and the
new one, which is complete by then, takes its name. A process that is killed in between leaves no
folder of that name, and the next export brings the one before back.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from repper.basics.documents import read_json
from repper.basics.errors import RepperError
from repper.basics.files import is_alive
from repper.edge.model_folder import FILES, FORMAT, MODEL
from repper.edge.onnx_file import is_ours

HUB_FILES = ("README.md", "config.json", "onnx", "preprocessor_config.json")
HUB_MODELS = ("model.onnx", "model_quantized.onnx")


def check_place(path: Path, flag: str, overwrite: bool) -> None:
    """Refuse a target that is not writable, or holds files that may not be replaced.

    What an export that was killed left beside it is cleared away first.
    """
    _clear(path)
    if path.is_symlink() or path.exists():
        if flag == "--one-file":
            if path.is_dir():
                raise RepperError(f"{flag} {path} is a folder: give the name of a file")
        else:
            if not path.is_dir():
                raise RepperError(f"{flag} {path} is a file: choose a folder")
            found = {one.name for one in path.iterdir()}
            if not found:
                return
            if strange := sorted(found - {*(FILES if flag == "--out" else HUB_FILES)}):
                raise RepperError(
                    f"{flag} {path} contains {strange[0]}, which is not from an export: choose "
                    f"another folder"
                )
        if not overwrite:
            raise RepperError(
                f"{path} exists: add --overwrite to replace it, or choose another place"
            )
        if not _is_export(path, flag):
            raise RepperError(
                f"--overwrite replaces only exports, and {flag} {path} is not an export: choose "
                f"another place"
            )
    parent = next(one for one in path.absolute().parents if one.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise RepperError(f"cannot write {flag} {path}: no permission to write to {parent}")


def _is_export(path: Path, flag: str) -> bool:
    """Whether a place holds an earlier export, possibly damaged."""
    if flag == "--out":
        try:
            found = read_json(path / MODEL)
        except RepperError:
            return False
        return isinstance(found, dict) and found.get("format") == FORMAT
    models = [path] if flag == "--one-file" else [path / "onnx" / name for name in HUB_MODELS]
    for model in models:
        with suppress(OSError), model.open("rb") as file:
            if is_ours(file.read(16)):
                return True
    return False


@contextmanager
def staged(*places: Path | None) -> Iterator[list[Path | None]]:
    """Temporary places beside the targets; at the end all move there, or, on an error, none."""
    given = [place for place in places if place is not None]
    names = {
        place: place.absolute().with_name(f".{place.absolute().name}.{os.getpid()}.tmp")
        for place in given
    }
    try:
        for place in given:
            place.absolute().parent.mkdir(parents=True, exist_ok=True)
        yield [None if place is None else names[place] for place in places]
        for place in given:
            if names[place].exists():
                _move(names[place], place)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RepperError(f"cannot write {error.filename or given[0]}: {reason}") from error
    finally:
        for temporary in names.values():
            _remove(temporary)


def _move(source: Path, target: Path) -> None:
    if target.is_dir():
        old = source.with_suffix(".old")
        target.rename(old)
        try:
            source.rename(target)
        except OSError:
            old.rename(target)
            raise
        _remove(old)
    else:
        source.replace(target)


def _clear(target: Path) -> None:
    """Restore a folder that was being replaced, and remove unfinished files."""
    parent, name = target.absolute().parent, re.escape(target.absolute().name)
    if not parent.is_dir():
        return
    left = re.compile(rf"\.{name}\.(?P<process>\d+)\.(?P<kind>tmp|old)")
    for path in sorted(parent.iterdir()):
        match = left.fullmatch(path.name)
        if match is None or is_alive(int(match["process"])):
            continue
        if match["kind"] == "old" and not target.exists():
            with suppress(OSError):  # where nothing can be written, the check that follows says so
                path.rename(target)
        else:
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
