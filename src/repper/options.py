"""One setting: what it means, which values it takes, and what to say of others."""

from __future__ import annotations

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from repper.errors import RepperError, unknown
from repper.files import is_text


@dataclass(frozen=True)
class Option:
    """A field of a settings class. Its flag and its TOML key are its name with `-` for `_`."""

    help: str
    group: str
    choices: Callable[[], Iterable[str]] | None = None
    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    name: str = ""
    kind: type = str
    optional: bool = False
    default: Any = None

    @property
    def key(self) -> str:
        return self.name.replace("_", "-")

    @property
    def _expected(self) -> str:
        names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        return names[self.kind]

    def parse(self, text: str) -> Any:
        """The value that the text of a flag means; its limits are for `check`."""
        try:
            return _truth(text) if self.kind is bool else self.kind(text)
        except (ValueError, KeyError) as error:
            raise RepperError(f"--{self.key} must be {self._expected}, got {text!r}") from error

    def check(self, value: Any) -> Any:
        """The value, as the right type; an error says which setting is wrong and what it takes."""
        if value is None and self.optional:
            return None
        value = self._plain(value)
        if type(value) is not self.kind:
            raise RepperError(f"--{self.key} must be {self._expected}, got {value!r}")
        if isinstance(value, str) and not is_text(value):
            raise RepperError(f"--{self.key} holds characters that are not text: {value!r}")
        if self.choices is not None and value not in (known := tuple(self.choices())):
            raise unknown(self.key.replace("-", " "), value, known)
        if self.kind in (int, float):
            self._check_limits(value)
        return value

    def _plain(self, value: Any) -> Any:
        """Numbers of numpy, and whole numbers where any will do, as Python's own."""
        try:
            if self.kind in (int, float) and not isinstance(value, bool | str):
                return self.kind(operator.index(value) if self.kind is int else float(value))
        except (TypeError, ValueError, OverflowError):
            pass
        return value

    def _check_limits(self, value: Any) -> None:
        if isinstance(value, float) and not math.isfinite(value):
            raise RepperError(f"--{self.key} must be a finite number, got {value}")
        shown = f"{value:g}" if isinstance(value, float) else value
        if value < self.least:
            raise RepperError(f"--{self.key} must be at least {self.least:g}, got {shown}")
        if value <= self.above:
            raise RepperError(f"--{self.key} must be above {self.above:g}, got {shown}")
        if value > self.most:
            raise RepperError(f"--{self.key} must be at most {self.most:g}, got {shown}")


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def option(default: Any, help: str, group: str, **limits: Any) -> Any:
    """A dataclass field that is a setting; `choices` may be a function, to be asked late."""
    choices = limits.pop("choices", None)
    lazy = choices if choices is None or callable(choices) else (lambda: choices)
    return field(default=default, metadata={"option": Option(help, group, lazy, **limits)})


def options_of(settings: type) -> dict[str, Option]:
    """The settings of a dataclass by name, each with the type and default of its field."""
    hints = typing.get_type_hints(settings)
    found = {}
    for f in dataclasses.fields(settings):
        if "option" in f.metadata:
            hint = hints[f.name]
            parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
            [kind] = [part for part in parts if part is not types.NoneType]
            found[f.name] = dataclasses.replace(
                f.metadata["option"],
                name=f.name,
                kind=kind,
                optional=types.NoneType in parts,
                default=f.default,
            )
    return found
