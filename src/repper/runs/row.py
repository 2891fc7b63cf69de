"""A row of a comparison: what it is called, where its runs are, and their settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repper.config import OPTIONS, Config
from repper.methods import Method
from repper.options import options_of
from repper.registry import is_reference

CELLS = "cells"


@dataclass(frozen=True)
class Row:
    """A row of a comparison, such as `fedavg+finetune`; `augment` where it has its own setting.

    `value` is a method that was given as such, with settings of its own.
    """

    method: str
    personalize: str
    augment: str | None = None
    value: Method | None = None

    @property
    def name(self) -> str:
        own = {None: "", "none": " (no augmentation)"}
        return self._label + own.get(self.augment, f" ({self.augment} augmentation)")

    @property
    def _label(self) -> str:
        """The method and what clients do last: of the user's own, the names of the classes."""
        method, last = (
            text.rpartition(":")[2] if is_reference(text) else text
            for text in (self.method, self.personalize)
        )
        if self.value is not None:
            options = options_of(type(self.value))
            found = {n: getattr(self.value, n) for n, o in options.items()}
            given = [f"{n}={v}" for n, v in found.items() if v != options[n].default]
            method += f"[{' '.join(given)}]" if given else ""
        return f"{method}+{last}"

    @classmethod
    def named(cls, name: str) -> Row:
        """The row that has this name."""
        main, _, own = name.partition(" (")
        method, _, personalize = main.partition("+")
        level = own.removesuffix(" augmentation)") or None
        return cls(method, personalize, "none" if level == "no" else level)

    @property
    def training(self) -> tuple[str, str | None, Method | None]:
        """Rows of the same training differ only in what clients do last."""
        return self.method, self.augment, self.value

    def cell(self, folder: Path, seed: int) -> Path:
        """Where this row's run with a seed is in the comparison's folder."""
        parts = [self._label.replace(" ", "-"), self.augment, f"seed{seed}"]
        return folder / CELLS / "-".join(filter(None, parts))

    def config(self, common: Config, seed: int, folder: Path) -> Config:
        """The settings of this row's run with a seed, in the comparison's folder."""
        method: Any = self.value or self.method
        things = replace(common, method=method, personalize=self.personalize)
        known = things.known_to_own()
        return replace(
            things,
            own={n: v for n, v in things.own.items() if n in OPTIONS or n in known},
            augment=self.augment or common.augment,
            seed=seed,
            out=str(self.cell(folder, seed)),
        )
