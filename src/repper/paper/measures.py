"""Measurements and figures of the paper's experiments on the finished runs of a panel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from repper.basics.errors import RepperError
from repper.basics.table import Cell, Number, Table, count, figure, gain
from repper.data.dataset import Dataset
from repper.encoders.encoder import AVERAGED
from repper.figures.embedding import MEANING, PARTING, encoder_label, parting_of
from repper.paper import figures
from repper.paper.experiment import Panel, Settings
from repper.paper.findings import Extra
from repper.paper.gradients import measure_run
from repper.paper.panels import cells_of, without
from repper.paper.printed import BUBBLES
from repper.runs import run_folder
from repper.runs.build import load_data
from repper.runs.comparison_table import interval
from repper.runs.execute import Event
from repper.runs.newcomers import join
from repper.runs.row import Row
from repper.runs.run import Run
from repper.settings.config import Config

JOINED = "joined"


def join_all(
    settings: Settings, panel: Panel, config: Config, how: Mapping[str, Any]
) -> Iterator[Event]:
    """Let new clients join every run of the panel, each in a folder of its own."""
    for row, run in cells_of(panel, config):
        target = Path(str(config.out)) / JOINED / row.name
        yield from _joined(run, {**settings, **how}, target)


def _joined(run: Run, settings: dict[str, Any], target: Path) -> Iterator[Event]:
    """Let clients join a run unless they have joined; refuse if its encoder has changed since."""
    if Run(target).finished:
        # The run as it lies now: the whole folder may have been moved since.
        run_folder.check_init(target, replace(Run(target).config, init=str(run.folder)))
    else:
        yield from join(run, {**settings, "out": str(target)}, resume=target.exists())


def newcomers(settings: Settings, panel: Panel, config: Config, folder: Path) -> Extra:
    """The accuracy of new clients, over epochs of their heads and per client, and its figure."""
    runs = {
        encoder_label(row.label, run): Run(Path(str(config.out)) / JOINED / row.name)
        for row, run in cells_of(panel, config)
    }
    figures.newcomers(folder / "new-clients", runs)
    shown = (1, 10, 20, 50, 100)
    columns = [
        "encoder of", *(f"after {epoch}" for epoch in shown), "minus repper", "best for",
        "deviation", "worst tenth", "each client",
    ]  # fmt: skip
    lines: list[list[Cell]] = []
    finals = {
        name: {s.client: s.accuracy for s in run.scores() if s.accuracy is not None}
        for name, run in runs.items()
    }
    best = {name: _alone_at_the_top(name, finals) for name in runs}
    for name, run in runs.items():
        means, accuracy, own = run.mean_curve(), run.accuracy, finals[name]
        # Heads that were done before stay as they are.
        over = [Number(means[max(e for e in means if e <= epoch)]) for epoch in shown]
        more = Number(None)
        if name != "repper" and "repper" in finals:
            more = gain(*interval([own[c] - finals["repper"][c] for c in own]))
        spread = Number(accuracy["std"]), Number(accuracy["worst_tenth"])
        each = " ".join(map(figure, own.values()))
        lines.append([name, *over, more, count(best[name]), *spread, each])
    scores = next(iter(runs.values())).scores()
    trained, tested = (sum(int(getattr(s, n).sum()) for s in scores) for n in ("train", "tested"))
    note = (
        f"Mean accuracy in % of {len(scores)} new clients, who have {trained:,} training and "
        f"{tested:,} test images of {settings['data']} between them, after epochs of their linear "
        "heads; one seed. The difference is that of the last epoch, paired, client by client, with "
        "its 95 % interval over clients; 'best for' counts clients for whom no other encoder is as "
        "good."
    )
    if "repper" in finals and len(finals) > 1:
        note += (
            f" The paper says that RepPer is best for every new client; here it is for "
            f"{best['repper']} of {len(finals['repper'])}."
        )
    title = f"New clients on the encoders of {panel.name}"
    return Extra(panel.name, Table.of(columns, lines, title, note))


def _alone_at_the_top(name: str, finals: Mapping[str, Mapping[int, float]]) -> int:
    """The number of clients for whom a method's encoder is better than every other encoder."""
    others = [values for other, values in finals.items() if other != name]
    return sum(
        all(own > values[client] for values in others) for client, own in finals[name].items()
    )


def _averages(panel: Panel, config: Config) -> Iterator[tuple[Row, Run, Path]]:
    """The rows whose clients have encoders of their own, and where heads on their mean are."""
    for row, run in cells_of(panel, config):
        if run.result["encoder_origin"] == AVERAGED:
            yield row, run, Path(str(config.out)) / JOINED / row.name


def join_averaged(panel: Panel, config: Config, how: Mapping[str, Any]) -> Iterator[Event]:
    """Fit heads on the mean encoder, by the same clients on the same images."""
    for _, run, target in _averages(panel, config):
        same = {"personalize": run.result["personalize"], "seed": run.config.seed}
        yield from _joined(run, {**how, **same}, target)


