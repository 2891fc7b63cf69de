"""A head of one's own: an image gets the class whose mean feature is nearest.

    repper run --personalize examples/my_head.py:NearestMean
    repper run --personalize examples/my_head.py:NearestMean --head-shrink 0.5

It has scikit-learn's contract, takes clients with one class, and ends as plain arrays of one of the
shapes in `repper/edge/saved_head.py`: here a linear layer, because the nearest mean is one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from repper.basics.options import setting
from repper.heads.head import Fitted, Head


@dataclass(eq=False, repr=False)
class NearestMean(Head):
    kind: ClassVar[str] = "nearest mean"

    shrink: float = setting(0.0, "how far class means are drawn together", least=0, most=1)
    scale: bool = False

    def _fit(self, x: np.ndarray, codes: np.ndarray) -> Iterator[Fitted]:
        means = np.stack([x[codes == label].mean(0) for label in range(len(self.classes_))])
        means = (1 - self.shrink) * means + self.shrink * means.mean(0)
        # The smallest |x - m|^2 is the largest x.m - |m|^2 / 2.
        yield "linear", {"weight": means, "bias": -0.5 * (means**2).sum(1)}
