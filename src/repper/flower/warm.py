"""A warm process at a site and at a server, from which messages start without loading time.

Flower starts a program for every message, which loads PyTorch and Flower anew. It finds the program
by its name in the PATH: there, a shim of ours comes first, and hands its work to a process that has
loaded all of it. The shim starts that process when it is needed and none is there.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from repper.basics.files import write_atomically
from repper.flower import shim
from repper.flower.programs import program

FOLDER = "warm"
CLIENT_APP, SERVER_APP = "flwr-clientapp", "flwr-serverapp"
"""What Flower calls the programs that it starts for messages."""
IDLE = 60
"""Seconds after which a site without a message gives the memory of its warm process back. To start
it again takes some 5 seconds, which is little after a minute without work."""


def can_be_warm() -> bool:
    """Whether this system can pass file descriptors, and wait for any process."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def prepare(home: Path, name: str, idle: int | None) -> None:
    """Write the shim of one of Flower's programs into a private folder of a home."""
    if not can_be_warm():
        return
    folder = home / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    (folder / shim.COLD).unlink(missing_ok=True)
    line = [sys.executable, "-I", "-S", shim.__file__, str(folder), str(idle or ""), program(name)]
    # Not by its first line, which would have to be short and without blanks.
    write_atomically(folder / name, f'#!/bin/sh\nexec {shlex.join(line)} "$@"\n')
    (folder / name).chmod(0o700)


def with_shim(home: Path, environment: dict[str, str]) -> dict[str, str]:
    """The environment in which Flower's programs find the shim of a home."""
    if not can_be_warm():
        return environment
    path = os.pathsep.join([str(home / FOLDER), environment["PATH"]])
    return environment | {"PATH": path}


def start(home: Path, name: str, environment: dict[str, str]) -> None:
    """Start the warm process now, before the first message; it ends with this process."""
    if not can_be_warm():
        return
    command = [str(home / FOLDER / name), shim.START, str(os.getpid())]
    subprocess.run(command, env=environment, check=False)
