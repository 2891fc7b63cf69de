"""Where an export is written: beside its place first, and moved there when it is checked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from repper.edge.model_folder import FILES, MODEL
from repper.errors import RepperError

HUB_FILES = ("README.md", "config.json", "onnx", "preprocessor_config.json")


def check_place(path: Path, flag: str, overwrite: bool) -> None:
    """Refuse a place that cannot be written, or holds something that may not be replaced."""
    if path.is_symlink() or path.exists():
        known = {"--out": (MODEL, FILES), "--hub": ("config.json", HUB_FILES)}.get(flag)
        if known is None:
            if path.is_dir():
                raise RepperError(f"{flag} {path} is a folder: give the name of a file")
        else:
            if not path.is_dir():
                raise RepperError(f"{flag} {path} is a file: choose a folder")
            found = {one.name for one in path.iterdir()}
            if not found:
                return
            if strange := sorted(found - {*known[1]}):
                raise RepperError(
                    f"{flag} {path} holds {strange[0]}, which no export has written: choose "
                    f"another folder"
                )
        if not overwrite:
            raise RepperError(f"{path} exists: add --overwrite to replace it, or choose another")
    parent = next(one for one in path.absolute().parents if one.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise RepperError(f"cannot write {flag} {path}: {parent} cannot be written to")


@contextmanager
def staged(*places: Path | None) -> Iterator[list[Path | None]]:
    """Temporary places beside these; at the end they move there, all or, on an error, none."""
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
        old = source.with_name(source.name + ".old")
        target.rename(old)
        try:
            source.rename(target)
        except OSError:
            old.rename(target)
            raise
        _remove(old)
    else:
        source.replace(target)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
