"""Damage to a file, of the kinds that disks, copies and editors do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

TEXT = {".json", ".jsonl", ".toml", ".csv", ".md"}


def damaged(path: Path, random: Random) -> str:
    """Damage a file; returns what was done."""
    content = path.read_bytes()
    ways = [*WAYS, *([_digit, _digit, _nested] if path.suffix in TEXT else [])]
    for _ in range(100):
        found = random.choice(ways)(content, random)
        if found is not None and found[1] != content:
            what, new = found
            if new is None:
                path.unlink()
            else:
                path.write_bytes(new)
            return what
    raise RuntimeError(f"{path} cannot be damaged")


Found = tuple[str, bytes | None] | None
"""What was done, and the new content; None for a file that is gone."""


def _bit(content: bytes, random: Random) -> Found:
    if not content:
        return None
    at, bit = random.randrange(len(content)), random.randrange(8)
    new = bytearray(content)
    new[at] ^= 1 << bit
    return f"with bit {bit} of byte {at} flipped", bytes(new)


def _header_bit(content: bytes, random: Random) -> Found:
    """A bit near the beginning, where most formats say what follows."""
    found = _bit(content[:600], random)
    return found and (found[0], (found[1] or b"") + content[600:])


def _cut(content: bytes, random: Random) -> Found:
    if not content:
        return None
    at = random.randrange(len(content))
    return f"cut after {at} bytes", content[:at]


def _emptied(content: bytes, random: Random) -> Found:
    return "empty", b""


def _gone(content: bytes, random: Random) -> Found:
    return "gone", None


def _longer(content: bytes, random: Random) -> Found:
    more = random.randbytes(random.randint(1, 100))
    return f"with {len(more)} bytes more", content + more


def _zeros(content: bytes, random: Random) -> Found:
    if not content:
        return None
    at, count = random.randrange(len(content)), random.randint(1, 512)
    new = bytearray(content)
    new[at : at + count] = bytes(len(new[at : at + count]))
    return f"with zeros from byte {at}", bytes(new)


def _noise(content: bytes, random: Random) -> Found:
    return "of random bytes", random.randbytes(max(len(content), 16))


def _twice(content: bytes, random: Random) -> Found:
    return "twice in one file", content + content


def _digit(content: bytes, random: Random) -> Found:
    """One digit of a number is another one: what no parser finds."""
    places = [match.start() for match in re.finditer(rb"[0-9]", content)]
    if not places:
        return None
    at = random.choice(places)
    digit = random.choice(b"123456789")
    return f"with digit {at} changed", content[:at] + bytes([digit]) + content[at + 1 :]


def _nested(content: bytes, random: Random) -> Found:
    return "of 100,000 brackets", b"[" * 100_000


WAYS: list[Callable[[bytes, Random], Found]] = [
    _bit, _bit, _bit, _header_bit, _header_bit, _cut, _cut, _emptied, _gone, _longer, _zeros,
    _noise, _twice,
]  # fmt: skip
