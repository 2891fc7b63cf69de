"""Server rules by name: what becomes of a round's updates. To add one: write it, and name it here.

They need no PyTorch before they are used, so that `--help` can read their settings.
"""

from __future__ import annotations

from repper.basics.registry import Registry
from repper.server.rule import Mean, Rule, Sent, mean_of

RULES: Registry[type[Rule]] = Registry(
    "server rule",
    {
        "mean": "repper.server.rule:Mean",
        "fedavgm": "repper.server.momentum:FedAvgM",
        "fedadam": "repper.server.adaptive:FedAdam",
        "fedyogi": "repper.server.adaptive:FedYogi",
        "window": "repper.server.window:Window",
        "median": "repper.server.robust:Median",
        "trimmed": "repper.server.robust:TrimmedMean",
        "krum": "repper.server.robust:Krum",
        "multikrum": "repper.server.robust:MultiKrum",
        "geometric": "repper.server.robust:GeometricMedian",
        "clip": "repper.server.robust:NormClip",
    },
    own="repper.server.rule:Rule",
)

__all__ = ["RULES", "Mean", "Rule", "Sent", "mean_of"]
