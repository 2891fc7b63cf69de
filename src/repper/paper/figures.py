"""The paper's figures, drawn from finished runs. One style; SVG and PNG of each."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from repper.basics.names import is_encoder
from repper.basics.params import Params, clone, select
from repper.data.dataset import Dataset, Split
from repper.data.partition import Partition, read_partition, split
from repper.encoders.encoder import SHARED, features_of
from repper.engines.client import Clients
from repper.engines.engine import one_thread
from repper.figures.embedding import embed, nearest_other, silhouettes
from repper.figures.palette import Look, class_looks, looks
from repper.figures.plots import STYLE, bubbles, curve, save
from repper.heads.scores import Score
from repper.paper.gradients import Measured
from repper.runs.plan import make_work
from repper.runs.round_log import read_trained
from repper.runs.run import Run
from repper.runs.run_folder import PARTITION

CLIENTS_SHOWN = 7
CLASSES_NAMED = 10
OTHERS = "0.55"
"""The grey of classes without a colour of their own."""


@contextmanager
def _drawing(
    path: Path,
    width: float,
    height: float,
    *,
    rows: int = 1,
    columns: int = 1,
    widths: Sequence[float] | None = None,
    heights: Sequence[float] | None = None,
) -> Iterator[tuple[Figure, Any]]:
    """A figure with a grid of axes, written as SVG and PNG at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            rows, columns, figsize=(width, height), layout="constrained", squeeze=False,
            width_ratios=widths, height_ratios=heights,
        )  # fmt: skip
        try:
            yield figure, axes
            for suffix in (".svg", ".png"):
                save(figure, path.with_suffix(suffix))
        finally:
            pyplot.close(figure)


def _scatter(
    axes: Axes,
    r: NDArray[np.float32],
    labels: NDArray[np.int64],
    shown: Mapping[int, Look],
    title: str,
    note: str = "",
) -> None:
    """Draw features in the plane; below, measures of how well they separate the classes."""
    points = embed(r)
    grey = points[~np.isin(labels, list(shown))]
    size = min(14.0, 4000 / len(r))  # many points get smaller marks, or they hide each other
    axes.scatter(grey[:, 0], grey[:, 1], c=OTHERS, s=0.5 * size, linewidths=0)
    for label, look in shown.items():
        own = points[labels == label]
        axes.scatter(
            own[:, 0], own[:, 1], s=size, marker=look.marker, facecolors=look.face,
            edgecolors=look.light, linewidths=0 if look.turn == 0 else 0.7,
        )  # fmt: skip
    [silhouette] = silhouettes(r, labels)
    numbers = "" if silhouette is None else f"silhouette {silhouette:.2f}, "
    numbers += f"nearest other image right {nearest_other(r, labels):.0f} %"
    axes.set(xticks=[], yticks=[], title=title)
    axes.set_xlabel(f"{note}\n{numbers}" if note else numbers, fontsize=7)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def tsne_of_methods(path: Path, runs: Mapping[str, Run], data: Dataset, client: int) -> None:
    """Figure 1: one client's images by the encoder of every method."""
    first = next(iter(runs.values()))
    own = _of_client(data, read_partition(first.folder / PARTITION, data), client)
    with _drawing(path, 2.7 * len(runs), 3.3, columns=len(runs)) as (figure, axes):
        figure.suptitle(f"client {client}, {len(own)} training images", fontsize=10)
        shown = class_looks(own.labels)
        for place, (name, run) in enumerate(runs.items()):
            spec, params = run.encoder
            r = features_of(spec, params, own.images)
            origin = run.result["encoder_origin"]
            note = "" if origin == SHARED else origin
            _scatter(axes[0, place], r, own.labels, shown, name, note)
        _class_legend(figure, data, own.labels, shown)


def tsne_of_clients(path: Path, run: Run, data: Dataset) -> None:
    """Seven clients, each with its own local encoder on its own images, and the server's on all.

    From the least skewed client to the most; a local encoder is the common one after a client's
    next round of training.
    """
    partition = read_partition(run.folder / PARTITION, data)
    counts, _ = partition.counts(data)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    evenness = -(shares * np.log(np.maximum(shares, 1e-12))).sum(1)
    order = [int(c) for c in np.argsort(-evenness, kind="stable")]
    places = np.linspace(0, len(order) - 1, min(CLIENTS_SHOWN, len(order))).astype(int)
    chosen = [order[place] for place in places]
    rows = np.sort(np.random.default_rng(0).permutation(len(data.test))[:800])
    every = Split(data.test.images[rows], data.test.labels[rows])
    shown = class_looks(every.labels)
    spec, common = run.encoder
    with _drawing(path, 11, 7.2, columns=4, rows=2) as (figure, axes):
        for axis in axes.flat:
            axis.set_axis_off()
        for place, client in enumerate(chosen):
            own = _of_client(data, partition, client)
            r = features_of(spec, local_encoder(run, data, partition, client), own.images)
            axis = axes.flat[place]
            axis.set_axis_on()
            _scatter(axis, r, own.labels, shown, f"client {client}", _held(data, counts[client]))
        r = features_of(spec, common, every.images)
        axes.flat[len(chosen)].set_axis_on()
        note = "test images of all classes"
        _scatter(axes.flat[len(chosen)], r, every.labels, shown, "server", note)
        _class_legend(figure, data, every.labels, shown)


