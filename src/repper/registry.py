"""Names for things that are imported only when they are used, so that `--help` needs no PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TypeVar, cast

from repper.errors import missing_extra, unknown

T = TypeVar("T")
EXTRAS = {"torch": "train", "pyarrow": "train", "flwr": "simulation", "ray": "simulation"}
"""The extra that brings a package."""


class Registry(Mapping[str, T]):
    """A read-only table from a name to an object, given as `"package.module:attribute"`."""

    def __init__(self, kind: str, entries: dict[str, str]) -> None:
        self._kind = kind
        self._entries = entries

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise unknown(self._kind, name, self._entries)
        module, attribute = self._entries[name].split(":")
        try:
            return cast(T, getattr(importlib.import_module(module), attribute))
        except ModuleNotFoundError as error:
            package = (error.name or "").split(".")[0]
            if package not in EXTRAS:
                raise
            raise missing_extra(package, EXTRAS[package], f"{self._kind} {name!r}") from error

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
