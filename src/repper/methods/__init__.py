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
    },
)
