"""Run an experiment of the paper, panel by panel; each is a comparison in a folder of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from repper import figures, run_folder
from repper.comparison import Row, figure
from repper.config import Config
from repper.datasets.dataset import Dataset
from repper.embedding import parting_of
from repper.encoders.encoder import AVERAGED, SHARED
from repper.engines.client import Clients, Task
from repper.engines.engine import one_thread
from repper.engines.pool import cores
from repper.errors import RepperError
from repper.experiment import Event
from repper.experiments.experiment import Experiment, Panel, Preset
from repper.experiments.tables import BUBBLES
from repper.files import read_json, write_atomically
from repper.gradients import measure_run
from repper.grid import CellStarted, Compared, compare, rows_of
from repper.methods.schedule import cohort_size
from repper.newcomers import join
from repper.params import clone, params_of, select
from repper.partition import Partition
from repper.plan import plan
from repper.reproduce_events import (
    Estimate,
    PanelMissing,
    PanelStarted,
    Reproduced,
    ReproduceEvent,
    WorkLeft,
)
from repper.reproduction import FIGURES, PANELS, SETTINGS, Extra, PanelResult, Reproduction
from repper.runs import Run

JOINED = "joined"
PARTING, GROUPS = ("silhouette", "k-NN"), ("all", "head classes", "tail classes")
GRADIENTS = (
    "Gradients by the size of a class",
    "One batch of every client, as the next step of training would have it. Tail and head classes "
    "are those of which a client has fewer and more images than of its median class; every class "
    "counts once. Ratio is the mean of tail over head; correlation is Spearman's, of the size of a "
    "class and the mean of its anchors.",
)
GRADIENT_HEADING = [
    "when", "method", "quantity", "tail", "head", "ratio", "larger for tail", "correlation",
]  # fmt: skip


def reproduce(
    experiment: Experiment,
    preset: Preset,
    folder: Path,
    *,
    seeds: int = 1,
    resume: bool = False,
    how: Mapping[str, Any] | None = None,
) -> Iterator[ReproduceEvent]:
    """Run all cells that are not finished, and write our numbers beside the paper's.

    `how` are settings that change no result: `data_dir`, `engine`, `workers`, `device`.
    """
    _check_folder(folder, experiment, preset, seeds, resume=resume)
    with run_folder.locked(folder):
        identity = _identity(experiment, preset, seeds)
        write_atomically(folder / SETTINGS, json.dumps(identity))
        configs = {
            panel: panel_config(experiment, preset, panel, folder, how)
            for panel in experiment.panels
        }
        whole = sum(_work(config, panel, seeds) for panel, config in configs.items())
        results, measured, loaded = [], list[list[str]](), _Loaded()
        extras: list[Extra] = []
        for number, (panel, config) in enumerate(configs.items(), start=1):
            yield PanelStarted(panel, number, len(configs))
            try:
                data = loaded.data_of(config)
            except RepperError as error:
                yield PanelMissing(panel, str(error))
                results.append(PanelResult(panel, None, _without(config)))
                continue
            for event in compare(config, _rows(panel), seeds, data, resume=True):
                if isinstance(event, CellStarted):
                    left = sum(
                        _work(one, other, seeds, unfinished=True)
                        for other, one in list(configs.items())[number - 1 :]
                    )
                    yield WorkLeft(left / whole)
                elif isinstance(event, Compared):
                    results.append(PanelResult(panel, event.comparison))
                yield event
            if experiment.newcomers:
                yield from _joined(experiment, panel, config, how or {})
                joined = {n: Run(Path(str(config.out)) / JOINED / n) for n in panel.rows}
                figures.newcomers(folder / FIGURES / "new-clients", joined)
            if experiment.measure == "gradients":
                measured += list(_gradients(panel, config, data))
            if experiment.measure == "figures":
                extras.append(_draw(panel, config, data, folder / FIGURES))
            if experiment.measure == "averaged":
                yield from _on_averaged(panel, config, how or {})
                extras.append(_averaged(panel, config))
        if measured:
            extras.append(Extra(*GRADIENTS, [GRADIENT_HEADING, *measured]))
        if experiment.measure == "figures":
            extras.append(_draw_holdings(next(iter(configs.values())), folder / FIGURES))
        if experiment.newcomers:
            here = [panel for panel in configs if not _missing(results, panel)]
            extras += [_newcomers(panel, configs[panel]) for panel in here]
        found = Reproduction(folder, experiment, preset, seeds, tuple(results), tuple(extras))
        found.write()
        yield Reproduced(found)


def _without(config: Config) -> str:
    """Why a panel is left out, in words that name no folder of this machine."""
    return f"no images of {config.data} could be loaded"


def _missing(results: Sequence[PanelResult], panel: Panel) -> bool:
    return any(result.panel is panel and result.comparison is None for result in results)


def _cells(panel: Panel, config: Config) -> Iterator[tuple[str, Run]]:
    """The first seed's run of every row of a panel."""
    folder = Path(str(config.out))
    for row in _rows(panel):
        yield row.name, Run(Path(str(row.config(config, config.seed, folder).out)))


