"""Commands of repper with faults: killed, stopped, or short of what they need.

A command takes seconds to import PyTorch and a tenth of one to do its work here. So most run as
forks of this process, which has imported everything, has one thread and has computed nothing: each
fork calls the command line's `main` as a new process would. Some run as processes of their own.
"""

from __future__ import annotations

import atexit
import importlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LONGEST = 120.0
"""Seconds after which a command hangs."""
ENDS = 60.0
"""Seconds within which all processes of a command must have ended: one may be importing PyTorch."""
WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (None if it hung), what it said, what still runs of it."""

    code: int | None
    out: str
    err: str
    left: tuple[str, ...]

    @property
    def last(self) -> str:
        return (self.err.strip().splitlines() or [""])[-1][-300:]


class Bad(Exception):  # noqa: N818
    """A fault that was not survived, and why."""


def expect(whether: bool, why: str) -> None:
    if not whether:
        raise Bad(why)


NEEDED = """
    onnx onnxruntime onnxscript pyarrow.parquet sklearn.datasets torch._dynamo
    repper.cli.progress repper.cli.results repper.engines.pool repper.export.source
    repper.export.write repper.heads.descent repper.heads.convex repper.paper.reproduce
    repper.personal.evaluation repper.personal.personalize repper.report repper.runs.compare
"""


def warm() -> None:
    """Import all that commands need; compute nothing, so that forks find one thread."""
    import torch

    torch.set_num_threads(1)
    for name in NEEDED.split():
        importlib.import_module(name)


@dataclass(frozen=True)
class Started:
    """A command at work, in a session of its own."""

    pid: int
    folder: Path
    began: float

    def kill(self, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def workers(self) -> list[int]:
        """The processes of its pool: they were started by another one that it started."""
        parents = {pid: parent for pid, (parent, session) in _processes().items()
                   if session == self.pid}  # fmt: skip
        children = {pid for pid, parent in parents.items() if parent == self.pid}
        return sorted(pid for pid, parent in parents.items() if parent in children)

    def end(self, longest: float = LONGEST) -> Ended:
        """Wait until it and all that it started have ended."""
        code = self._code(self.began + longest)
        if code is None:
            self.kill()
            self._code(time.monotonic() + 10)
        until = time.monotonic() + ENDS
        while (left := self._session()) and time.monotonic() < until:
            time.sleep(0.01)
        names = []
        for pid in left:
            with suppress(OSError):
                words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
                names.append(b" ".join(words).decode(errors="replace")[:200])
                os.kill(pid, signal.SIGKILL)
        out, err = ((self.folder / f".{n}").read_text(errors="replace") for n in ("out", "err"))
        return Ended(code, out, err, tuple(names))

    def _code(self, until: float) -> int | None:
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > until:
                return None
            time.sleep(0.002)

    def _session(self) -> list[int]:
        return [pid for pid, (_, session) in _processes().items() if session == self.pid]


def _processes() -> dict[int, tuple[int, int]]:
    """Parent and session of every process that has not ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                text = (entry / "stat").read_text()
                state, parent, _, session = text.rpartition(")")[2].split()[:4]
                if state not in "ZX":
                    found[int(entry.name)] = int(parent), int(session)
    return found


def start(
    folder: Path,
    argv: Sequence[str],
    *,
    inside: Callable[[], None] = lambda: None,
    fork: bool = True,
    logs: Path | None = None,
) -> Started:
    """Start `repper argv` with `folder` as the working directory; `inside` runs in a fork first."""
    logs = logs or folder.parent
    began = time.monotonic()
    environment = {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",
    }
    if not fork:
        with (logs / ".out").open("wb") as out, (logs / ".err").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "repper", *argv], cwd=folder, stdout=out, stderr=err,
                stdin=subprocess.DEVNULL, env=os.environ | environment, start_new_session=True,
            )  # fmt: skip
        process.returncode = 0  # it is waited for by its number
        return Started(process.pid, logs, began)
    ready, tell = os.pipe()
    if not (pid := os.fork()):
        try:
            _be_a_command(folder, argv, environment, inside, logs, tell)
        finally:
            os._exit(99)
    os.close(tell)
    os.read(ready, 1)  # until it is in a session of its own
    os.close(ready)
    return Started(pid, logs, began)


