"""Downloads: checked by md5, resumed where they stopped, unpacked whole or not at all."""

from __future__ import annotations

import http.client
import shutil
import ssl
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from repper.basics.errors import RepperError
from repper.basics.files import lock_file
from repper.data.location import md5

TIMEOUT = 30.0
"""Seconds without a byte after which a server is given up."""
BLOCK = 1 << 18
SECONDS_BETWEEN_LINES = 10.0
NETWORK_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ssl.SSLError,
    ConnectionError,
    TimeoutError,
)


@dataclass(frozen=True)
class Remote:
    """A published file: addresses to try in turn, and the md5 that it must have."""

    name: str
    md5: str
    addresses: tuple[str, ...]


def fetch(remote: Remote, folder: Path) -> Path:
    """Download a file into a folder, unless it is there, and check it.

    What has arrived is kept as `.part` when the connection breaks, and the next call goes on from
    there. A whole file with another checksum is removed, because it could never become right.
    """
    path = folder / remote.name
    part = folder / f"{remote.name}.part"
    if path.is_file() and md5(path) == remote.md5:
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Another process may be fetching the same file.
        with lock_file(folder / f".{remote.name}.lock", wait=True, keep=False):
            return _fetched(remote, path, part)
    except OSError as error:
        raise RepperError(f"cannot write {part}: {error.strerror or error}") from error


def _fetched(remote: Remote, path: Path, part: Path) -> Path:
    if not (path.is_file() and md5(path) == remote.md5):
        _from_any(remote, part)
        found = md5(part)
        if found != remote.md5:
            part.unlink()
            raise RepperError(
                f"{remote.name} was downloaded with md5 {found} instead of {remote.md5}, and was "
                f"removed: try again, or get the file in another way"
            )
        part.replace(path)
    return path


def _from_any(remote: Remote, part: Path) -> None:
    failures = []
    with _progress(remote.name) as show:
        for address in remote.addresses:
            try:
                return _transfer(address, part, show)
            except NETWORK_ERRORS as error:
                failures.append(f"{address}: {_reason(error)}")
    kept = (
        (f" ({part.stat().st_size} bytes are kept: run the command again to continue)")
        if part.is_file()
        else ""
    )
    raise RepperError(f"cannot download {remote.name} from {'; nor from '.join(failures)}{kept}")


def _transfer(address: str, part: Path, show: Callable[[int, int | None], None]) -> None:
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "repper"} | ({"Range": f"bytes={have}-"} if have else {})
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - our own addresses
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # all of it is here already; the checksum will tell
        raise
    with answer:
        goes_on = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        if goes_on and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            part.unlink()  # another part than we asked for: ask for the whole
            return _transfer(address, part, show)
        if not goes_on:
            have = 0  # this server sends the whole file again
        total = None if answer.length is None else have + answer.length
        with part.open("ab" if goes_on else "wb") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                have += len(block)
                show(have, total)
    if total is not None and have < total:
        raise http.client.IncompleteRead(b"", total - have)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        cause = error.reason
        return f"no connection ({getattr(cause, 'strerror', None) or cause})"
    if isinstance(error, http.client.IncompleteRead):
        return f"the connection ended with {error.expected} bytes to go"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on a terminal, else a line every few seconds; both on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr, highlight=False)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console) as bars:
            bar = bars.add_task(name, total=None)
            yield lambda have, total: bars.update(bar, completed=have, total=total)
        return
    said = time.monotonic()

    def say(have: int, total: int | None) -> None:
        nonlocal said
        if have == total or time.monotonic() - said > SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            of = f" of {total / 1e6:.1f}" if total else ""
            console.print(f"{name}: {have / 1e6:.1f}{of} MB", soft_wrap=True, markup=False)

    yield say


def unpack(archive: Path, inside: str, folder: Path) -> None:
    """Unpack an archive's folder `inside` (`.` for all of it) as `folder`, whole or not at all."""
    try:
        temporary = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder.parent))
        try:
            whole = temporary / "whole"
            whole.mkdir()
            with tarfile.open(archive) as tar:
                for member in tar:
                    _extract(tar, member, whole)
            (whole / inside).replace(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise RepperError(f"cannot unpack {archive} into {folder}: {error}") from error


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Extract one file by hand, because some versions of Python 3.11 lack safe extraction.

    Links, devices and whatever else a data set does not need are left out.
    """
    target = folder / member.name
    if not target.resolve().is_relative_to(folder.resolve()):
        raise OSError(f"{member.name} is outside of this folder")
    content = tar.extractfile(member) if member.isfile() else None
    if content is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with content, target.open("wb") as file:
            shutil.copyfileobj(content, file)
