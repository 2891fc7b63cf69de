"""Results of checks, and how checks are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from repper.basics.errors import RepperError

OK, WRONG, SKIPPED = "OK", "WRONG", "not checked"


@dataclass(frozen=True)
class Check:
    """One kind of file of a folder: `OK`, `WRONG` or `not checked`, with details or a reason."""

    kind: str
    status: str
    said: str
    folder: str = ""
    """The folder, relative to the verified folder."""

    def beside(self, root: Path) -> Check:
        """The same check, with its folder relative to `root`."""
        inner = Path(self.folder)
        return replace(self, folder=str(inner.relative_to(root)) if root != inner else "")

    def __str__(self) -> str:
        where = f"{self.folder}: " if self.folder else ""
        return f"{where}{self.kind}: {self.status}" + (f", {self.said}" if self.said else "")


Checks = Iterator[Check]


class NotChecked(Exception):  # noqa: N818 - it is no error
    """Why something cannot be checked here."""


def checked(folder: Path, kind: str, look: Callable[[], str]) -> Check:
    """Run one check of some files."""
    try:
        return Check(kind, OK, look(), str(folder))
    except NotChecked as why:
        return Check(kind, SKIPPED, str(why), str(folder))
    except (RepperError, OSError) as error:
        return Check(kind, WRONG, str(error), str(folder))
