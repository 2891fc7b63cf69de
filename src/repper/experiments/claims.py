"""What the paper says of its tables, as statements that numbers confirm or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from repper.experiments.tables import FEDAVG, FEDREP, LG_FEDAVG, REPPER

Numbers = Mapping[tuple[str, str], float]
"""Accuracy in percent by panel and row."""
BASELINES = (FEDAVG, LG_FEDAVG, FEDREP)


@dataclass(frozen=True)
class Finding:
    """How often a statement holds, of the cases that could be looked at, and some of those."""

    holds: int
    cases: int
    evidence: str

    @property
    def verdict(self) -> str:
        if not self.cases:
            return "no data"
        return "yes" if self.holds == self.cases else "no" if not self.holds else "in part"


@dataclass(frozen=True)
class Claim:
    text: str
    find: Callable[[Numbers], Finding]


def claims_of(experiment: str) -> tuple[Claim, ...]:
    """The paper's claims about one of its tables."""
    first = Claim("RepPer is first in every column", _first)
    if experiment != "table1":
        return (first,)
    return (
        first,
        Claim(
            "skew (alpha 100 to 0.5) costs every baseline accuracy",
            lambda n: _all(_along(n, "alpha", "100", "0.5", BASELINES), lambda d: d < 0),
        ),
        Claim("skew costs RepPer less than the baselines", _less_than_baselines),
        Claim(
            "more clients in a round (C 0.2 to 0.8) do not always help the baselines",
            lambda n: _any(_along(n, "C", "0.2", "0.8", BASELINES), lambda d: d < 0),
        ),
        Claim(
            "more clients in a round change RepPer by less than two points",
            lambda n: _all(_along(n, "C", "0.2", "0.8", (REPPER,)), lambda d: abs(d) < 2),
        ),
        Claim(
            "more local epochs (E 10 to 20) cost the baselines accuracy",
            lambda n: _all(_along(n, "E", "10", "20", BASELINES), lambda d: d < 0),
        ),
        Claim(
            "more local epochs help RepPer",
            lambda n: _all(_along(n, "E", "10", "20", (REPPER,)), lambda d: d > 0),
        ),
    )


def _first(numbers: Numbers) -> Finding:
    panels = sorted({panel for panel, _ in numbers})
    holds, misses, cases = 0, [], 0
    for panel in panels:
        own = {row: value for (p, row), value in numbers.items() if p == panel}
        best_repper = max((v for row, v in own.items() if row.startswith("repper")), default=None)
        others = {row: v for row, v in own.items() if not row.startswith("repper")}
        if best_repper is None or not others:
            continue
        cases += 1
        best = max(others, key=others.__getitem__)
        if best_repper > others[best]:
            holds += 1
        else:
            misses.append(f"{panel}: {best} {others[best]:.2f}, RepPer {best_repper:.2f}")
    return Finding(holds, cases, "; ".join(misses[:3]))


def _along(
    numbers: Numbers, name: str, start: str, end: str, rows: tuple[str, ...]
) -> dict[str, float]:
    """The change of each row, from one value of a setting to another, all else equal."""
    found = {}
    for (panel, row), before in numbers.items():
        parts = panel.split(", ")
        if row in rows and f"{name} {start}" in parts:
            other = ", ".join(f"{name} {end}" if p == f"{name} {start}" else p for p in parts)
            if (other, row) in numbers:
                rest = ", ".join(p for p in parts if p != f"{name} {start}")
                found[f"{row} at {rest}"] = numbers[other, row] - before
    return found


def _all(changes: Mapping[str, float], holds: Callable[[float], bool]) -> Finding:
    against = {case: change for case, change in changes.items() if not holds(change)}
    return Finding(len(changes) - len(against), len(changes), _some(against))


def _any(changes: Mapping[str, float], holds: Callable[[float], bool]) -> Finding:
    """A claim that some cases exist: it holds wholly if there is one."""
    cases = {case: change for case, change in changes.items() if holds(change)}
    return Finding(int(bool(cases)), int(bool(changes)), _some(cases))


def _less_than_baselines(numbers: Numbers) -> Finding:
    loss = {row: _along(numbers, "alpha", "100", "0.5", (row,)) for row in (*BASELINES, REPPER)}
    pairs = {}
    for case, change in loss[REPPER].items():
        setting = case.removeprefix(f"{REPPER} at ")
        for row in BASELINES:
            if (other := loss[row].get(f"{row} at {setting}")) is not None:
                pairs[f"{row} at {setting}: {other:+.2f}, RepPer"] = change - other
    against = {case: difference for case, difference in pairs.items() if difference <= 0}
    return Finding(len(pairs) - len(against), len(pairs), "; ".join(list(against)[:3]))


def _some(cases: Mapping[str, float]) -> str:
    return "; ".join(_texts(cases))


def _texts(cases: Mapping[str, float]) -> Iterator[str]:
    for case, change in list(cases.items())[:3]:
        yield f"{case}: {change:+.2f}"
