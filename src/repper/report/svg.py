"""Parts of charts as SVG: marks, names, axes and round numbers."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from repper.figures.palette import Look
from repper.report.html import Html, join, tag

WIDTH, HEIGHT = 640, 300
LINES = 480
"""The width of a chart of lines: two stand side by side."""
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 42
LETTER = 7.9
"""The width of a letter in wide fonts such as DejaVu Sans; East Asian ones have two."""
LONGEST_LABEL = 30
SMALLEST = 0.75
"""A drawing shrinks to this share of its size, then scrolls: on a phone it is still read."""
SHAPES = (
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z", "M-2.7-2.7h5.4v5.4h-5.4z", "M0-4l4 4-4 4-4-4z",
    "M0-3.8L3.7 2.8H-3.7z", "M0 3.8L3.7-2.8H-3.7z",
    "M-1.2-3.6h2.4v2.4h2.4v2.4h-2.4v2.4h-2.4v-2.4h-2.4v-2.4h2.4z",
    "M-3.6-2L-2-3.6 0-1.6 2-3.6 3.6-2 1.6 0 3.6 2 2 3.6 0 1.6-2 3.6-3.6 2-1.6 0z",
    "M0-4.4l1 3h3.2l-2.6 1.9 1 3.1L0 1.8l-2.6 1.8 1-3.1-2.6-1.9H-1z",
)  # fmt: skip
"""A marker for each colour, like those of Matplotlib's figures."""

TURNS = 7
"""How many kinds of dashes the page's style has."""

Scale = Callable[[float], float]
"""From a value to its place in the drawing."""


def mark(look: Look, x: float, y: float, note: str = "") -> Html:
    inner = (tag("title", note),) if note else ()
    return tag(
        "path", *inner, d=SHAPES[look.colour], class_="mark", transform=f"translate({x:g} {y:g})"
    )


def kind(look: Look) -> str:
    """The classes that the page's style knows a look by."""
    return f"c{look.colour}" + (f" t{min(look.turn, TURNS)}" if look.turn else "")


def figure(title: str, drawing: Html, *below: Html, label: str | None = None) -> Html:
    """A drawing under its title; `label` is what a filter shows and hides it by."""
    frame = tag("div", drawing, class_="scroll")
    return tag("figure", tag("figcaption", title), frame, *below, data_label=label)


def drawing(
    title: str, width: float, height: float, marks: Sequence[Html], said: Sequence[str] = ()
) -> Html:
    """A drawing, and what it shows in words for those who do not see it."""
    return tag(
        "svg", join(marks), viewBox=f"0 0 {width:.0f} {height:.0f}", role="img",
        aria_label="; ".join([title, *said]),
        style=f"max-width:{width:.0f}px;min-width:{SMALLEST * width:.0f}px",
    )  # fmt: skip


def _length(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def short(name: str) -> str:
    """A name that fits beside a drawing."""
    while _length(name) > LONGEST_LABEL:
        name = name.removesuffix("\u2026")[:-1] + "\u2026"
    return name


def room(names: Iterable[str]) -> float:
    """The width of the longest of some names."""
    return 12 + LETTER * max(_length(short(name)) for name in names)


def name(name: str, x: float, y: float) -> Html:
    """A name that ends at a place; what was cut off it is shown on pointing at it."""
    shown = short(name)
    note = (tag("title", name),) if shown != name else ()
    return tag("text", *note, shown, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor="end")


def axes(
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
        marks.append(tag("line", x1=LEFT, x2=LINES - RIGHT, y1=y, y2=y, class_="grid"))
        marks.append(text(f"{t:g}", LEFT - 8, y + 4, "end"))
    marks += [text(f"{t:g}", to_x(t), HEIGHT - BOTTOM + 18, "middle") for t in x_ticks]
    marks.append(text(x_label, (LEFT + LINES - RIGHT) / 2, HEIGHT - 5, "middle"))
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


def text(text: str, x: float, y: float, anchor: str) -> Html:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def scale(low: float, high: float, start: float, end: float) -> Scale:
    span = (high - low) or 1.0
    return lambda value: round(start + (value - low) / span * (end - start), 1)


def ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """About five round numbers that span the values; with `whole`, no fractions."""
    if high - low < 1e-9:
        low, high = low - 1, high + 1
    raw = max((high - low) / 4, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(raw))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(power * factor for factor in factors if power * factor >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * i, 10) for i in range(first, last + 1)]
