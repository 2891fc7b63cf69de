"""Keeps a site's node running: restarts it after growing pauses, if a restart can help.

A program of its own that imports nothing of repper, since it stays in memory as long as the node:
`python kept.py COMMAND...`. The command says over the socket whose number is in `REPPER_KEEPER` why
it ends, as one line of JSON (`Ended`), and must end when the socket does.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import NamedTuple, NoReturn

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0
"""Seconds before the node is started again: growing by half, and 5 again after a good time."""
GOOD_TIME = 120.0
"""Seconds after which a node has been running well."""
GIVEN_UP = 2
"""The exit code when a restart cannot help."""
LAST_SECONDS = 10.0
"""Seconds that a node may take to end after a signal."""


class Ended(NamedTuple):
    """Why a node has ended, and for how many seconds restarts may help."""

    why: str
    helps: float


class Told(Exception):  # noqa: N818
    """A signal asks this process to end."""


def main(command: list[str]) -> int:
    """Run the command until restarts are hopeless or a signal comes; return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _told)
    pause, trouble_since = FIRST_PAUSE, time.monotonic()
    node = None
    try:
        while True:
            began = time.monotonic()
            node, ours = _start(command)
            ended = _end(node, ours)
            _clear(node)
            now = time.monotonic()
            if now - began > GOOD_TIME:
                pause, trouble_since = FIRST_PAUSE, now
            if now - trouble_since >= ended.helps:
                _say(f"repper: {ended.why}")
                return GIVEN_UP
            # Random, so that sites do not reconnect at the same moment.
            wait = pause * random.uniform(0.7, 1.3)  # noqa: S311
            _say(f"repper: {ended.why}; starting the node again in {wait:.0f} s")
            time.sleep(wait)
            pause = min(1.5 * pause, LONGEST_PAUSE)
    except Told:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if node is not None:
            with suppress(ProcessLookupError):
                node.terminate()
            with suppress(subprocess.TimeoutExpired):
                node.wait(LAST_SECONDS)
            _clear(node)
        return 0


def _told(number: int, frame: FrameType | None) -> NoReturn:
    raise Told


def _start(command: list[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        node = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0,
            env=os.environ | {"REPPER_KEEPER": str(theirs.fileno())},
        )  # fmt: skip
    return node, ours


def _end(node: subprocess.Popen[bytes], ours: socket.socket) -> Ended:
    """Wait for the end of the node; the first reason that it gave is why."""
    code = node.wait()
    ours.setblocking(False)
    said = b""
    with ours, suppress(BlockingIOError, ConnectionError):
        said = ours.recv(65536)
    try:
        why, helps = json.loads(said.splitlines()[0])
        return Ended(str(why), float(helps))
    except (ValueError, IndexError, TypeError):
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return Ended(f"Flower's node {how}", float("inf"))


def _clear(node: subprocess.Popen[bytes]) -> None:
    """End all processes that the node has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(node.pid, signal.SIGKILL)
    node.wait()


def _say(text: str) -> None:
    # `repper.basics.files.plain` is too much to import here.
    shown = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    sys.stderr.write(f"{shown}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