def _joined(
    experiment: Experiment, panel: Panel, config: Config, how: Mapping[str, Any]
) -> Iterator[Event]:
    """Let new clients join every run of the panel, each in a folder of its own."""
    for name, run in _cells(panel, config):
        target = Path(str(config.out)) / JOINED / name
        if not (target / run_folder.RESULT).is_file():
            settings = {**(experiment.newcomers or {}), **how, "out": str(target)}
            yield from join(run, settings, resume=target.exists())


def _newcomers(panel: Panel, config: Config) -> Extra:
    """What new clients came to, over epochs of their heads and one by one."""
    shown = (1, 10, 20, 50, 100)
    heading = ["encoder of", *(f"after {epoch}" for epoch in shown), "deviation", "worst tenth"]
    cells = [[*heading, "each client"]]
    for name, _ in _cells(panel, config):
        run = Run(Path(str(config.out)) / JOINED / name)
        means, accuracy = run.mean_curve(), run.accuracy
        line = [name.partition("+")[0]]
        for epoch in shown:
            # Heads that were done before stay as they are.
            line.append(figure(means[max(e for e in means if e <= epoch)]))
        each = [figure(s.accuracy) for s in run.scores()]
        cells.append(
            [*line, figure(accuracy["std"]), figure(accuracy["worst_tenth"]), " ".join(each)]
        )
    note = "Mean accuracy of the new clients in %, after epochs of their linear heads; one seed."
    return Extra(f"New clients on the encoders of {panel.name}", note, cells)


def _averages(panel: Panel, config: Config) -> Iterator[tuple[str, Run, Path]]:
    """The rows whose clients have encoders of their own, and where heads on their mean are."""
    for name, run in _cells(panel, config):
        if run.result["encoder_origin"] == AVERAGED:
            yield name, run, Path(str(config.out)) / JOINED / name


def _on_averaged(panel: Panel, config: Config, how: Mapping[str, Any]) -> Iterator[Event]:
    """Fit heads on the mean encoder, by the same clients on the same images."""
    for _, run, target in _averages(panel, config):
        if not (target / run_folder.RESULT).is_file():
            same = {"personalize": run.result["personalize"], "seed": run.config.seed}
            yield from join(run, {**how, **same, "out": str(target)}, resume=target.exists())


def _averaged(panel: Panel, config: Config) -> Extra:
    cells = [["row", "each on its own encoder", AVERAGED, "the paper's"]]
    for name, run, target in _averages(panel, config):
        paper = panel.printed.get(name)
        means = (run.accuracy["mean"], Run(target).accuracy["mean"], paper)
        cells.append([name, *(figure(mean) for mean in means)])
    note = "Accuracy in %, one seed: the paper does not say which of the two its numbers are."
    return Extra(f"Heads on averaged encoders, {panel.name}", note, cells)


def _draw(panel: Panel, config: Config, data: Dataset, folder: Path) -> Extra:
    """The figures of a panel's runs, and the numbers that belong beside them."""
    runs = {name.partition("+")[0]: run for name, run in _cells(panel, config)}
    # Two clients with images of many classes, and enough to test: the largest ones.
    scores = next(iter(runs.values())).scores()
    largest = [s.client for s in sorted(scores, key=lambda s: -int(s.tested.sum()))[:2]]
    figures.tsne_of_methods(folder / "tsne-methods", runs, data, largest[0])
    figures.accuracy_per_class(folder / "accuracy-per-class", runs, largest)
    if "repper" in runs:
        figures.tsne_of_clients(folder / "tsne-clients", runs["repper"], data)
    cells = [["encoder of", *(f"{what}, {of}" for what in PARTING for of in GROUPS)]]
    for name, run in runs.items():
        found, origin = parting_of(run, data), run.result["encoder_origin"]
        label = name if origin == SHARED else f"{name} ({origin})"
        silhouettes = [f"{v:+.3f}" if v is not None else "-" for v in found.silhouette]
        cells.append([label, *silhouettes, *map(figure, found.knn)])
    note = (
        "The common encoder on every client's own test images, mean over clients; one seed. "
        "Silhouette goes from -1 to 1; k-NN is the accuracy in % of a vote of ten of the client's "
        "training images. Head and tail classes are those of which a client has more and fewer "
        "images than of its median class."
    )
    return Extra("How well the features part the classes", note, cells)


