"""The epsilon that rounds have spent, computed by the package dp-accounting.

Two sets of clients are neighbours if one client has other data ("replace one"): how many clients
there are is known. An update is no longer than `clip`, so another one in its place moves the sum by
2 `clip` at most, and noise of `noise * clip` is `noise / 2` in units of that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from repper.basics.errors import RepperError, needs
from repper.privacy import Privacy

ORDERS = (1.25, 1.5, 1.75, *range(2, 33), 40, 48, 64)
"""Orders of the Renyi divergence; the best gives epsilon. Higher ones are slow and gain little."""
DIGITS = 4
"""Of a noise that was found for an epsilon; it is rounded up."""


class Release(NamedTuple):
    """A model that was made of the updates of a cohort, which was drawn from so many clients."""

    clients: int
    cohort: tuple[int, ...]


def epsilon(privacy: Privacy, releases: Iterable[Release]) -> float:
    """The epsilon of all these releases, for the client that has spent most."""
    if not privacy.noise:
        return math.inf
    drawn = _drawn(privacy, releases)
    return _epsilon(privacy.noise, privacy.delta, drawn) if drawn else 0.0


def noise_for(target: float, privacy: Privacy, releases: Iterable[Release]) -> float:
    """The least noise with which these releases stay within the target epsilon."""
    drawn = _drawn(privacy, releases)
    if not drawn:
        return 0.0
    return _noise_for(target, privacy.delta, drawn)


def within(privacy: Privacy, budget: float, releases: list[Release]) -> int:
    """The number of first releases that stay within the budget."""
    low, high = 0, len(releases)
    while low < high:
        middle = (low + high + 1) // 2
        if epsilon(privacy, releases[:middle]) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


Drawn = tuple[tuple[int, int, int], ...]
"""How often a cohort of what size was drawn from how many clients."""


def _drawn(privacy: Privacy, releases: Iterable[Release]) -> Drawn:
    """The releases as the accountant sees them.

    Where cohorts are known, being drawn hides nobody: a client spends in those rounds in which it
    takes part, and in no other, and what counts is the one that takes part most often.
    """
    if not privacy.known_cohorts:
        sizes = Counter((one.clients, len(one.cohort)) for one in releases)
        return tuple((clients, size, times) for (clients, size), times in sorted(sizes.items()))
    often = Counter(client for one in releases for client in one.cohort)
    return ((1, 1, max(often.values())),) if often else ()


@cache
def _epsilon(noise: float, delta: float, drawn: Drawn) -> float:
    accountant = _accountant()
    accountant.compose(_event(noise, drawn))
    return float(accountant.get_epsilon(delta))


@cache
def _noise_for(target: float, delta: float, drawn: Drawn) -> float:
    dp = _package()
    found = dp.calibrate_dp_mechanism(
        _accountant,
        lambda noise: _event(noise, drawn),
        target,
        delta,
        bracket_interval=dp.LowerEndpointAndGuess(1e-2, 4.0),
        tol=1e-5,
    )
    step = 10.0 ** (math.floor(math.log10(found)) + 1 - DIGITS)
    rounded = math.ceil(found / step) * step
    return float(f"{rounded:.{DIGITS}g}")


def _event(noise: float, drawn: Drawn) -> Any:
    dp = _package()
    hidden = dp.GaussianDpEvent(noise / 2)

    def round_of(clients: int, size: int) -> Any:
        # Where all clients take part, nothing is sampled.
        if size == clients:
            return hidden
        return dp.SampledWithoutReplacementDpEvent(clients, size, hidden)

    return dp.ComposedDpEvent(
        [dp.SelfComposedDpEvent(round_of(clients, size), times) for clients, size, times in drawn]
    )


def _accountant() -> Any:
    dp = _package()
    return dp.rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_ONE)


def _package() -> Any:
    with needs("train", "differential privacy"):
        import dp_accounting
        import dp_accounting.rdp
    return dp_accounting


def check_delta(delta: float, clients: int) -> None:
    """Refuse a delta so large that it would permit publishing all data of one client."""
    if delta >= 1 / clients:
        raise RepperError(
            f"--delta must be below 1 / clients, which is {1 / clients:g}, got {delta:g}: "
            f"delta is the probability with which all data of a client may be revealed"
        )
