"""Print results: on stdout, or on stderr if stdout is for JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console

from repper.basics.errors import RepperError
from repper.basics.table import Cell, Number, Table, heading_of
from repper.cli.duration import duration
from repper.cli.tables import console_for_results, print_table
from repper.heads.scores import Score, table_of
from repper.paper.events import Estimate
from repper.paper.findings import Reproduction
from repper.runs.attacked import said_of
from repper.runs.comparison_table import Comparison
from repper.runs.run import Run
from repper.runs.sweep import Sweep

CLIENTS_SHOWN = 40


def print_results(run: Run, *, stderr: bool = False) -> None:
    """Print the table of clients, the summary, and the run folder."""
    console = console_for_results(100, stderr=stderr)
    scores, result = run.scores(), run.result
    _print_clients(console, scores, run.client_names())
    _print_summary(console, result)
    if said := said_of(result):
        console.print(said, soft_wrap=True, markup=False)
    console.print(f"Run folder: {result['run']}", soft_wrap=True, markup=False)


def print_joined(run: Run, *, stderr: bool = False) -> None:
    """Print the encoder that new clients use, and their mean accuracy over epochs of the heads."""
    console = console_for_results(100, stderr=stderr)
    result, means = run.result, run.mean_curve()
    if means:
        last = max(means)
        shown = [e for e in means if e in (1, 2, 5, 10, 20, 50, 100, 200, 500, last)]
        title = "Mean accuracy over epochs of the heads (%)"
        line: list[Cell] = ["accuracy", *(Number(means[e]) for e in shown)]
        print_table(console, Table.of(["epochs", *map(str, shown)], [line], title))
    origin = result["encoder_origin"]
    console.print(
        f"Encoder: {run.config.init} ({result['method']}, {origin})", soft_wrap=True, markup=False
    )


def print_comparison(comparison: Comparison, *, stderr: bool = False) -> None:
    """Print the table of a comparison, and its folder."""
    console = console_for_results(160, stderr=stderr)
    print_table(console, comparison.table())
    console.print(f"Comparison: {comparison.folder}", soft_wrap=True, markup=False)


def print_sweep(sweep: Sweep, *, stderr: bool = False) -> None:
    """Print the table over the values of a setting."""
    console = console_for_results(160, stderr=stderr)
    print_table(console, sweep.table())
    console.print(f"Sweep: {sweep.folder}", soft_wrap=True, markup=False)


def print_reproduction(reproduction: Reproduction) -> None:
    """Print our numbers beside the paper's, which claims hold, and the path of the tables."""
    console = console_for_results(160)
    for note in reproduction.settings_text():
        console.print(note, soft_wrap=True, markup=False)
    for each in reproduction.tables():
        print_table(console, each)
    console.print(f"Written to {reproduction.folder / 'table.md'}", soft_wrap=True, markup=False)


def print_estimates(experiment: str, estimates: Iterable[Estimate]) -> None:
    """Print the estimated time of every panel and of all, and name panels without data."""
    console = console_for_results(160)

    def say(name: str, text: str) -> None:
        console.print(f"{name:28} {text}", soft_wrap=True, markup=False)

    timed, missing = list[float](), list[Estimate]()
    for one in estimates:
        if one.seconds is None:
            missing.append(one)
        else:
            timed.append(one.seconds)
            say(one.panel.name, duration(one.seconds))
    if not timed:
        raise RepperError(f"cannot estimate {experiment}: {missing[0].missing}")
    for one in missing:
        say(one.panel.name, f"no estimate: {one.missing}")
    say(
        f"{len(timed)} of {len(timed) + len(missing)}" if missing else "all",
        f"{duration(sum(timed))} of training on this machine; heads, and what is measured on "
        f"finished runs, come on top" + ("; not counting panels without data" if missing else ""),
    )


def _print_clients(console: Console, scores: list[Score], names: list[str]) -> None:
    title = "Accuracy per client (%)"
    if len(scores) > CLIENTS_SHOWN:
        title += f", the {CLIENTS_SHOWN} worst of {len(scores)}; all are in clients.parquet"
        scores = sorted(scores, key=lambda s: -1 if s.accuracy is None else s.accuracy)[
            :CLIENTS_SHOWN
        ]
    print_table(console, table_of(scores, names, title))


def _print_summary(console: Console, result: dict[str, Any]) -> None:
    names, rows = list(result["accuracy"]), list[list[Cell]]()

    def row(label: str, accuracy: dict[str, float | None] | None) -> None:
        if accuracy is not None:
            rows.append([label, *(Number(accuracy[name]) for name in names)])

    attack = result.get("attack")
    every = f"{attack['honest']} honest" if attack else result["clients"]
    row(every if attack else f"all {every}", result["accuracy"])
    took, never = result["groups"]["took_part"], result["groups"]["never_took_part"]
    caption = ""
    if result["rounds"]:
        if never["clients"]:
            row(f"{took['clients']} took part", took["accuracy"])
            row(f"{never['clients']} did not", never["accuracy"])
        caption = f"{never['clients']} of {every} clients were never sampled in stage 1"
    title = f"{result['method']}+{result['personalize']}, accuracy (%)"
    print_table(console, Table.of(["clients", *map(heading_of, names)], rows, title, caption))
