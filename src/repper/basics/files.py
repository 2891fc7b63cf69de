"""Write files atomically, so that a crash leaves a folder readable."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from repper.basics.errors import RepperError

LEFTOVER = re.compile(r"\..+\.(?P<process>\d+)\.tmp")
"""The name of a file that is not complete: see `write_atomically`."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace a file by new content: after a crash it has the old or the new content."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RepperError(f"cannot write {path}: {error.strerror or error}") from error


def _sync(folder: Path) -> None:
    """Sync a folder's entries to the disk, if the system supports it."""
    if sys.platform != "win32":
        opened = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # some network file systems cannot
                os.fsync(opened)
        finally:
            os.close(opened)


def clear_leftovers(folder: Path) -> None:
    """Remove unfinished files of killed processes, in a folder and its subfolders.

    Of processes that are still there, nothing: they may be writing.
    """
    for inner, _, names in os.walk(folder):
        for name in names:
            if (left := LEFTOVER.fullmatch(name)) and not is_alive(int(left["process"])):
                with suppress(OSError):
                    Path(inner, name).unlink()


def is_alive(process: int) -> bool:
    """Whether another process with this id may still be running."""
    if process == os.getpid():
        return False
    if os.name == "nt":  # there, the signal 0 would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


class InUseError(Exception):
    """Another process holds a lock."""


@contextmanager
def lock_file(path: Path, *, wait: bool, keep: bool = True) -> Iterator[None]:
    """Hold a lock file, on any system; the lock ends with the process.

    While another process holds it, `wait` for that one, or raise `InUseError`. Without `keep`, the
    file is removed in the end: who waits for a file that is gone takes a new one.
    """
    from filelock import FileLock, Timeout  # most commands do without

    # Whatever thread lets go of it: a generator that nobody wants any more ends in any of them.
    # `repper runs` looks whether a lock is held, which takes a moment: that is waited for.
    lock = FileLock(path, timeout=-1 if wait else 0.2, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise InUseError(path) from error
    try:
        yield
    finally:
        if not keep and sys.platform != "win32":  # there, an open file cannot be removed
            path.unlink(missing_ok=True)
        lock.release()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Refuse a folder that another process is changing; the lock ends with the process.

    It leaves no file behind, and needs none where a folder can be locked itself.
    """
    in_use = RepperError(f"another command is changing {folder}: wait until it is done")
    if sys.platform == "win32":
        try:
            with lock_file(folder.with_name(f".{folder.name}.lock"), wait=False):
                yield
        except InUseError as error:
            raise in_use from error
        return
    import fcntl

    try:
        opened = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise RepperError(f"cannot open {folder}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise in_use from error
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(opened)


def check_one_of(resume: bool, overwrite: bool) -> None:
    """Refuse --resume together with --overwrite."""
    if resume and overwrite:
        raise RepperError(
            "--resume continues a run and --overwrite replaces it: give only one of them"
        )


def check_same(
    folder: Path, what: str, before: Mapping[str, object], now: Mapping[str, object]
) -> None:
    """Refuse a folder with a run, or the like, of other settings."""
    # Another method has other settings of its own: say the cause, not what follows from it.
    causes = ("method", "server", "personalize")
    for key in sorted(before.keys() | now.keys(), key=lambda key: (key not in causes, key)):
        if before.get(key) != now.get(key):
            raise RepperError(
                f"{folder} has a {what} with other settings: its {key} is {before.get(key)}, not "
                f"{now.get(key)}; choose another --out"
            )


def is_text(name: str) -> bool:
    """Whether a name is printable: no control characters, no broken bytes."""
    return not any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name)


COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, what turns the direction of writing, and broken bytes."""


def plain(text: str) -> str:
    """Text on one line, without control characters for terminals."""
    return COMMANDS.sub("\N{REPLACEMENT CHARACTER}", text)
