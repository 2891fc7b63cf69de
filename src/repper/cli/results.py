"""Print the tables of results: on stdout, or on stderr if stdout is for JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from repper.cli import show
from repper.cli.duration import duration
from repper.errors import RepperError
from repper.evaluate import Score
from repper.paper.events import Estimate
from repper.paper.reproduction import Reproduction
from repper.runs.attacked import said_of
from repper.runs.comparison import Comparison
from repper.runs.run import Run
from repper.runs.sweep import Sweep
from repper.text_table import figure, heading_of

CLIENTS_SHOWN = 40
BEST, SECOND = "\x01", "\x02"
"""Characters that no text holds, around what is best and second in a table."""


def console_for_results(width: int | None = None, *, stderr: bool = False) -> Console:
    """A console as wide as the terminal or COLUMNS; in a file or a pipe, as wide as `width`."""
    stream = sys.stderr if stderr else sys.stdout
    known = stream.isatty() or "COLUMNS" in os.environ
    return show.console(stderr=stderr, width=None if known else width)


def print_results(run: Run, *, stderr: bool = False) -> None:
    """Print the table of clients, the summary, and the run folder."""
    console = console_for_results(100, stderr=stderr)
    scores, result = run.scores(), run.result
    _print_clients(console, scores, run.client_names())
    _print_summary(console, result)
    if said := said_of(result):
        console.print(said, soft_wrap=True, markup=False)
    console.print(f"Run folder: {result['run']}", soft_wrap=True, markup=False)


def print_joined(run: Run, *, stderr: bool = False) -> None:
    """Print the encoder that new clients use, and their mean accuracy over epochs of the heads."""
    console = console_for_results(100, stderr=stderr)
    result, means = run.result, run.mean_curve()
    if means:
        last = max(means)
        shown = [e for e in means if e in (1, 2, 5, 10, 20, 50, 100, 200, 500, last)]
        print_table(
            console,
            [["epochs", *map(str, shown)], ["accuracy", *(figure(means[e]) for e in shown)]],
            title="Mean accuracy over epochs of the heads (%)",
        )
    origin = result["encoder_origin"]
    console.print(
        f"Encoder: {run.config.init} ({result['method']}, {origin})", soft_wrap=True, markup=False
    )


def print_comparison(comparison: Comparison, *, stderr: bool = False) -> None:
    """Print the table of a comparison, and its folder."""
    console = console_for_results(160, stderr=stderr)
    cells = comparison.cells(f"{BEST}{{}}{BEST}", f"{SECOND}{{}}{SECOND}")
    print_table(console, cells, caption=comparison.caption())
    console.print(f"Comparison: {comparison.folder}", soft_wrap=True, markup=False)


def print_sweep(sweep: Sweep, *, stderr: bool = False) -> None:
    """Print the table over the values of a setting."""
    console = console_for_results(160, stderr=stderr)
    print_table(console, sweep.cells(f"{BEST}{{}}{BEST}"), caption=sweep.caption())
    console.print(f"Sweep: {sweep.folder}", soft_wrap=True, markup=False)


def print_reproduction(reproduction: Reproduction) -> None:
    """Print our numbers beside the paper's, which claims hold, and the path of the tables."""
    console = console_for_results(160)
    for note in reproduction.settings_text():
        console.print(note, soft_wrap=True, markup=False)
    for each in reproduction.tables(f"{BEST}{{}}{BEST}", f"{SECOND}{{}}{SECOND}"):
        print_table(console, each.cells, title=each.title, caption=each.note, words=True)
    console.print(f"Written to {reproduction.folder / 'table.md'}", soft_wrap=True, markup=False)


def _marked(cell: str) -> Text:
    """A table cell as text, with the best and second best value highlighted."""
    for mark, style in ((BEST, "bold"), (SECOND, "underline")):
        before, found, rest = cell.partition(mark)
        if found:
            inner, _, after = rest.partition(mark)
            return Text.assemble(before, (inner, style), after)
    return Text(cell)


