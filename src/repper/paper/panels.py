"""The panels of an experiment as comparisons in folders: settings, rows, runs and images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repper.basics.errors import RepperError
from repper.data.dataset import Dataset
from repper.paper.experiment import Experiment, Panel, Preset
from repper.runs.build import load_data
from repper.runs.comparison_table import TABLE, Comparison, Line
from repper.runs.row import Row
from repper.runs.run import Run
from repper.settings.config import Config

PANELS = "panels"
NOT_RUN = "not run"
"""The reason for a panel that was not reached yet."""


@dataclass(frozen=True)
class PanelResult:
    """A panel's comparison, or why there is none."""

    panel: Panel
    comparison: Comparison | None
    missing: str = ""

    def ours(self) -> dict[Row, float]:
        """Accuracy by row."""
        return {row: line.accuracy for row, line in self.lines.items() if line.accuracy is not None}

    def unfinished(self, seeds: int) -> bool:
        """Whether there is more to run for so many seeds; without images there is not."""
        found = self.comparison
        return self.missing == NOT_RUN or bool(found and (found.so_far or len(found.seeds) < seeds))

    @property
    def lines(self) -> dict[Row, Line]:
        found = self.comparison.lines if self.comparison else ()
        return {Row.named(line.row): line for line in found}


def result_in(folder: Path, panel: Panel, missing: str = NOT_RUN) -> PanelResult:
    """The result of a panel in a reproduction's folder, or why there is none."""
    cells = folder / PANELS / panel.folder
    if (cells / f"{TABLE}.json").is_file():
        return PanelResult(panel, Comparison.open(cells))
    return PanelResult(panel, None, missing)


def panels_of(experiment: Experiment, only: str | None = None) -> tuple[Panel, ...]:
    """The panels of an experiment that have all these words in their names, between commas."""
    if only is None:
        return experiment.panels
    words = {word.strip().lower() for word in only.split(",")} - {""}
    chosen = tuple(p for p in experiment.panels if words <= {one.lower() for one in p.words()})
    if not (words and chosen):
        known = "; ".join(panel.name for panel in experiment.panels)
        raise RepperError(
            f"--only {only!r} is no part of {experiment.name}: take words between commas, all "
            f"from one of: {known}"
        )
    return chosen


def panel_config(
    experiment: Experiment,
    preset: Preset,
    panel: Panel,
    folder: Path,
    how: Mapping[str, Any] | None = None,
) -> Config:
    """What all runs of a panel have in common."""
    settings = preset.settings(experiment, panel)
    return Config(**settings, **(how or {}), out=str(folder / PANELS / panel.folder))


def cells_of(panel: Panel, config: Config) -> Iterator[tuple[Row, Run]]:
    """The first seed's run of every row of a panel."""
    folder = Path(str(config.out))
    for row in panel.rows:
        yield row, Run(row.cell(folder, config.seed))


class Loaded:
    """The data set of the last panel, kept for the next."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._data: Dataset | None = None

    def data_of(self, config: Config) -> Dataset:
        key = (config.data, config.train_images, config.data_dir)
        if self._data is None or key != self._key:
            self._data, self._key = load_data(config), key
        return self._data


@dataclass(frozen=True)
class Images:
    """The images of panels: how many, what there is of each data set, and what is missing."""

    counts: dict[Panel, int]
    notes: tuple[str, ...]
    missing: dict[Panel, str]
    loaded: Loaded

    @classmethod
    def of(
        cls, experiment: Experiment, configs: Mapping[Panel, Config], how: Mapping[str, Any]
    ) -> Images:
        counts, notes, missing = dict.fromkeys(configs, 0), list[str](), dict[Panel, str]()
        loaded = Loaded()
        for panel, config in configs.items():
            try:
                data = loaded.data_of(config)
                notes.append(_note(data))
                if experiment.newcomers:
                    # Looked for now: without their images, trainings would be for nothing.
                    others = Config(**how, data=experiment.newcomers["data"])
                    notes.append(f"{_note(load_data(others))} for new clients")
            except RepperError as error:
                missing[panel] = str(error)
            else:
                counts[panel] = len(data.train)
        return cls(counts, tuple(dict.fromkeys(notes)), missing, loaded)


def _note(data: Dataset) -> str:
    return f"{data.name}, {data.note or f'{len(data.train)} train images'}"


def without(config: Config) -> str:
    """The reason why a panel is left out, without a folder of this machine."""
    if config.train_images is not None:
        try:
            count = len(load_data(replace(config, train_images=None)).train)
            if count < config.train_images:
                return (
                    f"{config.data} has {count} training images here, {config.train_images} needed"
                )
        except RepperError:
            pass
    return f"no images of {config.data} could be loaded"
