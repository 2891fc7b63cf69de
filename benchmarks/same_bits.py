"""Has a change of the code changed one bit of a result? Compares this checkout with a commit.

    .venv/bin/python benchmarks/same_bits.py --against HEAD
    .venv/bin/python benchmarks/same_bits.py --against main --only fedrep

Each row is a tiny run on scikit-learn's digits: every method with every personalizer of the commit,
on the serial engine and on the pool; then single settings, Flower's simulation, joined clients, and
runs that are killed and resumed. The table compares the digests of the encoder, of the heads, and
of the header (with a digest) of the file that has the encoder for newcomers.
The exit code is 0 if all are equal, otherwise 1. All rows take three minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w
from safetensors import safe_open

ROOT = Path(__file__).resolve().parents[1]
Settings = dict[str, Any]
Row = tuple[str, Settings, Settings]
"""A kind, settings on top of those in `TINY`, and settings of the second step if there is one."""
Answer = dict[str, str]
REPPER_RUN = [sys.executable, "-m", "repper", "run"]
NOT_RESULTS = ("seal", "run")
"""Notes in a file that say which file it is, not what was trained."""
PARTS = ("encoder", "heads", "file")
"""All that was trained, the clients' heads, and the encoder that newcomers would take."""
TINY: Settings = {
    "data": "digits", "train_images": 360, "clients": 6, "participation": 0.5, "rounds": 2,
    "epochs": 2, "batch": 32, "width": 0.5, "head_epochs": 20, "knn": 50, "seed": 3,
    "engine": "serial", "workers": 2,
}  # fmt: skip
"""Three clients in a cohort, and two to four batches in an epoch of a client."""
PAIRS = """
from repper.methods import METHODS
try:
    from repper.heads.personalize import NEED_A_HEAD, personalizer_names
except ImportError:  # an older commit
    from repper.personalize import NEED_A_HEAD, personalizer_names
for method in METHODS:
    for name in personalizer_names():
        if name not in NEED_A_HEAD or METHODS[method].personalize in NEED_A_HEAD:
            print(method, name)
"""
"""Prints every method with each personalizer it takes."""
DECAY = {"lr_decay": 0.5, "lr_decay_every": 1, "rounds": 4}
VALIDATION = {"validation": 0.2, "evaluate_every": 1, "rounds": 4}
SINGLE: list[Settings] = [
    {"method": "repper", "upload": "float16"},
    {"method": "repper", **VALIDATION},
    {"method": "fedrep", "personalize": "linear", **VALIDATION},
    {"method": "repper", "projection": "mlp", "loss": "usual"},
    {"method": "repper", "temperature": 0.5, "lr": 0.003, "weight_decay": 0.01},
    {"method": "repper", "norm": "group"},
    {"method": "repper", "encoder": "mobilenet", "width": 0.25},
    {"method": "repper", "precision": "bfloat16"},
    {"method": "repper", "augment": "weak"},
    {"method": "fedavg", "augment": "none"},
    {"method": "fedavg", "partition": "shards", "classes_per_client": 3},
    {"method": "fedavg", "partition": "iid"},
    {"method": "fedavg", "alpha": 5.0, "min_train": 20},
    {"method": "fedavg", **DECAY},
    {"method": "local", **DECAY},
    {"method": "central", **DECAY},
    {"method": "central", "stage1_clients": "4"},
    {"method": "repper", "stage1_clients": "4"},
    {"method": "fedprox", "mu": 0.5},
    {"method": "ditto", "ditto_lambda": 1.0},
    {"method": "fedrep", "fedrep_head_epochs": 1, "epochs": 4},
    {"method": "repper", "head_epochs": None},
    {"method": "repper", "head_input": "z"},
    {"method": "repper", "head_scale": True},
    {"method": "repper", "head_optimizer": "sgd", "head_lr": 0.1, "head_epochs": 5},
    {"method": "repper", "head_batch": 16, "head_weight_decay": 0.01, "head_curve": 2},
    {"method": "repper", "personalize": "mlp", "head_hidden": 16},
    {"method": "repper", "personalize": "svm", "svm_kernel": "rbf", "head_c": 10.0},
    {"method": "repper", "personalize": "svm", "head_choose_c": True},
    {"method": "repper", "personalize": "logistic", "head_choose_c": True},
    {"method": "fedrep", "engine": "flower"},
    *([{"method": "repper", "compile": True}] if shutil.which("g++") else []),
]
TWO_STEPS: list[Row] = [
    ("join", {"method": "repper"}, {"personalize": "svm", "clients": 4}),
    ("join", {"method": "lg-fedavg"}, {"same_clients": True}),
    ("init", {"method": "repper"}, {"method": "fedavg"}),
    ("init", {"method": "lg-fedavg"}, {"method": "lg-fedavg", "init_clients": "same"}),
    ("killed and resumed", {"method": "repper", "rounds": 20}, {}),
    ("killed and resumed", {"method": "fedrep", "rounds": 20}, {}),
    ("TOML [clients.N]", {"method": "fedavg"}, {"0": "svm", "2": "finetune"}),
]


