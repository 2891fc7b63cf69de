"""Progress of a run: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from repper.basics.table import figure
from repper.cli.duration import duration
from repper.cli.show import console
from repper.engines.memory import step_bytes
from repper.methods.stage import rounds_of
from repper.paper.events import (
    PanelMissing,
    PanelStarted,
    ReproduceEvent,
)
from repper.privacy import SITE, Privacy
from repper.runs.build import asked_stages, build_stages
from repper.runs.execute import ClientDone, Finished, RoundDone, Started
from repper.runs.sweep import SweepStep, Swept
from repper.runs.time_left import CellStarted, WorkLeft
from repper.settings.config import Config

SAID_FROM = 2**29
"""The memory of a training step in bytes from which on it is said before the start."""


class Display:
    """Shows events as they happen, on stderr, so that stdout holds results only."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._bars: Progress | None = None
        self._stages: tuple[TaskID, TaskID] | None = None
        self._clients = self._rounds = self._personalized = 0
        self._first: tuple[int, float] | None = None
        self._whole: tuple[float, float] | None = None
        self._in_rounds, self._cells = 0.0, 0
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

    def show(self, event: ReproduceEvent | SweepStep | Swept) -> None:
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
        elif isinstance(event, SweepStep):
            key = event.setting.replace("_", "-")
            self._say(f"({event.number} of {event.values}) {key} {event.value}")
        elif isinstance(event, PanelStarted):
            self._say(f"[{event.number}/{event.panels}] {event.panel.name}")
        elif isinstance(event, PanelMissing):
            self._say(f"  skipped: {event.reason}")
        elif isinstance(event, WorkLeft):
            self._left(event)

    def _left(self, event: WorkLeft) -> None:
        """Estimate the remaining time from the rounds done here and the time between rounds."""
        share, now = event.share, time.monotonic()
        if self._whole is None:
            self._whole = share + event.given, now
        first, began = self._whole
        self._in_rounds += event.seconds
        if (done_here := first - event.given - share) > 0:
            # Starts and heads take their time once a run, and not once a round.
            beside = max(0.0, now - began - self._in_rounds) / max(1, self._cells)
            left = self._in_rounds / done_here * share + beside * event.cells
            self._whole_left = f"{1 - share:.0%} of all trainings done, {duration(left)} left"
        if self._bars is not None:
            if self._whole_bar is None:
                self._whole_bar = self._bars.add_task("all trainings  ", total=100, note="")
            done = round(100 * (1 - share))
            # The bars' own guess looks at the last seconds only, and a percent may take longer.
            self._bars.update(self._whole_bar, completed=done, note=self._whole_left)

    def _cell(self, event: CellStarted) -> None:
        self._cells += 1
        if self._whole_left and self._bars is None:
            self._say(self._whole_left)
        for damage in event.passed_over:
            self._say(f"cannot reuse: {damage}")
        how = ", trained before" if event.trained else ""
        how += " in the --reuse folder" if event.reused else ""
        self._say(f"[{event.number}/{event.cells}] {event.row.name}, seed {event.seed}{how}")

    def _start(self, event: Started) -> None:
        config = event.config
        self._clients, self._rounds = len(event.plan.personalized), event.rounds
        self._first = None
        sizes = [len(rows) for rows in event.partition.train]
        self._say(
            f"{event.data.name}: {event.data.note or f'{len(event.data.train)} images'}; "
            f"{config.clients} clients with {min(sizes)} to {max(sizes)} training images; "
            f"computing in {config.precision}"
        )
        if (needed := step_bytes(event.plan.work)) >= SAID_FROM:
            self._say(
                f"a training step needs about {needed / 2**30:.1f} GB of memory in every process: "
                f"if memory is short, use fewer --workers or a smaller --batch"
            )
        if event.plan.begins:
            self._say(f"initial weights from {config.init}: {event.plan.begins}")
        elif config.init and not event.rounds:
            self._say(f"new clients use the encoder of {config.init}")
        if event.rounds and (privacy := event.plan.privacy):
            self._hidden(config, privacy)
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
                self._bars.add_task("stage 2 heads  ", total=self._clients, note="", start=False),
            )

    def _hidden(self, config: Config, privacy: Privacy) -> None:
        """Print the noise on updates, and whether the privacy budget ends training early."""
        each = "each update" if privacy.at == SITE else "the sum of a round's updates"
        self._say(
            f"updates are clipped to L2 norm {privacy.clip:g}; noise of {privacy.noise:g} times "
            f"this norm is added to {each}"
            + (f"; delta {privacy.delta:g}" if privacy.noise else ": no privacy without noise")
        )
        asked, rounds = (rounds_of(made) for made in (asked_stages(config), build_stages(config)))
        if rounds < asked:
            self._say(
                f"the privacy budget, epsilon {privacy.budget:g}, ends training after {rounds} of "
                f"{asked} rounds"
            )

    def _round(self, record: dict[str, Any]) -> None:
        notes = []
        if record["loss"] is not None:
            notes.append(f"loss {record['loss']:.3f}")
        if record.get("epsilon") is not None:
            notes.append(f"epsilon {record['epsilon']:.3f}")
        if record["knn"] is not None:
            notes.append(f"k-NN {record['knn']:.1f} %")
        if "accuracy" in record:
            notes.append(f"accuracy {figure(record['accuracy']['mean'])} %")
        note = "  ".join(notes)
        if self._bars is not None and self._stages is not None:
            self._bars.update(self._stages[0], completed=record["round"], note=note)
            return
        # The start, and what the first round takes longer, are not those of later rounds.
        number, now, each = record["round"], time.monotonic(), record["seconds"]
        if self._first is None:
            self._first = number, now
        elif number > self._first[0]:
            each = (now - self._first[1]) / (number - self._first[0])
        left = each * (self._rounds - number)
        whole = f"; {self._whole_left}" if self._whole_left else ""
        self._say(
            f"round {record['round']}/{self._rounds}  {note}  {record['seconds']:.1f} s"
            f"  {duration(left)} left{whole}"
        )

    def _client(self, event: ClientDone) -> None:
        self._personalized += 1
        if self._bars is not None and self._stages is not None:
            self._bars.start_task(self._stages[1])
            score = event.personal.test
            accuracy = figure(score.accuracy) if score else "?"
            note = f"client {event.personal.client}: {accuracy} %"
            self._bars.update(self._stages[1], completed=self._personalized, note=note)
        elif self._personalized % max(1, self._clients // 10) == 0:
            self._say(f"personalized {self._personalized}/{self._clients} clients")

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)
