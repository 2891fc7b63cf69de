"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from repper.datasets.dataset import Dataset, Split
from repper.registry import Registry

DATASETS: Registry[Callable[[Path], Dataset]] = Registry(
    "data set",
    {
        "digits": "repper.datasets.digits:digits",
        "cifar10": "repper.datasets.cifar:cifar10",
        "cifar100": "repper.datasets.cifar:cifar100",
    },
)

__all__ = ["DATASETS", "Dataset", "Split", "load"]


def load(name: str, data_dir: Path | str | None = None) -> Dataset:
    """Load a data set by name; `data_dir` holds those that do not come with a library.

    Without it, the folder is the one in the environment variable REPPER_DATA, or else
    `~/.cache/repper`.
    """
    from repper.datasets.folder import data_folder

    return DATASETS[name](data_folder(data_dir))
