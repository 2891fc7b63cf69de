"""How often a site looks for messages: often just after one, and seldom when nothing happens."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

SHORTEST = 0.1
SHARE = 5
"""A pause is at most as long as Flower's own, and a fifth of the time since the last message: so a
site keeps a round waiting for at most a fifth of the time that it has been waiting itself. Until
its pauses are Flower's 3 seconds again, it asks the server 20 times more than it would have."""


@dataclass
class Pace:
    """Stands for the module `time` where Flower's node sleeps for a fixed time between two looks.

    It sleeps for 3 seconds if the server had no message, and for 0.5 until a message's answer is
    there. No option sets that, and so a round of some seconds lasted twice as long.
    """

    _last: float = field(default_factory=time.monotonic)

    def message(self) -> None:
        """A message has come, or its answer has been sent."""
        self._last = time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(pause(seconds, time.monotonic() - self._last))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def pause(most: float, since: float) -> float:
    """Seconds to the next look, so many after the last message; at most as many as Flower takes."""
    return min(most, max(SHORTEST, since / SHARE))
