"""What a person sees of a run: bars on a terminal, lines elsewhere, tables at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from repper.evaluate import Score
from repper.paper.events import (
    Estimate,
    PanelMissing,
    PanelStarted,
    ReproduceEvent,
    WorkLeft,
)
from repper.runs.compare import CellStarted
from repper.runs.comparison import Comparison, figure
from repper.runs.execute import ClientDone, Finished, RoundDone, Started
from repper.runs.run import Run

if TYPE_CHECKING:
    from repper.paper.reproduction import Reproduction

CLIENTS_SHOWN = 40
BEST, SECOND = "\x01", "\x02"
"""Characters that no text holds, around what is best and second in a table."""


class Display:
    """Shows events as they happen, on stderr, so that stdout holds results only."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bars: Progress | None = None
        self._stages: tuple[TaskID, TaskID] | None = None
        self._clients = self._rounds = self._first = self._personalized = 0
        self._began = time.monotonic()
        self._whole: tuple[float, float] | None = None
        self._whole_bar: TaskID | None = None
        self._whole_left = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, event: ReproduceEvent) -> None:
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, RoundDone):
            self._round(event.record)
        elif isinstance(event, ClientDone) and event.final:
            self._client(event)
        elif isinstance(event, Finished) and self._bars is None:
            self._say(f"finished: {event.run.folder}")
        elif isinstance(event, CellStarted):
            self._cell(event)
        elif isinstance(event, PanelStarted):
            self._say(f"[{event.number}/{event.panels}] {event.panel.name}")
        elif isinstance(event, PanelMissing):
            self._say(f"  left out: {event.reason}")
        elif isinstance(event, WorkLeft):
            self._left(event)

    def _left(self, event: WorkLeft) -> None:
        """Find what the whole grid will still take, as what was done since the start took."""
        share = event.share
        if self._whole is None:
            self._whole = share + event.given, time.monotonic()
        first, began = self._whole
        if (done_here := first - event.given - share) > 0:
            left = (time.monotonic() - began) / done_here * share
            self._whole_left = f"{1 - share:.0%} of all is done, {duration(left)} left"
        if self._bars is not None:
            if self._whole_bar is None:
                self._whole_bar = self._bars.add_task("all trainings  ", total=100, note="")
            done = round(100 * (1 - share))
            # The bars' own guess looks at the last seconds only, and a percent may take longer.
            self._bars.update(self._whole_bar, completed=done, note=self._whole_left)

    def _cell(self, event: CellStarted) -> None:
        if self._whole_left and self._bars is None:
            self._say(self._whole_left)
        for damage in event.passed_over:
            self._say(f"not reused: {damage}")
        how = ", trained before" if event.trained else ""
        how += " in the folder to reuse" if event.reused else ""
        self._say(f"[{event.number}/{event.cells}] {event.row.name}, seed {event.seed}{how}")

    def _start(self, event: Started) -> None:
        config = event.config
        self._clients, self._rounds, self._first = (
            config.clients,
            event.rounds,
            event.finished_rounds,
        )
        sizes = [len(rows) for rows in event.partition.train]
        self._say(
            f"{event.data.name}: {event.data.note or f'{len(event.data.train)} images'}; "
            f"{config.clients} clients with {min(sizes)} to {max(sizes)} training images"
        )
        if config.init and not event.rounds:
            self._say(f"clients join {config.init}")
        if event.finished_rounds:
            self._say(f"resuming after round {event.finished_rounds}")
        self._personalized = 0
        if self._bars is not None:
            for task in self._stages or ():
                self._bars.remove_task(task)
            self._bars.start()
            self._stages = (
                self._bars.add_task(
                    "stage 1 encoder",
                    total=event.rounds,
                    completed=event.finished_rounds,
                    note="",
                ),
                self._bars.add_task("stage 2 heads  ", total=config.clients, note="", start=False),
            )
        self._began = time.monotonic()

    def _round(self, record: dict[str, Any]) -> None:
        note = f"loss {record['loss']:.3f}"
        if record["knn"] is not None:
            note += f"  k-NN {record['knn']:.1f} %"
        if "accuracy" in record:
            note += f"  accuracy {figure(record['accuracy']['mean'])} %"
        if self._bars is not None and self._stages is not None:
            self._bars.update(self._stages[0], completed=record["round"], note=note)
            return
        done = record["round"] - self._first
        left = (time.monotonic() - self._began) / done * (self._rounds - record["round"])
        whole = f"; {self._whole_left}" if self._whole_left else ""
        self._say(
            f"round {record['round']}/{self._rounds}  {note}  {record['seconds']:.1f} s"
            f"  {duration(left)} left{whole}"
        )

    def _client(self, event: ClientDone) -> None:
        self._personalized += 1
        if self._bars is not None and self._stages is not None:
            self._bars.start_task(self._stages[1])
            note = f"client {event.personal.client}: {figure(event.personal.test.accuracy)} %"
            self._bars.update(self._stages[1], completed=self._personalized, note=note)
        elif self._personalized % max(1, self._clients // 10) == 0:
            self._say(f"personalized {self._personalized}/{self._clients} clients")

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)


def print_results(run: Run, console: Console | None = None) -> None:
    """The table per client, the summary, and where to find the rest."""
    console = console or Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    scores, result = run.scores(), run.result
    console.print(_client_table(scores, run.client_names()))
    console.print(_summary_table(result))
    console.print(f"Run folder: {result['run']}", soft_wrap=True, markup=False)


def print_joined(run: Run, console: Console | None = None) -> None:
    """Which encoder clients joined, and their mean accuracy after some epochs of their heads."""
    console = console or Console(highlight=False, width=None if sys.stdout.isatty() else 100)
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


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """The table of a comparison, and where to find the rest."""
    console = console or Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    heading, *rows = comparison.cells("[bold]{}[/bold]", "[underline]{}[/underline]")
    table = Table(caption=comparison.caption(), caption_justify="left")
    for place, column in enumerate(heading):
        table.add_column(column, justify="right" if place else "left")
    for name, accuracy, *figures in rows:
        table.add_row(escape(name), accuracy, *map(escape, figures))
    console.print(table)
    console.print(f"Comparison: {comparison.folder}", soft_wrap=True, markup=False)


def print_reproduction(reproduction: Reproduction, console: Console | None = None) -> None:
    """Our numbers beside the paper's, which claims hold, and where to find the rest."""
    console = console or Console(highlight=False, width=None if sys.stdout.isatty() else 160)
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


def print_estimates(estimates: Iterable[Estimate], console: Console | None = None) -> None:
    """What every panel would take, as it is timed, and all together."""
    console = console or Console(highlight=False, width=None if sys.stdout.isatty() else 160)
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

    row(f"all {result['clients']}", result["accuracy"])
    took, never = result["groups"]["took_part"], result["groups"]["never_took_part"]
    if result["rounds"]:
        if never["clients"]:
            row(f"{took['clients']} took part", took["accuracy"])
            row(f"{never['clients']} did not", never["accuracy"])
        table.caption = (
            f"{never['clients']} of {result['clients']} clients were never sampled in stage 1"
        )
    return table


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
