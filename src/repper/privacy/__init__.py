"""Differential privacy of clients: noise, what it spends, and the ledger of a run."""

from __future__ import annotations

from dataclasses import dataclass

SERVER, SITE = "server", "site"
NOISE_AT = (SERVER, SITE)


@dataclass(frozen=True)
class Privacy:
    """The settings of the differential privacy of clients.

    Every update is clipped to the length `clip`. `noise` is the standard deviation of the
    Gaussian noise in units of `clip`: on the sum of a round's updates, or at the site on each.
    With `known_cohorts`, the adversary knows who takes part in which round.
    """

    clip: float
    noise: float
    delta: float
    at: str = SERVER
    known_cohorts: bool = False
    budget: float | None = None
    """The epsilon at which training ends."""