def rows(src: Path) -> list[Row]:
    """All rows; methods and personalizers are those of the version in `src`."""
    listed = subprocess.run(
        [sys.executable, "-c", PAIRS], env=environment(src), check=True, stdout=subprocess.PIPE
    ).stdout.decode()
    pairs: list[Settings] = [
        {"method": method, "personalize": name, "engine": engine}
        for engine in ("serial", "pool")
        for method, name in map(str.split, listed.splitlines())
    ]
    return [("run", settings, {}) for settings in pairs + SINGLE] + TWO_STEPS


def name_of(kind: str, settings: Settings, then: Settings) -> str:
    first, second = (" ".join(f"{k}={v}" for k, v in part.items()) for part in (settings, then))
    return first if kind == "run" else f"{first}, {kind} {second}".rstrip()


def environment(src: Path) -> dict[str, str]:
    """Variables of a process that imports repper from `src`, not the installed one."""
    return {**os.environ, "PYTHONPATH": str(src)}


def probe(file: Path) -> None:
    """Run the rows in a file; beside it, write the digests or the error of each, line by line."""
    import repper

    wanted = Path(os.environ["PYTHONPATH"])
    if not Path(repper.__file__).is_relative_to(wanted):
        sys.exit(f"repper was imported from {repper.__file__}, not from {wanted}")
    with file.with_name("answers").open("w") as answers:
        for number, (kind, settings, then) in enumerate(json.loads(file.read_text())):
            folder = file.with_name(f"run{number}")
            try:
                make_run(folder, kind, {**TINY, **settings}, then)
                result = repper.open_run(folder).result
                answer = {part: result[f"{part}_digest"] for part in PARTS[:2]}
                with safe_open(str(folder / "encoder.safetensors"), framework="np") as encoder:
                    notes = encoder.metadata().items()
                header = json.dumps(sorted((k, v) for k, v in notes if k not in NOT_RESULTS))
                answer["file"] = hashlib.sha256(header.encode()).hexdigest()
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps([name_of(kind, settings, then), answer]), file=answers, flush=True)


def make_run(folder: Path, kind: str, settings: Settings, then: Settings) -> None:
    """Leave a finished run in the folder."""
    import repper

    before = f"{folder}-before"
    if kind == "run":
        repper.run(**settings, out=folder)
    elif kind == "join":
        repper.join(repper.run(**settings, out=before), **then, out=folder)
    elif kind == "init":
        repper.run(**settings, out=before)
        repper.run(**{**settings, **then, "seed": 4}, init=before, out=folder)
    elif kind == "killed and resumed":
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        command = [*REPPER_RUN, *flags, "--out", str(folder)]
        kill_on_the_way(command, folder / "rounds.jsonl", settings["rounds"])
        finish([*command, "--resume"])
    else:
        clients = {client: {"personalize": name} for client, name in then.items()}
        tables = {**settings, "clients": {"count": settings["clients"], **clients}}
        file = folder.with_suffix(".toml")
        file.write_text(tomli_w.dumps({name.replace("_", "-"): v for name, v in tables.items()}))
        finish([*REPPER_RUN, "--config", str(file), "--out", str(folder)])


