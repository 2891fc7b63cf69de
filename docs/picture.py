"""Draw docs/demo.svg, the picture in the README: the tables that `make demo` prints.

make demo && .venv/bin/python docs/picture.py
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

import repper
from repper.progress import print_results

console = Console(record=True, width=100, file=io.StringIO(), highlight=False)
print_results(repper.open_run("runs/demo"), console)
svg = console.export_svg(title="make demo", theme=MONOKAI, unique_id="demo")
# A reader's own fixed-width font will do: the picture must not fetch one.
svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
Path("docs/demo.svg").write_text(svg)