def _held(data: Dataset, counts: NDArray[np.int64]) -> str:
    """How many images of each class a client has, by falling count, in short lines."""
    order = [label for label in np.argsort(-counts, kind="stable") if counts[label]]
    shown = [f"{data.classes[label]}\u00a0{counts[label]}" for label in order[:CLASSES_NAMED]]
    if len(order) > CLASSES_NAMED:
        shown.append(f"{len(order) - CLASSES_NAMED}\u00a0more\u00a0classes")
    return textwrap.fill(", ".join(shown), 48)


def local_encoder(run: Run, data: Dataset, partition: Partition, client: int) -> Params:
    """A client's encoder at the end of one more round of its own training."""
    spec, _ = run.encoder
    config = replace(run.config, device="cpu")
    work = make_work(config, spec, partition, data.classes, data.flip)
    with one_thread():
        clients = Clients.of(work, data)
        clients.receive(read_trained(run.folder))
        update = clients.fit(client, run.result["rounds"] + 1)
    return clone(select(update.sent, is_encoder))


def accuracy_per_class(path: Path, runs: Mapping[str, Run], clients: Sequence[int]) -> None:
    """Accuracy per class of some clients, classes by falling count: a panel for every method.

    The grey ticks are the mean of all methods, to see in every panel what it has more or less.
    """
    scores = {name: {s.client: s for s in run.scores()} for name, run in runs.items()}
    classes, looked = next(iter(runs.values())).classes, looks(runs)
    first: dict[int, Score] = next(iter(scores.values()))
    orders = {
        client: [int(n) for n in np.argsort(-first[client].train, kind="stable")
                 if first[client].tested[n]]
        for client in clients
    }  # fmt: skip
    heights = [0.9 + 0.24 * len(order) for order in orders.values()]
    size = 2.2 + 1.35 * len(runs), sum(heights)
    with _drawing(path, *size, rows=len(clients), columns=len(runs), heights=heights) as (
        figure,
        axes,
    ):
        for row, (client, order) in zip(axes, orders.items(), strict=True):
            found = np.array([
                [100 * of[client].correct[n] / of[client].tested[n] for n in order]
                for of in scores.values()
            ])  # fmt: skip
            one = first[client]
            for axis, name, values in zip(row, scores, found, strict=True):
                _beside_mean(axis, values, found.mean(0), looked[name])
                axis.set(title=_in_lines(name), xlim=(-4, 104), xticks=[0, 50, 100])
            row[0].set_yticks(
                range(len(order)),
                [f"{classes[n]}, {one.train[n]} images" for n in order],
                fontsize=7.5,
            )
            row[0].set_ylabel(f"client {client}", fontsize=10)
            tested = [int(one.tested[n]) for n in order]
            row[-1].yaxis.set_label_position("right")
            row[-1].set_ylabel(f"{min(tested)} to {max(tested)} tested in a class", fontsize=7)
        figure.supxlabel(f"accuracy, %; {MEAN_OF_ALL}", fontsize=9)


MEAN_OF_ALL = "the grey ticks are the mean of all"


def _beside_mean(
    axis: Axes, values: NDArray[np.float64], means: NDArray[np.float64], look: Look
) -> None:
    """A mark per line of a panel, joined with a tick at the mean of all panels."""
    places = np.arange(len(values))
    axis.hlines(places, means, values, color=look.light, lw=1.2)
    axis.plot(means, places, "|", ms=8, mew=1.4, color=OTHERS)
    [marks] = axis.plot(
        values, places, look.marker, ms=4.5, color=look.light, markerfacecolor=look.face
    )
    marks.set_clip_on(False)
    axis.set_ylim(len(values) - 0.4, -0.6)
    axis.set_yticks(places, [])
    axis.title.set_fontsize(8.5)
    axis.grid(axis="y", color="0.92")
    axis.set_axisbelow(True)
    axis.tick_params(axis="x", labelsize=7)
    axis.tick_params(axis="y", length=0)


def _in_lines(name: str) -> Any:
    """A name over a narrow panel."""
    return textwrap.fill(name.replace("+", " +"), 16, break_on_hyphens=False)


