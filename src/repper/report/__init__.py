"""One self-contained page about runs: no network, no server, opens from disk."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from repper.errors import RepperError
from repper.files import write_atomically
from repper.report.html import Html, join, table, tag
from repper.report.sections import section
from repper.report.subject import subjects_of
from repper.reproduction import Reproduction

__all__ = ["write_report"]


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
    names = ", ".join(folder.name for folder in folders)
    write_atomically(out, _page(f"repper: {names}", links, parts))


def _reproduction(found: Reproduction, anchor: str) -> Html:
    notes = [tag("li", _marked(note)) for note in found.settings_text()]
    parts = [tag("h2", found.experiment.title, id=anchor), tag("ul", *notes)]
    theirs, place = (
        (" (the paper's, ours minus it)", " (the paper's)") if found.printed else ("", "")
    )
    for title, cells, caption in (
        (
            "Ours and the paper's" if found.printed else "Accuracy",
            found.cells(),
            f"Accuracy in %{theirs}; best bold, second underlined",
        ),
        (
            "Order of the methods",
            found.order_cells(),
            f"Place of each{place}; 1 is best. The interval is that of 95 %",
        ),
        *((extra.title, extra.cells, extra.note) for extra in found.extras),
        ("What the paper claims of this table", found.claim_cells(), "Computed from both"),
    ):
        if cells:
            heading, *rows = cells
            heading = [name.replace("+", " +") for name in heading]
            rows = [[_beside(cell) for cell in line] for line in rows]
            parts += [
                tag("h3", title),
                table(heading, rows, caption=caption.replace("`", ""), numeric_from=99),
            ]
    if pictures := [_picture(caption, path) for caption, path in found.figures()]:
        parts += [tag("h3", "Figures"), *pictures]
    return tag("section", *parts, aria_labelledby=anchor)


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
    content = base64.b64encode(path.read_bytes()).decode()
    image = tag("img", src=f"data:image/png;base64,{content}", alt=caption)
    frame = tag("div", image, class_="scroll", tabindex="0", role="region", aria_label=caption)
    return tag("figure", tag("figcaption", caption), frame, class_="picture")


def _page(title: str, links: Sequence[tuple[str, str]], parts: Sequence[Html]) -> str:
    files = resources.files("repper.report")
    style, script = ((files / name).read_text() for name in ("page.css", "page.js"))
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
