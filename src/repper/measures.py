"""What the paper's experiments measure, or draw, on the finished runs of a panel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from repper import figures, run_folder
from repper.comparison import figure
from repper.config import Config
from repper.datasets.dataset import Dataset
from repper.embedding import parting_of
from repper.encoders.encoder import AVERAGED, SHARED
from repper.errors import RepperError
from repper.experiment import Event
from repper.experiments.experiment import Panel, Settings
from repper.experiments.tables import BUBBLES
from repper.gradients import measure_run
from repper.newcomers import join
from repper.panels import Loaded, cells_of, without
from repper.reproduction import Extra
from repper.runs import Run

JOINED = "joined"
PARTING, GROUPS = ("silhouette", "k-NN"), ("all", "head classes", "tail classes")


def join_all(
    settings: Settings, panel: Panel, config: Config, how: Mapping[str, Any]
) -> Iterator[Event]:
    """Let new clients join every run of the panel, each in a folder of its own."""
    for name, run in cells_of(panel, config):
        target = Path(str(config.out)) / JOINED / name
        if not (target / run_folder.RESULT).is_file():
            yield from join(run, {**settings, **how, "out": str(target)}, resume=target.exists())


def newcomers(panel: Panel, config: Config, folder: Path) -> Extra:
    """What new clients came to, over epochs of their heads and one by one, and its figure."""
    runs = {name: Run(Path(str(config.out)) / JOINED / name) for name, _ in cells_of(panel, config)}
    figures.newcomers(folder / "new-clients", runs)
    shown = (1, 10, 20, 50, 100)
    heading = ["encoder of", *(f"after {epoch}" for epoch in shown), "deviation", "worst tenth"]
    cells = [[*heading, "each client"]]
    for name, run in runs.items():
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
    for name, run in cells_of(panel, config):
        if run.result["encoder_origin"] == AVERAGED:
            yield name, run, Path(str(config.out)) / JOINED / name


def join_averaged(panel: Panel, config: Config, how: Mapping[str, Any]) -> Iterator[Event]:
    """Fit heads on the mean encoder, by the same clients on the same images."""
    for _, run, target in _averages(panel, config):
        if not (target / run_folder.RESULT).is_file():
            same = {"personalize": run.result["personalize"], "seed": run.config.seed}
            yield from join(run, {**how, **same, "out": str(target)}, resume=target.exists())


def averaged(panel: Panel, config: Config) -> Extra:
    cells = [["row", "each on its own encoder", AVERAGED, "the paper's"]]
    for name, run, target in _averages(panel, config):
        paper = panel.printed.get(name)
        means = (run.accuracy["mean"], Run(target).accuracy["mean"], paper)
        cells.append([name, *(figure(mean) for mean in means)])
    note = "Accuracy in %, one seed: the paper does not say which of the two its numbers are."
    return Extra(f"Heads on averaged encoders, {panel.name}", note, cells)


def draw(panel: Panel, config: Config, data: Dataset, folder: Path) -> Extra:
    """The figures of a panel's runs, and the numbers that belong beside them."""
    runs = {name.partition("+")[0]: run for name, run in cells_of(panel, config)}
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


def draw_holdings(config: Config, folder: Path) -> Extra:
    """Who holds what in the paper's seven settings, and which of them could not be drawn."""
    cells, loaded = [["data", "alpha", "figure"]], Loaded()
    for name, alpha in BUBBLES:
        try:
            data = loaded.data_of(replace(config, data=name))
        except RepperError:
            drawn = f"left out: {without(replace(config, data=name))}"
        else:
            drawn = figures.holdings(folder, data, alpha, config.clients, config.seed).name
        cells.append([name, f"{alpha:g}", drawn])
    return Extra("Who holds what", "Bubble plots in the folder `figures`, as SVG and PNG.", cells)


def gradients(panel: Panel, config: Config, data: Dataset) -> Extra:
    """Section 5's claim on the gradients of tail classes, measured."""
    cells = [
        ["method", "quantity", "tail", "head", "ratio", "larger for tail", "correlation"],
    ]
    for name, run in cells_of(panel, config):
        for measured in measure_run(run, data):
            found = measured.summary
            cells.append(
                [
                    name.partition("+")[0],
                    measured.quantity,
                    *(f"{found[key]:.4g}" for key in ("tail", "head", "ratio")),
                    f"{found['larger_for_tail']:.0%} of {found['clients']:.0f}",
                    f"{found['correlation']:+.2f}",
                ]
            )
    note = (
        "One batch of every client, as the next step of training would have it. Tail and head "
        "classes are those of which a client has fewer and more images than of its median class; "
        "every class counts once. Ratio is the mean of tail over head; correlation is Spearman's, "
        "of the size of a class and the mean of its anchors."
    )
    return Extra(f"Gradients by the size of a class, {panel.name}", note, cells)