def finish(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"code {done.returncode}: {last_line(done.stderr)}")


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def kill_on_the_way(command: list[str], log: Path, rounds: int) -> None:
    """Kill a run once its third round is logged: the checkpoint of the second is then certain."""

    def done() -> int:
        return log.read_text().count("\n") if log.is_file() else 0

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while process.poll() is None and done() < 3:
                time.sleep(0.005)
        finally:
            process.kill()
        printed = process.communicate()[1]
    if process.returncode != -signal.SIGKILL or not 3 <= done() < rounds:
        how = f"code {process.returncode} after {done()} of {rounds} rounds, {last_line(printed)}"
        raise RuntimeError(f"the run was not killed on the way: {how}")


@contextmanager
def worktree(commit: str, folder: Path) -> Iterator[Path]:
    """A folder with the files of a commit, removed at the end."""
    git = ["git", "-C", str(ROOT), "worktree"]
    add = [*git, "add", "--quiet", "--detach", str(folder), commit]
    try:
        if subprocess.run(add, check=False).returncode:
            sys.exit(1)  # git has said why
        yield folder
    finally:
        if folder.exists():
            subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def ask(versions: dict[str, Path], asked: list[Row], home: Path) -> dict[str, dict[str, Answer]]:
    """Let both versions run all rows at the same time, and return their answers by row."""
    children = {}
    try:
        for version, src in versions.items():
            folder = home / version
            folder.mkdir()
            (folder / "rows").write_text(json.dumps(asked))
            # The other version begins with the last row: slow rows then do not come together.
            asked = asked[::-1]
            with (folder / "log").open("w") as log:
                children[version] = subprocess.Popen(
                    [sys.executable, __file__, "--probe", str(folder / "rows")],
                    cwd=folder, env=environment(src), stdout=log, stderr=log,
                )  # fmt: skip
        codes = {version: child.wait() for version, child in children.items()}
    finally:
        for child in children.values():
            child.terminate()
            child.wait()
    found = {}
    for version, code in codes.items():
        file = home / version / "answers"
        given = dict(map(json.loads, file.read_text().splitlines())) if file.is_file() else {}
        last = last_line((home / version / "log").read_text())
        none = {"error": f"no answer, its process ended with code {code}: {last}"}
        found[version] = {name: given.get(name, none) for name in (name_of(*row) for row in asked)}
    return found


def print_table(names: list[str], found: dict[str, dict[str, Answer]]) -> int:
    """Print which digests are equal, and return the number of rows in which one is not."""
    width = max(map(len, names))
    print(f"{'row':{width}}  " + "  ".join(f"{part:9}" for part in PARTS).rstrip())
    different = 0
    for name in names:
        cells = []
        errors = {answers[name].get("error", "") for answers in found.values()}
        if len(errors) == 1 and errors.pop().startswith("RepperError"):
            print(f"{name:{width}}  refused by both")
            continue
        for part in PARTS:
            digests = {answers[name].get(part) for answers in found.values()}
            cells.append("DIFFERENT" if None in digests or len(digests) > 1 else "equal")
        different += "DIFFERENT" in cells
        print(f"{name:{width}}  " + "  ".join(f"{cell:9}" for cell in cells).rstrip())
        for version, answers in found.items():
            if "error" in answers[name]:
                print(f"    {version}: {answers[name]['error']}")
    return different


def main() -> None:
    # SIGTERM is like Ctrl-C: the worktree is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="COMMIT", help="the version to compare with")
    parser.add_argument("--only", metavar="SUBSTRING", default="", help="part of rows' names")
    parser.add_argument("--probe", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        return probe(options.probe)
    if not options.against:
        parser.error("give --against COMMIT")
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="same-bits-", ignore_cleanup_errors=True) as home,
        worktree(options.against, Path(home) / "worktree") as old,
    ):
        asked = [row for row in rows(old / "src") if options.only in name_of(*row)]
        if not asked:
            parser.error(f"no row has {options.only!r} in its name")
        versions = {"commit": old / "src", "checkout": ROOT / "src"}
        found = ask(versions, asked, Path(home))
    different = print_table([name_of(*row) for row in asked], found)
    count = f"{different} of {len(asked)} rows are DIFFERENT" if different else "all rows are equal"
    seconds = time.perf_counter() - began
    print(f"Against {options.against}, {count}: {len(asked)} rows in {seconds:.0f} s.")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
