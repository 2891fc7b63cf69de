"""Robust rules: a few hostile clients can change the model only a little.

Each needs all updates of a round in memory at once. Median, trimmed mean and Krum count clients and
not their examples, which a hostile client can declare as it likes. Where a rule compares whole
updates, it compares trained weights only: running statistics of batch norm are of another scale.
They are then combined as the weights are, so a variance stays one that clients have measured, or
sent: `repper.updates.attacks` says what hostile ones do to it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from repper.basics.errors import RepperError
from repper.basics.names import is_statistic
from repper.basics.options import setting
from repper.server.rule import Rule, Sent, mean_of

if TYPE_CHECKING:
    from torch import Tensor

    from repper.basics.params import Params


@dataclass(frozen=True)
class Robust(Rule):
    """A rule that looks at all updates of a round together, and keeps no state."""

    streams: ClassVar[bool] = False

    def apply(
        self, state: Params, received: Params, updates: Iterable[Sent]
    ) -> tuple[Params, Params]:
        together = tuple(updates)
        self.check(len(together))  # fewer may have answered than were asked
        return state, self.combine(received, together)

    @abstractmethod
    def combine(self, received: Params, updates: Sequence[Sent]) -> Params:
        """The model of a round that began with `received`."""


@final
@dataclass(frozen=True)
class Median(Robust):
    """The median of each value over clients (Yin et al. 2018, Algorithm 1)."""

    def combine(self, received: Params, updates: Sequence[Sent]) -> Params:
        return _middle(updates, received, (len(updates) - 1) // 2)


@dataclass(frozen=True)
class Counting(Robust):
    """A rule that holds as long as at most a share of a round's clients is hostile."""

    hostile: float = setting(
        0.2,
        "share of a round's clients that may be hostile; the number is rounded up",
        least=0,
        most=0.49,
    )

    def most_hostile(self, clients: int) -> int:
        return math.ceil(round(self.hostile * clients, 9))

    @abstractmethod
    def least(self, hostile: int) -> int:
        """The least number of updates that the rule needs if `hostile` of them may be hostile."""

    def check(self, clients: int) -> None:
        hostile = self.most_hostile(clients)
        if clients < (least := self.least(hostile)):
            raise RepperError(
                f"{type(self).__name__} needs at least {least} clients in a round if {hostile} of "
                f"them may be hostile, got {clients}: let more clients take part, or lower "
                f"--hostile"
            )


@final
@dataclass(frozen=True)
class TrimmedMean(Counting):
    """The mean of each value without its largest and smallest ones (Yin et al. 2018, Algorithm 1).

    At each end as many are left out as may be hostile.
    """

    def combine(self, received: Params, updates: Sequence[Sent]) -> Params:
        return _middle(updates, received, self.most_hostile(len(updates)))

    def least(self, hostile: int) -> int:
        return 2 * hostile + 1


@dataclass(frozen=True)
class Selecting(Counting):
    """Blanchard et al. 2017: the updates that are nearest to their neighbours.

    With n updates of which f may be hostile, the score of one is the sum of its squared distances
    to the n - f - 2 nearest others. The paper's proof needs n above 2f + 2.
    """

    def combine(self, received: Params, updates: Sequence[Sent]) -> Params:
        hostile = self.most_hostile(len(updates))
        near = _squared_distances(updates, received).sort(1).values[:, 1:]
        scores = near[:, : len(updates) - hostile - 2].sum(1)
        best = scores.sort(stable=True).indices[: self.chosen(len(updates), hostile)].tolist()
        return mean_of((updates[i] for i in sorted(best)), received)

    def least(self, hostile: int) -> int:
        return 2 * hostile + 3

    @abstractmethod
    def chosen(self, clients: int, hostile: int) -> int:
        """How many updates make the new model."""


@final
@dataclass(frozen=True)
class Krum(Selecting):
    """The one update with the least score."""

    def chosen(self, clients: int, hostile: int) -> int:
        return 1


@final
@dataclass(frozen=True)
class MultiKrum(Selecting):
    """The mean of the n - f updates with the least scores, weighted by examples."""

    def chosen(self, clients: int, hostile: int) -> int:
        return clients - hostile


