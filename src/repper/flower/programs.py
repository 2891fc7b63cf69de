"""Flower's programs as we start them: quiet, from beside our Python, and shown to the user."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from repper.basics.errors import RepperError, install_hint

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""No telemetry, no update checks, no installations."""


def program(name: str) -> str:
    """Flower's program of this name, beside our Python."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise RepperError(f"there is no program {name}: {install_hint('train,flower')}")
    return found


def quiet(**variables: str) -> dict[str, str]:
    """The environment of Flower's programs, with these variables."""
    # Flower starts its own programs by name: those beside our Python come first.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, **variables, "PATH": path}


def shown(command: Sequence[str], environment: dict[str, str]) -> str:
    """A command as one could type it, with the variables that matter."""
    keys = [*QUIET, "FLWR_HOME"]
    variables = [f"{key}={shlex.quote(environment[key])}" for key in keys if key in environment]
    return " ".join(["$", *variables, shlex.join([Path(command[0]).name, *command[1:]])])