def averaged(panel: Panel, config: Config) -> Extra:
    lines: list[list[Cell]] = []
    for row, run, target in _averages(panel, config):
        means = (run.accuracy["mean"], Run(target).accuracy["mean"], panel.paper(row))
        lines.append([row.name, *map(Number, means)])
    note = "Accuracy in %, one seed: the paper does not say which of the two its numbers are."
    columns = ["row", "each on its own encoder", AVERAGED, "the paper's"]
    title = f"Heads on averaged encoders, {panel.name}"
    return Extra(panel.name, Table.of(columns, lines, title, note))


def draw(panel: Panel, config: Config, data: Dataset, folder: Path) -> Extra:
    """The figures of a panel's runs, and the numbers that belong beside them."""
    rows = dict(cells_of(panel, config))
    # Rows of one training have the same encoder.
    runs = {row.label: run for row, run in rows.items()}
    tested = [s.client for s in next(iter(rows.values())).scores() if s.tested.any()]
    drawn = np.random.default_rng(config.seed).permutation(tested)[:2]
    clients = sorted(int(client) for client in drawn)
    figures.tsne_of_methods(folder / "tsne-methods", runs, data, clients[0])
    named = {row.name: run for row, run in rows.items()}
    figures.accuracy_per_class(folder / "accuracy-per-class", named, clients)
    if "repper" in runs:
        figures.tsne_of_clients(folder / "tsne-clients", runs["repper"], data)
    parting = {encoder_label(name, run): parting_of(run, data) for name, run in runs.items()}
    lines: list[list[Cell]] = [[label, *found.cells()] for label, found in parting.items()]
    note = MEANING
    if "repper" in parting and len(parting) > 1:
        verdicts = [
            _best(what, [getattr(found, key)[-1] for found in parting.values()], list(parting))
            for what, key in (("silhouette", "silhouette"), ("nearest image", "nearest"))
        ]
        note += f" The paper sees tail classes parted best by RepPer; here, {'; '.join(verdicts)}."
    title = "How well the features part the classes"
    return Extra(panel.name, Table.of(["encoder of", *PARTING], lines, title, note))


def _best(what: str, values: list[float | None], names: list[str]) -> str:
    known = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    best = max(known, key=known.__getitem__, default="nobody")
    return f"by {what}, {best} is first"


def draw_holdings(config: Config, folder: Path) -> Extra:
    """Bubble plots of the paper's seven settings, and which of them could not be drawn."""
    lines: list[list[Cell]] = []
    for name in dict.fromkeys(name for name, _ in BUBBLES):
        alphas, every = [a for n, a in BUBBLES if n == name], replace(config, data=name)
        try:
            data = load_data(replace(every, train_images=None))
        except RepperError:
            drawn = dict.fromkeys(alphas, f"left out: {without(replace(every, train_images=None))}")
        else:
            drawn = figures.holdings(folder, data, alphas, config.clients, config.seed)
        lines += [[name, Number(alpha, "{:g}"), drawn[alpha]] for alpha in alphas]
    note = (
        "Bubble plots in the folder figures: of all training images there are, not only of those "
        "trained on; those of a data set are drawn at one scale."
    )
    return Extra("", Table.of(["data", "alpha", "figure"], lines, "Who holds what", note))


def gradients(panel: Panel, config: Config, data: Dataset, folder: Path) -> Extra:
    """Section 5's claim on the gradients of tail classes, measured, and its figure."""
    columns = ["method", "quantity", "tail", "frequent", "ratio", "larger for tail", "correlation"]
    lines: list[list[Cell]] = []
    measured = {row.label: measure_run(run, data) for row, run in cells_of(panel, config)}
    title = f"{panel.name}: after round {config.rounds}"
    figures.gradients(folder / f"gradients-{panel.folder}", measured, title)
    for method, quantities in measured.items():
        for one in quantities:
            found = one.summary
            share = f"{{:.0%}} of {found['clients']:.0f}"
            lines.append(
                [
                    method,
                    one.quantity,
                    *(_known(found[key], "{:.4g}") for key in ("tail", "head", "ratio")),
                    _known(found["larger_for_tail"], share),
                    _known(found["correlation"], "{:+.2f}"),
                ]
            )
    note = (
        "One batch of every client, as the next step of training would have it. Tail and "
        "frequent classes are those of which a client has fewer and more images than of its median "
        "class; every class counts once. Ratio is the geometric mean over clients of tail over "
        "frequent; correlation is Spearman's, of the size of a class and the mean of its anchors. "
        "One seed. RepPer's gradient norm is, for each anchor, the product of sum of |P - X|, "
        "1 / |r|, the distance of the weighted means of positives and negatives, and "
        "1 / temperature. The paper says that anchors of tail classes get the larger gradients "
        "from RepPer's loss."
    )
    title = f"Gradients by the size of a class, {panel.name}"
    return Extra(panel.name, Table.of(columns, lines, title, note))


def _known(value: float, form: str) -> Number:
    return Number(None if math.isnan(value) else value, form)
