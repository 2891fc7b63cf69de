"""Federated image classifiers, fitted to each client.

    import repper

    data = repper.load("digits")
    partition = repper.split(data, "dirichlet", clients=20, alpha=0.5, seed=0)
    run = repper.run(data, partition, rounds=30, out="my-run")
    print(run.accuracy["mean"], [score.accuracy for score in run.scores()])
    print(run.predict(7, data.test.images[:3]))

Importing it takes no time: each name below is imported when it is asked for, and PyTorch when
something is run or opened.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from repper.api import compare, join, open_comparison, open_run, run, verify
    from repper.basics.errors import RepperError
    from repper.data import Dataset, Split, load
    from repper.data.partition import Partition, split
    from repper.personal import PersonalClassifier
    from repper.settings.config import Config

__version__ = "0.1.0"
__all__ = [
    "Config",
    "Dataset",
    "Partition",
    "PersonalClassifier",
    "RepperError",
    "Split",
    "compare",
    "join",
    "load",
    "open_comparison",
    "open_run",
    "run",
    "split",
    "verify",
]
PLACES = {
    "Config": "settings.config",
    "Dataset": "data",
    "Partition": "data.partition",
    "PersonalClassifier": "personal",
    "RepperError": "basics.errors",
    "Split": "data",
    "load": "data",
    "split": "data.partition",
}
"""The modules of names that are not in `repper.api`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"repper.{PLACES.get(name, 'api')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
