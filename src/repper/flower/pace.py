"""How often a site polls for messages, and how soon its own processes get them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

SHORTEST = 0.1
SHARE = 10
"""A pause is at most as long as Flower's own, and a tenth of the time since the last message: so a
site keeps a round waiting for at most a tenth of the time that it has been waiting itself. Until
its pauses are Flower's 3 seconds again, it asks the server 40 times more than it would have."""
HELD = 1.0
"""Seconds for which a look for work on the site's own machine waits for some: Flower looks once in
so many seconds, too."""
LOOK_FOR_WORK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.02"}
"""Seconds between two looks for work: few, since every look waits (`answer_at_once`)."""


@dataclass
class Pace:
    """Stands for the module `time` where Flower's node sleeps for a fixed time between two looks.

    It sleeps for 3 seconds if the server had no message, and for 0.5 until a message's answer is
    there. No option sets that, and so a round of some seconds lasted twice as long.
    """

    work: threading.Event = field(default_factory=threading.Event)
    """A message is there as a whole, so a process can begin with it."""
    _answer: threading.Event = field(default_factory=threading.Event)
    _last: float = field(default_factory=time.monotonic)

    def message(self) -> None:
        """A message has come, or its answer has been sent."""
        self._last = time.monotonic()

    def answer(self) -> None:
        """An answer, or a part of one, has come from the process that works on a message."""
        self._answer.set()

    def sleep(self, seconds: float) -> None:
        self._answer.wait(pause(seconds, time.monotonic() - self._last))
        self._answer.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def pause(most: float, since: float) -> float:
    """Seconds until the next poll, by those since the last message; at most Flower's pause."""
    return min(most, max(SHORTEST, since / SHARE))


def answer_at_once(pace: Pace) -> None:
    """Pass work to a node's own processes at once, and their answers to the node.

    Flower's process that starts the work asks the node for it again and again. Here the node keeps
    such a request for a while, and answers it as soon as a message has come.
    """
    from flwr.supernode.servicer.runtime import runtime_handlers

    handlers = vars(runtime_handlers)
    look = handlers["acquire_task"]

    def acquire_task(request: Any, state: Any) -> Any:
        pace.work.clear()
        found = look(request, state)
        if not found.token and pace.work.wait(HELD):
            found = look(request, state)
        return found

    def telling(push: Any) -> Any:
        def pushed(*request: Any, **named: Any) -> Any:
            taken = push(*request, **named)
            pace.answer()
            return taken

        return pushed

    handlers["acquire_task"] = acquire_task
    for name in ("push_messages", "push_object"):
        handlers[name] = telling(handlers[name])
