"""A chapter of a report: given tables and pictures, before the runs behind them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from repper.basics.table import Table
from repper.report.content import Subject


@dataclass(frozen=True)
class Chapter:
    """Notes, tables and pictures, each picture a caption and a file, and the runs behind them.

    `name` is that of its folder, `command` makes it again.
    """

    name: str
    title: str
    command: str
    notes: tuple[str, ...]
    tables: tuple[Table, ...]
    pictures: tuple[tuple[str, Path], ...]
    subjects: tuple[Subject, ...]
