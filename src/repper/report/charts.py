"""Charts as SVG, by hand: they take the page's colours, light or dark, and a few kilobytes each.

Matplotlib's SVGs are twenty times as large and have their colours built in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from repper.report.html import Html, join, tag

Numbers = NDArray[np.float64]
WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 40
COLOURS = 10
"""The page's style has so many; later series differ by their dashes too."""


Scale = Callable[[float], float]
"""From a value to its place in the drawing."""


@dataclass(frozen=True)
class Series:
    """A line of a chart: its points, from left to right."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def lines(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> Html:
    """Values over rounds or epochs, a line each."""
    xs = [v for one in series for v in one.x]
    ys = [v for one in series for v in one.y]
    x_ticks, y_ticks = _ticks(min(xs), max(xs), whole=True), _ticks(min(ys), max(ys))
    to_x = _scale(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT)
    to_y = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    marks = [_axes(x_ticks, y_ticks, to_x, to_y, x_label, y_label)]
    for place, one in enumerate(series):
        path = " ".join(
            f"{'M' if i == 0 else 'L'}{to_x(a):.1f} {to_y(b):.1f}"
            for i, (a, b) in enumerate(zip(one.x, one.y, strict=True))
        )
        note = tag("title", f"{one.name}: {one.y[-1]:.2f} at {one.x[-1]:g}")
        marks.append(tag("path", note, d=path, class_=f"line {_colour(place)}"))
        if len(one.x) < 40:
            marks += [
                tag(
                    "circle", tag("title", f"{one.name}, {a:g}: {b:.2f}"),
                    cx=f"{to_x(a):.1f}", cy=f"{to_y(b):.1f}", r=2.5, class_=_colour(place),
                )
                for a, b in zip(one.x, one.y, strict=True)
            ]  # fmt: skip
    return _figure(title, _svg(title, WIDTH, HEIGHT, marks), legend([one.name for one in series]))


def strips(title: str, x_label: str, groups: Mapping[str, Sequence[float]]) -> Html:
    """A dot per client, a strip per method, with a line at the mean."""
    row, left = 34, 190
    height = TOP + row * len(groups) + BOTTOM
    values = [v for group in groups.values() for v in group]
    ticks = _ticks(min(values), max(values))
    to_x = _scale(ticks[0], ticks[-1], left, WIDTH - RIGHT)
    marks = [
        tag("line", x1=to_x(t), x2=to_x(t), y1=TOP, y2=height - BOTTOM, class_="grid")
        for t in ticks
    ]
    marks += [_text(f"{t:g}", to_x(t), height - BOTTOM + 16, "middle") for t in ticks]
    marks.append(_text(x_label, (left + WIDTH - RIGHT) / 2, height - 6, "middle"))
    for place, (name, group) in enumerate(groups.items()):
        y = TOP + row * (place + 0.5)
        marks.append(_text(name, left - 10, y + 4, "end"))
        for number, value in enumerate(group):
            # Spread a little, always the same way, so that equal values do not hide each other.
            offset = ((number * 7) % 5 - 2) * 3.2
            marks.append(
                tag(
                    "circle", tag("title", f"{name}: {value:.2f}"), cx=f"{to_x(value):.1f}",
                    cy=f"{y + offset:.1f}", r=3.2, class_=f"dot {_colour(place)}",
                )
            )  # fmt: skip
        mean = to_x(float(np.mean(group)))
        note = tag("title", f"{name}: mean {np.mean(group):.2f}")
        marks.append(tag("line", note, x1=mean, x2=mean, y1=y - 13, y2=y + 13, class_="mean"))
    return _figure(title, _svg(title, WIDTH, height, marks))


def heat(
    title: str, rows: Sequence[str], columns: Sequence[str], values: Numbers, unit: str = "%"
) -> Html:
    """A coloured cell per row and column; NaN is left empty."""
    left, top = 12 + 6.4 * max(map(len, rows)), 12 + 5.2 * max(map(len, columns))
    wide = max(9.0, min(46.0, (WIDTH - left - 8) / len(columns)))
    high = 20.0 if len(rows) <= 40 else 12.0
    width, height = left + wide * len(columns) + 8, top + high * len(rows) + 8
    marks = []
    for place, name in enumerate(columns):
        if len(columns) <= 40 or place % 5 == 0:
            x, y = left + wide * (place + 0.5) + 3, top - 6
            turned = f"rotate(-55 {x:.1f} {y:.1f})"
            marks.append(tag("text", name, x=f"{x:.1f}", y=f"{y:.1f}", transform=turned))
    low, span = 0.0, 100.0
    for r, row in enumerate(rows):
        if high > 14 or r % 5 == 0:
            marks.append(_text(row, left - 8, top + high * (r + 0.5) + 4, "end"))
        for c, column in enumerate(columns):
            value = float(values[r, c])
            if math.isnan(value):
                continue
            share = (value - low) / span
            marks.append(
                tag(
                    "rect", tag("title", f"{row}, {column}: {value:.1f} {unit}"),
                    x=f"{left + wide * c:.1f}", y=f"{top + high * r:.1f}", width=f"{wide - 1:.1f}",
                    height=high - 1, class_="heat", style=f"--share:{share:.3f}",
                )
            )  # fmt: skip
            if wide >= 26:
                x, y = left + wide * (c + 0.5), top + high * (r + 0.5) + 4
                marks.append(
                    tag(
                        "text", f"{value:.0f}", x=f"{x:.1f}", y=f"{y:.1f}", text_anchor="middle",
                        class_="on-heat" + (" strong" if share > 0.55 else ""),
                    )
                )  # fmt: skip
    return _figure(title, _svg(title, width, height, marks))


def bubbles(title: str, classes: Sequence[str], counts: NDArray[np.int64]) -> Html:
    """Who holds what: a dot per client and class, its area the number of training images."""
    clients = len(counts)
    left = 12 + 6.4 * max(map(len, classes))
    cell = max(5.0, min(26.0, (WIDTH - left - 10) / clients))
    high = cell if len(classes) <= 40 else max(5.0, cell / 2)
    width, height = left + cell * clients + 10, TOP + high * len(classes) + BOTTOM
    largest = 0.48 * min(cell, high)
    marks = []
    for label, name in enumerate(classes):
        y = TOP + high * (label + 0.5)
        if high > 11 or label % 5 == 0:
            marks.append(_text(name, left - 8, y + 4, "end"))
        marks.append(tag("line", x1=left, x2=width - 10, y1=y, y2=y, class_="grid"))
        for client in np.flatnonzero(counts[:, label]):
            count = int(counts[client, label])
            marks.append(
                tag(
                    "circle", tag("title", f"client {client}, {name}: {count} images"),
                    cx=f"{left + cell * (client + 0.5):.1f}", cy=f"{y:.1f}",
                    r=f"{largest * math.sqrt(count / counts.max()):.2f}", class_="dot c0",
                )
            )  # fmt: skip
    step = max(1, math.ceil(22 / cell))
    marks += [
        _text(str(c), left + cell * (c + 0.5), height - BOTTOM + 16, "middle")
        for c in range(0, clients, step)
    ]
    marks.append(_text("client", left + cell * clients / 2, height - 6, "middle"))
    return _figure(
        title, _svg(title, width, height, marks),
        tag("p", f"The largest dot is {int(counts.max())} images.", class_="note"),
    )  # fmt: skip


def scatter(title: str, points: Numbers, labels: NDArray[np.int64], names: Sequence[str]) -> Html:
    """Points in the plane, coloured by class."""
    size, pad = 300, 8
    low, high = points.min(0), points.max(0)
    placed = pad + (points - low) / np.maximum(high - low, 1e-9) * (size - 2 * pad)
    marks = [
        tag("circle", cx=f"{x:.0f}", cy=f"{y:.0f}", r=2.2, class_=f"dot {_colour(int(label))}")
        for (x, y), label in zip(placed, labels, strict=True)
    ]
    shown = [int(label) for label in np.unique(labels)]
    key = legend([names[n] for n in shown], shown) if len(shown) <= 12 else Html("")
    return _figure(title, _svg(title, size, size, marks), key)


def legend(names: Sequence[str], places: Sequence[int] | None = None) -> Html:
    """Which colour is what."""
    if len(names) < 2:
        return Html("")
    numbers = places if places is not None else range(len(names))
    items = [
        tag("li", tag("i", class_=f"key {_colour(place)}"), name)
        for place, name in zip(numbers, names, strict=True)
    ]
    return tag("ul", *items, class_="legend")


def _figure(title: str, drawing: Html, *below: Html) -> Html:
    return tag("figure", tag("figcaption", title), drawing, *below)


def _svg(title: str, width: float, height: float, marks: Sequence[Html]) -> Html:
    return tag(
        "svg", tag("title", title), join(marks), viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img", aria_label=title, style=f"max-width:{width:.0f}px",
    )  # fmt: skip


def _axes(
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    to_x: Scale,
    to_y: Scale,
    x_label: str,
    y_label: str,
) -> Html:
    marks = []
    for t in y_ticks:
        y = to_y(t)
        marks.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        marks.append(_text(f"{t:g}", LEFT - 8, y + 4, "end"))
    marks += [_text(f"{t:g}", to_x(t), HEIGHT - BOTTOM + 18, "middle") for t in x_ticks]
    marks.append(_text(x_label, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    marks.append(
        tag(
            "text",
            y_label,
            x=13,
            y=middle,
            text_anchor="middle",
            transform=f"rotate(-90 13 {middle})",
        )
    )
    return join(marks)


def _text(text: str, x: float, y: float, anchor: str) -> Html:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _colour(place: int) -> str:
    return f"c{place % COLOURS}" + (f" d{place // COLOURS}" if place >= COLOURS else "")


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    span = (high - low) or 1.0
    return lambda value: round(start + (value - low) / span * (end - start), 1)


def _ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """About five round numbers that span the values; with `whole`, no fractions."""
    if high - low < 1e-9:
        low, high = low - 1, high + 1
    raw = max((high - low) / 4, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(raw))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(power * factor for factor in factors if power * factor >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * i, 10) for i in range(first, last + 1)]
