"""HTML as values: what is not marked as HTML is text, and is escaped."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from html import escape


class Html(str):
    """A string that is HTML already."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: object) -> Html:
    """An element. `class_` and `for_` lose their underscore, others get `-` for `_`.

    An attribute of True stands alone, one of None or False is left out.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        parts.append(label if value is True else f'{label}="{escape(str(value))}"')
    end = "" if name in ("img", "input") else f"</{name}>"
    return Html(f"<{' '.join(parts)}>{join(children)}{end}")


def join(parts: Iterable[str]) -> Html:
    return Html("".join(p if isinstance(p, Html) else escape(p, quote=False) for p in parts))


LONG = 50
"""Letters from which a cell gets room for some words in a line."""

Cell = str | tuple[str, float]
"""The text of a cell, or its text and the number to sort it by."""


def table(
    name: str,
    heading: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    note: str = "",
    sortable: bool = True,
    labels: Sequence[str] = (),
    grey: Collection[int] = (),
) -> Html:
    """A table whose headings sort it, and a note above it.

    `name` is what screen readers announce; `labels` are what a filter shows and hides rows by;
    the rows with the numbers in `grey` stand back.
    A column of numbers, each with what to sort it by, stands at the right.
    """
    numeric = {
        place
        for place in range(1, len(heading))
        if rows and all(isinstance(row[place], tuple) for row in rows)
    }

    def head(place: int, text: str) -> Html:
        kind = "number" if place in numeric else "text"
        if not sortable:
            return tag("th", text, scope="col", class_=kind)
        button = tag("button", text, type="button", class_="sort")
        return tag("th", button, scope="col", class_=kind, aria_sort="none")

    def cell(place: int, content: Cell) -> Html:
        text, key = content if isinstance(content, tuple) else (content, None)
        kind = "number" if place in numeric else "text"
        if len(re.sub("<[^>]*>", "", text)) > LONG:
            kind += " long"
        if place == 0:
            return tag("th", text, scope="row", class_=kind, data_sort=key)
        return tag("td", text, class_=kind, data_sort=key)

    body = [
        tag(
            "tr",
            *(cell(place, content) for place, content in enumerate(row)),
            data_label=labels[number] if labels else None,
            class_="grey" if number in grey else None,
        )
        for number, row in enumerate(rows)
    ]
    inner = tag(
        "table",
        tag("caption", name, class_="unseen"),
        tag("thead", tag("tr", *(head(place, text) for place, text in enumerate(heading)))),
        tag("tbody", *body),
        class_="sortable" if sortable else None,
    )
    frame = tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=name)
    # Above the frame and not in it: a wide table would carry its note out of sight.
    return join([tag("p", note, class_="note"), frame]) if note else frame


def number(value: float | None, digits: int = 2) -> tuple[str, float]:
    """A number as a cell; what is unknown sorts below everything."""
    return ("-", float("-inf")) if value is None else (f"{value:,.{digits}f}", value)
