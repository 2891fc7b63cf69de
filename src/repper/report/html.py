"""HTML as values: what is not marked as HTML is text, and is escaped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

from repper.basics.table import LONG, Cell, Number, Table


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


def table(
    shown: Table,
    *,
    sortable: bool = True,
    labels: Sequence[str] = (),
    grey: Collection[int] = (),
) -> Html:
    """A table whose headings sort it, below its caption.

    Its title is what screen readers announce; `labels` are what a filter shows and hides rows by;
    the rows with the numbers in `grey` stand back. Columns of numbers stand at the right.
    """
    kinds = ["number" if shown.is_numeric(n) else "text" for n in range(len(shown.columns))]

    def head(kind: str, name: str) -> Html:
        # A long name of a row may go on in the next line where its head begins.
        text = Html(join([name]).replace("+", "<wbr>+"))
        if not sortable:
            return tag("th", text, scope="col", class_=kind)
        button = tag("button", text, type="button", class_="sort")
        return tag("th", button, scope="col", class_=kind, aria_sort="none")

    body = [
        tag(
            "tr",
            *(
                _cell(content, kind, first=place == 0)
                for place, (content, kind) in enumerate(zip(row, kinds, strict=True))
            ),
            data_label=labels[number] if labels else None,
            class_="grey" if number in grey else None,
        )
        for number, row in enumerate(shown.rows)
    ]
    headings = [head(kind, one.name) for kind, one in zip(kinds, shown.columns, strict=True)]
    inner = tag(
        "table",
        tag("caption", shown.title, class_="unseen"),
        tag("thead", tag("tr", *headings)),
        tag("tbody", *body),
        class_="sortable" if sortable else None,
    )
    frame = tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=shown.title)
    # Above the frame and not in it: a wide table would carry its note out of sight.
    return join([tag("p", shown.caption, class_="note"), frame]) if shown.caption else frame


def _cell(content: Cell, kind: str, *, first: bool) -> Html:
    """A cell; what stands beside a number in brackets goes below it."""
    if isinstance(content, str):
        text, key = content, None
        kind += " long" if len(content) > LONG else ""
    else:
        mark, key = {1: "b", 2: "u"}.get(content.mark), sort_key(content)
        text = tag(mark, content.text) if mark else content.text
        if content.in_brackets:
            text = join([text, Html("<br>"), tag("small", content.in_brackets)])
    name, scope = ("th", "row") if first else ("td", None)
    return tag(name, text, scope=scope, class_=kind, data_sort=key)


def sort_key(number: Number) -> float:
    """What a number is sorted by; one that is unknown sorts below everything."""
    return float("-inf") if number.value is None else number.value