def _be_a_command(
    folder: Path,
    argv: Sequence[str],
    environment: dict[str, str],
    inside: Callable[[], None],
    logs: Path,
    tell: int,
) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.update(environment)
    for number, name in enumerate((os.devnull, logs / ".out", logs / ".err")):
        flags = os.O_RDONLY if not number else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(name, flags), number)
    from repper.cli import main

    inside()
    os.write(tell, b".")
    os.close(tell)
    try:
        code = main(list(argv))
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()  # as at the end of a process: a pool's folder of sockets goes
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def run(folder: Path, argv: Sequence[str], inside: Callable[[], None] = lambda: None) -> Ended:
    """A command from beginning to end."""
    return start(folder, argv, inside=inside).end()


def end_at(operation: int) -> Callable[[], None]:
    """Be killed before a change of files, by its number: Python tells of each."""

    def inside() -> None:
        done = 0

        def heard(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal done
            if event in WRITES or (event == "open" and _writes(arguments)):
                done += 1
                if done == operation:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(heard)

    return inside


def end_when_logging(number: int) -> Callable[[], None]:
    """Be killed before the log of a run gets line `number`."""

    def inside() -> None:
        lines = 0

        def heard(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal lines
            if event == "open" and str(arguments[0]).endswith("rounds.jsonl"):
                lines += str(arguments[1]).startswith("a")
                if lines == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(heard)

    return inside


def count_changes(into: Path) -> Callable[[], None]:
    """Count the changes of files, among which `end_at` chooses."""

    def inside() -> None:
        done = 0
        file = os.open(into, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

        def heard(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal done
            if event in WRITES or (event == "open" and _writes(arguments)):
                done += 1
                os.pwrite(file, str(done).encode(), 0)

        sys.addaudithook(heard)

    return inside


def _writes(arguments: tuple[object, ...]) -> bool:
    path, _, flags = arguments
    return (
        isinstance(flags, int)
        and bool(flags & (os.O_WRONLY | os.O_RDWR))
        and isinstance(path, str | os.PathLike)
        and not str(path).startswith("/dev/")
    )


def files_of_at_most(size: int) -> Callable[[], None]:
    """A full disk where nothing can be mounted: no file grows beyond this size."""

    def inside() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return inside


def memory_of_at_most(pid: int, more: int) -> None:
    """Let a process have so many bytes of address space more than it has now."""
    with suppress(OSError, ValueError):
        pages = int(Path("/proc", str(pid), "statm").read_text().split()[0])
        size = pages * resource.getpagesize() + more
        resource.prlimit(pid, resource.RLIMIT_AS, (size, size))


def check_sentence(ended: Ended) -> None:
    """It ended with one clear sentence and nothing else."""
    check_alive(ended)
    expect(ended.code == 2, f"exit code {ended.code}: {ended.last}")
    told = [line for line in ended.err.splitlines() if line.startswith("repper: ")]
    expect(len(told) == 1, f"{len(told)} sentences: {ended.last}")
    strange = re.search(r"internal error|<class|object at 0x|\bErrno\b", told[0])
    expect(strange is None, f"no sentence for people: {told[0][:300]}")


def check_alive(ended: Ended) -> None:
    """Whatever else: no hang, no traceback, no process left over."""
    expect(ended.code is not None, f"it hangs: {ended.last}")
    where = ended.err.find("Traceback")
    expect(where < 0, f"a traceback: {ended.err[where:][-600:]}")
    expect("internal error" not in ended.err, ended.last)
    expect(not ended.left, f"processes left over: {ended.left}")
