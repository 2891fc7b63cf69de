"""A window: tests and heads use the mean of the last rounds' models, training the last one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from repper.basics.names import named_parts, part_of
from repper.basics.options import setting
from repper.server.rule import Rule, Sent, mean_of

if TYPE_CHECKING:
    from repper.basics.params import Params


@final
@dataclass(frozen=True)
class Window(Rule):
    """The plain mean of the last models, as in stochastic weight averaging (Izmailov et al. 2018).

    Clients train on from the last round's mean; tests and heads use the mean of the window. Of the
    first rounds it has as many as there were. Batch norm's statistics are averaged like weights.
    """

    window: int = setting(5, "number of last rounds whose models are averaged", least=1, most=1000)

    def apply(
        self, state: Params, received: Params, updates: Iterable[Sent]
    ) -> tuple[Params, Params]:
        mean = mean_of(updates, received)
        kept = self._models(state)[-(self.window - 1) :] if self.window > 1 else []
        return named_parts({str(n): model for n, model in enumerate([*kept, mean])}), mean

    def use(self, state: Params, weights: Params) -> Params:
        models = self._models(state)
        if not models:
            return weights
        return mean_of((Sent(n, model, 1) for n, model in enumerate(models)), weights)

    def _models(self, state: Params) -> list[Params]:
        """The models of the window, oldest first."""
        count = 1 + max((int(name.partition(":")[0]) for name in state), default=-1)
        return [part_of(state, str(n)) for n in range(count)]
