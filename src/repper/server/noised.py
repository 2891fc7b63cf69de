"""A mean that hides every client: updates of bounded length, equal weights, and Gaussian noise."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from repper.server.rule import Rule, Sent

if TYPE_CHECKING:
    from repper.basics.params import Params


@final
@dataclass(frozen=True)
class NoisedMean(Rule):
    """McMahan et al. 2018 (DP-FedAvg), with a fixed number of clients; then `rule` on the mean.

    The sum of updates, none of which is longer than `clip`, gets noise with the standard deviation
    `noise * clip` on every value, and is divided by the `clients` that were asked. Who gave no
    update counts as one that changed nothing, so that nobody's absence changes what others weigh.
    All that a client sends is one vector. With `clip` 0, updates are taken as they are: sites have
    shortened and hidden them.

    `rule` sees the result as the only update of the round: what it makes of it spends nothing.
    """

    clip: float
    noise: float
    clients: int
    key: bytes = field(repr=False)
    rule: Rule

    def init(self, weights: Params) -> Params:
        return self.rule.init(weights)

    def use(self, state: Params, weights: Params) -> Params:
        return self.rule.use(state, weights)

    def apply(
        self, state: Params, received: Params, updates: Iterable[Sent]
    ) -> tuple[Params, Params]:
        import numpy as np

        from repper.privacy.gaussian import gaussian
        from repper.privacy.vectors import params_from, shortened, vector_of

        names = sorted(received)
        start = vector_of(received, names)
        total = np.zeros_like(start)
        for update in updates:
            move = vector_of(update.weights, names) - start
            total += shortened(move, self.clip) if self.clip else move
        if self.noise:
            # `about` includes the start of the round, so that no two rounds get the same noise.
            about = hashlib.sha256(start.tobytes() + total.tobytes()).digest()
            scale = self.noise * self.clip
            total += scale * gaussian(self.key, about, len(total))
        new = params_from(start + total / self.clients, received, names)
        return self.rule.apply(state, received, (Sent(0, new, 1),))
