"""The tables that a person sees at the end, on stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from repper.cli.duration import duration
from repper.evaluate import Score
from repper.paper.events import Estimate
from repper.paper.reproduction import Reproduction
from repper.runs.attacked import said_of
from repper.runs.comparison import Comparison
from repper.runs.run import Run
from repper.runs.sweep import Sweep
from repper.text_table import figure

CLIENTS_SHOWN = 40
BEST, SECOND = "\x01", "\x02"
"""Characters that no text holds, around what is best and second in a table."""


def _console(width: int) -> Console:
    """As wide as the terminal, or so wide where there is none."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else width)


def print_results(run: Run) -> None:
    """The table per client, the summary, and where to find the rest."""
    console = _console(100)
    scores, result = run.scores(), run.result
    console.print(_client_table(scores, run.client_names()))
    console.print(_summary_table(result))
    if said := said_of(result):
        console.print(said, soft_wrap=True, markup=False)
    console.print(f"Run folder: {result['run']}", soft_wrap=True, markup=False)


def print_joined(run: Run) -> None:
    """Which encoder clients joined, and their mean accuracy after some epochs of their heads."""
    console = _console(100)
    result, means = run.result, run.mean_curve()
    if means:
        last = max(means)
        table = Table(title="Mean accuracy over epochs of the heads (%)", title_justify="left")
        shown = [e for e in means if e in (1, 2, 5, 10, 20, 50, 100, 200, 500, last)]
        for epoch in shown:
            table.add_column(str(epoch), justify="right")
        table.add_row(*(figure(means[epoch]) for epoch in shown))
        console.print(table)
    origin = result["encoder_origin"]
    console.print(
        f"Encoder: {run.config.init} ({result['method']}, {origin})", soft_wrap=True, markup=False
    )


def print_comparison(comparison: Comparison) -> None:
    """The table of a comparison, and where to find the rest."""
    console = _console(160)
    heading, *rows = comparison.cells("[bold]{}[/bold]", "[underline]{}[/underline]")
    table = Table(caption=comparison.caption(), caption_justify="left")
    for place, column in enumerate(heading):
        table.add_column(escape(column), justify="right" if place else "left")
    for name, accuracy, *figures in rows:
        table.add_row(escape(name), accuracy, *map(escape, figures))
    console.print(table)
    console.print(f"Comparison: {comparison.folder}", soft_wrap=True, markup=False)


def print_sweep(sweep: Sweep) -> None:
    """The table over the values of a setting."""
    console = _console(160)
    heading, *rows = sweep.cells(f"{BEST}{{}}{BEST}")
    table = Table(*map(escape, heading), caption=escape(sweep.caption()), caption_justify="left")
    for row in rows:
        table.add_row(*map(_marked, row))
    console.print(table)
    console.print(f"Sweep: {sweep.folder}", soft_wrap=True, markup=False)


def print_reproduction(reproduction: Reproduction) -> None:
    """Our numbers beside the paper's, which claims hold, and where to find the rest."""
    console = _console(160)
    for note in reproduction.settings_text():
        console.print(note, soft_wrap=True, markup=False)
    # Marks of our own, as cells hold square brackets that are no markup.
    for each in reproduction.tables(f"{BEST}{{}}{BEST}", f"{SECOND}{{}}{SECOND}"):
        heading, *rows = each.cells
        table = Table(
            *map(escape, heading),
            title=escape(each.title),
            title_justify="left",
            caption=escape(each.note),
            caption_justify="left",
        )
        for row in rows:
            table.add_row(*map(_marked, row))
        console.print(table)
    console.print(f"Written to {reproduction.folder / 'table.md'}", soft_wrap=True, markup=False)


def _marked(cell: str) -> str:
    """A cell in rich's markup, with what is best and second."""
    for mark, style in ((BEST, "bold"), (SECOND, "underline")):
        before, found, rest = cell.partition(mark)
        if found:
            inner, _, after = rest.partition(mark)
            return f"{escape(before)}[{style}]{escape(inner)}[/{style}]{escape(after)}"
    return escape(cell)


def print_estimates(estimates: Iterable[Estimate]) -> None:
    """What every panel would take, as it is timed, and all together."""
    console = _console(160)
    total = 0.0
    for one in estimates:
        said = f"no estimate: {one.missing}"
        if one.seconds is not None:
            total += one.seconds
            said = duration(one.seconds)
        console.print(f"{one.panel.name:28} {said}", soft_wrap=True, markup=False)
    console.print(
        f"{'all':28} {duration(total)} of training on this machine; heads, and what is measured on "
        "finished runs, come on top",
        soft_wrap=True,
        markup=False,
    )


def _client_table(scores: list[Score], names: list[str]) -> Table:
    title = "Accuracy per client (%)"
    if len(scores) > CLIENTS_SHOWN:
        title += f", the {CLIENTS_SHOWN} worst of {len(scores)}; all are in clients.parquet"
        scores = sorted(scores, key=lambda s: -1 if s.accuracy is None else s.accuracy)[
            :CLIENTS_SHOWN
        ]
    table = Table(title=title, title_justify="left")
    table.add_column("client", justify="left" if names else "right")
    table.add_column("head")
    for column in (
        "train",
        "classes",
        "test",
        "accuracy",
        "balanced",
        "head classes",
        "tail classes",
    ):
        table.add_column(column, justify="right")
    for s in scores:
        figures = (s.accuracy, s.balanced, s.head_classes, s.tail_classes)
        counts = (s.train.sum(), np.count_nonzero(s.train), s.tested.sum())
        client = escape(names[s.client]) if names else str(s.client)
        table.add_row(client, s.personalize, *map(str, counts), *map(figure, figures))
    return table


def _summary_table(result: dict[str, Any]) -> Table:
    table = Table(
        title=f"{result['method']}+{result['personalize']}, accuracy (%)", title_justify="left"
    )
    names = list(result["accuracy"])
    for column in ("clients", *(name.replace("_", " ") for name in names)):
        table.add_column(column, justify="left" if column == "clients" else "right")

    def row(label: str, accuracy: dict[str, float | None] | None) -> None:
        if accuracy is not None:
            table.add_row(label, *(figure(accuracy[name]) for name in names))

    attack = result.get("attack")
    every = f"{attack['honest']} honest" if attack else result["clients"]
    row(every if attack else f"all {every}", result["accuracy"])
    took, never = result["groups"]["took_part"], result["groups"]["never_took_part"]
    if result["rounds"]:
        if never["clients"]:
            row(f"{took['clients']} took part", took["accuracy"])
            row(f"{never['clients']} did not", never["accuracy"])
        table.caption = f"{never['clients']} of {every} clients were never sampled in stage 1"
    return table
