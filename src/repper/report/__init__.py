"""One self-contained page about runs: no network, no server, opens from disk."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from PIL import Image

from repper.errors import RepperError
from repper.files import write_atomically
from repper.palette import DARK, LIGHT
from repper.paper.reproduction import Reproduction
from repper.report.html import LONG, Cell, Html, join, table, tag
from repper.report.sections import section
from repper.report.subject import subjects_of

__all__ = ["write_report"]

NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?")
WITHOUT = ("", "-", "not run", "no data")
"""What a cell has instead of a number."""


def write_report(folders: Sequence[Path], out: Path, *, tsne: bool = True) -> None:
    """Write a page about run folders, comparisons and reproductions."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise RepperError(f"cannot write a report to {out}: its name must end in .html")
    parts: list[Html] = []
    links: list[tuple[str, str]] = []
    for folder in folders:
        subjects, reproduction = subjects_of(folder)
        if reproduction is not None:
            anchor = f"part-{len(links) + 1}"
            links.append((anchor, reproduction.experiment.title))
            parts.append(_reproduction(reproduction, anchor))
        for subject in subjects:
            anchor = f"part-{len(links) + 1}"
            links.append((anchor, subject.title))
            parts.append(section(subject, anchor, tsne))
    names = ", ".join(folder.resolve().name for folder in folders)
    write_atomically(out, _page(f"repper: {names}", links, parts))


def _reproduction(found: Reproduction, anchor: str) -> Html:
    notes = [tag("li", _marked(note)) for note in found.settings_text()]
    parts = [tag("h2", found.experiment.title, id=anchor), tag("ul", *notes)]
    for each in found.tables():
        heading, *rows = each.cells
        heading = [name.replace("+", " +") for name in heading]
        note = each.note.replace("`", "")
        parts += [tag("h3", each.title), table(each.title, heading, _sortable(rows), note=note)]
    if pictures := [_picture(caption, path) for caption, path in found.figures()]:
        parts += [tag("h3", "Figures"), *pictures]
    return tag("section", *parts, aria_labelledby=anchor)


def _sortable(rows: Sequence[Sequence[str]]) -> list[list[Cell]]:
    """Cells of text; where a column is one of numbers, each with the first number in it."""
    # Without marks, and without the paper's numbers in brackets.
    plain = [[re.sub(r"\*\*|</?u>| \(.*", "", cell) for cell in row] for row in rows]
    columns = list(zip(*plain, strict=True))
    numeric = {
        place
        for place, column in enumerate(columns)
        if place
        and any(NUMBER.match(cell) for cell in column)
        and all(NUMBER.match(cell) or cell in WITHOUT for cell in column)
        and max(map(len, column)) <= LONG
    }
    return [
        [
            (_beside(cell), _first_number(bare)) if place in numeric else _beside(cell)
            for place, (cell, bare) in enumerate(zip(row, stripped, strict=True))
        ]
        for row, stripped in zip(rows, plain, strict=True)
    ]


def _first_number(text: str) -> float:
    """What to sort a cell by; what is unknown sorts below everything."""
    found = NUMBER.match(text)
    return float(found[0].replace(",", "")) if found else float("-inf")


def _beside(cell: str) -> Html:
    """Our number, and below it in brackets the paper's; other text as it is."""
    ours, bracket, theirs = cell.partition(" (")
    if not bracket or not re.fullmatch(r"[-+\d., ]+\)", theirs):
        return _marked(cell)
    return join([_marked(ours), Html("<br>"), tag("small", f"({theirs}")])


def _marked(text: str) -> Html:
    """The little Markdown that tables have: bold, underlined and code."""
    parts = re.split(r"(\*\*.+?\*\*|<u>.+?</u>|`.+?`)", text)
    kinds = {"**": ("b", 2, 2), "<u": ("u", 3, 4), "`": ("code", 1, 1)}
    made = []
    for part in parts:
        kind = next((kinds[start] for start in kinds if part.startswith(start)), None)
        made.append(tag(kind[0], part[kind[1] : -kind[2]]) if kind and len(part) > 2 else part)
    return join(made)


def _picture(caption: str, path: Path) -> Html:
    """A picture in the page itself, so that it needs no file beside it."""
    with Image.open(path) as image, io.BytesIO() as file:
        # A drawing has few colours: so it takes a third of the bytes.
        image.convert("RGB").quantize(128).save(file, "PNG", optimize=True)
        content = base64.b64encode(file.getvalue()).decode()
    shown = tag("img", src=f"data:image/png;base64,{content}", alt=path.stem.replace("-", " "))
    frame = tag("div", shown, class_="scroll", tabindex="0", role="region", aria_label=caption)
    return tag("figure", tag("figcaption", caption), frame, class_="picture")


def _colours() -> str:
    """The palette as the style's variables, for light and for dark, and a class for each."""
    light, dark = (
        " ".join(f"--c{place}: {colour};" for place, colour in enumerate(colours))
        for colours in (LIGHT, DARK)
    )
    classes = "\n".join(f".c{n} {{ color: var(--c{n}); }}" for n in range(len(LIGHT)))
    screen = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    return f":root {{ {light} }}\n{screen}\n{classes}\n"


def _page(title: str, links: Sequence[tuple[str, str]], parts: Sequence[Html]) -> str:
    files = resources.files("repper.report")
    style, script = ((files / name).read_text() for name in ("page.css", "page.js"))
    style = _colours() + style
    listed = [tag("li", tag("a", text, href=f"#{anchor}")) for anchor, text in links]
    contents = tag("nav", tag("ul", *listed), aria_label="Contents")
    body = tag(
        "body",
        tag("a", "Skip to the results", href="#main", class_="skip"),
        tag("header", tag("h1", title), *([contents] if len(listed) > 1 else [])),
        tag("main", *parts, id="main"),
        tag("script", Html(script)),
    )
    head = tag(
        "head",
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        # Nothing may be fetched, whatever a run folder says.
        Html(
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">"
        ),
        tag("title", title),
        tag("style", Html(style)),
    )
    return "<!doctype html>\n" + tag("html", head, body, lang="en")
