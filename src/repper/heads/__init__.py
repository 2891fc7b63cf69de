"""Heads by name: small classifiers on features. To add one: write its class, and name it here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repper.basics.registry import Registry
from repper.heads.settings import CommonSettings, HeadSettings

if TYPE_CHECKING:
    from repper.heads.head import Head

HEADS: Registry[type[Head]] = Registry(
    "head",
    {
        "linear": "repper.heads.descent:LinearHead",
        "mlp": "repper.heads.descent:MLPHead",
        "svm": "repper.heads.convex:SVMHead",
        "logistic": "repper.heads.convex:LogisticHead",
    },
    own="repper.heads.head:Head",
)
DEVICE_HEADS: Registry[type[Head]] = Registry(
    "head",
    {
        "linear": "repper.heads.descent_numpy:LinearHead",
        "mlp": "repper.heads.descent_numpy:MLPHead",
        "svm": "repper.heads.convex:SVMHead",
        "logistic": "repper.heads.convex:LogisticHead",
    },
)
"""The same heads where there is no PyTorch."""
HEAD_SETTINGS: Registry[type[HeadSettings | CommonSettings]] = Registry(
    "head",
    {
        "linear": "repper.heads.settings:LinearSettings",
        "mlp": "repper.heads.settings:MLPSettings",
        "svm": "repper.heads.settings:SVMSettings",
        "logistic": "repper.heads.settings:LogisticSettings",
        "common": "repper.heads.settings:CommonSettings",
        "common+finetune": "repper.heads.settings:CommonSettings",
    },
)
"""The same names, for those who only ask what can be set, and the head that all train together."""
