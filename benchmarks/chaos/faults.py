"""The kinds of faults. Each does one to a command and raises `Bad` unless it is survived.

Survived means: no traceback, no internal error, no hang, no process left over; and then either the
outcome of an undisturbed command, or one sentence with exit code 2 and nothing lost: when the cause
is gone, the same command (with --resume) comes to that outcome.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from commands import (
    Ended,
    check_alive,
    check_sentence,
    end_at,
    expect,
    files_of_at_most,
    memory_of_at_most,
    run,
    start,
)
from damage import damaged
from tasks import DATA, Content, Store, Task, check_equal, content_of

Fault = Callable[["Lane", Random], str]
"""Does one fault; what it returns says which."""


@dataclass
class Lane:
    """Where one case after the other is tried."""

    store: Store
    folder: Path
    can_mount: bool

    @property
    def case(self) -> Path:
        return self.folder / "case"

    def begin(self, *given: str) -> None:
        self.end()
        self.case.mkdir(parents=True)
        self.store.copy(given, self.case)

    def end(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def may_mount() -> bool:
    """Take mounts for ourselves: they end with this process, and nobody else sees them."""
    new_namespace = 0x00020000
    if ctypes.CDLL(None).unshare(new_namespace):
        return False
    return not subprocess.call(
        ["mount", "--make-rprivate", "/"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@contextmanager
def _small_disk(lane: Lane, size: int) -> Iterator[None]:
    """The case's folder on a disk of so many bytes."""
    with _moved_to_memory(lane):
        used = sum(path.stat().st_blocks * 512 for path in lane.case.rglob("*"))
        _mount("-o", f"remount,size={used + size}", str(lane.case))
        yield


@contextmanager
def _moved_to_memory(lane: Lane) -> Iterator[None]:
    aside = lane.folder / "aside"
    lane.case.rename(aside)
    lane.case.mkdir()
    _mount("-t", "tmpfs", "-o", "size=200m", "tmpfs", str(lane.case))
    try:
        shutil.copytree(aside, lane.case, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(lane.case)], check=True, capture_output=True)


def _logged(folder: Path) -> int:
    """Whole lines in a run's log."""
    log = folder / "rounds.jsonl"
    return log.read_text(errors="replace").count("\n") if log.is_file() else 0


def _results(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("result.json")}


def _goes_on(lane: Lane, task: Task, before: Ended) -> None:
    """After a fault, all finished rounds are kept, and the outcome is the undisturbed one."""
    out = lane.case / task.out
    shown = [int(number) for number in re.findall(r"^round (\d+)/", before.err, re.MULTILINE)]
    logged, finished = _logged(out), _results(out)
    again = task.again if out.exists() or "--overwrite" in task.again else task.argv
    ended = run(lane.case, again)
    check_alive(ended)
    if task.name == "remove" and "has no class 'dog'" in ended.last:
        _was_done(lane, task)
        return
    expect(ended.code == 0, f"does not go on: exit code {ended.code}, {ended.last}")
    if task.name.startswith("run"):
        resumed = re.search(r"^resuming after round (\d+)", ended.err, re.MULTILINE)
        kept = int(resumed[1]) if resumed else 0
        expect(kept >= max(shown, default=0), f"round {max(shown, default=0)} was lost")
        expect(kept >= logged - 1, f"{logged} rounds were logged, {kept} kept")
    for path, content in finished.items():
        expect(path.read_bytes() == content, f"{path.parent.name} was finished, and run again")
    _comes_to(lane, task)


def _was_done(lane: Lane, task: Task) -> None:
    """The model is the new one already; files of the old one may be there until the next change."""
    assert task.undisturbed is not None  # noqa: S101
    found = content_of(lane.case / task.out)
    expect(found["model.json"] == task.undisturbed["model.json"], "another model than undisturbed")
    _still_a_model(lane, task.out)


def _comes_to(lane: Lane, task: Task) -> None:
    assert task.undisturbed is not None  # noqa: S101
    check_equal(content_of(lane.case / task.out), task.undisturbed, task.name)


