"""Tables as values: numbers stay numbers until a table is written as text.

A table is built once and written as Markdown, CSV and LaTeX here, for a terminal in
`cli/results.py`, and for a page in `report/html.py`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from repper.basics.errors import RepperError

FORM = re.compile(r"[^{}]*\{:\+?,?(\.\d)?[fge%]?\}[^{}]*")
"""A text with one place for a number."""
PLAIN: Mapping[int, str] = {}
"""Marks of a text that has none for the best and the second."""
LONG = 50
"""Letters from which a text gets room for some words in a line."""


@dataclass(frozen=True)
class Number:
    """A number, its deviation or interval, and the numbers that stand beside it in brackets.

    `form` is what `str.format` makes a text of it with. Rank 1 is the best of its column or row,
    2 the second. `missing` stands where there is no value; "" leaves the place empty.
    """

    value: float | None
    form: str = "{:.2f}"
    deviation: float | None = None
    interval: tuple[float, ...] | None = None
    rank: int | None = None
    beside: tuple[Number, ...] = ()
    missing: str = "-"

    def __post_init__(self) -> None:
        # A table may come from a file, and a form could ask for a text of any length.
        if not FORM.fullmatch(self.form) or len(self.interval or (0, 0)) != 2:
            raise RepperError(f"{self.form!r} with {self.interval} is no number of a table")

    @property
    def text(self) -> str:
        """The number itself, with its deviation and interval."""
        if self.value is None:
            return self.missing
        text = self.form.format(self.value)
        if self.deviation is not None:
            text += f" ± {self.form.format(self.deviation)}"
        if self.interval is not None:
            text += f" [{', '.join(map(self.form.format, self.interval))}]"
        return text

    @property
    def in_brackets(self) -> str:
        """What stands beside it; "" if nothing does."""
        shown = ", ".join(one.text for one in self.beside if one.text)
        return f"({shown})" if shown else ""

    @property
    def mark(self) -> int:
        """1 for the best, 2 for the second, 0 for all others."""
        return self.rank if self.rank in (1, 2) and self.value is not None else 0


Cell = str | Number


@dataclass(frozen=True)
class Column:
    """A column: its name for people, its key in CSV, and the keys of what stands in brackets."""

    name: str
    key: str = ""
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns, with a title and a caption in plain words."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    caption: str = ""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise RepperError(f"a row of a table does not have {len(self.columns)} cells")

    @classmethod
    def of(
        cls,
        columns: Iterable[str | Column],
        rows: Iterable[Sequence[Cell]],
        title: str = "",
        caption: str = "",
    ) -> Table:
        """A table whose columns may be given by their names alone."""
        named = tuple(Column(one) if isinstance(one, str) else one for one in columns)
        return cls(named, tuple(map(tuple, rows)), title, caption)

    def column(self, place: int) -> list[Cell]:
        return [row[place] for row in self.rows]

    def is_numeric(self, place: int) -> bool:
        """Whether all cells of a column are numbers, known or missing."""
        return bool(self.rows) and all(isinstance(cell, Number) for cell in self.column(place))

    def texts(self) -> list[list[str]]:
        """The cells as plain text, the heading first."""
        return [[one.name for one in self.columns], *([_text(c) for c in r] for r in self.rows)]

    def markdown(self) -> str:
        """The table in Markdown: best bold, second underlined, numbers at the right."""
        marks = {1: "**{}**", 2: "<u>{}</u>"}
        rule = ["---:" if self.is_numeric(place) else "---" for place in range(len(self.columns))]
        lines = [
            [_in_markdown(one.name) for one in self.columns],
            rule,
            *([_text(cell, _in_markdown, marks) for cell in row] for row in self.rows),
        ]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def csv(self) -> str:
        """The table as CSV: plain numbers, each in a column of its own; empty where missing."""
        columns = [
            column
            for place, one in enumerate(self.columns)
            for column in _plain(one.key or _key(one.name), one.beside, self.column(place))
        ]
        return csv_text(zip(*columns, strict=True))

    def latex(self) -> str:
        """The table in LaTeX, for papers that use the package booktabs."""
        marks = {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"}
        lines = [
            [_in_latex(one.name) for one in self.columns],
            *([_text(cell, _in_latex, marks) for cell in row] for row in self.rows),
        ]
        # After the end of a line, LaTeX takes [ and * for arguments.
        heading, *body = [
            ("{}" if line[0].startswith(("[", "*")) else "") + " & ".join(line) + r" \\"
            for line in lines
        ]
        parts = [
            r"\begin{table}",
            r"  \centering",
            *([rf"  \caption{{{_in_latex(self._words)}}}"] if self._words else []),
            rf"  \begin{{tabular}}{{{self._aligned()}}}",
            *(f"    {line}" for line in (r"\toprule", heading, r"\midrule", *body, r"\bottomrule")),
            r"  \end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(parts) + "\n"

    @property
    def _words(self) -> str:
        """The title and the caption as sentences."""
        return " ".join(one for one in (self.title and f"{self.title}.", self.caption) if one)

    def _aligned(self) -> str:
        """The columns in LaTeX's letters: numbers at the right, long texts in lines."""
        letters = []
        for place in range(len(self.columns)):
            longest = max((len(_text(cell)) for cell in self.column(place)), default=0)
            if self.is_numeric(place):
                letters.append("r")
            else:
                letters.append(r"p{0.3\linewidth}" if longest > LONG else "l")
        return "".join(letters)


