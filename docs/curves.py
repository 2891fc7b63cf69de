"""Draw accuracy over rounds of comparisons made with --evaluate-every into one picture.

.venv/bin/python docs/curves.py curves.png runs/c/rounds.csv 'runs/plain/rounds.csv=no views'

Lines are means over seeds, bands their deviations. What stands behind = tells the rows of a file
from equal ones of another.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib import pyplot

from repper.figures.palette import looks
from repper.figures.plots import STYLE, curve, save

picture, *sources = sys.argv[1:]
curves: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
for source in sources:
    path, _, words = source.partition("=")
    with Path(path).open() as file:
        for point in csv.DictReader(file):
            name = point["row"] + (f" ({words})" if words else "")
            curves[name][int(point["round"])].append(float(point["accuracy"]))

with pyplot.rc_context(STYLE):
    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
    for name, look in looks(curves).items():
        rounds, values = list(curves[name]), list(curves[name].values())
        means = [float(np.mean(seeds)) for seeds in values]
        off = [float(np.std(seeds, ddof=1)) if len(seeds) > 1 else 0.0 for seeds in values]
        curve(axes, look, rounds, means, off, name)
    axes.set(xlabel="round", ylabel="accuracy, %")
    axes.grid(color="0.92", linewidth=0.5)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    save(figure, Path(picture))
