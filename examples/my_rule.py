"""A server rule of one's own: of every weight, the mean without its smallest and largest values.

    repper run --method fedavg --server examples/my_rule.py:TrimmedMean --trim 1 --participation 0.4

A trimmed mean (Yin et al. 2018) needs all updates at once, and says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch

from repper.basics.options import setting
from repper.basics.params import Params
from repper.server import Rule, Sent


@dataclass(frozen=True)
class TrimmedMean(Rule):
    trim: int = setting(1, "how many values are left out at either end", least=0)

    streams: ClassVar[bool] = False

    def apply(
        self, state: Params, received: Params, updates: Iterable[Sent]
    ) -> tuple[Params, Params]:
        cohort = list(updates)
        least, most = self.trim, len(cohort) - self.trim
        if least >= most:  # too few to leave any out
            least, most = 0, len(cohort)
        stacked = {name: torch.stack([u.weights[name] for u in cohort]) for name in received}
        return state, {n: t.sort(0).values[least:most].mean(0) for n, t in stacked.items()}
