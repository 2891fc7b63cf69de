"""The paper's claims about its tables, as statements that numbers confirm or refute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from repper.paper.experiment import Panel, paper_row
from repper.paper.printed import (
    FEDAVG,
    FEDPROX,
    FEDREP,
    LG_FEDAVG,
    MARKED_FALLS,
    REPPER,
    REPPER_AS_PRINTED,
)
from repper.runs.row import Row

Case = tuple[Panel, Row]
Accuracy = Mapping[Case, float]
"""In percent."""
BASELINES = (FEDAVG, LG_FEDAVG, FEDREP)
FORMS = (REPPER, REPPER_AS_PRINTED)
"""The rows of RepPer's two losses: each has its own cases of a claim."""
COHORT = "participation"
"""The share of clients in a round, the paper's C."""
SKEWS, SHARES, EPOCHS = (100.0, 1.0, 0.5), (0.2, 0.4, 0.8), (10, 20)
ALMOST_ALL = 0.9
"""The share that we take the paper's "almost all" for."""


@dataclass(frozen=True)
class Numbers:
    """The numbers that claims are tested on. The paper prints none of frequent and tail classes."""

    accuracy: Accuracy
    head: Accuracy = field(default_factory=dict)
    tail: Accuracy = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """How often a statement holds, of the cases with numbers.

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
        return (
            Claim(
                "RepPer is first with every head", lambda n: _first(n.accuracy, heads_apart=True)
            ),
        )
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
            lambda n: _any(_steps(n, COHORT, SHARES, BASELINES), lambda change: change < 0),
        ),
        Claim(
            "more clients in a round have little effect on RepPer (read as: less than two points)",
            lambda n: _all(_steps(n, COHORT, SHARES, FORMS), lambda change: abs(change) < 2),
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
                _steps(n, "epochs", EPOCHS, BASELINES), lambda change: change < 0, ALMOST_ALL
            ),
        ),
        Claim(
            "more local epochs help RepPer",
            lambda n: _all(_steps(n, "epochs", EPOCHS, FORMS), lambda change: change > 0),
        ),
        *tails,
    )


def _first(numbers: Accuracy, *, heads_apart: bool = False) -> Finding:
    """Whether RepPer's forms are above all others of a panel, or of those with the same head."""
    groups: dict[tuple[Panel, str], dict[Row, float]] = {}
    for (panel, row), value in numbers.items():
        groups.setdefault((panel, row.personalize if heads_apart else ""), {})[row] = value
    holds, misses = 0, []
    for (panel, head), own in groups.items():
        where = f"{panel.name}, {head}" if head else panel.name
        others = {row: value for row, value in own.items() if row.method != "repper"}
        if not others:
            continue
        best = max(others, key=others.__getitem__)
        for row, value in own.items():
            if row in others:
                continue
            if value > others[best]:
                holds += 1
            else:
                misses.append(f"{where}: {best.name} {others[best]:.2f}, {named(row)} {value:.2f}")
    return Finding(holds, holds + len(misses), tuple(misses))


def _tails_are_worse(numbers: Numbers) -> Finding:
    gaps = {case: gap for case, gap in _gaps(numbers).items() if case[1].method != "repper"}
    against = [_gap_text(case, gap) for case, gap in gaps.items() if gap <= 0]
    return Finding(len(gaps) - len(against), len(gaps), tuple(against))


def _falls_less_to_tails(numbers: Numbers, among: Callable[[Row], bool]) -> Finding:
    gaps, cases, against = _gaps(numbers), 0, []
    for (panel, row), gap in gaps.items():
        for other, their_gap in gaps.items():
            others = other[1].method != "repper" and among(other[1])
            if row.method == "repper" and other[0] == panel and others:
                cases += 1
                if gap >= their_gap:
                    against.append(f"{_gap_text(other, their_gap)}, {named(row)} {-gap:+.2f}")
    return Finding(cases - len(against), cases, tuple(against))


def _gaps(numbers: Numbers) -> dict[Case, float]:
    """The gap of each row: accuracy on frequent classes minus tail classes."""
    both = (case for case in numbers.head if case in numbers.tail)
    return {case: numbers.head[case] - numbers.tail[case] for case in both}


def _gap_text(case: Case, gap: float) -> str:
    panel, row = case
    return f"{row.name} at {panel.name}: {-gap:+.2f}"


def _one_for_all(row: Row) -> bool:
    return row in (FEDAVG, FEDPROX)


def named(row: Row) -> str:
    """RepPer's name in a sentence, with the form of its loss."""
    return "RepPer" if paper_row(row) == row else "RepPer as printed"


@dataclass(frozen=True)
class Step:
    """A step from one value of a setting to the next, all other settings equal."""

    row: Row
    panel: Panel
    """The one before."""
    setting: str
    end: float

    @property
    def where(self) -> str:
        start = self.panel.settings[self.setting]
        instead = {self.setting: f"{start:g} to {self.end:g}"}
        return ", ".join(self.panel.words(**instead))


def _skew_costs_less(numbers: Numbers) -> Finding:
    ends = (SKEWS[0], SKEWS[-1])
    theirs = {
        (step.panel, step.row): change
        for step, change in _steps(numbers, "alpha", ends, BASELINES).items()
    }
    cases, against = 0, []
    for step, change in _steps(numbers, "alpha", ends, FORMS).items():
        for row in BASELINES:
            other = theirs.get((step.panel, row))
            if other is not None:
                cases += 1
                if change <= other:
                    text = f"{row.name} at {step.where}: {other:+.2f}"
                    against.append(f"{text}, {named(step.row)} {change:+.2f}")
    return Finding(cases - len(against), cases, tuple(against))


def _steps(
    numbers: Numbers, setting: str, values: Sequence[float], rows: tuple[Row, ...]
) -> dict[Step, float]:
    """The change of each row with every step of a setting, all else equal."""
    found = {}
    for start, end in pairwise(values):
        for (panel, row), before in numbers.accuracy.items():
            if row in rows and panel.settings.get(setting) == start:
                after = {**panel.settings, setting: end}
                for (other, same), value in numbers.accuracy.items():
                    if same == row and other.settings == after:
                        found[Step(row, panel, setting, end)] = value - before
    return found


def _falls(numbers: Numbers) -> Finding:
    steps = _steps(numbers, COHORT, SHARES, (*BASELINES, *FORMS))
    marked = {}
    for step, change in steps.items():
        at = tuple(step.panel.settings.get(name) for name in (COHORT, "epochs", "alpha"))
        if (paper_row(step.row), *at) in MARKED_FALLS:
            marked[step] = change
    return _all(marked, lambda change: change < 0)


def _all(
    changes: Mapping[Step, float], holds: Callable[[float], bool], enough: float = 1.0
) -> Finding:
    against = {case: change for case, change in changes.items() if not holds(change)}
    return Finding(len(changes) - len(against), len(changes), tuple(_texts(against)), enough)


def _any(changes: Mapping[Step, float], holds: Callable[[float], bool]) -> Finding:
    """A claim that some cases exist: it holds wholly if there is one."""
    cases = {case: change for case, change in changes.items() if holds(change)}
    return Finding(int(bool(cases)), int(bool(changes)), tuple(_texts(cases)), side="for")


def _texts(steps: Mapping[Step, float]) -> Iterator[str]:
    for step, change in steps.items():
        yield f"{step.row.name} at {step.where}: {change:+.2f}"