@final
@dataclass(frozen=True)
class GeometricMedian(Robust):
    """The point with the least sum of distances to updates, weighted by examples.

    Pillutla et al. 2022 ("RFA"): smoothed Weiszfeld, in which every step is a mean of the updates,
    weighted by examples over distance. It holds while less than half of the examples are hostile,
    and needs no bound on how many are. Steps cost nothing once pairs have been compared, so it goes
    on until it stands still; the paper stops after three.
    """

    def combine(self, received: Params, updates: Sequence[Sent]) -> Params:
        import torch

        pairs = _squared_distances(updates, received)
        examples = torch.tensor([update.examples for update in updates], dtype=torch.float64)
        usual = max(float(pairs.median().sqrt()), TINY)
        shares = examples / examples.sum()
        for _ in range(MOST_STEPS):
            # |x_i - sum_j s_j x_j|^2, by the distances of pairs
            away = (pairs @ shares - shares @ pairs @ shares / 2).clamp(min=0).sqrt()
            if not away.any():
                break
            before, shares = shares, examples / away.clamp(min=NEAR * usual)
            shares = shares / shares.sum()
            change = shares - before
            if -(change @ pairs @ change) / 2 < (STANDS_STILL * usual) ** 2:
                break
        return _mix(updates, received, shares)


NEAR, STANDS_STILL = 1e-6, 1e-9
"""As shares of the median distance of two updates: no distance counts as less, and a step that is
shorter is the last."""
MOST_STEPS, TINY = 1000, 1e-150


@final
@dataclass(frozen=True)
class NormClip(Robust):
    """The weighted mean of updates, each clipped to a maximum length (Sun et al. 2019).

    The bound is the median length of the round's updates, times a factor, instead of a fixed
    number, which would have to be known beforehand. What a client has measured of batch norm is
    shortened in the same way, by the median length of these changes.
    """

    clip_factor: float = setting(
        1.0,
        "maximum length of an update, as a multiple of the round's median length",
        above=0,
        most=1e6,
    )

    def combine(self, received: Params, updates: Sequence[Sent]) -> Params:
        kinds = {is_statistic(name) for name in received}
        factors = {kind: self._factors(updates, received, kind) for kind in kinds}

        def shortened() -> Iterable[Sent]:
            for i, update in enumerate(updates):
                weights = {
                    n: start + factors[is_statistic(n)][i] * (update.weights[n] - start)
                    for n, start in received.items()
                }
                yield update._replace(weights=weights)

        return mean_of(shortened(), received)

    def _factors(self, updates: Sequence[Sent], received: Params, statistics: bool) -> list[float]:
        import torch

        names = [name for name in received if is_statistic(name) is statistics]
        squares = torch.zeros(len(updates), dtype=torch.float64)
        for name in names:
            squares += _moves(updates, received, name).square().sum(1)
        lengths = squares.sqrt()
        bound = self.clip_factor * float(lengths.sort().values[(len(updates) - 1) // 2])
        return [min(1.0, bound / length) if length else 1.0 for length in lengths.tolist()]


def _middle(updates: Sequence[Sent], like: Params, cut: int) -> Params:
    """The mean of each value over clients, without the `cut` largest and smallest."""
    import torch

    found = {}
    for name, tensor in like.items():
        ranked = torch.stack([update.weights[name] for update in updates]).sort(0).values
        kept = ranked[cut : len(updates) - cut].double()
        found[name] = kept.mean(0).to(tensor.dtype).reshape(tensor.shape)
    return found


def _mix(updates: Sequence[Sent], received: Params, shares: Tensor) -> Params:
    """The mean of updates by shares that add up to one."""
    found = {}
    for name, start in received.items():
        total = start.double().flatten() + shares @ _moves(updates, received, name)
        found[name] = total.to(start.dtype).reshape(start.shape)
    return found


def _moves(updates: Sequence[Sent], received: Params, name: str) -> Tensor:
    """How far each client has moved a parameter: (clients, values), in float64."""
    import torch

    start = received[name]
    moves = [(update.weights[name].double() - start).flatten() for update in updates]
    return torch.stack(moves)


def _squared_distances(updates: Sequence[Sent], received: Params) -> Tensor:
    """Between all pairs of updates, computed from differences: hostile ones can be huge."""
    import torch

    total = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for name in received:
        if is_statistic(name):
            continue
        moves = _moves(updates, received, name)
        for i, move in enumerate(moves):
            total[i] += (moves - move).square().sum(1)
    return total
