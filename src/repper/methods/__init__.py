"""Methods by name. To add one: write its file, and name it here.

What a method of one's own is made of comes from here, too.
"""

from __future__ import annotations

from repper.basics.registry import Registry
from repper.methods.method import Method, Phase, Seen, Trained, everything
from repper.methods.stage import Stage, Training

METHODS: Registry[type[Method]] = Registry(
    "method",
    {
        "repper": "repper.methods.repper:RepPer",
        "fedavg": "repper.methods.fedavg:FedAvg",
        "fedprox": "repper.methods.fedavg:FedProx",
        "lg-fedavg": "repper.methods.partial:LGFedAvg",
        "fedrep": "repper.methods.partial:FedRep",
        "fedper": "repper.methods.partial:FedPer",
        "fedbabu": "repper.methods.partial:FedBABU",
        "ditto": "repper.methods.ditto:Ditto",
        "local": "repper.methods.local_central:Local",
        "central": "repper.methods.local_central:Central",
        "scaffold": "repper.methods.scaffold:Scaffold",
        "fedbn": "repper.methods.fedbn:FedBN",
        "fedrod": "repper.methods.fedrod:FedRoD",
        "moon": "repper.methods.moon:MOON",
        "feddbe": "repper.methods.feddbe:FedDBE",
        "fedetf": "repper.methods.fedetf:FedETF",
        "calibrated": "repper.methods.calibrated:Calibrated",
    },
    own="repper.methods.method:Method",
)

__all__ = ["METHODS", "Method", "Phase", "Seen", "Stage", "Trained", "Training", "everything"]