def places(values: Iterable[float | None]) -> dict[float | None, int]:
    """The place of each known value from the largest, which is 1; equal values share theirs."""
    known = sorted({value for value in values if value is not None}, reverse=True)
    return {value: place for place, value in enumerate(known, start=1)}


def figure(value: float | None) -> str:
    """A number for a sentence, with two decimals."""
    return Number(value).text


def count(value: float | None) -> Number:
    """A whole number as a cell."""
    return Number(value, "{:,.0f}")


def gain(mean: float | None, low: float | None, high: float | None) -> Number:
    """A difference with its interval, if it has one."""
    interval = (low, high) if low is not None and high is not None else None
    return Number(mean, "{:+.2f}", interval=interval)


def heading_of(key: str) -> str:
    """A figure's name for people. A *head* is a classifier, so classes are frequent or tail."""
    return "frequent classes" if key == "head_classes" else key.replace("_", " ")


def csv_text(lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(lines)
    return text.getvalue()


def _text(
    cell: Cell,
    escape: Callable[[str], str] = str,
    marks: Mapping[int, str] = PLAIN,
) -> str:
    """A cell in some language: escaped there, the best and the second marked as it does."""
    if isinstance(cell, str):
        return escape(cell)
    text = marks.get(cell.mark, "{}").format(escape(cell.text))
    return f"{text} {escape(cell.in_brackets)}" if cell.in_brackets else text


def _in_markdown(text: str) -> str:
    # A stroke would end a cell, and a line the table; < would begin an element.
    return re.sub(r"([\\|<])", r"\\\1", " ".join(text.splitlines()))


LATEX = {
    **{letter: f"\\{letter}" for letter in "{}$&#_%"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$",
}  # fmt: skip


def _in_latex(text: str) -> str:
    escaped = "".join(LATEX.get(letter, letter) for letter in " ".join(text.splitlines()))
    # A hyphen before a number is a minus; of two hyphens LaTeX would make a dash.
    return re.sub(r"(?<![\w-])-(?=[\d.])", "$-$", escaped).replace("--", "-{}-")


def _key(name: str) -> str:
    return re.sub(r"[\s,]+", "_", name)


def _plain(key: str, beside: Sequence[str], cells: Sequence[Cell]) -> list[list[object]]:
    """The columns of CSV that one of a table becomes, each with its key first."""
    numbers = [cell if isinstance(cell, Number) else Number(None) for cell in cells]
    parts: dict[str, list[object]] = {
        "deviation": [one.deviation for one in numbers],
        "low": [one.interval and one.interval[0] for one in numbers],
        "high": [one.interval and one.interval[1] for one in numbers],
    }
    values = [cell if isinstance(cell, str) else cell.value for cell in cells]
    found: list[list[object]] = [[key, *values]]
    for name, part in parts.items():
        if any(value is not None for value in part):
            found.append([f"{key}_{name}", *part])
    for place, name in enumerate(beside):
        inner = [dict(enumerate(one.beside)).get(place, Number(None)) for one in numbers]
        found += _plain(f"{key}_{name}", (), inner)
    return found
