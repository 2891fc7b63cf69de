"""The command `repper runs`: what is on the disk, what needs what, and what can go."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from repper.basics.errors import RepperError
from repper.cli.arguments import AddCommand, Parser, path
from repper.cli.show import console, say, tell

if TYPE_CHECKING:
    from repper.runs.folders import Folder

DIR = "folder to look in, with those inside it (default: runs)"
AMONG = "where to look for folders that point to it (default: the folder that it is in)"
SIZES = ("B", "kB", "MB", "GB", "TB")
ROWS_SHOWN = 2
WIDTH = 160
"""Columns of text where there is no terminal that says how many it has."""


def add_commands(add: AddCommand) -> None:
    runs = add("runs", "list, show and remove what repper has written to disk", _list)
    actions = runs.add_subparsers(
        dest="action", metavar="ACTION", parser_class=Parser, required=True
    )

    def add_action(name: str, help: str, function: Callable[[argparse.Namespace], int]) -> Parser:
        made = actions.add_parser(
            name, help=help, description=help[0].upper() + help[1:] + ".", allow_abbrev=False
        )
        made.set_defaults(function=function, parser=made)
        made.add_argument("--debug", action="store_true", help="show tracebacks")
        made.add_argument("--json", action="store_true", help="print one line of JSON on stdout")
        return made

    every = add_action("list", "list runs, comparisons and models, with size and age", _list)
    every.add_argument("dir", nargs="?", type=path, metavar="DIR", default=Path("runs"), help=DIR)
    show = add_action("show", "show what is in a folder, what it needs and what needs it", _show)
    show.add_argument("folder", type=path, metavar="FOLDER", help="what was --out")
    show.add_argument("--among", type=path, metavar="DIR", help=AMONG)
    remove = add_action("rm", "remove folders that nothing else needs", _remove)
    remove.add_argument("folders", nargs="+", type=path, metavar="FOLDER", help="what was --out")
    remove.add_argument("--among", type=path, metavar="DIR", help=AMONG)
    remove.add_argument(
        "--force", action="store_true",
        help="also what others point to, and single parts of a comparison",
    )  # fmt: skip
    clear = add_action("gc", "list, or with --yes remove, what killed processes have left", _clear)
    clear.add_argument("dir", nargs="?", type=path, metavar="DIR", default=Path("runs"), help=DIR)
    clear.add_argument("--yes", action="store_true", help="remove it")


def _list(options: argparse.Namespace) -> int:
    from repper.runs.folders import folders_in

    found = list(folders_in(options.dir))
    if options.json:
        say(json.dumps({"dir": str(options.dir), "folders": [_as_dict(one) for one in found]}))
    elif not found:
        say(f"there is no run, comparison, reproduction or model in {options.dir}")
    else:
        heading = ["folder", "kind", "rows", "data", "done", "seeds", "size", "age", "points to"]
        lines = [
            [
                _beside(one.path, options.dir), one.kind, _rows(one), one.data or "-", _done(one),
                "-" if one.seeds is None else str(one.seeds), size_text(one.size),
                age_text(one.age), _listed(one.points_to),
            ]
            for one in found
        ]  # fmt: skip
        _print(heading, lines, right=("seeds", "size", "age"))
        whole = sum(one.size for one in found)
        say(f"{_count(len(found), 'folder')}, {size_text(whole)}")
    return 0


def _show(options: argparse.Namespace) -> int:
    from repper.runs.folders import folder_at, folders_in, needing

    found = folder_at(options.folder)
    if found is None:
        raise RepperError(
            f"{options.folder} holds no run, comparison, reproduction or model: give the folder "
            f"that was --out"
        )
    among = list(folders_in(options.among or options.folder.absolute().parent))
    needed_by = tuple(one.path for one in needing(found.path, among))
    counts, sizes = _parts(found)
    if options.json:
        parts = {part: {"files": counts[part], "bytes": sizes[part]} for part in counts}
        needs = {"needed_by": [str(one) for one in needed_by]}
        strange = {"strange": [str(one) for one in found.strange]}
        say(json.dumps(_as_dict(found) | needs | {"parts": parts} | strange))
        return 0
    facts = {
        "folder": found.path,
        "kind": found.kind,
        "rows": ", ".join(found.rows),
        "data": found.data,
        "done": _done(found),
        "seeds": found.seeds,
        "size": size_text(found.size),
        "age": age_text(found.age),
        "points to": _listed(found.points_to),
        "needed by": _listed(needed_by),
        "not repper's": _listed(found.strange),
    }
    for name, value in facts.items():
        say(f"{name:13}{'-' if value in (None, '') else value}")
    lines = [[part, str(counts[part]), size_text(sizes[part])] for part in counts]
    _print(["part", "files", "size"], lines, right=("files", "size"))
    return 0


def _remove(options: argparse.Namespace) -> int:
    from repper.runs.clearing import remove

    gone = []
    for one in remove(options.folders, options.among, force=options.force):
        gone.append(
            {"folder": str(one.path), "bytes": one.size, "kept": [str(p) for p in one.kept]}
        )
        (tell if options.json else say)(f"removed {one.path}, {size_text(one.size)}")
        if one.kept:
            tell(f"kept {_listed(one.kept)}: repper has not written that")
    if options.json:
        say(json.dumps({"removed": gone}))
    return 0


def _clear(options: argparse.Namespace) -> int:
    from repper.runs.clearing import clear, leftovers

    found = list(leftovers(options.dir))
    if options.yes:
        clear(found)
    whole = sum(one.size for one in found)
    if options.json:
        listed = [{"path": str(one.path), "why": one.why, "bytes": one.size} for one in found]
        say(json.dumps({"removed": options.yes, "bytes": whole, "leftovers": listed}))
        return 0
    for one in found:
        say(f"{one.path}: {one.why}, {size_text(one.size)}")
    if not found:
        say(f"nothing in {options.dir} can go")
    elif options.yes:
        say(f"removed {_count(len(found), 'leftover')}, {size_text(whole)}")
    else:
        say(f"{_count(len(found), 'leftover')}, {size_text(whole)}: --yes removes them")
    return 0


def _as_dict(folder: Folder) -> dict[str, Any]:
    return {
        "folder": str(folder.path),
        "kind": folder.kind,
        "rows": list(folder.rows),
        "data": folder.data,
        "done": folder.done,
        "asked": folder.asked,
        "seeds": folder.seeds,
        "finished": folder.finished,
        "in_use": folder.in_use,
        "bytes": folder.size,
        "age_seconds": round(folder.age),
        "points_to": [str(one) for one in folder.points_to],
        "damage": folder.damage,
    }


def _parts(folder: Folder) -> tuple[Counter[str], Counter[str]]:
    """Files and bytes by what is directly in a folder, largest first."""
    from repper.runs.folders import size_of

    parts: dict[str, list[Path]] = {}
    for file in folder.files:
        parts.setdefault(file.relative_to(folder.path).parts[0], []).append(file)
    sizes = {part: size_of(files) for part, files in parts.items()}
    order = sorted(parts, key=lambda part: -sizes[part])
    return Counter({part: len(parts[part]) for part in order}), Counter(sizes)


def _done(folder: Folder) -> str:
    if folder.damage:
        return "cannot be read"
    what = (
        "rounds" if folder.kind in ("run", "training", "joined", "federation", "site") else "runs"
    )
    if folder.kind in ("model", "joined"):
        text = "finished" if folder.finished else "not finished"
    elif folder.finished:
        text = f"{folder.done} {what}"
    else:
        text = f"{folder.done} of {'?' if folder.asked is None else folder.asked} {what}"
    return text + (", in use" if folder.in_use else "")


def _rows(folder: Folder) -> str:
    rows = folder.rows
    return ", ".join(rows) if len(rows) <= ROWS_SHOWN else f"{len(rows)} rows"


def _beside(inner: Path, root: Path) -> str:
    return str(inner.relative_to(root)) if inner.is_relative_to(root) else str(inner)


def _listed(paths: tuple[Path, ...]) -> str:
    """Paths as seen from here, where that is shorter."""
    here = Path.cwd()
    shown = [str(p.relative_to(here)) if p.is_relative_to(here) else str(p) for p in paths]
    return ", ".join(shown) or "-"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def size_text(size: float) -> str:
    """Bytes for people, such as `1.2 MB`."""
    for unit in SIZES:
        if size < 1000 or unit == SIZES[-1]:
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def age_text(seconds: float) -> str:
    """An age for people, such as `3 h`: in the largest unit of which it has two, or seconds."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _print(heading: list[str], lines: list[list[str]], right: tuple[str, ...]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in heading:
        side: Literal["left", "right"] = "right" if name in right else "left"
        wraps = name in ("folder", "rows", "points to")
        table.add_column(Text(name), justify=side, overflow="fold", no_wrap=not wraps)
    for line in lines:
        table.add_row(*map(Text, line))
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    console(width=None if known else WIDTH).print(table)
