"""Safetensors files of ours: equal content gives equal bytes, and a damaged header is found.

Among the notes in a file's header is a seal: the SHA-256 of the length of the header and of all of
it, counted with the seal's own 64 characters as zeros. Another note is a digest of the tensors,
which every kind of file has in its own way; the seal covers that note, too, so no bit is left out.
Files of older versions have no seal.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from repper.errors import RepperError
from repper.files import write_atomically

SEAL = "seal"
MARK = b'"seal":"sha256:'
"""What stands before the 64 characters. Text of a note cannot look like it: its quotes have a
backslash before them."""
TRACES = (b'"seal":"', b':"sha256:')
"""Two signs of a seal, so that a damaged one is not taken for none."""
BLANK = b"0" * 64
MOST_HEADER = 100_000_000
"""The longest header that safetensors reads."""


def write_sealed(path: Path, packed: bytes) -> None:
    """Write what safetensors' `save` gives, whole or not at all, with its header in one order."""
    write_atomically(path, sealed(packed))


def sealed(packed: bytes) -> bytes:
    """A safetensors file with a seal and a sorted header, which the library writes in any order."""
    end = 8 + int.from_bytes(packed[:8], "little")
    content = json.loads(packed[8:end])
    content["__metadata__"] = content.get("__metadata__", {}) | {SEAL: "sha256:" + BLANK.decode()}
    header = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    start = len(header).to_bytes(8, "little") + header
    at = start.index(MARK) + len(MARK)
    return start[:at] + _seal(start) + start[at + 64 :] + packed[end:]


def read_sealed(path: Path, framework: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors and notes of a file, after a check of its seal if it has one."""
    try:
        with safe_open(str(path), framework=framework) as file:
            _check(path)
            return {name: file.get_tensor(name) for name in file.keys()}, _notes(file)
    except FileNotFoundError as error:
        raise RepperError(f"there is no file {path}") from error
    except _DAMAGED as error:
        raise RepperError(f"{path} is damaged or not a safetensors file ({error})") from error


def read_notes(path: Path) -> dict[str, str]:
    """The notes of a file, after a check of its seal if it has one; tensors are not read."""
    try:
        with safe_open(str(path), framework="np") as file:
            _check(path)
            return _notes(file)
    except FileNotFoundError as error:
        raise RepperError(f"there is no file {path}") from error
    except _DAMAGED as error:
        raise RepperError(f"{path} is damaged or not a safetensors file ({error})") from error


_DAMAGED = (SafetensorError, OSError, AttributeError, KeyError, TypeError, ValueError)


def _notes(file: Any) -> dict[str, str]:
    return {key: text for key, text in (file.metadata() or {}).items() if key != SEAL}


def _check(path: Path) -> None:
    """Refuse a header that is not the one that was sealed."""
    with path.open("rb") as file:
        length = file.read(8)
        start = length + file.read(min(int.from_bytes(length, "little"), MOST_HEADER))
    if not any(trace in start for trace in TRACES):
        return
    at = start.find(MARK) + len(MARK)
    blank = start[:at] + BLANK + start[at + 64 :]
    if start.count(MARK) != 1 or start[at : at + 64] != _seal(blank):
        raise ValueError("its header does not match its seal")


def _seal(start: bytes) -> bytes:
    """The 64 characters for a header in which they are zeros."""
    return hashlib.sha256(start).hexdigest().encode()