def _kill(name: str, *, fork: bool = True) -> Fault:
    def fault(lane: Lane, random: Random) -> str:
        task = lane.store.tasks[name]
        lane.begin(*task.given)
        old = None
        if task.name in ("export", "personalize") and random.random() < 0.5:
            # Another model is there already: it stays whole, or the new one is.
            lane.store.copy(["mine" if name == "personalize" else "model"], lane.case)
            (lane.case / ("mine" if name == "personalize" else "model")).rename(
                lane.case / task.out
            )
            old = lane.case / task.out
        argv = task.again if old else task.argv
        if fork and random.random() < 0.6:
            place = random.randint(1, task.changes)
            how = f"before change {place} of {task.changes} of files"
            killed = start(lane.case, argv, inside=end_at(place)).end()
        else:
            longest = task.seconds * (1.0 if fork else 1.2) + (0 if fork else 4)
            after = random.uniform(0, longest)
            how = f"after {after:.2f} s" + ("" if fork else " as a process")
            started = start(lane.case, argv, fork=fork)
            time.sleep(after)
            started.kill()
            killed = started.end()
        check_alive(killed)
        if old:
            _still_a_model(lane, task.out)
        if killed.code == 0:
            _comes_to(lane, task)
        else:
            _goes_on(lane, task, killed)
        return f"{' '.join(argv)}: SIGKILL {how}"

    return fault


def _still_a_model(lane: Lane, out: str) -> None:
    """A model that was there, or the new one: it answers.

    An export moves the old folder aside before the new one takes its name; killed in between, the
    next export puts it back.
    """
    if not (lane.case / out).exists() and list(lane.case.glob(f".{out}.*.old")):
        return
    lane.store.copy(["asked"], lane.case)
    ended = run(lane.case, ("predict", out, "asked", "--json"))
    check_alive(ended)
    expect(ended.code == 0, f"the model is broken: {ended.last}")


def _kill_worker(lane: Lane, random: Random) -> str:
    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    return _to_a_worker(lane, random, kill) + "SIGKILL of a worker"


def _starve_worker(lane: Lane, random: Random) -> str:
    more = random.randrange(0, 30_000_000)

    def starve(pid: int) -> None:
        memory_of_at_most(pid, more)

    return _to_a_worker(lane, random, starve) + f"a worker has {more} bytes left"


def _to_a_worker(lane: Lane, random: Random, do: Callable[[int], None]) -> str:
    task = lane.store.tasks["run pool"]
    lane.begin()
    argv = tuple("pool" if word == "serial" else word for word in task.argv)
    started = start(lane.case, argv)
    until = time.monotonic() + 60
    while len(workers := started.workers()) < 2 and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.6) ** 2)
    if workers:
        do(random.choice(workers))
    ended = started.end()
    check_alive(ended)
    if ended.code == 0:
        _comes_to(lane, task)
    else:
        check_sentence(ended)
        _goes_on(lane, task, ended)
    return f"{' '.join(argv)}: "


def _interrupt(lane: Lane, random: Random) -> str:
    task = lane.store.tasks[random.choice(("run", "run private", "compare", "reproduce"))]
    lane.begin()
    after = random.uniform(0, task.seconds)
    started = start(lane.case, task.argv)
    time.sleep(after)
    started.kill(signal.SIGINT)
    ended = started.end()
    check_alive(ended)
    if ended.code == 0:
        _comes_to(lane, task)
    else:
        expect(ended.code == 130, f"exit code {ended.code}: {ended.last}")
        expect(ended.last.startswith("repper: interrupted"), f"no sentence: {ended.last}")
        _goes_on(lane, task, ended)
    return f"{' '.join(task.argv)}: SIGINT after {after:.2f} s"


def _full_disk(lane: Lane, random: Random) -> str:
    task = lane.store.tasks[random.choice(WRITING)]
    lane.begin(*task.given)
    if lane.can_mount and random.random() < 0.7:
        size = random.randrange(4096, 600_000 if task.out in ("all", "table") else 200_000, 4096)
        how = f"a disk with {size} bytes left"
        with _small_disk(lane, size):
            ended = run(lane.case, task.argv)
            _mount("-o", "remount,size=200m", str(lane.case))
            _survived_lack(lane, task, ended)
    else:
        size = int(10 ** random.uniform(3.6, 5))  # what is printed is a file, too
        how = f"no file grows beyond {size} bytes"
        ended = run(lane.case, task.argv, files_of_at_most(size))
        _survived_lack(lane, task, ended)
    return f"{' '.join(task.argv)}: {how}"


def _survived_lack(lane: Lane, task: Task, ended: Ended) -> None:
    """Of a disk that was full and is no more."""
    if ended.code == 0:
        check_alive(ended)
        _comes_to(lane, task)
    else:
        check_sentence(ended)
        _goes_on(lane, task, ended)


WRITING = (
    "run", "run chosen", "run private", "run stages", "compare", "reproduce", "join", "export",
    "personalize", "add", "remove",
)  # fmt: skip


