"""The privacy ledger of a run: what every round spends, written before its model is released.

Each entry is a release: a model made of a round's updates. A round that is repeated after a crash
gives the same model, which tells nobody anything new, and is no second line. If it gives another
one, both count. So nothing is spent that is not in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repper.basics.documents import check_kinds, read_json, write_json
from repper.basics.errors import RepperError
from repper.privacy import Privacy
from repper.privacy.accountant import Release, epsilon

RELEASES = "releases"
REMEDY = "restore it, or begin again with --overwrite"


@dataclass(frozen=True)
class Ledger:
    path: Path
    privacy: Privacy

    def begin(self, finished: int) -> None:
        """Refuse to go on with a run of which the ledger lacks one of the `finished` rounds."""
        rounds = {line["round"] for line in self.lines()}
        if lost := sorted({*range(1, finished + 1)} - rounds):
            raise RepperError(
                f"{self.path} lacks round {lost[0]}, so what the run has spent is not known: "
                f"restore it, or begin again with --overwrite"
            )

    def lines(self) -> list[dict[str, Any]]:
        """All releases so far."""
        if not self.path.is_file():
            return []
        lines = _lines_of(self.path)
        try:
            for line in lines:
                _release(line)
        except (KeyError, TypeError) as error:
            raise RepperError(f"{self.path} is damaged: {REMEDY}") from error
        return lines

    def add(self, number: int, release: Release, model: str) -> float:
        """Write down a release of round `number` with the digest `model`; epsilon so far.

        One that would exceed the budget is refused, and not written down: nobody may see it.
        """
        lines = self.lines()
        releases = [_release(line) for line in lines]
        if any(line["round"] == number and line["release"] == model for line in lines):
            return epsilon(self.privacy, releases)
        spent = epsilon(self.privacy, [*releases, release])
        budget = self.privacy.budget
        if budget is not None and spent > budget:
            raise RepperError(
                f"round {number} would spend epsilon {spent:.4g}, more than the budget of "
                f"{budget:g}: rounds were repeated with other results (see {self.path})"
            )
        line = {
            "round": number,
            "clients": release.clients,
            "cohort": list(release.cohort),
            "release": model,
            # JSON has no infinity.
            "epsilon": spent if self.privacy.noise else None,
            "delta": self.privacy.delta,
        }
        write_json(self.path, {RELEASES: [*lines, line]})
        return spent

    def repeated(self) -> list[int]:
        """Rounds that were released more than once, with different models."""
        rounds = [line["round"] for line in self.lines()]
        return sorted({number for number in rounds if rounds.count(number) > 1})

    @property
    def spent(self) -> float:
        return epsilon(self.privacy, map(_release, self.lines()))


def copy_ledger(source: Path, target: Path, rounds: int) -> None:
    """Copy what a run has spent in `rounds` rounds to a run that continues from there."""
    write_json(target, {RELEASES: [x for x in _lines_of(source) if x["round"] <= rounds]})


def _lines_of(path: Path) -> list[dict[str, Any]]:
    found = read_json(path, REMEDY)
    check_kinds(path, found, {RELEASES: list[dict[str, Any]]}, REMEDY)
    lines: list[dict[str, Any]] = found.get(RELEASES, [])
    return lines


def _release(line: Mapping[str, Any]) -> Release:
    number, model, cohort = line["round"], line["release"], tuple(line["cohort"])
    whole = all(type(one) is int for one in (number, line["clients"], *cohort))
    if not (whole and type(model) is str):
        raise TypeError("not a release")
    return Release(line["clients"], cohort)
