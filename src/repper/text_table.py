"""Text tables: formatted figures, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

Cells = list[list[str]]
"""A table's lines, the heading first."""


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def heading_of(key: str) -> str:
    """The column heading of a figure."""
    return "frequent classes" if key == "head_classes" else key.replace("_", " ")


def gain_text(mean: float | None, low: float | None, high: float | None) -> str:
    """Format a difference with its interval, if it has one."""
    if mean is None:
        return "-"
    return f"{mean:+.2f}" + ("" if low is None or high is None else f" [{low:+.2f}, {high:+.2f}]")


def markdown_table(cells: Cells, right: bool = False) -> str:
    """Format a table in Markdown; with `right`, columns after the first are right-aligned."""
    heading, *rows = cells
    rule = ["---", *["---:" if right else "---"] * (len(heading) - 1)]
    # A stroke would end a cell.
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in (heading, rule, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def csv_text(lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(lines)
    return text.getvalue()
