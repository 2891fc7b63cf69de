"""Run an experiment of the paper, panel by panel; each is a comparison in a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from repper import measures, run_folder
from repper.config import Config
from repper.datasets.dataset import Dataset
from repper.errors import RepperError
from repper.experiment import Event, RoundDone, Started
from repper.experiments.experiment import Experiment, Panel, Preset
from repper.files import read_json, write_atomically
from repper.grid import CellStarted, Compared, compare
from repper.panels import (
    Loaded,
    PanelResult,
    epochs_in,
    panel_config,
    result_in,
    rows_in,
    without,
)
from repper.reproduce_events import (
    PanelMissing,
    PanelStarted,
    Reproduced,
    ReproduceEvent,
    WorkLeft,
)
from repper.reproduction import FIGURES, SETTINGS, Extra, Reproduction
from repper.runs import Run


def reproduce(
    experiment: Experiment,
    preset: Preset,
    folder: Path,
    *,
    seeds: int = 1,
    resume: bool = False,
    reuse: Path | None = None,
    how: Mapping[str, Any] | None = None,
) -> Iterator[ReproduceEvent]:
    """Run all cells that are not finished, and write our numbers beside the paper's.

    Trainings that are finished somewhere in the folder `reuse` are not made again.

    `how` are settings that change no result: `data_dir`, `download`, `engine`, `workers`,
    `device`.
    """
    _check_folder(folder, experiment, preset, seeds, resume=resume)
    with run_folder.locked(folder):
        identity = _identity(experiment, preset, seeds)
        write_atomically(folder / SETTINGS, json.dumps(identity))
        configs = {
            panel: panel_config(experiment, preset, panel, folder, how)
            for panel in experiment.panels
        }
        results, extras, loaded = list[PanelResult](), list[Extra](), Loaded()
        images, notes, missing = _images(loaded, configs)
        whole = sum(_passes(one, panel, seeds) * images[panel] for panel, one in configs.items())
        for number, (panel, config) in enumerate(configs.items(), start=1):
            yield PanelStarted(panel, number, len(configs))
            if panel in missing:
                yield PanelMissing(panel, missing[panel])
                results.append(PanelResult(panel, None, without(config)))
                continue
            data = loaded.data_of(config)
            left = cell = 0.0
            for event in compare(config, rows_in(panel), seeds, data, resume=True, reuse=reuse):
                if isinstance(event, CellStarted):
                    left = sum(
                        _passes(one, other, seeds, unfinished=True) * images[other]
                        for other, one in list(configs.items())[number - 1 :]
                    )
                    own = event.row.config(config, event.seed, Path(str(config.out)))
                    cell = 0.0 if event.trained else epochs_in(own) * images[panel]
                elif isinstance(event, Started | RoundDone):
                    done = (
                        event.finished_rounds
                        if isinstance(event, Started)
                        else event.record["round"]
                    )
                    yield WorkLeft((left - cell * done / config.rounds) / whole)
                elif isinstance(event, Compared):
                    results.append(PanelResult(panel, event.comparison))
                yield event
            extras += yield from _measured(experiment, panel, config, data, folder, how or {})
            so_far = [*results, *(result_in(folder, other) for other in list(configs)[number:])]
            Reproduction(
                folder, experiment, preset, seeds, tuple(so_far), tuple(extras), notes
            ).write()
        if experiment.measure == "figures":
            extras.append(measures.draw_holdings(next(iter(configs.values())), folder / FIGURES))
        found = Reproduction(
            folder, experiment, preset, seeds, tuple(results), tuple(extras), notes
        )
        found.write()
        yield Reproduced(found)


def _measured(
    experiment: Experiment,
    panel: Panel,
    config: Config,
    data: Dataset,
    folder: Path,
    how: Mapping[str, Any],
) -> Generator[Event, None, list[Extra]]:
    """What the experiment asks of a panel's finished runs, as tables beside it."""
    extras = []
    if experiment.newcomers:
        yield from measures.join_all(experiment.newcomers, panel, config, how)
        extras.append(measures.newcomers(experiment.newcomers, panel, config, folder / FIGURES))
    if experiment.measure == "gradients":
        extras.append(measures.gradients(panel, config, data, folder / FIGURES))
    if experiment.measure == "figures":
        extras.append(measures.draw(panel, config, data, folder / FIGURES))
    if experiment.measure == "averaged":
        yield from measures.join_averaged(panel, config, how)
        extras.append(measures.averaged(panel, config))
    return extras


def _images(
    loaded: Loaded, configs: Mapping[Panel, Config]
) -> tuple[dict[Panel, int], tuple[str, ...], dict[Panel, str]]:
    """How many training images panels have, what there is of each data set, and what is missing."""
    counts, notes, missing = dict.fromkeys(configs, 0), list[str](), dict[Panel, str]()
    for panel, config in configs.items():
        try:
            data = loaded.data_of(config)
        except RepperError as error:
            missing[panel] = str(error)
            continue
        counts[panel] = len(data.train)
        notes.append(f"{data.name}, {data.note or f'{len(data.train)} train images'}")
    return counts, tuple(dict.fromkeys(notes)), missing


def _passes(config: Config, panel: Panel, seeds: int, unfinished: bool = False) -> float:
    """The passes over clients' views in a panel's trainings, or in those not finished."""
    total = 0.0
    for seed in range(config.seed, config.seed + seeds):
        cells = [row.config(config, seed, Path(str(config.out))) for row in rows_in(panel)]
        for method in dict.fromkeys(cell.method for cell in cells):
            own = [cell for cell in cells if cell.method == method]
            done = any(Run(Path(str(cell.out))).finished for cell in own)
            if not (unfinished and done):
                total += epochs_in(own[0])
    return total


def _identity(experiment: Experiment, preset: Preset, seeds: int) -> dict[str, Any]:
    return {"experiment": experiment.name, "preset": preset.name, "seeds": seeds}


def _check_folder(
    folder: Path, experiment: Experiment, preset: Preset, seeds: int, *, resume: bool
) -> None:
    path = folder / SETTINGS
    if path.is_file():
        before, now = read_json(path), _identity(experiment, preset, seeds)
        for key, value in now.items():
            if before.get(key) != value and key != "seeds":
                raise RepperError(
                    f"{folder} holds another reproduction: its {key} is {before.get(key)}, not "
                    f"{value}; choose another --out"
                )
        if not resume:
            raise RepperError(
                f"{folder} already holds a reproduction: add --resume to go on with it, "
                f"or choose another --out"
            )
    elif folder.is_dir() and any(p.name != run_folder.LOCK for p in folder.iterdir()):
        raise RepperError(f"--out {folder} is not empty and holds no reproduction: choose another")
