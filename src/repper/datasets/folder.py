"""Where data sets lie on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder(given: Path | str | None) -> Path:
    """The data folder: the one given, else REPPER_DATA, else one in the user's cache."""
    if given:
        return Path(given).expanduser()
    if named := os.environ.get("REPPER_DATA"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "repper"
