"""Options: the meaning, limits and error sentences of settings.

Whoever has settings declares them as fields of a dataclass, with their limits and help: `Config`
those of every run, and each method, head and server rule its own. Flags, TOML keys and the checks
of Python's callers all come from there.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from repper.basics.errors import RepperError, unknown
from repper.basics.files import is_text
from repper.basics.registry import is_reference


@dataclass(frozen=True)
class Option:
    """A field of a settings class. Its flag and its TOML key are its name with `-` for `_`.

    `flag` is the name on the command line where a field's own name would say too little there, as
    `head_lr` for the `lr` of a head. `owners` are those that have the setting, if not every run.
    """

    help: str
    group: str = ""
    choices: Callable[[], Iterable[str]] | None = None
    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    name: str = ""
    kind: type = str
    optional: bool = False
    default: Any = None
    flag: str = ""
    owners: tuple[str, ...] = ()
    takes_own: bool = False
    """Whether a thing of the user's own, `file.py:name`, may stand for one of the choices."""

    @property
    def key(self) -> str:
        return (self.flag or self.name).replace("_", "-")

    @property
    def _expected(self) -> str:
        names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        return names[self.kind]

    def parse(self, text: str) -> Any:
        """Parse the text of a flag; `check` checks the limits."""
        try:
            return _truth(text) if self.kind is bool else self.kind(text)
        except (ValueError, KeyError) as error:
            raise RepperError(f"--{self.key} must be {self._expected}, got {text!r}") from error

    def check(self, value: Any, said: str = "") -> Any:
        """Return the value with the right type, or raise an error that says what is allowed.

        `said` is what to call the setting: its flag, unless the caller has never seen one.
        """
        said = said or f"--{self.key}"
        if value is None and self.optional:
            return None
        value = self._plain(value)
        if type(value) is not self.kind:
            raise RepperError(f"{said} must be {self._expected}, got {value!r}")
        if isinstance(value, str) and not is_text(value):
            raise RepperError(f"{said} contains characters that are not text: {value!r}")
        own = self.takes_own and is_reference(value)
        if self.choices is not None and not own and value not in (known := tuple(self.choices())):
            raise unknown(said.removeprefix("--").replace("-", " "), value, known)
        if self.kind in (int, float):
            self._check_limits(value, said)
        return value

    def _plain(self, value: Any) -> Any:
        """Convert numpy numbers, and whole numbers where floats are allowed, to Python's types."""
        try:
            if self.kind in (int, float) and not isinstance(value, bool | str):
                return self.kind(operator.index(value) if self.kind is int else float(value))
        except (TypeError, ValueError, OverflowError):
            pass
        return value

    def _check_limits(self, value: Any, said: str) -> None:
        if isinstance(value, float) and not math.isfinite(value):
            raise RepperError(f"{said} must be a finite number, got {value}")
        shown = f"{value:g}" if isinstance(value, float) else value
        if value < self.least:
            raise RepperError(f"{said} must be at least {self.least:g}, got {shown}")
        if value <= self.above:
            raise RepperError(f"{said} must be above {self.above:g}, got {shown}")
        if value > self.most:
            raise RepperError(f"{said} must be at most {self.most:g}, got {shown}")


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def setting(default: Any, help: str = "", *, group: str = "", flag: str = "", **limits: Any) -> Any:
    """Declare a dataclass field as a setting; `choices` may be a function, called late."""
    choices = limits.pop("choices", None)
    lazy = choices if choices is None or callable(choices) else (lambda: choices)
    option = Option(help, group, lazy, flag=flag, **limits)
    return field(default=default, metadata={"option": option})


@cache
def options_of(settings: type) -> dict[str, Option]:
    """The settings of a dataclass by name, each with the type and default of its field.

    A field without limits and help is a setting too, if it is a number, a text or a truth value.
    """
    hints = typing.get_type_hints(settings)
    found = {}
    for f in dataclasses.fields(settings):
        hint = hints[f.name]
        parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kinds = [part for part in parts if part is not types.NoneType]
        if "option" in f.metadata or (len(kinds) == 1 and kinds[0] in (int, float, str, bool)):
            found[f.name] = dataclasses.replace(
                f.metadata.get("option", Option("")),
                name=f.name,
                kind=kinds[0],
                optional=types.NoneType in parts,
                default=f.default,
            )
    return found


def check_fields(value: Any) -> None:
    """Check every setting of a value and fix its type; errors use field names, not flags."""
    kind: type = type(value)
    for name, option in options_of(kind).items():
        given = option.check(getattr(value, name), said=name)
        if given is not getattr(value, name):
            object.__setattr__(value, name, given)


def checked(name: str, value: Any, kind: type, *, optional: bool = False, **limits: Any) -> Any:
    """Check an argument of a Python function; errors name the argument."""
    return Option("", name=name, kind=kind, optional=optional, **limits).check(value, said=name)


def checked_path(name: str, value: Any) -> Path:
    """Check an argument that is a file or folder."""
    if not isinstance(value, str | Path) or not str(value) or not is_text(str(value)):
        raise RepperError(f"{name} must be a path, got {value!r}")
    return Path(value)


def check_kind(name: str, value: Any, kinds: type | types.UnionType, said: str) -> None:
    """Refuse an argument that is not an instance of `kinds`; `said` describes them."""
    if not isinstance(value, kinds):
        raise RepperError(f"{name} must be {said}, got {shortened(value)}")


def shortened(value: object) -> str:
    """A value for an error sentence: arrays and long values by their type."""
    shown = repr(value)
    return shown if len(shown) <= 60 and "\n" not in shown else f"a {type(value).__name__}"


@dataclass(frozen=True)
class Settled:
    """A frozen dataclass of settings: wrong values are refused when it is created."""

    def __post_init__(self) -> None:
        check_fields(self)
