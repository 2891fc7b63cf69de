"""What the paper says of its tables, as statements that numbers confirm or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from repper.paper.experiment import paper_row
from repper.paper.tables import (
    FEDAVG,
    FEDPROX,
    FEDREP,
    LG_FEDAVG,
    MARKED_FALLS,
    REPPER,
    REPPER_AS_PRINTED,
)

Accuracy = Mapping[tuple[str, str], float]
"""In percent, by panel and row."""
BASELINES = (FEDAVG, LG_FEDAVG, FEDREP)
FORMS = (REPPER, REPPER_AS_PRINTED)
"""RepPer's loss in either form: each has its own cases of a claim."""
SKEWS, SHARES, EPOCHS = ("100", "1", "0.5"), ("0.2", "0.4", "0.8"), ("10", "20")
ALMOST_ALL = 0.9
"""How much of all we take the paper's "almost all" for."""


@dataclass(frozen=True)
class Numbers:
    """What claims are looked for in. The paper prints no accuracy of frequent and tail classes."""

    accuracy: Accuracy
    head: Accuracy = field(default_factory=dict)
    tail: Accuracy = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """How often a statement holds, of the cases that could be looked at.

    `evidence` are the cases against it; where it says that there are some, those for it (`side`).
    It holds if `enough` of the cases do.
    """

    holds: int
    cases: int
    evidence: tuple[str, ...]
    enough: float = 1.0
    side: str = "against"

    @property
    def verdict(self) -> str:
        if not self.cases:
            return "no data"
        if self.holds >= self.enough * self.cases:
            return "yes"
        return "in part" if self.holds else "no"

    def listed(self, shown: int) -> str:
        """The first cases in words; the others are counted."""
        more = len(self.evidence) - shown
        return "; ".join([*self.evidence[:shown], *([f"and {more} more"] if more > 0 else [])])


@dataclass(frozen=True)
class Claim:
    text: str
    find: Callable[[Numbers], Finding]


def claims_of(experiment: str) -> tuple[Claim, ...]:
    """The paper's claims about one of its tables."""
    if experiment == "table3":
        return (Claim("RepPer is first with every head", lambda n: _first(by_head(n.accuracy))),)
    first = Claim("RepPer is first everywhere", lambda n: _first(n.accuracy))
    said = "(said of two clients in a figure)"
    less = "RepPer loses less from frequent to tail classes than baselines"
    tails = (
        Claim(
            f"baselines do worse on tail classes than on frequent classes {said}", _tails_are_worse
        ),
        Claim(
            f"{less} with classifiers of each client's own {said}",
            lambda n: _falls_less_to_tails(n, lambda row: not _one_for_all(row)),
        ),
        Claim(
            f"{less} with one classifier for all {said}",
            lambda n: _falls_less_to_tails(n, _one_for_all),
        ),
    )
    if experiment != "table1":
        return (first, *tails)
    return (
        first,
        Claim(
            "each step of skew (alpha 100 to 1 to 0.5) costs almost all baselines accuracy (read "
            "as: nine in ten)",
            lambda n: _all(
                _steps(n, "alpha", SKEWS, BASELINES), lambda change: change < 0, ALMOST_ALL
            ),
        ),
        Claim("skew (alpha 100 to 0.5) costs RepPer less than the baselines", _skew_costs_less),
        Claim(
            "more clients in a round (C 0.2 to 0.4 to 0.8) do not always help the baselines",
            lambda n: _any(_steps(n, "C", SHARES, BASELINES), lambda change: change < 0),
        ),
        Claim(
            "more clients in a round have little effect on RepPer (read as: less than two points)",
            lambda n: _all(_steps(n, "C", SHARES, FORMS), lambda change: abs(change) < 2),
        ),
        Claim(
            f"accuracy falls at the {len(MARKED_FALLS)} steps to more clients in a round that the "
            "paper marks",
            _falls,
        ),
        Claim(
            "more local epochs (E 10 to 20) cost almost all baselines accuracy (read as: nine in "
            "ten)",
            lambda n: _all(
                _steps(n, "E", EPOCHS, BASELINES), lambda change: change < 0, ALMOST_ALL
            ),
        ),
        Claim(
            "more local epochs help RepPer",
            lambda n: _all(_steps(n, "E", EPOCHS, FORMS), lambda change: change > 0),
        ),
        *tails,
    )


def by_head(numbers: Accuracy) -> dict[tuple[str, str], float]:
    """Rows that are compared head by head: the head becomes a part of the panel's name."""
    return {
        (f"{panel}, {row.partition('+')[2]}", row): value for (panel, row), value in numbers.items()
    }


