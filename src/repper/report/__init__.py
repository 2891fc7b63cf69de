"""One self-contained page about runs: no network, no server, opens from disk."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from PIL import Image

from repper.basics.errors import RepperError
from repper.basics.files import write_atomically
from repper.figures.palette import DARK, LIGHT
from repper.report.chapter import Chapter
from repper.report.content import subjects_of
from repper.report.html import Html, table, tag
from repper.report.sections import again, section

__all__ = ["write_report"]


def write_report(sources: Sequence[Path | Chapter], out: Path, *, tsne: bool = True) -> None:
    """Write a page about chapters, and about the folders of runs, comparisons and sweeps."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise RepperError(f"cannot write a report to {out}: its name must end in .html")
    parts: list[Html] = []
    links: list[tuple[str, str]] = []

    def anchor(title: str) -> str:
        links.append((f"part-{len(links) + 1}", title))
        return links[-1][0]

    for source in sources:
        if isinstance(source, Chapter):
            parts.append(_chapter(source, anchor(source.title)))
        for one in source.subjects if isinstance(source, Chapter) else subjects_of(source):
            parts.append(section(one, anchor(one.title), tsne))
    names = [one.name if isinstance(one, Chapter) else one.resolve().name for one in sources]
    write_atomically(out, _page(f"repper: {', '.join(names)}", links, parts))


def _chapter(found: Chapter, anchor: str) -> Html:
    parts = [
        tag("h2", found.title, id=anchor),
        tag("ul", *(tag("li", note) for note in found.notes)),
        again(found.command),
    ]
    for each in found.tables:
        parts += [tag("h3", each.title), table(each)]
    if pictures := [_picture(caption, path) for caption, path in found.pictures]:
        parts += [tag("h3", "Figures"), *pictures]
    return tag("section", *parts, aria_labelledby=anchor)


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
