"""Heads by name: small classifiers on features. To add one: write its class, and name it here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repper.registry import Registry

if TYPE_CHECKING:
    from repper.heads.head import Head

HEADS: Registry[type[Head]] = Registry(
    "head",
    {
        "linear": "repper.heads.descent:LinearHead",
        "mlp": "repper.heads.descent:MLPHead",
        "svm": "repper.heads.solved:SVMHead",
        "logistic": "repper.heads.solved:LogisticHead",
    },
)
