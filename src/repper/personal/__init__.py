"""Fit a classifier for your own photos on an exported encoder, without PyTorch.

Only fitting needs scikit-learn; predicting does not load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repper.basics.errors import needs

if TYPE_CHECKING:
    from repper.personal.classifier import PersonalClassifier

__all__ = ["PersonalClassifier"]


def __getattr__(name: str) -> Any:
    """Import `PersonalClassifier` when it is used, because it needs scikit-learn."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs("edge", "PersonalClassifier"):
        from repper.personal.classifier import PersonalClassifier
    return PersonalClassifier
