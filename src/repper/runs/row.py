"""A row of a comparison: what it is called, where its runs are, and their settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from repper.config import Config

CELLS = "cells"


@dataclass(frozen=True)
class Row:
    """A row of a comparison, such as `fedavg+finetune`; `augment` where it has its own setting."""

    method: str
    personalize: str
    augment: str | None = None

    @property
    def name(self) -> str:
        own = {None: "", "none": " (no augmentation)"}
        return f"{self.method}+{self.personalize}" + own.get(
            self.augment, f" ({self.augment} augmentation)"
        )

    @classmethod
    def named(cls, name: str) -> Row:
        """The row that has this name."""
        main, _, own = name.partition(" (")
        method, _, personalize = main.partition("+")
        level = own.removesuffix(" augmentation)") or None
        return cls(method, personalize, "none" if level == "no" else level)

    @property
    def training(self) -> tuple[str, str | None]:
        """Rows of the same training differ only in what clients do last."""
        return self.method, self.augment

    def cell(self, folder: Path, seed: int) -> Path:
        """Where this row's run with a seed is in the comparison's folder."""
        parts = [f"{self.method}+{self.personalize}", self.augment, f"seed{seed}"]
        return folder / CELLS / "-".join(filter(None, parts))

    def config(self, common: Config, seed: int, folder: Path) -> Config:
        """The settings of this row's run with a seed, in the comparison's folder."""
        return replace(
            common,
            method=self.method,
            personalize=self.personalize,
            augment=self.augment or common.augment,
            seed=seed,
            out=str(self.cell(folder, seed)),
        )
