"""Compare rows of comparisons, client by client: all images, and those of tail classes.

.venv/bin/python docs/paired.py runs/a/cells/fedavg+finetune runs/b/cells/fedavg+common ...

Prints what each of the others has more than the first, with the 95% interval over seeds, or over
clients where there is one seed. The clients must be the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from repper import open_run
from repper.runs.comparison_table import interval


def accuracies(row: str, measure: str) -> list[list[float]]:
    """Of every seed, its clients'; NaN for a client without such test images."""
    runs = sorted(Path(row).parent.glob(f"{Path(row).name}-seed*"))
    if not runs:
        sys.exit(f"there are no runs {row}-seed0, ..")
    found = [[getattr(score, measure) for score in open_run(run).scores()] for run in runs]
    return [[np.nan if one is None else one for one in scores] for scores in found]


first, *others = sys.argv[1:]
for measure in ("accuracy", "tail_classes"):
    base = np.array(accuracies(first, measure))
    print(f"{measure}: {Path(first).name} {np.nanmean(base, 1).mean():.2f}")
    for row in others:
        more = np.array(accuracies(row, measure)) - base
        values = np.nanmean(more, 1) if len(more) > 1 else more[0][~np.isnan(more[0])]
        mean, low, high = interval(list(values))
        print(f"  {Path(row).name} {mean:+.2f} [{low:+.2f}, {high:+.2f}]")
