"""Federated image classifiers that fit each client.

    import repper

    data = repper.load("digits")
    partition = repper.split(data, "dirichlet", clients=20, alpha=0.5, seed=0)
    run = repper.run(data, partition, rounds=30, out="my-run")
    print(run.accuracy["mean"], [score.accuracy for score in run.scores()])
    print(run.predict(7, data.test.images[:3]))

Nothing here imports PyTorch before `run` or `open_run` is called.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repper.config import OPTIONS, Config
from repper.datasets import Dataset, Split, load
from repper.errors import RepperError, missing_extra, unknown
from repper.partition import Partition, split

if TYPE_CHECKING:
    from repper.experiment import Event
    from repper.runs import Run

__version__ = "0.1.0"
__all__ = [
    "Config",
    "Dataset",
    "Partition",
    "RepperError",
    "Split",
    "load",
    "open_run",
    "run",
    "split",
]


def run(
    data: Dataset | str = "digits",
    partition: Partition | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    watch: Callable[[Event], object] | None = None,
    **settings: Any,
) -> Run:
    """Run both stages and return the run.

    `settings` are those of `repper run`, with `_` for `-`; `watch` is called with every event.
    """
    try:
        from repper.experiment import Finished, execute
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "PyTorch", "train", "training") from error
    for setting in settings:
        if setting not in OPTIONS and setting != "overrides":
            raise unknown("setting", setting, OPTIONS)
    if settings.get("out") is not None:
        settings["out"] = str(settings["out"])
    name, images = (data, None) if isinstance(data, str) else (data.name, data)
    for event in execute(
        Config(data=name, **settings), images, partition, resume=resume, overwrite=overwrite
    ):
        if watch is not None:
            watch(event)
    assert isinstance(event, Finished)
    return event.run


def open_run(folder: Path | str) -> Run:
    """A run folder that exists."""
    try:
        from repper.runs import Run
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "PyTorch", "train", "reading a run") from error
    found = Run(Path(folder))
    _ = found.config
    return found
