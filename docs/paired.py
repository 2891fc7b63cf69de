"""Compare rows of comparisons that were made with other settings, client by client.

.venv/bin/python docs/paired.py runs/a/cells/repper+linear runs/b/cells/repper+linear ...

Prints what each of the others has more than the first, with the 95% interval over seeds, or over
clients where there is one seed. The clients must be the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from repper import open_run
from repper.runs.comparison import interval


def accuracies(row: str) -> list[list[float]]:
    """Of every seed, its clients'."""
    runs = sorted(Path(row).parent.glob(f"{Path(row).name}-seed*"))
    return [[score.accuracy for score in open_run(run).scores()] for run in runs]


first, *others = sys.argv[1:]
base = np.array(accuracies(first))
print(f"{first} {base.mean():.2f}")
for row in others:
    more = np.array(accuracies(row)) - base
    mean, low, high = interval(list(more.mean(1) if len(more) > 1 else more[0]))
    print(f"{row} {base.mean() + mean:.2f}, {mean:+.2f} [{low:+.2f}, {high:+.2f}]")
