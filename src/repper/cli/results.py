"""Print the tables of results: on stdout, or on stderr if stdout is for JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from repper.basics.errors import RepperError
from repper.basics.table import Cell, Number, Table, heading_of
from repper.cli import show
from repper.cli.duration import duration
from repper.heads.scores import Score, table_of
from repper.paper.events import Estimate
from repper.paper.findings import Reproduction
from repper.runs.attacked import said_of
from repper.runs.comparison_table import Comparison
from repper.runs.run import Run
from repper.runs.sweep import Sweep

CLIENTS_SHOWN = 40


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
        title = "Mean accuracy over epochs of the heads (%)"
        line: list[Cell] = ["accuracy", *(Number(means[e]) for e in shown)]
        print_table(console, Table.of(["epochs", *map(str, shown)], [line], title))
    origin = result["encoder_origin"]
    console.print(
        f"Encoder: {run.config.init} ({result['method']}, {origin})", soft_wrap=True, markup=False
    )


def print_comparison(comparison: Comparison, *, stderr: bool = False) -> None:
    """Print the table of a comparison, and its folder."""
    console = console_for_results(160, stderr=stderr)
    print_table(console, comparison.table())
    console.print(f"Comparison: {comparison.folder}", soft_wrap=True, markup=False)


def print_sweep(sweep: Sweep, *, stderr: bool = False) -> None:
    """Print the table over the values of a setting."""
    console = console_for_results(160, stderr=stderr)
    print_table(console, sweep.table())
    console.print(f"Sweep: {sweep.folder}", soft_wrap=True, markup=False)


def print_reproduction(reproduction: Reproduction) -> None:
    """Print our numbers beside the paper's, which claims hold, and the path of the tables."""
    console = console_for_results(160)
    for note in reproduction.settings_text():
        console.print(note, soft_wrap=True, markup=False)
    for each in reproduction.tables():
        print_table(console, each)
    console.print(f"Written to {reproduction.folder / 'table.md'}", soft_wrap=True, markup=False)


def _styled(cell: Cell) -> Text:
    """A cell as text, the best bold and the second underlined."""
    if isinstance(cell, str):
        return Text(cell)
    text = Text(cell.text, {1: "bold", 2: "underline"}.get(cell.mark, ""))
    return text.append(f" {cell.in_brackets}", "not bold not underline") if cell.beside else text


def print_table(console: Console, table: Table) -> None:
    """Print a table of which no word is cut: its title, the cells, its caption.

    Where it is too wide, lines between columns go; then it goes on below, where every part begins
    with the first column. Numbers are aligned at the right; what stands in brackets beside them,
    and text, goes on in the next line of its cell.
    """
    heading = [Text(one.name) for one in table.columns]
    columns = [[_styled(cell) for cell in table.column(n)] for n in range(len(heading))]
    wide = [
        max(text.cell_len for text in (name, *own))
        for name, own in zip(heading, columns, strict=True)
    ]
    least = [
        max(_longest_word(name), *map(_least, table.column(n)), 0) for n, name in enumerate(heading)
    ]
    least[0] = min(least[0], max(_longest_word(heading[0]), console.width // 3))
    roomy = sum(least) + 3 * len(least) + 1 <= console.width
    if table.title:
        console.print(Text(table.title, style="table.title"))
    for part in [range(1, len(least))] if roomy else _parts(least, console.width):
        places = (0, *part)
        lines = 3 * len(places) + 1 if roomy else 2 * len(part)
        widths = _spread(
            [least[p] for p in places], [wide[p] for p in places], console.width - lines
        )
        grid = Grid() if roomy else Grid(**_SLIM)
        for place, width in zip(places, widths, strict=True):
            side: Literal["left", "right"] = "right" if table.is_numeric(place) else "left"
            grid.add_column(heading[place], justify=side, width=width, overflow="fold")
        for row in zip(*(columns[place] for place in places), strict=True):
            grid.add_row(*row)
        if part.start > 1:
            console.print()
        console.print(grid)
    if table.caption:
        console.print(Text(table.caption, style="table.caption"))


def _least(cell: Cell) -> int:
    """What a cell takes at least: all of a number, the longest word of other text."""
    if isinstance(cell, str):
        return _longest_word(Text(cell))
    return max(Text(cell.text).cell_len, _longest_word(Text(cell.in_brackets)))


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
    print_table(console, table_of(scores, names, title))


def _print_summary(console: Console, result: dict[str, Any]) -> None:
    names, rows = list(result["accuracy"]), list[list[Cell]]()

    def row(label: str, accuracy: dict[str, float | None] | None) -> None:
        if accuracy is not None:
            rows.append([label, *(Number(accuracy[name]) for name in names)])

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
    print_table(console, Table.of(["clients", *map(heading_of, names)], rows, title, caption))
