"""Figures in one style, with colours for colour-blind readers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repper.basics.errors import RepperError
from repper.basics.files import write_atomically
from repper.data.dataset import Dataset
from repper.data.partition import Partition
from repper.figures.palette import LIGHT, Look

DOTS = LIGHT[1]
LINES = ("-", "--", ":", "-.")
"""Of the first row of a method, the second and so on."""
FORMATS = (".png", ".svg", ".pdf")
STYLE: Any = {
    "font.size": 9, "svg.hashsalt": "repper", "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


def bubbles(
    path: Path, data: Dataset, partition: Partition, title: str, most: int | None = None
) -> None:
    """Draw the partition: a dot per client and class, its area the number of training images.

    The largest dot there could be is of `most` images, so that drawings can be compared.
    """
    _check_name(path)
    counts, _ = partition.counts(data)
    most = most or int(counts.max())
    clients, classes = counts.shape
    # Inches of a cell: few clients or classes get room to breathe, many share what a page has.
    cell, row = min(0.34, 40 / clients), min(0.34, 40 / classes)
    if classes > 40:
        row = min(row, 0.14)
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            figsize=(2.2 + cell * clients, 1.4 + row * classes), layout="constrained"
        )
        client, label = np.nonzero(counts)
        # The largest dot just fills its cell; areas, not diameters, are in proportion.
        largest = max(1.0, 72 * min(cell, row) * 0.95) ** 2
        sizes = counts[client, label] / most * largest
        axes.scatter(client, label, s=sizes, color=DOTS, linewidths=0)
        axes.set(xlabel="client", title=title, xlim=(-0.7, clients - 0.3))
        axes.set_ylim(-0.7, classes - 0.3)
        step = max(1, int(np.ceil(0.28 / cell)))
        axes.set_xticks(range(0, clients, step))
        names = range(0, classes, max(1, int(np.ceil(0.14 / row))))
        small = 6.5 if row < 0.2 else None
        axes.set_yticks(list(names), [data.classes[n] for n in names], fontsize=small)
        axes.set_ylabel("class")
        axes.grid(color="0.92", linewidth=0.5)
        axes.set_axisbelow(True)
        shown = sorted({most, max(1, most // 4)}, reverse=True)
        handles = [
            axes.scatter([], [], s=n / most * largest, color=DOTS, linewidths=0) for n in shown
        ]
        axes.legend(
            handles, [f"{n} images" for n in shown], loc="upper left", bbox_to_anchor=(1, 1),
            frameon=False, labelspacing=1.2,
        )  # fmt: skip
        try:
            save(figure, path)
        finally:
            pyplot.close(figure)


def curve(
    axes: Axes, look: Look, x: Sequence[float], y: Sequence[float], off: Sequence[float] = (),
    name: str = "",
) -> None:  # fmt: skip
    """A line over rounds or epochs with some markers, in a band of its deviations."""
    axes.plot(
        x, y, color=look.light, marker=look.marker, ms=4, markerfacecolor=look.face, markevery=0.1,
        linestyle=LINES[min(look.turn // 2, len(LINES) - 1)], label=name,
    )  # fmt: skip
    if any(off):
        low, high = (np.add(y, sign * np.array(off)) for sign in (-1, 1))
        axes.fill_between(x, low, high, color=look.light, alpha=0.15, lw=0)


def save(figure: Figure, path: Path) -> None:
    """Write a figure without a date, so that equal drawings give equal bytes."""
    undated = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    _check_name(path)
    content, kind = io.BytesIO(), path.suffix.lower()
    figure.savefig(content, dpi=150, format=kind[1:], metadata=undated[kind])
    write_atomically(path, content.getvalue())


def _check_name(path: Path) -> None:
    if path.suffix.lower() not in FORMATS:
        raise RepperError(
            f"cannot draw to {path}: its name must end in {', '.join(FORMATS)} or .json"
        )
