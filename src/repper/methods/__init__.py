"""Methods by name. To add one: write its file, and name it here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repper.registry import Registry

if TYPE_CHECKING:
    from repper.methods.method import Method

METHODS: Registry[type[Method]] = Registry(
    "method",
    {
        "repper": "repper.methods.repper:RepPer",
        "fedavg": "repper.methods.fedavg:FedAvg",
        "fedprox": "repper.methods.fedavg:FedProx",
        "lg-fedavg": "repper.methods.halves:LGFedAvg",
        "fedrep": "repper.methods.halves:FedRep",
        "fedper": "repper.methods.halves:FedPer",
        "fedbabu": "repper.methods.halves:FedBABU",
        "ditto": "repper.methods.ditto:Ditto",
        "local": "repper.methods.bounds:Local",
        "central": "repper.methods.bounds:Central",
    },
)
