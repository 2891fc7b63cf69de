"""Our numbers beside the paper's: tables of text, which Markdown, the report and terminals show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scipy import stats

from repper.paper.claims import Numbers, claims_of
from repper.paper.experiment import Experiment, added, paper_row
from repper.paper.panels import NOT_RUN, PanelResult, rows_in
from repper.text_table import Cells, figure, gain_text


def number_cells(
    experiment: Experiment, panels: Sequence[PanelResult], best: str, second: str
) -> Cells:
    """The table as text: a line per panel, a column per row of it."""
    rows = _repper_first(row for result in panels for row in result.panel.rows)
    table = [["setting", *rows]]
    for result in panels:
        ours, marks = result.ours(), dict[str, str]()
        for group in _groups(experiment, ours):
            ranked = sorted({ours[row] for row in group}, reverse=True)
            styles = dict(zip(ranked, (best, second), strict=False))  # equal rows share a rank
            marks |= {row: styles[ours[row]] for row in group if ours[row] in styles}
        line = [result.panel.name]
        for row in rows:
            if row not in result.panel.rows:
                line.append("")
                continue
            text = marks.get(row, "{}").format(_value(result, row))
            paper = result.panel.paper(row)
            if paper is not None:
                apart = f", {ours[row] - paper:+.2f}" if row in ours else ""
                text += f" ({paper:.2f}{apart})"
            line.append(text)
        table.append(line)
    return table


def _value(result: PanelResult, row: str) -> str:
    if result.missing:
        return NOT_RUN if result.missing == NOT_RUN else "no data"
    line = result.lines.get(row)
    if line is None:
        return NOT_RUN
    spread = f" ± {line.deviation:.2f}" if line.deviation is not None else ""
    return figure(line.accuracy) + spread


def _groups(experiment: Experiment, numbers: Mapping[str, float]) -> list[list[str]]:
    """Rows that are compared with each other: all, or those with the same head."""
    groups: dict[str, list[str]] = {}
    for row in numbers:
        head = row.partition("+")[2] if experiment.heads_apart else ""
        groups.setdefault(head, []).append(row)
    return list(groups.values())


def order_cells(experiment: Experiment, panels: Sequence[PanelResult]) -> Cells:
    """The places of the paper's rows, ours and in brackets its own, and how far they agree."""
    apart = experiment.heads_apart
    columns = _repper_first(
        _column(row, apart) for r in panels for row in r.panel.rows if not added(row)
    )
    table = [["setting", "RepPer minus the best other", *columns, "agreement (Kendall)"]]
    for result in panels:
        found, theirs = result.ours(), result.panel.printed
        for group in _groups(experiment, {row: 0.0 for row in result.panel.rows if not added(row)}):
            ours = {row: found[row] for row in group if row in found}
            printed = {row: theirs[row] for row in group if row in theirs}
            both = [row for row in group if row in ours and row in printed]
            agreement = "-"
            if len(both) > 1:
                tau = stats.kendalltau([ours[r] for r in both], [printed[r] for r in both])
                agreement = f"{tau.statistic:+.2f}"
            head = f", {group[0].partition('+')[2]}" if apart else ""
            line = dict.fromkeys(columns, "")
            for row in group:
                place = f"{_place(row, ours)} ({_place(paper_row(row), printed)})"
                line[_column(row, apart)] = place if printed else _place(row, ours)
            lead = _lead(ours, result)
            if printed:
                lead += f" ({_lead(printed)})"
            table.append([result.panel.name + head, lead, *line.values(), agreement])
    return table


def claim_cells(
    experiment: Experiment, panels: Sequence[PanelResult], shown: int, unfinished: bool
) -> Cells:
    """Every claim, computed from the paper's numbers and from ours, with so many cases each."""
    printed = Numbers(
        {
            (result.panel.name, row): value
            for result in panels
            for row, value in result.panel.printed.items()
        }
    )
    ours = Numbers(*(_known(panels, name) for name in ("accuracy", "head_classes", "tail_classes")))
    table = [
        [
            "claim",
            "in the paper's numbers",
            "in ours",
            "cases in ours",
        ]
    ]
    for claim in claims_of(experiment.name) if printed.accuracy else ():
        paper, own = claim.find(printed), claim.find(ours)
        said = f"{paper.verdict} ({paper.holds} of {paper.cases})"
        so_far = " so far" if unfinished and own.cases else ""
        table.append(
            [
                claim.text,
                said if paper.cases else "not printed",
                f"{own.verdict}{so_far} ({own.holds} of {own.cases})",
                f"{own.side}: {own.listed(shown)}" if own.evidence else "-",
            ]
        )
    return table if len(table) > 1 else []


def _known(panels: Sequence[PanelResult], name: str) -> dict[tuple[str, str], float]:
    """A figure of our rows by panel and row."""
    return {
        (result.panel.name, row): value
        for result in panels
        for row, line in result.lines.items()
        if (value := getattr(line, name)) is not None and not added(row)
    }


def _lead(numbers: Mapping[str, float], result: PanelResult | None = None) -> str:
    """What RepPer, its loss in the usual form, has more than the best other, and our interval."""
    ours = {row: value for row, value in numbers.items() if row.startswith("repper+")}
    others = {row: value for row, value in numbers.items() if not row.startswith("repper")}
    if not ours or not others:
        return "-"
    repper, best = (max(found, key=found.__getitem__) for found in (ours, others))
    low = high = None
    if result and result.comparison:
        rows = {row.name: row for row in rows_in(result.panel)}
        _, low, high = result.comparison.paired(rows[repper], rows[best])
    return gain_text(ours[repper] - others[best], low, high)


def _repper_first(names: Iterable[str]) -> list[str]:
    """Each name once, those of the method that all are compared with before the others."""
    return sorted(dict.fromkeys(names), key=lambda name: not name.startswith("repper"))


def _column(row: str, heads_apart: bool) -> str:
    return row.partition("+")[0] if heads_apart else row


def _place(row: str, numbers: Mapping[str, float]) -> str:
    """The place of a row from the best, which is 1; equal rows share theirs.

    RepPer's loss in its other form is not in the race.
    """
    if row not in numbers:
        return "-"
    ahead = (r for r, value in numbers.items() if value > numbers[row])
    others = {paper_row(r) for r in ahead} - {paper_row(row)}
    return str(1 + len(others))
