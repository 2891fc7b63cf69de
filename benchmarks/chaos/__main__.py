"""Faults, one after the other, at random: what is lost, what is wrong, what is left over?

    make chaos
    .venv/bin/python benchmarks/chaos --faults 1000 --minutes 90 --seed 1

It prints a table of the cases that were tried and survived, and exits with 1 if one was not, with
the command that repeats it, or if none was tried. Everything lies in a folder of its own that is
removed at the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from commands import Bad, warm
from faults import FAULTS, NEEDS_MOUNT, Lane, may_mount
from tasks import Store


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description="Faults, at random.")
    minutes = float(os.environ.get("CHAOS_MINUTES", "4"))

    def add(flag: str, help: str, **more: Any) -> None:
        parser.add_argument(f"--{flag}", help=help, metavar="N", **{"type": int, **more})

    add("faults", "stop after so many (default: as many as there is time for)")
    add("minutes", "begin no fault after so many (default: %(default)g)",
        type=float, default=minutes)  # fmt: skip
    add("seed", "of all choices (default: 0)", default=0)
    parser.add_argument("--only", default="", metavar="TEXT", help="kinds with this in their name")
    add("case", "only this one, and keep its folder")
    add("lanes", "at the same time (default: one per core)", default=os.cpu_count() or 1)
    options = parser.parse_args()
    kinds = [kind for kind, (share, _) in FAULTS.items() for _ in range(share)
             if options.only in kind]  # fmt: skip
    if not kinds:
        parser.error(f"no kind has {options.only!r} in its name: {', '.join(FAULTS)}")
    ends = time.monotonic() + 60 * options.minutes
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warm()
    root = Path(tempfile.mkdtemp(prefix="repper-chaos-"))
    store = Store(root / "store")
    try:
        store.make()
        if options.case is not None:
            lane = Lane(store, root / "lane", may_mount())
            tried = _try(lane, kinds, options.seed, options.case)
            print(f"{tried.kind}: {tried.why or tried.told}\nIts folder: {lane.case}")
            return int(bool(tried.why))
        found = _all(store, root, kinds, ends, options)
    finally:
        if options.case is None:
            shutil.rmtree(root, ignore_errors=True)
    return _tell(found, options)


@dataclass(frozen=True)
class Tried:
    """A case by its number: its kind, what was done, and why it was not survived, if so."""

    number: int
    kind: str
    told: str
    why: str = ""
    left_out: bool = False


def _try(lane: Lane, kinds: list[str], seed: int, number: int) -> Tried:
    random = Random(f"{seed} {number}")  # noqa: S311
    kind = random.choice(kinds)
    if kind in NEEDS_MOUNT and not lane.can_mount:
        return Tried(number, kind, "", left_out=True)
    try:
        return Tried(number, kind, FAULTS[kind][1](lane, random))
    except Bad as bad:
        return Tried(number, kind, "", str(bad))


def _all(
    store: Store, root: Path, kinds: list[str], ends: float, options: argparse.Namespace
) -> list[Tried]:
    """All cases, in several lanes; each is a fork, so that its mounts are its own."""
    numbers = range(options.faults) if options.faults else itertools.count()
    reports = [root / f"report-{lane}" for lane in range(options.lanes)]
    lanes = []
    for place, report in enumerate(reports):
        if pid := os.fork():
            lanes.append(pid)
            continue
        try:
            lane = Lane(store, root / f"lane-{place}", may_mount())
            with report.open("w") as file:
                for number in itertools.islice(numbers, place, None, options.lanes):
                    if time.monotonic() > ends:
                        break
                    tried = _try(lane, kinds, options.seed, number)
                    print(json.dumps(asdict(tried)), file=file, flush=True)
                    if tried.why:
                        print(f"case {number}, {tried.kind}: {tried.why}", file=sys.stderr)
            lane.end()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    broken = [pid for pid in lanes if os.waitpid(pid, 0)[1]]
    if broken:
        raise RuntimeError("the campaign itself failed: see above")
    lines = [line for report in reports for line in report.read_text().splitlines()]
    return sorted((Tried(**json.loads(line)) for line in lines), key=lambda tried: tried.number)


def _tell(found: list[Tried], options: argparse.Namespace) -> int:
    """Print the table and what was not survived; returns the exit code."""
    tried = Counter(one.kind for one in found if not one.left_out)
    failed = [one for one in found if one.why]
    bad = Counter(one.kind for one in failed)
    print(f"\n{'fault':<26}{'tried':>7}{'survived':>10}")
    for kind in FAULTS:
        if options.only in kind:
            note = (
                "  (needs root)" if any(one.left_out for one in found if one.kind == kind) else ""
            )
            print(f"{kind:<26}{tried[kind]:>7}{tried[kind] - bad[kind]:>10}{note}")
    print(f"{'all':<26}{tried.total():>7}{tried.total() - bad.total():>10}")
    if not tried:
        print(
            f"\nNothing was tried: {options.minutes:g} minutes were too few. Give more --minutes."
        )
    only = f" --only {options.only!r}" if options.only else ""
    for one in failed[:20]:
        print(f"\nNot survived: {one.kind}: {one.why}")
        print(
            f"  .venv/bin/python benchmarks/chaos --seed {options.seed}{only} --case {one.number}"
        )
    return int(bool(failed) or not tried)


if __name__ == "__main__":
    sys.exit(main())
