"""Flower's database, in which messages and updates lie until they are fetched."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

DATABASE = "link.db"
FULL = 1
"""SQLite's number for a database that gives pages back as soon as nothing is on them."""


def shrink_by_itself(path: Path) -> None:
    """Let the database become smaller when something is deleted from it, also one that exists.

    One that is in use is left as it is.
    """
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(path, timeout=1)) as link:
        if link.execute("PRAGMA auto_vacuum").fetchone() != (FULL,):
            link.execute(f"PRAGMA auto_vacuum = {FULL}")
            link.execute("VACUUM")  # which writes it anew, in the new way
