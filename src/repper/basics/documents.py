"""JSON and TOML files: written with a seal, and read with one sentence for whatever is wrong.

Nothing else in repper parses a JSON or TOML file of a folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import stat
import tomllib
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from reprlib import repr as shown
from typing import Any, NoReturn, TypeVar, cast

import tomli_w

from repper.basics.errors import RepperError
from repper.basics.files import write_atomically
from repper.basics.seal import BLANK_SEAL, SEAL, Place

IN_JSON = Place(b'"seal": "sha256:', (b'"seal": "sha', b': "sha256:'))
"""Text within a string cannot look like it: its quotes have a backslash before them."""
IN_TOML = Place(b"# seal: sha256:", (b"# seal:", b"sha256:"))
"""The seal is a comment in the first line: of a file that is cut short, it is what stays."""
MOST_BYTES = 2**28
"""The largest file that is read: a manifest of ten million images has a third of it."""
RESTORE = "restore it"
DIGESTS = "digests"
"""The key of the digests of other files in a JSON object."""
Kind = TypeVar("Kind")


def write_json(
    path: Path, content: Mapping[str, Any], *, indent: int | None = 2, escaped: bool = True
) -> None:
    """Write a JSON object with a seal, whole or not at all; letters beyond ASCII are `escaped`."""
    text = json.dumps({**content, SEAL: BLANK_SEAL}, indent=indent, ensure_ascii=escaped)
    write_atomically(path, IN_JSON.filled(f"{text}\n".encode()))


def write_covered(path: Path, content: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Write texts, by their names, and then a JSON object beside them that has their digests."""
    for name, text in texts.items():
        write_atomically(path.with_name(name), text)
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    write_json(path, {**content, DIGESTS: digests})


def check_covered(path: Path) -> int:
    """Refuse files that are not those which `write_covered` has written; returns their number."""
    found = read_json(path)
    check_kinds(path, found, {DIGESTS: dict[str, str]})
    for name, digest in found.get(DIGESTS, {}).items():
        try:
            content = (path.parent / name).read_bytes()
        except OSError as error:
            raise RepperError(f"cannot read {path.parent / name}: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise RepperError(
                f"{path.parent / name} is damaged, or was changed: it does not match its digest in "
                f"{path.name}; resume the command that wrote it"
            )
    return len(found.get(DIGESTS, {}))


def read_json(path: Path, remedy: str = RESTORE) -> Any:
    """What a JSON file holds, after a check of its seal if it has one.

    Without a seal, NaN and infinity are refused, too. `remedy` is what to do with a damaged file.
    """
    try:
        content = _bytes(path)
        return from_json(content, is_sealed=IN_JSON.is_sealed(content))
    except FileNotFoundError as error:
        raise RepperError(f"there is no file {path}") from error
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise RepperError(f"{path} is damaged or not JSON ({_why(error)}): {remedy}") from error


def from_json(content: bytes, *, is_sealed: bool) -> Any:
    """What JSON holds, without its seal."""
    if is_sealed:
        found = json.loads(content)
        if isinstance(found, dict):
            found.pop(SEAL, None)
        return found
    return json.loads(content.decode(), parse_constant=_no_number, parse_float=_finite)


def is_sealed(path: Path) -> bool:
    """Whether a JSON or TOML file has a seal; a ValueError if it does not match."""
    place = IN_TOML if path.suffix == ".toml" else IN_JSON
    return place.is_sealed(_bytes(path))


def write_toml(path: Path, content: Mapping[str, Any]) -> None:
    """Write a TOML file with a seal, whole or not at all."""
    text = f"# seal: {BLANK_SEAL}\n{tomli_w.dumps(content)}"
    write_atomically(path, IN_TOML.filled(text.encode()))


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, after a check of its seal if it has one."""
    try:
        content = _bytes(path)
    except OSError as error:
        raise RepperError(f"cannot read {path}: {_why(error)}") from error
    except ValueError as error:
        raise RepperError(f"{path} is not a TOML file: {error}") from error
    try:
        if IN_TOML.mark.startswith(content):
            raise ValueError("nothing of it is left")
        IN_TOML.is_sealed(content)
    except ValueError as error:
        raise RepperError(
            f"{path} is damaged: {error}; restore it, or, if you have changed it yourself, delete "
            f"its first line"
        ) from error
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError, MemoryError) as error:
        raise RepperError(f"{path} is not a TOML file: {_why(error)}") from error


def check_kinds(
    path: Path, found: Any, kinds: Mapping[str, Any], remedy: str = RESTORE, where: str = ""
) -> None:
    """Refuse an object of JSON in which a value is of another kind; keys may be missing.

    `kinds` are types such as `int`, `list[str]` or `dict[str, float | None]`.
    """
    if not isinstance(found, dict):
        raise RepperError(f"{path} is damaged: {where or 'it'} must be an object; {remedy}")
    for name, kind in kinds.items():
        if name in found:
            as_kind(kind, found[name], path, f"{where}.{name}".lstrip("."), remedy)


def build(kind: type[Kind], found: Any, path: Path, remedy: str = RESTORE, where: str = "") -> Kind:
    """A dataclass from an object of JSON, with its types checked; unknown keys are ignored."""
    if not isinstance(found, Mapping):
        raise RepperError(f"{path} is damaged: {where or 'it'} must be an object; {remedy}")
    types_of = typing.get_type_hints(kind)
    values = {}
    for one in dataclasses.fields(cast(Any, kind)):
        name = f"{where}.{one.name}".lstrip(".")
        if one.name in found:
            values[one.name] = as_kind(types_of[one.name], found[one.name], path, name, remedy)
        elif one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
            raise RepperError(f"{path} is damaged: it has no {name}; {remedy}")
    try:
        return kind(**values)
    except RepperError as error:  # what only all of it together shows
        raise RepperError(f"{path} is damaged: {error}; {remedy}") from error


def as_kind(kind: Any, found: Any, path: Path, name: str, remedy: str = RESTORE) -> Any:
    """A value of JSON as this type; another kind of value is refused."""
    if kind is Any:
        return found
    if isinstance(kind, types.UnionType):
        if found is None:
            return None
        kinds = [one for one in typing.get_args(kind) if one is not type(None)]
        objects = [one for one in kinds if dataclasses.is_dataclass(one)]
        kind = (objects if objects and isinstance(found, Mapping) else kinds)[0]
    if dataclasses.is_dataclass(kind):
        return build(cast(type, kind), found, path, remedy, name)
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (tuple, list) and isinstance(found, list):
        return origin(as_kind(inner[0], one, path, name, remedy) for one in found)
    if origin is dict and isinstance(found, dict):
        for one in found.values() if inner else ():
            as_kind(inner[1], one, path, name, remedy)
        return found
    if origin is float and isinstance(found, int | float) and not isinstance(found, bool):
        with suppress(OverflowError):
            return float(found)
    if origin is int and isinstance(found, int) and not isinstance(found, bool):
        return found
    if origin in (str, bool) and isinstance(found, origin):
        return found
    raise RepperError(f"{path} is damaged: its {name} cannot be {shown(found)}; {remedy}")


def _bytes(path: Path) -> bytes:
    """The content of a file that is one, and not too large."""
    # A pipe would wait for somebody who writes to it.
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a file")
        if status.st_size > MOST_BYTES:
            raise ValueError(f"its {status.st_size:,} bytes are more than {MOST_BYTES:,}")
        return file.read()


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"it holds {text}")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"it holds {text}")
    return number


def _why(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it does not fit into memory"
    return (isinstance(error, OSError) and error.strerror) or str(error)
