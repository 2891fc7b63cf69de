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

from repper.datasets.dataset import Dataset, Split
from repper.embedding import embed, nearest_other, silhouettes
from repper.encoders.encoder import SHARED, features_of
from repper.engines.client import Clients
from repper.engines.engine import one_thread
from repper.evaluate import Score
from repper.names import is_encoder
from repper.palette import Look, class_looks, looks
from repper.paper.gradients import Measured
from repper.params import Params, clone, select
from repper.partition import Partition, read_partition, split
from repper.plots import STYLE, bubbles, curve, save
from repper.runs.plan import make_work
from repper.runs.rounds import read_trained
from repper.runs.run import Run
from repper.runs.run_folder import PARTITION

CLIENTS_SHOWN = 7
CLASSES_NAMED = 10
OTHERS = "0.75"
"""The grey of classes without a colour of their own."""


@contextmanager
def _drawing(
    path: Path, width: float, height: float, *, rows: int = 1, columns: int = 1
) -> Iterator[tuple[Figure, Any]]:
    """A figure with a grid of axes, written as SVG and PNG at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            rows, columns, figsize=(width, height), layout="constrained", squeeze=False
        )
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
    """Features in the plane; below, how well they part the classes of these images."""
    points = embed(r)
    grey = points[~np.isin(labels, list(shown))]
    axes.scatter(grey[:, 0], grey[:, 1], c=OTHERS, s=6, linewidths=0)
    for label, look in shown.items():
        own = points[labels == label]
        axes.scatter(
            own[:, 0], own[:, 1], s=14, marker=look.marker, facecolors=look.face,
            edgecolors=look.light, linewidths=0 if look.turn == 0 else 0.7, alpha=0.9,
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
    """Accuracy per class of some clients by every method, classes by falling count."""
    scores = {name: {s.client: s for s in run.scores()} for name, run in runs.items()}
    classes, looked = next(iter(runs.values())).classes, looks(runs)
    with _drawing(path, 9, 2.9 * len(clients), rows=len(clients)) as (figure, axes):
        for axis, client in zip(axes[:, 0], clients, strict=True):
            one: Score = next(iter(scores.values()))[client]
            order = [int(n) for n in np.argsort(-one.train, kind="stable") if one.tested[n]]
            width = 0.8 / len(runs)
            for place, (name, found) in enumerate(scores.items()):
                own = found[client]
                heights = [100 * own.correct[n] / own.tested[n] for n in order]
                x = np.arange(len(order)) + (place - (len(runs) - 1) / 2) * width
                colour, turn = looked[name].light, looked[name].turn
                axis.bar(
                    x, heights, width, label=name, color=colour if turn == 0 else "white",
                    edgecolor=colour, linewidth=0.6, hatch="/////" if turn else None,
                )  # fmt: skip
                # A bar of no height would look like no bar.
                zero = [at for at, height in zip(x, heights, strict=True) if not height]
                [cross] = axis.plot(zero, [0] * len(zero), "x", ms=3.5, mew=0.9, color=colour)
                cross.set(clip_on=False, in_layout=False)
            labels = [f"{classes[n]}\n{one.train[n]} images\n{one.tested[n]} tested" for n in order]
            axis.set_xticks(range(len(order)), labels, fontsize=7)
            axis.set(ylabel="accuracy, %", title=f"client {client}", ylim=(0, 100))
        handles, names = axes[0, 0].get_legend_handles_labels()
        handles.append(Line2D([], [], marker="x", ls="", ms=4, color="black"))
        names.append("at the bottom: 0 %")
        figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)


def newcomers(path: Path, joined: Mapping[str, Run]) -> None:
    """New clients: mean accuracy over epochs of their heads, and each one's at the end."""
    with _drawing(path, 11, 3.8, columns=2) as (figure, axes):
        for place, (name, look) in enumerate(looks(joined).items()):
            run = joined[name]
            means = {epoch: mean for epoch, mean in run.mean_curve().items() if mean is not None}
            curve(axes[0, 0], look, list(means), list(means.values()))
            finals = {s.client: s.accuracy for s in run.scores() if s.accuracy is not None}
            # Side by side, so that equal values do not hide each other.
            x = np.array(list(finals)) + (place - (len(joined) - 1) / 2) * 0.7 / len(joined)
            axes[0, 1].plot(
                x, list(finals.values()), look.marker, ms=4, color=look.light,
                markerfacecolor=look.face, label=name,
            )  # fmt: skip
            axes[0, 1].set_xticks(list(finals))
        axes[0, 0].set(xlabel="epochs of the heads", ylabel="mean accuracy, %")
        axes[0, 1].set(xlabel="client", ylabel="accuracy at the end, %")
        axes[0, 1].tick_params(axis="x", labelsize=8)
        axes[0, 1].grid(axis="x", color="0.92")
        handles, names = axes[0, 1].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)


def gradients(path: Path, measured: Mapping[str, Sequence[Measured]], title: str) -> None:
    """Tail over frequent classes, a dot per client, for what the gradients of every method have."""
    rows = [(name, one) for name, found in measured.items() for one in found if one.ratios]
    look = looks(measured)
    with _drawing(path, 7.5, 0.9 + 0.45 * len(rows)) as (_, axes):
        axis = axes[0, 0]
        for place, (name, one) in enumerate(rows):
            # Spread a little, always the same way, so that equal values do not hide each other.
            spread = [((number * 7) % 5 - 2) * 0.07 for number in range(len(one.ratios))]
            axis.plot(
                one.ratios, np.full(len(spread), place) + spread, look[name].marker,
                color=look[name].light, markerfacecolor=look[name].face, ms=4, alpha=0.8,
            )  # fmt: skip
            for ends in ((-0.42, -0.24), (0.24, 0.42)):  # above and below, to hide no dot
                axis.plot([one.summary["ratio"]] * 2, np.add(place, ends), color="black", lw=2)
        axis.axvline(1.0, color="0.6", lw=1, ls="--")
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
