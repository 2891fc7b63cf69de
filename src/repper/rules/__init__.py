"""Server rules by name: what becomes of a round's updates. To add one: write it, and name it here.

They need no PyTorch before they are used, so that `--help` can read their settings.
"""

from __future__ import annotations

from repper.registry import Registry
from repper.rules.rule import Mean, Rule, Sent, mean_of

RULES: Registry[type[Rule]] = Registry(
    "server rule",
    {
        "mean": "repper.rules.rule:Mean",
        "fedavgm": "repper.rules.momentum:FedAvgM",
        "fedadam": "repper.rules.adaptive:FedAdam",
        "fedyogi": "repper.rules.adaptive:FedYogi",
        "window": "repper.rules.window:Window",
        "median": "repper.rules.robust:Median",
        "trimmed": "repper.rules.robust:TrimmedMean",
        "krum": "repper.rules.robust:Krum",
        "multikrum": "repper.rules.robust:MultiKrum",
        "geometric": "repper.rules.robust:GeometricMedian",
        "clip": "repper.rules.robust:NormClip",
    },
    own="repper.rules.rule:Rule",
)

__all__ = ["RULES", "Mean", "Rule", "Sent", "mean_of"]
