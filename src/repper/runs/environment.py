"""The environment of a run: what a result may depend on besides its settings."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from repper.basics.hardware import instruction_sets

SAME_DIGITS = ("processor", "instructions", "variables", "packages", "code")
"""What the last digits of a result may depend on."""
_CHOOSES = re.compile("(ATEN|DNNL|MKL|ONEDNN)_").match
"""Names of variables by which PyTorch and its libraries choose instructions and precision."""


def environment(device: str) -> dict[str, Any]:
    """Versions, machine and commit, as they are now."""
    packages = ("repper", "torch", "numpy", "scikit-learn", "scipy", "pyarrow")
    return {
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
        "system": platform.platform(),
        "processor": _processor(),
        "instructions": " ".join(instruction_sets()),
        "variables": {name: os.environ[name] for name in sorted(os.environ) if _CHOOSES(name)},
        "cores": os.cpu_count(),
        "device": device,
        "commit": _commit(),
        "code": code_digest(),
    }


@cache
def code_digest() -> str:
    """A SHA-256 of repper's own source, as it is on the disk."""
    root, sha = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        sha.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        sha.update(content)
    return sha.hexdigest()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str | None:
    """The commit of repper's own source, where it runs from a checkout."""
    here = Path(__file__).resolve()
    # Only a tracked file: an installed copy may lie in a checkout of something else.
    tracked = ["ls-files", "--error-unmatch", here.name]
    describe = ["describe", "--always", "--dirty", "--abbrev=40"]
    try:
        for arguments in (tracked, describe):
            found = subprocess.run(
                ["git", "-C", str(here.parent), *arguments],
                capture_output=True, text=True, check=True, timeout=10,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
