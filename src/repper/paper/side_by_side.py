"""Our numbers beside the paper's: accuracy, the order of the methods, and the paper's claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from repper.basics.table import Cell, Column, Number, Table, gain, places
from repper.paper.claims import Case, Numbers, claims_of
from repper.paper.experiment import Experiment, added, paper_row
from repper.paper.panels import NOT_RUN, PanelResult
from repper.runs.row import Row

EMPTY = Number(None, missing="")


def number_table(experiment: Experiment, panels: Sequence[PanelResult]) -> Table:
    """Accuracy: a line per panel, a column per row of it."""
    rows = _repper_first(row for result in panels for row in result.panel.rows)
    lines: list[list[Cell]] = []
    for result in panels:
        ours, ranks = result.ours(), dict[Row, int]()
        for group in _groups(experiment, ours):
            of_group = places(ours[row] for row in group)
            ranks |= {row: of_group[ours[row]] for row in group}
        lines.append(
            [
                result.panel.name,
                *(
                    _accuracy(result, row, ranks.get(row)) if row in result.panel.rows else EMPTY
                    for row in rows
                ),
            ]
        )
    columns = [Column(row.name, beside=("paper", "difference")) for row in rows]
    return Table.of(["setting", *columns], lines)


def _accuracy(result: PanelResult, row: Row, rank: int | None) -> Number:
    """A row's accuracy in a panel, with the paper's number and the difference."""
    line, paper = result.lines.get(row), result.panel.paper(row)
    ours = line.accuracy if line else None
    apart = ours - paper if ours is not None and paper is not None else None
    theirs = (Number(paper), Number(apart, "{:+.2f}", missing="")) if paper is not None else ()
    missing = "no data" if result.missing not in ("", NOT_RUN) else "-" if line else NOT_RUN
    deviation = line.deviation if line else None
    return Number(ours, deviation=deviation, rank=rank, beside=theirs, missing=missing)


def _groups(experiment: Experiment, rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that are compared with each other: all, or those with the same head."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.personalize if experiment.heads_apart else "", []).append(row)
    return list(groups.values())


def order_table(experiment: Experiment, panels: Sequence[PanelResult]) -> Table:
    """The places of the paper's rows, ours and in brackets its own, and how far they agree."""
    apart = experiment.heads_apart

    def column(row: Row) -> str:
        return row.label if apart else row.name

    every = _repper_first(row for r in panels for row in r.panel.rows if not added(row))
    names = list(dict.fromkeys(map(column, every)))
    lines: list[list[Cell]] = []
    for result in panels:
        found, theirs = result.ours(), result.panel.printed
        for group in _groups(experiment, (row for row in result.panel.rows if not added(row))):
            ours = {row: found[row] for row in group if row in found}
            printed = {row: theirs[row] for row in group if row in theirs}
            both = [row for row in group if row in ours and row in printed]
            agreement = None
            if len(both) > 1:
                tau = stats.kendalltau([ours[r] for r in both], [printed[r] for r in both])
                agreement = float(tau.statistic) if np.isfinite(tau.statistic) else None
            places_of = dict.fromkeys(names, EMPTY)
            for row in group:
                beside = (_place(paper_row(row), printed),) if printed else ()
                places_of[column(row)] = replace(_place(row, ours), beside=beside)
            lead = _lead(ours, result)
            if printed:
                lead = replace(lead, beside=(_lead(printed),))
            head = f", {group[0].personalize}" if apart else ""
            tau_cell = Number(agreement, "{:+.2f}")
            lines.append([result.panel.name + head, lead, *places_of.values(), tau_cell])
    columns: list[str | Column] = [
        "setting",
        Column("RepPer minus the best other", "lead", ("paper",)),
        *(Column(name, beside=("paper",)) for name in names),
        Column("agreement (Kendall)", "agreement"),
    ]
    return Table.of(columns, lines)


def claim_table(
    experiment: Experiment, panels: Sequence[PanelResult], shown: int, unfinished: bool
) -> Table:
    """Every claim, computed from the paper's numbers and from ours, with so many cases each."""
    printed = Numbers(
        {
            (result.panel, row): value
            for result in panels
            for row, value in result.panel.printed.items()
        }
    )
    ours = Numbers(*(_known(panels, name) for name in ("accuracy", "head_classes", "tail_classes")))
    lines = []
    for claim in claims_of(experiment.name) if printed.accuracy else ():
        paper, own = claim.find(printed), claim.find(ours)
        said = f"{paper.verdict} ({paper.holds} of {paper.cases})"
        so_far = " so far" if unfinished and own.cases else ""
        lines.append(
            [
                claim.text,
                said if paper.cases else "not printed",
                f"{own.verdict}{so_far} ({own.holds} of {own.cases})",
                f"{own.side}: {own.listed(shown)}" if own.evidence else "-",
            ]
        )
    return Table.of(["claim", "in the paper's numbers", "in ours", "cases in ours"], lines)


def _known(panels: Sequence[PanelResult], name: str) -> dict[Case, float]:
    """A figure of our rows by panel and row."""
    return {
        (result.panel, row): value
        for result in panels
        for row, line in result.lines.items()
        if (value := getattr(line, name)) is not None and not added(row)
    }


def _lead(numbers: Mapping[Row, float], result: PanelResult | None = None) -> Number:
    """What RepPer, its loss in the usual form, has more than the best other, and our interval."""
    ours = [row for row in numbers if row.method == "repper" and not row.settings]
    others = [row for row in numbers if row.method != "repper"]
    if not ours or not others:
        return Number(None)
    repper, best = (max(rows, key=numbers.__getitem__) for rows in (ours, others))
    low = high = None
    if result and result.comparison:
        _, low, high = result.comparison.paired(repper, best)
    return gain(numbers[repper] - numbers[best], low, high)


def _repper_first(rows: Iterable[Row]) -> list[Row]:
    """Each row once, those of the method that all are compared with before the others."""
    return sorted(dict.fromkeys(rows), key=lambda row: row.method != "repper")


def _place(row: Row, numbers: Mapping[Row, float]) -> Number:
    """The place of a row from the best, which is 1; equal rows share theirs.

    RepPer's loss in its other form is not in the race.
    """
    if row not in numbers:
        return Number(None)
    ahead = (r for r, value in numbers.items() if value > numbers[row])
    others = {paper_row(r) for r in ahead} - {paper_row(row)}
    return Number(1 + len(others), "{:.0f}")