def _read_only(lane: Lane, random: Random) -> str:
    """Nothing can be written: what writes says so, what reads works."""
    if random.random() < 0.5:
        task = lane.store.tasks[random.choice(WRITING)]
        lane.begin(*task.given)
        with _moved_to_memory(lane):
            _mount("-o", "remount,ro", str(lane.case))
            ended = run(lane.case, task.argv)
            _mount("-o", "remount,rw", str(lane.case))
            check_sentence(ended)
            _goes_on(lane, task, ended)
        return f"{' '.join(task.argv)} in a read-only folder"
    look = random.choice(READING)
    given, argv = look.given, look.argv
    lane.begin(*given)
    expected = run(lane.case, argv)
    with _moved_to_memory(lane):
        _mount("-o", "remount,ro", str(lane.case))
        ended = run(lane.case, argv)
    check_alive(ended)
    expect((ended.code, ended.out) == (0, expected.out), f"it needs to write: {ended.last}")
    return f"{' '.join(argv)} in a read-only folder"


def _two_at_once(lane: Lane, random: Random) -> str:
    """Two commands on one folder: one is refused, or comes after the other."""
    task = lane.store.tasks[random.choice(("run", "run private", "compare", "reproduce", "add",
                                           "personalize", "export", "remove"))]  # fmt: skip
    lane.begin(*task.given)
    started, argv = [], task.again if random.random() < 0.5 else task.argv
    pause = random.uniform(0, 0.5 * task.seconds)
    for number in range(2):
        logs = lane.folder / str(number)
        logs.mkdir()
        started.append(start(lane.case, argv, logs=logs))
        time.sleep(0 if number else pause)
    ends = [one.end() for one in started]
    for ended in ends:
        check_alive(ended)
        if ended.code:
            check_sentence(ended)
    if any(ended.code == 0 for ended in ends):
        _comes_to(lane, task)
    else:
        _goes_on(lane, task, ends[0])
    return f"{' '.join(argv)} twice, {pause:.2f} s apart"


@dataclass(frozen=True)
class Look:
    """A command that reads a folder; `writes` is what it makes of it, which is compared too."""

    given: tuple[str, ...]
    argv: tuple[str, ...]
    writes: str = ""
    files: str = ""
    """Which folder's files are damaged; else those of the first that is given."""


def _look(given: str, text: str, **more: str) -> Look:
    return Look(tuple(given.split()), tuple(text.split()), **more)


RUN_LOOKS = [
    _look("run", f"run {' '.join(['--data digits --train-images 300 --clients 3 --epochs 1'])} "
          "--width 0.25 --participation 0.67 --engine serial --rounds 3 --out run --resume"),
    _look("run asked", "predict --run run --client 0 asked/cat/20.png asked/dog/21.png --json"),
    _look("run asked", "predict --run run --client 1 asked/cat/20.png --json"),
    _look("run", "report run --no-tsne --out page.html", writes="page.html"),
    _look("run", "join --run run --clients 3 --seed 5 --out new", writes="new"),
    _look("run", "export run --client 0 --no-measure --images 40 --out model", writes="model"),
]  # fmt: skip
TABLE_LOOKS = [
    _look("all", "compare", writes="all"),
    _look("all", "report all --no-tsne --out page.html", writes="page.html"),
    _look("table", "reproduce table2 --engine serial --out table --resume", writes="table"),
    _look("table", "report table --no-tsne --out page.html", writes="page.html"),
]
MODEL_LOOKS = [
    _look("mine asked", "predict mine asked --json --top 3"),
    _look("mine asked", "evaluate mine --images asked --json"),
    _look("mine", "play mine --html page.html", writes="page.html"),
    _look("mine more asked", "add mine --images more --json", writes="mine"),
    _look("mine", "remove mine --class dog --json", writes="mine"),
    _look("encoder.onnx photos", "personalize --encoder encoder.onnx --images photos --out new",
          writes="new"),
    _look("encoder.onnx photos", "personalize --encoder encoder.onnx --images photos --out new",
          files="photos"),  # the album tells a photo by the SHA-256 of its file: another one
    _look("model asked", "predict model asked --json"),
]  # fmt: skip
READING = [look for look in RUN_LOOKS + MODEL_LOOKS if look.argv[0] in ("predict", "evaluate")]


