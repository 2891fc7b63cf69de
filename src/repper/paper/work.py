"""How much of an experiment is done, by the views of images that its trainings look at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from repper.config import Config
from repper.paper.events import WorkLeft
from repper.paper.experiment import Panel
from repper.paper.panels import epochs_in, rows_in
from repper.runs.compare import CellStarted
from repper.runs.execute import RoundDone, Started
from repper.runs.run import Run


class Work:
    """The trainings of panels, each with so many images; those without images are no work."""

    def __init__(
        self, configs: Mapping[Panel, Config], images: Mapping[Panel, int], seeds: int
    ) -> None:
        self._configs, self._images, self._seeds = configs, images, seeds
        self._whole = self._views(unfinished=False)
        self._given = self._left = self._cell = 0.0

    def seen(self, panel: Panel, event: object) -> WorkLeft | None:
        """What is left after an event in a panel, where that has changed."""
        config = self._configs[panel]
        if isinstance(event, CellStarted):
            self._left = self._views(unfinished=True)
            own = event.row.config(config, event.seed, Path(str(config.out)))
            self._cell = epochs_in(own) * self._images[panel]
            if event.reused:
                self._given, self._left = self._given + self._cell, self._left - self._cell
            if event.trained:
                self._cell = 0.0
        elif isinstance(event, Started | RoundDone):
            done = event.finished_rounds if isinstance(event, Started) else event.record["round"]
            left = self._left - self._cell * done / config.rounds
            return WorkLeft(left / self._whole, self._given / self._whole)
        return None

    def _views(self, *, unfinished: bool) -> float:
        """Passes over clients' views times images: of all trainings, or of those not finished."""
        return sum(self._passes(panel, unfinished) * self._images[panel] for panel in self._configs)

    def _passes(self, panel: Panel, unfinished: bool) -> float:
        config, total = self._configs[panel], 0.0
        for seed in range(config.seed, config.seed + self._seeds):
            cells = [row.config(config, seed, Path(str(config.out))) for row in rows_in(panel)]
            for method in dict.fromkeys(cell.method for cell in cells):
                own = [cell for cell in cells if cell.method == method]
                done = any(Run(Path(str(cell.out))).finished for cell in own)
                if not (unfinished and done):
                    total += epochs_in(own[0])
        return total
