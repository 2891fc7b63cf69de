"""The errors a user can fix: each is one sentence that says what is wrong and what to do."""

from __future__ import annotations

import difflib
import errno
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class RepperError(Exception):
    """A mistake a user can fix. The command line prints it after `repper:` and exits with 2."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like `name`, if any looks like it at all."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def unknown(kind: str, name: object, known: Iterable[str]) -> RepperError:
    """The error for a name that is not in a list: it shows the list and the nearest name."""
    names = list(known)
    guess = nearest(str(name), names)
    hint = f", did you mean {guess!r}?" if guess else ""
    return RepperError(f"unknown {kind} {str(name)!r}{hint} (known: {', '.join(names)})")


@contextmanager
def needs(extra: str, purpose: str) -> Iterator[None]:
    """Import what only an optional extra brings; without it, say how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or extra, extra, purpose) from error


def failure_of_machine(error: BaseException) -> str | None:
    """An error of the system or of its memory as a sentence; None for any other."""
    if is_out_of_memory(error):
        return (
            "not enough memory: try fewer --workers, a smaller --batch, a narrower --width or "
            "smaller images"
        )
    if isinstance(error, OSError):
        name = f": {error.filename}" if error.filename else ""
        return f"{error.strerror or error}{name}"
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, numpy, PyTorch or the system had no memory left."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # Plain RuntimeErrors: PyTorch's on a CPU, oneDNN's, and Python's own.
    signs = ("DefaultCPUAllocator", "could not create a primitive", "can't start new thread")
    of_torch = type(error).__name__ == "OutOfMemoryError" or any(s in str(error) for s in signs)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and of_torch)


def missing_extra(package: str, extra: str, purpose: str) -> RepperError:
    """The error for a library that an optional extra would have brought."""
    return RepperError(f"{purpose} needs {package}: {install_hint(extra)}")


def install_hint(extra: str) -> str:
    """The command that adds an extra: from the checkout that repper was installed from, if any."""
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        text = distribution("repper").read_text("direct_url.json") or "{}"
        origin = json.loads(text)
        editable = origin.get("dir_info", {}).get("editable", False)
        folder = Path(url2pathname(urlsplit(origin.get("url", "")).path))
    except (PackageNotFoundError, ValueError):
        return f"pip install 'repper[{extra}]'"
    if "dir_info" not in origin or not (folder / "pyproject.toml").is_file():
        return f"pip install 'repper[{extra}]'"
    return f"pip install {'-e ' if editable else ''}'{folder}[{extra}]'"
