"""Removing what repper has written, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from repper.basics.errors import RepperError
from repper.basics.files import InUseError, alone_in, lock_file
from repper.runs.folders import (
    CELLS,
    COMPARISON,
    MARKS,
    MODEL_FOLDER,
    REPRODUCTION,
    SITE,
    SWEEP,
    Folder,
    folder_at,
    folders_in,
    is_leftover,
    needing,
    size_of,
    unneeded_trainings,
    whole_name,
    whole_of,
)
from repper.runs.run_folder import BEFORE_CONFIG, ENVIRONMENT, HEADS, LOCK, RESULT, TRAININGS

ABANDONED = re.compile(r"\.[^/]+\.tmp")
"""The name of a run folder that was not complete: see `branch`."""


class FolderInUseError(RepperError):
    """A process is writing to a folder that was to be removed."""


@dataclass(frozen=True)
class Removed:
    """The outcome of a removal: the bytes freed, and files of others, which were kept."""

    path: Path
    size: int
    kept: tuple[Path, ...]


@dataclass(frozen=True)
class Leftover:
    """A file or folder that nobody needs, and why."""

    path: Path
    why: str
    files: tuple[Path, ...]
    folder: Folder
    """The folder whose locks are held while these files are deleted."""

    @property
    def size(self) -> int:
        return size_of(self.files)


def remove(
    paths: Sequence[Path], look_in: Path | None = None, *, force: bool = False
) -> Iterator[Removed]:
    """Remove these folders; all are checked before the first one goes.

    One that others in the folder `look_in` point to (without it, those beside it) stays, unless
    `force`; also a part of a comparison.
    """
    folders = [_to_remove(path, force) for path in paths]
    for folder in folders if not force else ():
        _check_needed(folder, folders, look_in or folder.path.absolute().parent)
    with ExitStack() as held:
        for folder in folders:
            held.enter_context(_all_locks(folder))
        for path in paths:
            folder = _to_remove(path, force)  # as it is now that nobody else writes there
            own, kept = folder.own, folder.strange
            size = size_of(own)
            _delete(path, own)
            yield Removed(path, size, kept)


def _to_remove(path: Path, force: bool) -> Folder:
    if path.is_symlink():
        raise RepperError(f"{path} is a link: remove {path.resolve()}, or the link by hand")
    if not path.is_dir():
        raise RepperError(f"there is no folder {path}")
    folder = folder_at(path)
    if folder is None:
        raise RepperError(
            f"{path} was not removed: it holds no run, comparison, reproduction or model"
        )
    if folder.damage:
        raise RepperError(f"{path} was not removed, because its kind is unknown: {folder.damage}")
    if folder.kind == SITE:
        raise RepperError(
            f"{path} was not removed: it is a site's part of a federation, and has the only "
            f"record of the privacy budget that the site has spent"
        )
    if not force and (whole := whole_of(path)) is not None:
        raise RepperError(
            f"{path} is part of the {whole.kind} {whole.path}: remove that, or give --force"
        )
    return folder


def _check_needed(folder: Folder, going: Sequence[Folder], look_in: Path) -> None:
    gone = {one.path.resolve() for one in going}
    others = [
        one
        for one in needing(folder.path, list(folders_in(look_in)))
        if one.path.resolve() not in gone
    ]
    if others:
        names = ", ".join(str(one.path) for one in others)
        raise RepperError(f"{folder.path} is needed by {names}: remove these too, or give --force")


def _all_locks(folder: Folder) -> ExitStack:
    """All locks of a folder; one that another process is writing to is refused."""
    with ExitStack() as held:
        try:
            if folder.kind == MODEL_FOLDER:
                held.enter_context(alone_in(folder.path))
            else:
                for lock in dict.fromkeys([folder.path / LOCK, *folder.locks]):
                    held.enter_context(lock_file(lock, wait=False))
        except InUseError as error:
            raise FolderInUseError(
                f"a process is running in {folder.path}: wait for it, or end it first"
            ) from error
        except OSError as error:
            raise RepperError(f"cannot lock {folder.path}: {error.strerror}") from error
        return held.pop_all()


def _delete(root: Path, files: Sequence[Path]) -> None:
    """Delete files, and the folders that are empty then.

    Results go first, and last what says which folder it is: after a crash it can be removed again.
    """
    try:
        for file in sorted(files, key=lambda file: (_turn(file), -len(file.parts), file)):
            with suppress(PermissionError) if file.name == LOCK else nullcontext():
                file.unlink(missing_ok=True)  # on Windows, not a lock that is held
        inner = {
            above for file in files for above in file.parents if root in (above, *above.parents)
        }
        for each in {*inner, root}:
            inner |= {each / name for name in ("checkpoint", HEADS) if (each / name).is_dir()}
        for each in sorted(inner, key=lambda each: -len(each.parts)):
            with suppress(OSError):  # it holds more than what is ours
                each.rmdir()
    except OSError as error:
        raise RepperError(f"cannot remove {error.filename}: {error.strerror}") from error


def _turn(file: Path) -> int:
    marks = {*MARKS, ENVIRONMENT}  # a run is known by both its settings and its environment
    return 0 if file.name == RESULT else 2 if file.name in marks else 3 if file.name == LOCK else 1


def leftovers(root: Path) -> Iterator[Leftover]:
    """What killed processes have left in folders of repper; those in use are passed over."""
    for folder in folders_in(root):
        if folder.damage or folder.in_use:
            continue
        yield from _left_in(folder)
    yield from _never_begun(root)


def _left_in(folder: Folder) -> Iterator[Leftover]:
    whole: dict[Path, list[Path]] = {}
    whole_kinds = (COMPARISON, SWEEP, REPRODUCTION)  # elsewhere, who needs a training is not known
    unneeded = list(unneeded_trainings(folder)) if folder.kind in whole_kinds else []
    for training in unneeded:
        inside = tuple(file for file in folder.own if training in file.parents)
        yield Leftover(training, "a training that no run uses", inside, folder)
    for file in folder.own:
        if any(training in file.parents for training in unneeded):
            continue
        inner = file.relative_to(folder.path).parts
        places = [n for n, name in enumerate(inner[:-1]) if ABANDONED.fullmatch(name)]
        if places and inner[places[0] - 1] in (CELLS, TRAININGS):
            whole.setdefault(folder.path.joinpath(*inner[: places[0] + 1]), []).append(file)
        elif is_leftover(file):
            yield Leftover(file, f"an unfinished copy of {whole_name(file).name}", (file,), folder)
    for path, files in whole.items():
        yield Leftover(path, "an unfinished copy of a training", tuple(files), folder)


def _never_begun(root: Path) -> Iterator[Leftover]:
    """Folders of runs that were killed before their settings were written."""
    for lock in sorted(root.rglob(LOCK)):
        path = lock.parent
        names = {one.name for one in path.iterdir()}
        if not {LOCK, "checkpoint", HEADS} <= names <= BEFORE_CONFIG:
            continue
        begun = Folder(path, "run")
        if not begun.strange and not begun.in_use:
            yield Leftover(path, "a run that was killed before it began", begun.own, begun)


def clear(found: Iterable[Leftover]) -> None:
    """Remove leftovers; those that a process has taken up since they were found stay."""
    for one in found:
        with suppress(FolderInUseError), _all_locks(one.folder):
            now = folder_at(one.folder.path)
            if now is None:  # a run that has not begun since
                left = [(one.folder.path, Folder(one.folder.path, "run").own)]
            else:
                left = [(each.path, each.files) for each in _left_in(now)]
            if (one.path, one.files) in left:
                _delete(one.path, one.files)
