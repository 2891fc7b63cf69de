"""Seals: a SHA-256 inside a file, which detects any changed bit when the file is read.

A seal covers all bytes of the file, or of its part, counted with its own 64 characters as zeros. A
file without one was written by hand, or by an older version: it is read as it is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

SEAL = "seal"
BLANK = b"0" * 64
BLANK_SEAL = "sha256:" + BLANK.decode()
"""What stands for a seal until it is filled in."""


@dataclass(frozen=True)
class Place:
    """Where files of a kind have their seal.

    `mark` is what stands before the 64 characters. `traces` are several signs of it, far enough
    apart that a damaged seal is not taken for none.
    """

    mark: bytes
    traces: tuple[bytes, ...]

    def filled(self, content: bytes, before: bytes = b"") -> bytes:
        """Fill in the blank seal of content; it also covers the bytes `before`."""
        at = content.rindex(self.mark + BLANK) + len(self.mark)
        return content[:at] + _sha256(before, content) + content[at + 64 :]

    def seal_in(self, content: bytes) -> bytes:
        """The 64 characters in sealed content."""
        at = content.rindex(self.mark) + len(self.mark)
        return content[at : at + 64]

    def is_sealed(self, content: bytes, before: bytes = b"") -> bool:
        """Whether content has a seal; a wrong seal is a ValueError."""
        if not any(trace in content for trace in self.traces):
            return False
        at = content.rfind(self.mark) + len(self.mark)
        blank = content[:at] + BLANK + content[at + 64 :]
        if self.mark not in content or content[at : at + 64] != _sha256(before, blank):
            raise ValueError("its contents do not match its seal")
        return True


def _sha256(*parts: bytes) -> bytes:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest().encode()
