"""Charts as SVG, by hand: they take the page's colours, light or dark, and a few kilobytes each.

Matplotlib's SVGs are twenty times as large and have their colours built in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from repper.figures.palette import Look, class_looks
from repper.report import svg
from repper.report.html import Html, tag
from repper.report.svg import BOTTOM, HEIGHT, LEFT, LINES, RIGHT, TOP, WIDTH

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """A line of a chart: its points, from left to right, and their deviations."""

    name: str
    look: Look
    x: Sequence[float]
    y: Sequence[float]
    deviation: Sequence[float] = ()

    def band(self) -> list[tuple[float, float]]:
        """The corners around its deviations: along above, and back below."""
        if not any(self.deviation):
            return []
        points = list(zip(self.x, self.y, self.deviation, strict=True))
        return [(x, y + d) for x, y, d in points] + [(x, y - d) for x, y, d in points[::-1]]


def lines(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> Html:
    """Values over rounds or epochs, a line each."""
    xs = [v for one in series for v in one.x]
    ys = [v for one in series for v in (*one.y, *(corner[1] for corner in one.band()))]
    x_ticks, y_ticks = svg.ticks(min(xs), max(xs), whole=True), svg.ticks(min(ys), max(ys))
    to_x = svg.scale(x_ticks[0], x_ticks[-1], LEFT, LINES - RIGHT)
    to_y = svg.scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    marks = [svg.axes(x_ticks, y_ticks, to_x, to_y, x_label, y_label)]
    for one in series:
        points = list(zip(one.x, one.y, strict=True))
        note = tag("title", f"{one.name}: {one.y[-1]:.2f} at {one.x[-1]:g}")
        drawn = [tag("path", note, d=_path(points, to_x, to_y), class_="line")]
        if band := one.band():
            drawn.insert(0, tag("path", d=_path(band, to_x, to_y) + "Z", class_="band"))
        # Some markers are enough to tell lines apart.
        for a, b in points[:: math.ceil(len(points) / 12)]:
            drawn.append(svg.mark(one.look, to_x(a), to_y(b), f"{one.name}, {a:g}: {b:.2f}"))
        marks.append(tag("g", *drawn, class_=svg.kind(one.look), data_label=one.name))
    said = [
        f"{one.name}: {one.y[0]:.2f} at {x_label} {one.x[0]:g}, {one.y[-1]:.2f} at {one.x[-1]:g}"
        for one in series
    ]
    drawing = svg.drawing(title, LINES, HEIGHT, marks, said)
    return svg.figure(title, drawing, legend({one.name: one.look for one in series}, lines=True))


def _path(points: Sequence[tuple[float, float]], to_x: svg.Scale, to_y: svg.Scale) -> str:
    return "M" + "L".join(f"{to_x(x):.1f} {to_y(y):.1f}" for x, y in points)


def strips(
    title: str, x_label: str, groups: Mapping[str, Sequence[float]], looks: Mapping[str, Look]
) -> Html:
    """A dot per client, a strip per method, with a line at the mean."""
    row, left = 34, svg.room(groups)
    height = TOP + row * len(groups) + BOTTOM
    values = [v for group in groups.values() for v in group]
    ticks = svg.ticks(min(values), max(values))
    to_x = svg.scale(ticks[0], ticks[-1], left, WIDTH - RIGHT)
    marks = [
        tag("line", x1=to_x(t), x2=to_x(t), y1=TOP, y2=height - BOTTOM, class_="grid")
        for t in ticks
    ]
    marks += [svg.text(f"{t:g}", to_x(t), height - BOTTOM + 17, "middle") for t in ticks]
    marks.append(svg.text(x_label, (left + WIDTH - RIGHT) / 2, height - 6, "middle"))
    said = []
    for place, (name, group) in enumerate(groups.items()):
        y = TOP + row * (place + 0.5)
        drawn = [svg.name(name, left - 10, y + 4)]
        for number, value in enumerate(group):
            # Spread a little, always the same way, so that equal values do not hide each other.
            offset = ((number * 7) % 5 - 2) * 3.2
            drawn.append(
                tag(
                    "circle", tag("title", f"{name}: {value:.2f}"), cx=f"{to_x(value):.1f}",
                    cy=f"{y + offset:.1f}", r=3.2, class_="dot",
                )
            )  # fmt: skip
        mean = to_x(float(np.mean(group)))
        note = f"{name}: mean {np.mean(group):.2f}"
        line = tag("title", note)
        for part in ("halo", "mean"):
            drawn.append(tag("line", line, x1=mean, x2=mean, y1=y - 13, y2=y + 13, class_=part))
        kind = f"c{looks[name].colour}"
        marks.append(tag("g", *drawn, class_=kind, data_label=name))
        said.append(f"{note}, from {min(group):.2f} to {max(group):.2f}")
    return svg.figure(title, svg.drawing(title, WIDTH, height, marks, said))


def heat(
    title: str, rows: Sequence[str], columns: Sequence[str], values: Numbers, filtered: bool = False
) -> Html:
    """A coloured cell per row and column, for percents; NaN is left empty.

    `filtered` says that a filter shows and hides the rows.
    """
    left, top = svg.room(rows), 16 + 0.82 * (svg.room(columns) - 12)
    wide = max(9.0, min(46.0, (WIDTH - left - 8) / len(columns)))
    high = 20.0 if len(rows) <= 40 else 12.0
    # A name leans to the right of its column, and may lean out of the last one.
    ends = [
        left + wide * (place + 0.5) + 3 + 0.6 * (svg.room([name]) - 12)
        for place, name in enumerate(columns)
    ]
    width = 8 + max(left + wide * len(columns), *ends)
    height = top + high * len(rows) + 8
    marks = []
    for place, name in enumerate(columns):
        if len(columns) <= 40 or place % 5 == 0:
            x, y = left + wide * (place + 0.5) + 3, top - 6
            turned = f"rotate(-55 {x:.1f} {y:.1f})"
            short = svg.short(name)
            marks.append(tag("text", short, x=f"{x:.1f}", y=f"{y:.1f}", transform=turned))
    said = []
    for r, row in enumerate(rows):
        drawn = []
        if high > 14 or r % 5 == 0:
            drawn.append(svg.name(row, left - 8, top + high * (r + 0.5) + 4))
        for c, column in enumerate(columns):
            if not math.isnan(value := float(values[r, c])):
                note = f"{row}, {column}: {value:.1f} %"
                drawn += _cell(note, value, left + wide * c, top + high * r, wide, high)
        marks.append(tag("g", *drawn, data_label=row if filtered else None))
        known = [
            f"{column} {value:.0f}"
            for column, value in zip(columns, values[r], strict=True)
            if not math.isnan(value)
        ]
        said.append(f"{row}: {', '.join(known)}")
    return svg.figure(
        title, svg.drawing(title, width, height, marks, said if len(columns) <= 20 else ())
    )


def _cell(note: str, value: float, x: float, y: float, wide: float, high: float) -> Iterator[Html]:
    """A cell of a heat map, and its number where there is room for it."""
    share = value / 100
    yield tag(
        "rect", tag("title", note), x=f"{x:.1f}", y=f"{y:.1f}", width=f"{wide - 1:.1f}",
        height=high - 1, class_="heat", style=f"--share:{share:.3f}",
    )  # fmt: skip
    if wide >= 26 and high >= 16:
        # From where white is read better than black, on light and on dark paper.
        white = (" strong" if share > 0.92 else "") + (" weak" if share < 0.62 else "")
        yield tag(
            "text", f"{value:.0f}", x=f"{x + wide / 2:.1f}", y=f"{y + high / 2 + 4:.1f}",
            text_anchor="middle", class_="on-heat" + white,
        )  # fmt: skip


def bubbles(
    title: str, classes: Sequence[str], clients: Sequence[str], counts: NDArray[np.int64]
) -> Html:
    """Who holds what: a dot per client and class, its area the number of training images."""
    left = svg.room(classes)
    cell = max(5.0, min(26.0, (WIDTH - left - 10) / len(clients)))
    high = cell if len(classes) <= 40 else max(5.0, cell / 2)
    width, height = left + cell * len(clients) + 10, TOP + high * len(classes) + BOTTOM
    largest = 0.48 * min(cell, high)
    marks = []
    for label, name in enumerate(classes):
        y = TOP + high * (label + 0.5)
        if high > 11 or label % 5 == 0:
            marks.append(svg.name(name, left - 8, y + 4))
        marks.append(tag("line", x1=left, x2=width - 10, y1=y, y2=y, class_="grid"))
        for client in map(int, np.flatnonzero(counts[:, label])):
            count = int(counts[client, label])
            marks.append(
                tag(
                    "circle", tag("title", f"{clients[client]}, {name}: {count} images"),
                    cx=f"{left + cell * (client + 0.5):.1f}", cy=f"{y:.1f}",
                    r=f"{largest * math.sqrt(count / counts.max()):.2f}", class_="dot c1",
                )
            )  # fmt: skip
    step = max(1, math.ceil(22 / cell))
    marks += [
        svg.text(str(c), left + cell * (c + 0.5), height - BOTTOM + 17, "middle")
        for c in range(0, len(clients), step)
    ]
    marks.append(svg.text("client", left + cell * len(clients) / 2, height - 6, "middle"))
    said = [
        f"{name}: {own.sum()} images of {np.count_nonzero(own)} classes"
        + (f", most of {classes[int(own.argmax())]} ({own.max()})" if own.any() else "")
        for name, own in zip(clients, counts, strict=True)
    ]
    return svg.figure(
        title, svg.drawing(title, width, height, marks, said),
        tag("p", f"The largest dot is {int(counts.max())} images.", class_="note"),
    )  # fmt: skip


def scatter(
    title: str,
    points: Numbers,
    labels: NDArray[np.int64],
    names: Sequence[str],
    filtered: str | None = None,
) -> Html:
    """Points in the plane, with the colour and marker of their class.

    Of many classes, the commonest here have theirs, and the others are grey. `filtered` is what a
    filter shows and hides the drawing by.
    """
    size, pad = 380, 8
    low, high = points.min(0), points.max(0)
    placed = pad + (points - low) / np.maximum(high - low, 1e-9) * (size - 2 * pad)
    shown = class_looks(labels)
    drawn: dict[int | None, list[Html]] = {None: []} | {label: [] for label in shown}
    for (x, y), label in zip(placed, labels, strict=True):
        look = shown.get(int(label))
        mark = svg.mark(look or Look(0), round(x), round(y))
        drawn[int(label) if look else None].append(mark)
    marks = [
        tag("g", *group, class_=svg.kind(shown[label]) if label is not None else "other")
        for label, group in drawn.items()
        if group
    ]
    key = legend({names[label]: look for label, look in shown.items()}, others=bool(drawn[None]))
    return svg.figure(title, svg.drawing(title, size, size, marks), key, label=filtered)


def legend(looks: Mapping[str, Look], others: bool = False, lines: bool = False) -> Html:
    """Which colour and marker is what, and with `lines` which dashes: a filter hides these too."""
    if len(looks) < 2:
        return Html("")
    named = [(name, svg.kind(look), look) for name, look in looks.items()]
    line = tag("path", d="M-18 0H18", class_="line") if lines else Html("")
    box, size = ("-18 -6 36 12", "key wide") if lines else ("-6 -6 12 12", "key")
    items = [
        tag("li", tag("svg", line, svg.mark(look, 0, 0), viewBox=box, class_=f"{size} {kind}",
                      aria_hidden="true"), name, data_label=name if lines else None)
        for name, kind, look in [*named, *([("others", "other", Look(0))] if others else [])]
    ]  # fmt: skip
    return tag("ul", *items, class_="legend")
