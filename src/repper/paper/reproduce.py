"""Run an experiment of the paper, panel by panel; each is a comparison in a folder of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from repper.basics.documents import write_json
from repper.basics.errors import RepperError
from repper.basics.files import check_same
from repper.data.dataset import Dataset
from repper.paper import measures
from repper.paper.events import (
    PanelMissing,
    PanelStarted,
    Reproduced,
    ReproduceEvent,
)
from repper.paper.experiment import SETTINGS, Experiment, Panel, Preset
from repper.paper.findings import FIGURES, Extra, Reproduction, read_identity
from repper.paper.panels import (
    NOT_RUN,
    Images,
    PanelResult,
    panel_config,
    panels_of,
    result_in,
    without,
)
from repper.runs import run_folder
from repper.runs.compare import Compared, check_asked, compare
from repper.runs.execute import Event
from repper.runs.time_left import Work, trainings_of
from repper.settings.config import Config


def reproduce(
    experiment: Experiment,
    preset: Preset,
    folder: Path,
    *,
    seeds: int = 1,
    only: str | None = None,
    resume: bool = False,
    reuse: Path | None = None,
    how: Mapping[str, Any] | None = None,
) -> Iterator[ReproduceEvent]:
    """Run all cells that are not finished, and write our numbers beside the paper's.

    With `only`, words of panels' names as `panels_of` takes them, the other panels stay as they
    are. Trainings that are finished somewhere in the folder `reuse` are not made again.

    `how` are settings that change no result: `data_dir`, `download`, `engine`, `workers`,
    `device`, `track`.
    """
    _check_folder(folder, experiment, preset, seeds, resume=resume)
    configs = {
        panel: panel_config(experiment, preset, panel, folder, how)
        for panel in panels_of(experiment, only)
    }
    for config in configs.values():
        check_asked(config, seeds, reuse)
    images = Images.of(experiment, configs, how or {})
    if len(images.missing) == len(configs) and not any(
        result_in(folder, panel).comparison for panel in configs
    ):
        why = next(iter(images.missing.values()))
        part = f" ({only})" if only else ""
        raise RepperError(f"nothing of {experiment.name}{part} can be run: {why}")
    with run_folder.locked(folder):
        before = None
        if (folder / SETTINGS).is_file():
            before = Reproduction.read(folder, experiment, preset, seeds)
        identity = _identity(experiment, preset, seeds)
        write_json(folder / SETTINGS, identity, indent=None)
        missing = {r.panel: r.missing for r in before.panels if r.missing} if before else {}
        results, extras = dict[Panel, PanelResult](), list[Extra]()
        work = Work(
            training
            for panel, config in configs.items()
            for training in trainings_of(config, panel.rows, seeds, images=images.counts[panel])
        )

        def found(*, last: bool = False) -> Reproduction:
            """The results so far, with those of an earlier call for the rest."""
            panels = [
                results.get(panel) or result_in(folder, panel, missing.get(panel, NOT_RUN))
                for panel in experiment.panels
            ]
            now = Reproduction(
                folder, experiment, preset, seeds, tuple(panels), tuple(extras), images.notes
            )
            return now.keeping(before) if before and (images.missing or only or not last) else now

        for number, (panel, config) in enumerate(configs.items(), start=1):
            yield PanelStarted(panel, number, len(configs))
            if panel in images.missing:
                yield PanelMissing(panel, images.missing[panel])
                results[panel] = result_in(folder, panel, without(config))
                continue
            data = images.loaded.data_of(config)
            running = compare(config, panel.rows, seeds, data, resume=True, reuse=reuse)
            for event in work.watch(running):
                if isinstance(event, Compared):
                    results[panel] = PanelResult(panel, event.comparison)
                yield event
            found().write()  # before what is measured, which may take long
            extras += yield from _measured(experiment, panel, config, data, folder, how or {})
            found().write()
        if experiment.measure == "figures":
            extras.append(measures.draw_holdings(next(iter(configs.values())), folder / FIGURES))
        reproduction = found(last=True)
        reproduction.write()
        yield Reproduced(reproduction)


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


def _identity(experiment: Experiment, preset: Preset, seeds: int) -> dict[str, Any]:
    return {"experiment": experiment.name, "preset": preset.name, "seeds": seeds}


def _check_folder(
    folder: Path, experiment: Experiment, preset: Preset, seeds: int, *, resume: bool
) -> None:
    if (folder / SETTINGS).is_file():
        before, now = read_identity(folder), _identity(experiment, preset, seeds)
        check_same(folder, "reproduction", before | {"seeds": seeds}, now)
        if not resume:
            raise RepperError(
                f"{folder} already holds a reproduction: add --resume to go on with it, "
                f"or choose another --out"
            )
        if before["seeds"] > seeds:  # with more it goes on
            raise RepperError(f"{folder} has {before['seeds']} seeds: give --seeds as many or more")
    elif run_folder.holds_more(folder):
        raise RepperError(f"--out {folder} is not empty and holds no reproduction: choose another")
