"""A row of a comparison: what it is called, where its runs are, and their settings."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repper.basics.errors import RepperError, unknown
from repper.basics.options import options_of
from repper.basics.registry import is_reference
from repper.methods import Method
from repper.settings.config import ATTACK_SETTINGS, OPTIONS, Config
from repper.settings.things import STAGE1, STAGE2

CELLS = "cells"
OF_TABLE = {
    "method", "personalize", "stage1_clients", "init_clients", "personalize_clients", "head_curve",
}  # fmt: skip
"""Settings of training and heads that a row has outside of its brackets, or with all others."""
Settings = tuple[tuple[str, Any], ...]


def of_rows() -> list[str]:
    """Settings in which rows may differ: how they train. Clients and their images are equal."""
    groups = (STAGE1, STAGE2)
    return [n for n, option in OPTIONS.items() if option.group in groups and n not in OF_TABLE]


@dataclass(frozen=True)
class Row:
    """A row of a comparison, such as `fedavg+finetune`.

    `settings` are those it has for itself: `fedavg[augment=weak batch=64]+finetune`. `value` is a
    method that was given as such. `tries` counts the settings among which its own were chosen.
    """

    method: str
    personalize: str
    settings: Settings = ()
    value: Method | None = None
    tries: int | None = None
    asked: str = ""
    """The name of the row before it chose settings."""

    @property
    def name(self) -> str:
        """The name as `--methods` takes it; the user's own things go by their class names."""
        return f"{self.label}+{_class_name(self.personalize)}"

    @property
    def label(self) -> str:
        """The method and the row's own settings, without the personalizer."""
        given = []
        if self.value is not None:
            options = options_of(type(self.value))
            found = {n: getattr(self.value, n) for n in options}
            given = [(n, v) for n, v in found.items() if v != options[n].default]
        given += self.settings
        own = " ".join(f"{name.replace('_', '-')}={_text(value)}" for name, value in given)
        return _class_name(self.method) + (f"[{own}]" if own else "")

    @classmethod
    def named(cls, name: str) -> Row:
        """The row that has this name."""
        method, settings, last = split_name(name)
        if not all(n in OPTIONS for n, _ in settings):  # those of a class that only its file knows
            return cls(name.partition("]")[0] + "]", last)
        return cls(method, last, tuple((n, OPTIONS[n].parse(text)) for n, text in settings))

    def having(self, settings: Mapping[str, Any]) -> Row:
        """The same row with some more settings of its own."""
        return replace(self, settings=in_order({**dict(self.settings), **settings}))

    @property
    def training(self) -> tuple[str, Settings, Method | None]:
        """The training of a row; rows with equal trainings differ only in their personalizers."""
        own = sorted((n, v) for n, v in self.settings if OPTIONS[n].group != STAGE2)
        return self.method, tuple(own), self.value

    def cell(self, folder: Path, seed: int) -> Path:
        """Where this row's run with a seed is in the comparison's folder."""
        usual = self.name.replace("]", "").replace("[", "-").replace(" ", "-")
        return folder / CELLS / f"{folder_name(usual)}-seed{seed}"

    def config(self, common: Config, seed: int, folder: Path) -> Config:
        """The settings of this row's run with a seed, in the comparison's folder."""
        method: Any = self.value or self.method
        things = replace(common, method=method, personalize=self.personalize)
        known = things.known_to_own()
        owned = {n: v for n, v in self.settings if OPTIONS[n].owners}
        general = {n: v for n, v in self.settings if n not in owned}
        common_own = {n: v for n, v in things.own.items() if n in OPTIONS or n in known}
        if general.get("attack", common.attack) is None:
            common_own = {n: v for n, v in common_own.items() if n not in ATTACK_SETTINGS}
        return replace(
            things,
            **general,
            own=common_own | owned,
            seed=seed,
            out=str(self.cell(folder, seed)),
        )

    def check(self, common: Config) -> None:
        """Refuse settings in the row's brackets that it would not use."""
        used = self.config(common, common.seed, Path()).in_use()
        for name, _ in self.settings:
            if OPTIONS[name].owners and name not in used:
                raise RepperError(
                    f"{self.name} does not use {OPTIONS[name].key}, which is for "
                    f"{', '.join(OPTIONS[name].owners)}"
                )


def _class_name(text: str) -> str:
    """The name of a built-in, or the class name of the user's own code."""
    return text.rpartition(":")[2] if is_reference(text) else text


def folder_name(text: str) -> str:
    """A text as the name of a folder; with a digest where characters had to be replaced."""
    plain = re.sub(r"[^\w.+=-]", "-", text)
    if plain == text and len(text) <= 120:
        return text
    return f"{plain[:100]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def split_name(name: str) -> tuple[str, list[tuple[str, str]], str]:
    """Split a row's name into method, settings as text, and personalizer ("" if left out)."""
    method, bracket, rest = name.strip().partition("[")
    if not bracket:
        method, _, last = method.partition("+")
        return method, [], last
    inside, closed, last = rest.partition("]")
    settings = [part.partition("=")[::2] for part in inside.split()]
    well_formed = closed and settings and all(key and text for key, text in settings)
    if not well_formed or (last and not last.startswith("+")):
        raise RepperError(
            f"--methods takes rows such as fedavg+finetune or fedavg[lr=0.01 batch=64]+finetune, "
            f"got {name!r}"
        )
    return method, [(key.replace("-", "_"), text) for key, text in settings], last[1:]


def row_settings(name: str, given: list[tuple[str, str]]) -> Settings:
    """The settings of a row, checked, from their texts."""
    found: dict[str, Any] = {}
    for key, text in given:
        if key in found:
            raise RepperError(f"{name} gives {key.replace('_', '-')} twice")
        found[key] = check_setting(name, key, text=text)
    return in_order(found)


def in_order(settings: Mapping[str, Any]) -> Settings:
    """Settings in the order in which `--help` has them, so that equal rows have one name."""
    return tuple((name, settings[name]) for name in OPTIONS if name in settings)


def check_setting(row: str, name: str, value: Any = None, text: str | None = None) -> Any:
    """Check one setting of a row, a value or text; refuse settings that all rows share."""
    if name not in (known := of_rows()):
        key = name.replace("_", "-")
        if name in ("method", "personalize"):
            raise RepperError(f"{row}: put the {key} outside of the brackets of the row")
        if name in OPTIONS:
            raise RepperError(f"{row}: all rows have the same {key}; give it once, as --{key}")
        raise unknown(f"setting of {row}", key, [OPTIONS[one].key for one in known])
    if text is None and value is None:
        raise RepperError(f"{row}: {OPTIONS[name].key} has no value")
    found = OPTIONS[name].check(OPTIONS[name].parse(text) if text is not None else value)
    if isinstance(found, str) and re.search(r"[\s,\[\]]", found):
        raise RepperError(
            f"{row}: {OPTIONS[name].key} may hold no spaces, commas and brackets, got {found!r}"
        )
    return found


def _text(value: Any) -> str:
    """A value as one would type it: `true`, `0.001`, and `1` rather than `1.0`."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)
