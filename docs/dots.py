"""Draw the rows of a comparison as dots, with their deviation over seeds.

.venv/bin/python docs/dots.py picture.png runs/c/table.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib import pyplot

from repper.figures.plots import STYLE, save

OURS, OTHERS = "#c2410c", "#475569"
picture, table = sys.argv[1:]
rows = json.loads(Path(table).read_text())["rows"]
rows.sort(key=lambda row: row["accuracy"])
with pyplot.rc_context(STYLE):
    figure, axes = pyplot.subplots(figsize=(6.4, 0.6 + 0.3 * len(rows)), layout="constrained")
    for place, row in enumerate(rows):
        name = row.get("asked") or row["row"]
        common = name.endswith("+common")
        axes.errorbar(
            row["accuracy"], place, xerr=row["deviation"] or 0, fmt="o" if common else "s",
            color=OURS if common or name.startswith(("repper", "calibrated")) else OTHERS,
            markersize=5, capsize=2, linewidth=1,
        )  # fmt: skip
        axes.annotate(
            f"{row['accuracy']:.1f}", (row["accuracy"], place), (0, 5), textcoords="offset points",
            ha="center", fontsize=7,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [row.get("asked") or row["row"] for row in rows])
    axes.set(xlabel="accuracy, %, with its deviation over seeds")
    axes.grid(axis="x", color="0.92", linewidth=0.5)
    axes.margins(y=0.08)
    save(figure, Path(picture))
