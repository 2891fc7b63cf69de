"""`repper verify`: read every file of a folder, and recompute digests and scores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from repper.basics.errors import RepperError, needs
from repper.checks.check import Check, Checks
from repper.checks.model import checks_of_file, checks_of_hub, checks_of_model
from repper.edge.model_folder import MODEL

if TYPE_CHECKING:
    from repper.data.dataset import Dataset

__all__ = ["Check", "verify"]


def verify(folder: Path, data: Dataset | None = None) -> Iterator[Check]:
    """Check a run folder, comparison, sweep, reproduction, model folder or exported file.

    `data` are the images of runs, where their settings do not name them.
    """
    yield from (one.beside(folder) for one in _checks(folder, data))


def _checks(folder: Path, data: Dataset | None) -> Checks:
    if folder.is_file():
        return checks_of_file(folder)
    if not folder.is_dir():
        raise RepperError(f"there is no folder {folder}")
    if (folder / MODEL).is_file():
        return checks_of_model(folder)
    if (folder / "onnx").is_dir():
        return checks_of_hub(folder)
    with needs("train", "verifying a run"):
        from repper.checks.run import checks_of_runs
    return checks_of_runs(folder, data)