def _first(numbers: Accuracy) -> Finding:
    holds, misses = 0, []
    panels = dict.fromkeys(panel for panel, _ in numbers)
    for panel in panels:
        own = {row: value for (p, row), value in numbers.items() if p == panel}
        ours = {row: value for row, value in own.items() if _is_repper((panel, row))}
        others = {row: value for row, value in own.items() if row not in ours}
        if not others:
            continue
        best = max(others, key=others.__getitem__)
        for row, value in ours.items():
            if value > others[best]:
                holds += 1
            else:
                misses.append(f"{panel}: {best} {others[best]:.2f}, {named(row)} {value:.2f}")
    return Finding(holds, holds + len(misses), tuple(misses))


def _tails_are_worse(numbers: Numbers) -> Finding:
    gaps = {case: gap for case, gap in _gaps(numbers).items() if not _is_repper(case)}
    against = [_gap_text(case, numbers) for case, gap in gaps.items() if gap <= 0]
    return Finding(len(gaps) - len(against), len(gaps), tuple(against))


def _falls_less_to_tails(numbers: Numbers, among: Callable[[str], bool]) -> Finding:
    gaps, cases, against = _gaps(numbers), 0, []
    for (panel, row), gap in gaps.items():
        if _is_repper((panel, row)):
            for other, their_gap in gaps.items():
                if other[0] == panel and not _is_repper(other) and among(other[1]):
                    cases += 1
                    if gap >= their_gap:
                        text = f"{_gap_text(other, numbers)}, {named(row)} {-gap:+.2f}"
                        against.append(text)
    return Finding(cases - len(against), cases, tuple(against))


def _gaps(numbers: Numbers) -> dict[tuple[str, str], float]:
    """What a row has more on frequent classes than on tail classes."""
    both = (case for case in numbers.head if case in numbers.tail)
    return {case: numbers.head[case] - numbers.tail[case] for case in both}


def _gap_text(case: tuple[str, str], numbers: Numbers) -> str:
    return f"{case[1]} at {case[0]}: {numbers.tail[case] - numbers.head[case]:+.2f}"


def _one_for_all(row: str) -> bool:
    return row in (FEDAVG, FEDPROX)


def named(row: str) -> str:
    """RepPer in a sentence, and which form of its loss."""
    return "RepPer" if paper_row(row) == row else "RepPer as printed"


def _is_repper(case: tuple[str, str]) -> bool:
    return case[1].startswith("repper")


def _skew_costs_less(numbers: Numbers) -> Finding:
    ends = (SKEWS[0], SKEWS[-1])
    ours = _steps(numbers, "alpha", ends, FORMS)
    cases, against = 0, []
    for case, change in ours.items():
        form, at, where = case.partition(" at ")
        setting = at + where
        for row in BASELINES:
            theirs = _steps(numbers, "alpha", ends, (row,)).get(f"{row}{setting}")
            if theirs is not None:
                cases += 1
                if change <= theirs:
                    against.append(f"{row}{setting}: {theirs:+.2f}, {named(form)} {change:+.2f}")
    return Finding(cases - len(against), cases, tuple(against))


def _steps(
    numbers: Numbers, name: str, values: Sequence[str], rows: tuple[str, ...]
) -> dict[str, float]:
    """The change of each row with every step of a setting, all else equal."""
    found = {}
    for start, end in pairwise(values):
        for (panel, row), before in numbers.accuracy.items():
            parts = panel.split(", ")
            if row in rows and f"{name} {start}" in parts:
                other = ", ".join(f"{name} {end}" if p == f"{name} {start}" else p for p in parts)
                if (other, row) in numbers.accuracy:
                    step = panel.replace(f"{name} {start}", f"{name} {start} to {end}")
                    found[f"{row} at {step}"] = numbers.accuracy[other, row] - before
    return found


def _falls(numbers: Numbers) -> Finding:
    steps = _steps(numbers, "C", SHARES, (*BASELINES, *FORMS))
    marked = {case: change for case, change in steps.items() if paper_row(case) in MARKED_FALLS}
    return _all(marked, lambda change: change < 0)


def _all(
    changes: Mapping[str, float], holds: Callable[[float], bool], enough: float = 1.0
) -> Finding:
    against = {case: change for case, change in changes.items() if not holds(change)}
    return Finding(len(changes) - len(against), len(changes), tuple(_texts(against)), enough)


def _any(changes: Mapping[str, float], holds: Callable[[float], bool]) -> Finding:
    """A claim that some cases exist: it holds wholly if there is one."""
    cases = {case: change for case, change in changes.items() if holds(change)}
    return Finding(int(bool(cases)), int(bool(changes)), tuple(_texts(cases)), side="for")


def _texts(cases: Mapping[str, float]) -> Iterator[str]:
    for case, change in cases.items():
        yield f"{case}: {change:+.2f}"