def _draw_holdings(config: Config, folder: Path) -> Extra:
    """Who holds what in the paper's seven settings, and which of them could not be drawn."""
    cells, loaded = [["data", "alpha", "figure"]], _Loaded()
    for name, alpha in BUBBLES:
        try:
            data = loaded.data_of(replace(config, data=name))
        except RepperError:
            drawn = f"left out: {_without(replace(config, data=name))}"
        else:
            drawn = figures.holdings(folder, data, alpha, config.clients, config.seed).name
        cells.append([name, f"{alpha:g}", drawn])
    return Extra("Who holds what", "Bubble plots in the folder `figures`, as SVG and PNG.", cells)


def _gradients(panel: Panel, config: Config, data: Dataset) -> Iterator[list[str]]:
    for name, run in _cells(panel, config):
        for measured in measure_run(run, data):
            found = measured.summary
            yield [
                panel.name,
                name.partition("+")[0],
                measured.quantity,
                *(f"{found[key]:.4g}" for key in ("tail", "head", "ratio")),
                f"{found['larger_for_tail']:.0%} of {found['clients']:.0f}",
                f"{found['correlation']:+.2f}",
            ]


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


class _Loaded:
    """The data set of the last panel, kept for the next."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._data: Dataset | None = None

    def data_of(self, config: Config) -> Dataset:
        key = (config.data, config.train_images, config.data_dir)
        if self._data is None or key != self._key:
            self._data, self._key = config.load_data(), key
        return self._data


def _rows(panel: Panel) -> list[Row]:
    return rows_of(",".join(panel.rows))


def _work(config: Config, panel: Panel, seeds: int, unfinished: bool = False) -> float:
    """How much the trainings of a panel are, or those that are not finished."""
    total = 0.0
    for seed in range(config.seed, config.seed + seeds):
        cells = [row.config(config, seed, Path(str(config.out))) for row in _rows(panel)]
        for method in dict.fromkeys(cell.method for cell in cells):
            own = [cell for cell in cells if cell.method == method]
            done = any((Path(str(cell.out)) / run_folder.RESULT).is_file() for cell in own)
            if not (unfinished and done):
                total += _epochs(own[0])
    return total


def _epochs(config: Config) -> float:
    """Passes over one client's views that a training makes, summed over rounds and clients."""
    schedule = config.build_schedule()
    cohort = cohort_size(config.clients, schedule.participation)
    phases = config.build_method().phases()
    return schedule.rounds * cohort * sum(phase.epochs * phase.views for phase in phases)


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


def estimate(
    experiment: Experiment,
    preset: Preset,
    *,
    seeds: int = 1,
    how: Mapping[str, Any] | None = None,
) -> Iterator[Estimate]:
    """Time a step of every training, and say what all of them would take."""
    loaded = _Loaded()
    timed: dict[tuple[object, ...], float] = {}
    for panel in experiment.panels:
        config = panel_config(experiment, preset, panel, Path("nowhere"), how)
        try:
            data = loaded.data_of(config)
        except RepperError as error:
            yield Estimate(panel, None, str(error))
            continue
        seconds = 0.0
        for row in {row.training: row for row in _rows(panel)}.values():
            one = row.config(config, config.seed, Path("nowhere"))
            key = (one.method, one.encoder, one.width, len(data.classes), data.size)
            if key not in timed:
                timed[key] = _seconds_per_view(one, data)
            images = len(data.train) / one.clients
            seconds += _epochs(one) * images * timed[key]
        workers = int((how or {}).get("workers") or cores())
        yield Estimate(panel, seeds * seconds / workers)


def _seconds_per_view(config: Config, data: Dataset) -> float:
    """The seconds of one core for a view of an image in training, from the second of two steps."""
    count = min(config.batch, len(data.train))
    rows = np.arange(count)
    partition = Partition((rows,), (np.zeros(0, np.int64),))
    one = Config(**{**config.__dict__, "clients": 1, "epochs": 1, "participation": 1.0})
    planned = plan(one, data, partition)
    task = Task(
        planned.config, planned.spec, partition, data.classes, data.flip, planned.config.device
    )
    with one_thread():
        clients = Clients.of(task, data)
        clients.receive(clone(select(params_of(planned.network), planned.method.shared)))
        clients.fit(0, 1)
        began = time.perf_counter()
        clients.fit(0, 1)
        seconds = time.perf_counter() - began
    views = count * sum(phase.epochs * phase.views for phase in planned.method.phases())
    return seconds / views