def newcomers(path: Path, joined: Mapping[str, Run]) -> None:
    """New clients: mean accuracy over epochs of their heads, and each one's at the end.

    Clients are in the order of what all methods reach in the mean, and each method has a panel.
    """
    looked = looks(joined)
    finals = {
        name: {s.client: s.accuracy for s in run.scores() if s.accuracy is not None}
        for name, run in joined.items()
    }
    clients = sorted(set.intersection(*(set(found) for found in finals.values())))
    values = np.array([[found[client] for client in clients] for found in finals.values()])
    order = np.argsort(-values.mean(0), kind="stable")
    height = max(3.6, 1.1 + 0.17 * len(clients))
    widths = [3.6, *[1.25] * len(joined)]
    columns = 1 + len(joined)
    with _drawing(path, 1.2 + sum(widths), height, columns=columns, widths=widths) as (
        figure,
        axes,
    ):
        curves, *panels = axes[0]
        for (name, run), axis, own in zip(joined.items(), panels, values, strict=True):
            look = looked[name]
            means = {epoch: mean for epoch, mean in run.mean_curve().items() if mean is not None}
            curve(curves, look, list(means), list(means.values()), name=name)
            _beside_mean(axis, own[order], values.mean(0)[order], look)
            axis.set(title=_in_lines(name), xlim=(values.min() - 3, values.max() + 3))
        curves.set(xlabel="epochs of the heads", ylabel="mean accuracy, %")
        panels[0].set_yticks(range(len(clients)), [str(clients[n]) for n in order], fontsize=7)
        panels[0].set_ylabel("client")
        panels[len(panels) // 2].set_xlabel(f"accuracy at the end, %; {MEAN_OF_ALL}")
        handles, names = curves.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)


def gradients(path: Path, measured: Mapping[str, Sequence[Measured]], title: str) -> None:
    """Draw ratios of tail to frequent classes, a dot per client, for every method's gradients."""
    rows = [(name, one) for name, found in measured.items() for one in found if one.ratios]
    look = looks(measured)
    with _drawing(path, 7.5, 0.9 + 0.45 * len(rows)) as (_, axes):
        axis = axes[0, 0]
        for place, (name, one) in enumerate(rows):
            # Spread a little, always the same way, so that equal values do not hide each other.
            spread = [((number * 7) % 5 - 2) * 0.07 for number in range(len(one.ratios))]
            axis.plot(
                one.ratios, np.full(len(spread), place) + spread, look[name].marker,
                color=look[name].light, markerfacecolor=look[name].face, ms=4,
            )  # fmt: skip
            for ends in ((-0.42, -0.24), (0.24, 0.42)):  # above and below, to hide no dot
                axis.plot([one.summary["ratio"]] * 2, np.add(place, ends), color="black", lw=2)
        axis.axvline(1.0, color="0.5", lw=1, ls="--")
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("{x:.2g}")
        axis.tick_params(axis="x", which="both", labelsize=8)
        ratios = [ratio for _, one in rows for ratio in one.ratios]
        axis.set_xlim(min(0.4, 0.9 * min(ratios)), max(4.0, 1.1 * max(ratios)))
        axis.set_yticks(range(len(rows)), [f"{name}: {one.quantity}" for name, one in rows])
        axis.set(
            xlabel="tail over frequent classes of a client;\nthe bars are at their geometric mean",
            title=title,
        )
        axis.invert_yaxis()


def holdings(
    folder: Path, data: Dataset, alphas: Sequence[float], clients: int, seed: int
) -> dict[float, str]:
    """The bubble plots of a data set, who holds what, at one scale; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {alpha: split(data, clients=clients, alpha=alpha, seed=seed) for alpha in alphas}
    most = max(int(part.counts(data)[0].max()) for part in parts.values())
    names = {alpha: f"bubbles-{data.name}-alpha-{alpha:g}" for alpha in alphas}
    for alpha, partition in parts.items():
        title = f"{data.name}, alpha {alpha:g}, {len(data.train):,} images"
        for suffix in (".svg", ".png"):
            path = folder / f"{names[alpha]}{suffix}"
            bubbles(path, data, partition, title, most)
    return names


def _of_client(data: Dataset, partition: Partition, client: int) -> Split:
    rows = partition.train[client]
    return Split(data.train.images[rows], data.train.labels[rows])


def _class_legend(
    figure: Figure, data: Dataset, labels: NDArray[np.int64], shown: Mapping[int, Look]
) -> None:
    handles = [
        Line2D([], [], marker=look.marker, ls="", ms=5, color=look.light, markerfacecolor=look.face)
        for look in shown.values()
    ]
    names = [data.classes[n] for n in shown]
    if len(shown) < len(np.unique(labels)):
        handles.append(Line2D([], [], marker="o", ls="", ms=5, color=OTHERS))
        names.append("others")
    columns = min(10, len(names))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
