"""Safetensors files with a seal: equal content gives equal bytes.

Among the notes in a file's header is a seal over the length of the header and all of it. Another
note is a digest of the tensors, which every kind of file has in its own way; the seal covers that
note, too, so no bit is left out. Files of older versions have no seal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from repper.basics.errors import RepperError
from repper.basics.files import write_atomically
from repper.basics.seal import BLANK_SEAL, SEAL, Place

IN_HEADER = Place(b'"seal":"sha256:', (b'"seal":"', b':"sha256:'))
"""Text of a note cannot look like it: its quotes have a backslash before them."""
MOST_HEADER = 100_000_000
"""The longest header that safetensors reads."""


def write_sealed(path: Path, packed: bytes) -> None:
    """Write a safetensors file atomically, with a sorted header and a seal."""
    write_atomically(path, sealed(packed))


def sealed(packed: bytes) -> bytes:
    """Add a seal to a safetensors file, and sort its header."""
    end = 8 + int.from_bytes(packed[:8], "little")
    content = json.loads(packed[8:end])
    content["__metadata__"] = content.get("__metadata__", {}) | {SEAL: BLANK_SEAL}
    header = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    start = len(header).to_bytes(8, "little") + header
    return IN_HEADER.filled(start) + packed[end:]


def read_sealed(path: Path, framework: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Read tensors and metadata, after a check of the seal if there is one."""
    try:
        with safe_open(str(path), framework=framework) as file:
            _check(path)
            return {name: file.get_tensor(name) for name in file.keys()}, _notes(file)
    except FileNotFoundError as error:
        raise RepperError(f"there is no file {path}") from error
    except _DAMAGED as error:
        raise RepperError(f"{path} is damaged or not a safetensors file ({error})") from error


def read_notes(path: Path) -> dict[str, str]:
    """Read only the metadata of a file, after a check of its seal if there is one."""
    try:
        with safe_open(str(path), framework="np") as file:
            _check(path)
            return _notes(file)
    except FileNotFoundError as error:
        raise RepperError(f"there is no file {path}") from error
    except _DAMAGED as error:
        raise RepperError(f"{path} is damaged or not a safetensors file ({error})") from error


def check_ties(path: Path, notes: Mapping[str, str], **ties: object) -> None:
    """Refuse a file whose metadata names another run, round or client.

    What a file does not say, as one of an older version, and an empty tie are not compared.
    """
    for name, wanted in ties.items():
        found = notes.get(name)
        if found is not None and wanted != "" and found != str(wanted):
            raise RepperError(
                f"{path} is not the original file: its {name} is {found[:12]}, not "
                f"{str(wanted)[:12]}; restore the original"
            )


_DAMAGED = (SafetensorError, OSError, AttributeError, KeyError, TypeError, ValueError)


def _notes(file: Any) -> dict[str, str]:
    return {key: text for key, text in (file.metadata() or {}).items() if key != SEAL}


def _check(path: Path) -> None:
    """Refuse a header that does not match its seal."""
    with path.open("rb") as file:
        length = file.read(8)
        start = length + file.read(min(int.from_bytes(length, "little"), MOST_HEADER))
    try:
        IN_HEADER.is_sealed(start)
    except ValueError as error:
        raise ValueError("its header does not match its seal") from error