def _corrupt(looks: list[Look]) -> Fault:
    def fault(lane: Lane, random: Random) -> str:
        look = random.choice(looks)
        if look.argv == ("compare",):
            look = Look(look.given, lane.store.tasks["compare"].again, look.writes)
        lane.begin(*look.given)
        expected = _seen(lane, look)
        lane.begin(*look.given)
        path = _file_of(lane.case / (look.files or look.given[0]), random)
        original = path.read_bytes()
        what = damaged(path, random)
        told = f"{' '.join(look.argv)}: {path.relative_to(lane.case)} {what}"
        ended = run(lane.case, look.argv)
        check_alive(ended)
        if ended.code == 0:
            _as_expected(lane, look, ended, expected, told)
            return told
        check_sentence(ended)
        # Nothing else was harmed: with the file as it was, all is as it was.
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(original)
        ended = run(lane.case, look.argv)
        expect(ended.code == 0, f"{told}; and still with the file as it was: {ended.last}")
        _as_expected(lane, look, ended, expected, f"{told}; with the file as it was")
        return told

    return fault


def _file_of(folder: Path, random: Random) -> Path:
    if folder.is_file():
        return folder
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    return random.choice(files)


def _bytes_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _seen(lane: Lane, look: Look) -> tuple[str, Content]:
    ended = run(lane.case, look.argv)
    expect(ended.code == 0, f"undisturbed: {ended.last}")
    return ended.out, _written(lane, look)


def _written(lane: Lane, look: Look) -> Content:
    path = lane.case / look.writes
    if not look.writes:
        return {}
    if path.is_dir():
        return content_of(path)
    return {"page": re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "", path.read_text())}


def _as_expected(
    lane: Lane, look: Look, ended: Ended, expected: tuple[str, Content], told: str
) -> None:
    out, written = expected
    expect(ended.out == out, f"{told}: it prints another result")
    # A damaged file that nothing has read stays as it is.
    if look.writes not in look.given:
        check_equal(_written(lane, look), written, told)


def _corrupt_half(names: tuple[str, ...]) -> Fault:
    def fault(lane: Lane, random: Random) -> str:
        name = random.choice(names)
        argv, expected = lane.store.half[name], lane.store.ends[name]
        lane.begin(name)
        source = lane.case / name
        for path in source.iterdir():
            path.rename(lane.case / path.name)
        source.rmdir()
        data = name.removeprefix("half ")
        place = data if data in (*DATA, "settings") else "run"
        path = _file_of(lane.case / place, random)
        original = path.read_bytes()
        what = damaged(path, random)
        broken = _bytes_of(path)
        told = f"{' '.join(argv)}: {path.relative_to(lane.case)} {what}"
        ended = run(lane.case, argv)
        check_alive(ended)
        if ended.code == 0:
            if path.suffix == ".safetensors" and _bytes_of(path) == broken:
                # One that nothing needs any more stays as it is: it would be refused.
                path.write_bytes(original)
            check_equal(content_of(lane.case / "run"), expected, told)
            return told
        check_sentence(ended)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(original)
        ended = run(lane.case, argv)
        expect(ended.code == 0, f"{told}; and still with the file as it was: {ended.last}")
        check_equal(content_of(lane.case / "run"), expected, f"{told}; with the file as it was")
        return told

    return fault


FAULTS: dict[str, tuple[int, Fault]] = {
    "kill run": (5, _kill("run")),
    "kill run, validation": (3, _kill("run chosen")),
    "kill run, private parts": (4, _kill("run private")),
    "kill run, two stages": (3, _kill("run stages")),
    "kill run, a process": (1, _kill("run", fork=False)),
    "kill compare": (4, _kill("compare")),
    "kill reproduce": (3, _kill("reproduce")),
    "kill join": (2, _kill("join")),
    "kill export": (2, _kill("export")),
    "kill personalize": (3, _kill("personalize")),
    "kill add": (2, _kill("add")),
    "kill remove": (2, _kill("remove")),
    "kill a worker": (2, _kill_worker),
    "worker without memory": (2, _starve_worker),
    "Ctrl-C": (3, _interrupt),
    "full disk": (6, _full_disk),
    "read-only folder": (4, _read_only),
    "two on one folder": (4, _two_at_once),
    "damage: finished run": (10, _corrupt(RUN_LOOKS)),
    "damage: unfinished run": (
        10, _corrupt_half(("half run chosen", "half run private", "half run stages")),
    ),
    "damage: tables": (5, _corrupt(TABLE_LOOKS)),
    "damage: model": (10, _corrupt(MODEL_LOOKS)),
    "damage: data": (10, _corrupt_half(tuple(f"half {name}" for name in DATA))),
    "damage: settings": (4, _corrupt_half(("half settings",))),
}  # fmt: skip
"""Kinds of faults: how often each, and what does it."""
NEEDS_MOUNT = {"read-only folder"}
