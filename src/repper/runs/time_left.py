"""The progress of comparisons, measured in views of images that their trainings use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from repper.methods.stage import cohort_size
from repper.runs.build import build_stages
from repper.runs.execute import RoundDone, Started, passes
from repper.runs.row import Row
from repper.runs.run import Run
from repper.settings.config import Config

if TYPE_CHECKING:
    from repper.runs.tune import Tuning

Watched = TypeVar("Watched")


@dataclass(frozen=True)
class CellStarted:
    """A cell is about to run, cell `number` of `cells`.

    `trained` if only its heads are missing, `reused` if the training comes from --reuse;
    `passed_over` is what is wrong with trainings there that could have been taken.
    """

    row: Row
    seed: int
    number: int
    cells: int
    trained: bool
    reused: bool = False
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkLeft:
    """The share of the work that remains, from 1 at first to 0.

    `given` is how much of what is done took no time, because trainings were taken as they were.
    `seconds` are those of the round that has just ended, and `cells` counts runs not yet begun.
    """

    share: float
    given: float = 0.0
    seconds: float = 0.0
    cells: int = 0


@dataclass(frozen=True)
class Training:
    """A training of `cells` runs; it is done when one of the folders holds a finished run."""

    folders: tuple[Path, ...]
    views: float
    cells: int


def epochs_in(config: Config) -> float:
    """Passes over one client's views that a training makes, summed over rounds and clients."""
    return sum(
        stage.rounds * cohort_size(config.clients, stage.participation) * passes(stage)
        for stage in build_stages(config)
    )


def trainings_of(
    config: Config,
    rows: Sequence[Row],
    seeds: int,
    *,
    tuning: Tuning | None = None,
    images: float = 1.0,
) -> Iterator[Training]:
    """The trainings of a comparison in the folder `config.out`, its tries included.

    Rows that differ in what clients do last share one. What rows will choose is not known yet:
    they count as with their first try.
    """
    folder = Path(str(config.out))
    groups: list[tuple[list[Row], int]] = []
    if tuning is None:
        shared: dict[object, list[Row]] = {}
        for row in rows:
            shared.setdefault(row.training, []).append(row)
        groups = [(some, len(some)) for some in shared.values()]
    else:
        tries = tuning.tries_of(rows, config)
        every = list(dict.fromkeys(one for some in tries.values() for one in some))
        yield from trainings_of(
            tuning.config_of_tries(config, folder), every, tuning.seeds, images=images
        )
        groups = [(some, 1) for some in tries.values()]
    for seed in range(config.seed, config.seed + seeds):
        for some, cells in groups:
            views = epochs_in(some[0].config(config, seed, folder)) * images
            yield Training(tuple(row.cell(folder, seed) for row in some), views, cells)


class Work:
    """The trainings of one or more comparisons, and their progress."""

    def __init__(self, trainings: Iterable[Training]) -> None:
        self._trainings = tuple(trainings)
        self._of = {folder: one for one in self._trainings for folder in one.folders}
        self._whole = sum(one.views for one in self._trainings) or 1.0
        self._given = self._left = self._cell = 0.0
        self._rounds = self._cells = 0
        self._trained = self._reused = False

    def watch(self, events: Iterable[Watched]) -> Iterator[Watched | WorkLeft]:
        """The events of comparisons, with a `WorkLeft` before each that changes it.

        What is left of a part of the whole is passed over.
        """
        for event in events:
            if isinstance(event, WorkLeft):
                continue
            if isinstance(event, CellStarted):
                self._trained, self._reused = event.trained, event.reused
            elif isinstance(event, Started) and event.folder in self._of:
                self._begin(event)
                yield self._after(event.finished_rounds)
            elif isinstance(event, RoundDone) and self._rounds:
                yield self._after(event.record["round"], event.record["seconds"])
            yield event

    def _begin(self, event: Started) -> None:
        """Find the remaining work on the disk, and this run's share of it."""
        finished = [sum(Run(f).finished for f in one.folders) for one in self._trainings]
        self._left = sum(
            one.views for one, done in zip(self._trainings, finished, strict=True) if not done
        )
        cells = sum(
            max(0, one.cells - done) for one, done in zip(self._trainings, finished, strict=True)
        )
        self._cells = max(0, cells - 1)
        self._cell, self._rounds = self._of[event.folder].views, event.rounds
        if self._reused:
            self._given, self._left = self._given + self._cell, self._left - self._cell
        if self._trained:
            self._cell = 0.0

    def _after(self, rounds: int, seconds: float = 0.0) -> WorkLeft:
        left = self._left - (self._cell * rounds / self._rounds if self._rounds else 0.0)
        return WorkLeft(left / self._whole, self._given / self._whole, seconds, self._cells)
