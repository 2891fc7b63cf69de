"""Print text safely: escape control characters, so that no text can control a terminal.

Names of classes, paths and arguments are other people's text: `plain` takes control characters and
what turns the direction of writing out of it. The linter forbids `print` in all other files.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from repper.basics.files import plain

if TYPE_CHECKING:
    from rich.console import Console


def say(*fields: object) -> None:
    """Print one line on stdout, with tabs between the fields."""
    print(*(plain(str(field)) for field in fields), sep="\t", flush=True)


def tell(*fields: object) -> None:
    """Print one line on stderr, which is for people only."""
    print(*(plain(str(field)) for field in fields), sep="\t", file=sys.stderr, flush=True)


def tell_traceback() -> None:
    """Print where the current exception comes from on stderr."""
    for line in traceback.format_exc().splitlines():
        tell(line)


def console(**settings: Any) -> Console:
    """A console for tables and bars that prints text literally, without markup."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else _plain_lines(text), style, control)

    return PlainConsole(highlight=False, **settings)


def _plain_lines(text: str) -> str:
    return "\n".join(map(plain, text.split("\n")))