def print_table(
    console: Console,
    cells: Sequence[Sequence[str]],
    *,
    title: str = "",
    caption: str = "",
    left: int = 1,
    words: bool = False,
) -> None:
    """Print a table, the heading first, of which no word is cut.

    Where it is too wide, lines between columns go; then it goes on below, where every part begins
    with the first column. `left` columns are aligned there; with `words`, all are, and cells wrap.
    """
    heading, *rows = [[_marked(cell) for cell in line] for line in cells]
    columns = list(zip(*([heading, *rows]), strict=True))
    wide = [max(cell.cell_len for cell in column) for column in columns]
    least = [
        max(_longest_word(name), *(_longest_word(c) if words else c.cell_len for c in own))
        for name, *own in columns
    ]
    least[0] = min(least[0], max(_longest_word(heading[0]), console.width // 3))
    roomy = sum(least) + 3 * len(least) + 1 <= console.width
    if title:
        console.print(Text(title, style="table.title"))
    for part in [range(1, len(least))] if roomy else _parts(least, console.width):
        places = (0, *part)
        lines = 3 * len(places) + 1 if roomy else 2 * len(part)
        widths = _spread(
            [least[p] for p in places], [wide[p] for p in places], console.width - lines
        )
        table = Table() if roomy else Table(**_SLIM)
        for place, width in zip(places, widths, strict=True):
            side: Literal["left", "right"] = "left" if words or place < left else "right"
            table.add_column(heading[place], justify=side, width=width, overflow="fold")
        for row in rows:
            table.add_row(*(row[place] for place in places))
        if part.start > 1:
            console.print()
        console.print(table)
    if caption:
        console.print(Text(caption, style="table.caption"))


def _spread(least: Sequence[int], wide: Sequence[int], whole: int) -> list[int]:
    """Column widths: spare width goes to columns whose content is wider."""
    widths = list(least)
    spare = whole - sum(least)
    while spare > 0 and (short := [n for n, width in enumerate(widths) if width < wide[n]]):
        for place in short[:spare]:
            widths[place] += 1
        spare -= len(short)
    return widths


_SLIM: dict[str, Any] = {
    "box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "collapse_padding": True,
}  # fmt: skip
"""A table without lines between columns, which are two spaces apart."""


def _longest_word(text: Text) -> int:
    return max((Text(word).cell_len for word in text.plain.split()), default=0)


def _parts(widths: Sequence[int], whole: int) -> Iterable[range]:
    """Split the columns after the first into parts that fit beside the first column."""
    starts, used = [1], widths[0]
    for place, width in enumerate(widths[1:], start=1):
        used += width + 2
        if used > whole and place > starts[-1]:
            starts.append(place)
            used = widths[0] + width + 2
    return [range(*ends) for ends in pairwise([*starts, len(widths)])]


def print_estimates(experiment: str, estimates: Iterable[Estimate]) -> None:
    """Print the estimated time of every panel and of all, and name panels without data."""
    console = console_for_results(160)

    def say(name: str, text: str) -> None:
        console.print(f"{name:28} {text}", soft_wrap=True, markup=False)

    timed, missing = list[float](), list[Estimate]()
    for one in estimates:
        if one.seconds is None:
            missing.append(one)
        else:
            timed.append(one.seconds)
            say(one.panel.name, duration(one.seconds))
    if not timed:
        raise RepperError(f"cannot estimate {experiment}: {missing[0].missing}")
    for one in missing:
        say(one.panel.name, f"no estimate: {one.missing}")
    say(
        f"{len(timed)} of {len(timed) + len(missing)}" if missing else "all",
        f"{duration(sum(timed))} of training on this machine; heads, and what is measured on "
        f"finished runs, come on top" + ("; not counting panels without data" if missing else ""),
    )


def _print_clients(console: Console, scores: list[Score], names: list[str]) -> None:
    title = "Accuracy per client (%)"
    if len(scores) > CLIENTS_SHOWN:
        title += f", the {CLIENTS_SHOWN} worst of {len(scores)}; all are in clients.parquet"
        scores = sorted(scores, key=lambda s: -1 if s.accuracy is None else s.accuracy)[
            :CLIENTS_SHOWN
        ]
    heading = ["client", "head", "train", "classes", "test", "accuracy", "balanced"]
    cells = [[*heading, heading_of("head_classes"), heading_of("tail_classes")]]
    for s in scores:
        figures = (s.accuracy, s.balanced, s.head_classes, s.tail_classes)
        counts = (s.train.sum(), np.count_nonzero(s.train), s.tested.sum())
        client = names[s.client] if names else str(s.client)
        cells.append([client, s.personalize, *map(str, counts), *map(figure, figures)])
    print_table(console, cells, title=title, left=2)


def _print_summary(console: Console, result: dict[str, Any]) -> None:
    names = list(result["accuracy"])
    cells = [["clients", *map(heading_of, names)]]

    def row(label: str, accuracy: dict[str, float | None] | None) -> None:
        if accuracy is not None:
            cells.append([label, *(figure(accuracy[name]) for name in names)])

    attack = result.get("attack")
    every = f"{attack['honest']} honest" if attack else result["clients"]
    row(every if attack else f"all {every}", result["accuracy"])
    took, never = result["groups"]["took_part"], result["groups"]["never_took_part"]
    caption = ""
    if result["rounds"]:
        if never["clients"]:
            row(f"{took['clients']} took part", took["accuracy"])
            row(f"{never['clients']} did not", never["accuracy"])
        caption = f"{never['clients']} of {every} clients were never sampled in stage 1"
    title = f"{result['method']}+{result['personalize']}, accuracy (%)"
    print_table(console, cells, title=title, caption=caption)
