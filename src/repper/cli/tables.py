"""Tables on a terminal, as wide as it is."""

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

from repper.basics.table import Cell, Table
from repper.cli import show


def console_for_results(width: int | None = None, *, stderr: bool = False) -> Console:
    """As wide as the terminal or as COLUMNS says; else `width`, as in a file or a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    known = stream.isatty() or "COLUMNS" in os.environ
    return show.console(stderr=stderr, width=None if known else width)


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
    """Widths of columns: what is left of the whole goes to those that would be wider."""
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
    """The columns after the first, in parts that fit beside it."""
    starts, used = [1], widths[0]
    for place, width in enumerate(widths[1:], start=1):
        used += width + 2
        if used > whole and place > starts[-1]:
            starts.append(place)
            used = widths[0] + width + 2
    return [range(*ends) for ends in pairwise([*starts, len(widths)])]
