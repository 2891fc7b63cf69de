"""Registries: names of classes that are imported late, so that `--help` needs no PyTorch.

A thing of the user's own is named by where it is: `my_file.py:MyMethod` or `my_package:MyMethod`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from repper.basics.errors import RepperError, missing_extra, unknown

T = TypeVar("T")
EXTRAS = {
    "torch": "train",
    "dp_accounting": "train",
    "pyarrow": "train",
    "sklearn": "train",
    "flwr": "simulation",
    "ray": "simulation",
}
"""The extra that brings a package."""
REFERENCE = re.compile(r"(.+\.py|[A-Za-z_][\w.]*):([A-Za-z_]\w*)")
FROM_FILE = "repper_own_"
"""What the names of modules begin with that were loaded from a user's file."""
OWN_PACKAGES: set[str] = set()
"""Names of the user's own modules that were imported by their names."""


class Registry(Mapping[str, T]):
    """A read-only table from a name to an object, given as `"package.module:attribute"`.

    It also answers to references to things of the user's own, which must be an `own` (a class to
    inherit from, as `"package.module:attribute"`), or callable.
    """

    def __init__(self, kind: str, entries: dict[str, str], own: str = "") -> None:
        self._kind = kind
        self._entries = entries
        self._own = own

    def __getitem__(self, name: str) -> T:
        if name in self._entries:
            return cast(T, self._import(self._entries[name], name))
        if not is_reference(name):
            raise unknown(self._kind, name, self._entries)
        found = load_reference(name)
        if self._own:
            base = self._import(self._own, name)
            if not (isinstance(found, type) and issubclass(found, base)):
                raise RepperError(
                    f"{name} is not a {self._kind}: it must be a subclass of {base.__name__} "
                    f"(from {base.__module__.rpartition('.')[0]} import {base.__name__})"
                )
        elif not callable(found):
            raise RepperError(f"{name} is not a {self._kind}: it must be a function")
        return cast(T, found)

    def _import(self, place: str, name: str) -> Any:
        module, attribute = place.split(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            package = (error.name or "").split(".")[0]
            if package not in EXTRAS:
                raise
            raise missing_extra(package, EXTRAS[package], f"{self._kind} {name!r}") from error

    def name_of(self, value: type) -> str | None:
        """The name under which a class is known here, if it is."""
        place = f"{value.__module__}:{value.__qualname__}"
        return next((name for name, known in self._entries.items() if known == place), None)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def is_reference(text: object) -> bool:
    """Whether a text refers to the user's own code."""
    return isinstance(text, str) and REFERENCE.fullmatch(text) is not None


def absolute_reference(text: str) -> str:
    """Make a reference independent of the current folder."""
    where, name = _parts(text)
    return f"{Path(where).expanduser().resolve()}:{name}" if where.endswith(".py") else text


def load_reference(text: str) -> Any:
    """Load the object that `file.py:name` or `package.module:name` refers to."""
    where, name = _parts(text)
    module = _from_file(Path(where).expanduser()) if where.endswith(".py") else _from_package(where)
    if not hasattr(module, name):
        raise unknown(f"name in {where}", name, [n for n in vars(module) if not n.startswith("_")])
    return getattr(module, name)


def reference_to(value: Any) -> str:
    """A reference to a class or function of the user's own, if it is importable."""
    module = sys.modules.get(value.__module__)
    file = getattr(module, "__file__", None)
    alone = value.__module__ == "__main__" or value.__module__.startswith(FROM_FILE)
    if alone and file and file.endswith(".py"):
        return f"{Path(file).resolve()}:{value.__name__}"
    return f"{value.__module__}:{value.__name__}"


def short_reference(text: str) -> str:
    """A reference without the folder of its file."""
    where, name = _parts(text)
    return f"{Path(where).name}:{name}" if where.endswith(".py") else text


def mistake_in_own_code(error: BaseException) -> str | None:
    """One sentence about the line of the user's own code that failed; None for other errors."""
    places = [
        f"{Path(frame.f_code.co_filename).name}, line {line}, in "
        f"{frame.f_code.co_qualname.replace('.<locals>', '')}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _is_own(frame.f_globals.get("__name__", ""))
    ]
    return f"{places[-1]}: {type(error).__name__}: {error}" if places else None


@contextmanager
def blaming(own: Iterable[str]) -> Iterator[None]:
    """Mark errors inside this block as errors of the user's own code.

    An error in their own lines is left as it is: its traceback says more.
    """
    try:
        yield
    except Exception as error:
        names = ", ".join(map(short_reference, own))
        if not names or isinstance(error, RepperError | OSError) or mistake_in_own_code(error):
            raise
        raise RepperError(f"{names} raised {type(error).__name__}: {error}") from error


def _is_own(module: str) -> bool:
    return module.startswith(FROM_FILE) or module in OWN_PACKAGES


def source_digest(value: Any) -> str:
    """A SHA-256 of the source file of the user's own class or function."""
    try:
        file = inspect.getsourcefile(value)
        source = Path(file).read_bytes() if file and Path(file).is_file() else b""
        source = source or inspect.getsource(value).encode()
    except (OSError, TypeError):
        source = reference_to(value).encode()  # typed in somewhere, and kept nowhere
    return hashlib.sha256(source).hexdigest()


def _parts(text: str) -> tuple[str, str]:
    found = REFERENCE.fullmatch(text)
    if found is None:
        raise RepperError(f"{text!r} is neither file.py:name nor package.module:name")
    return found[1], found[2]


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise RepperError(f"there is no file {path}")
    path = path.resolve()
    content = path.read_bytes()
    name = FROM_FILE + hashlib.sha256(str(path).encode() + content).hexdigest()[:16]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RepperError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, RepperError | KeyboardInterrupt):
            raise
        where = mistake_in_own_code(error) or f"{type(error).__name__}: {error}"
        raise RepperError(f"{path.name} cannot be loaded: {where}") from error
    return module


def _from_package(name: str) -> ModuleType:
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
        OWN_PACKAGES.add(name)
        return module
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise RepperError(
                f"there is no package {name}: install it, run from its folder, or give a file.py"
            ) from error
        raise RepperError(f"{name} cannot be loaded: {error}") from error
    finally:
        if added:
            sys.path.remove(here)
