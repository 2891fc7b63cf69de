"""The secret key of a federation's noise."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from repper.basics.errors import RepperError
from repper.privacy.gaussian import KEY_BYTES


def secret_key(path: Path) -> bytes:
    """The key in this file; without a file, draw a key that only its owner can read."""
    try:
        if not path.is_file():
            made = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            made.unlink(missing_ok=True)
            opened = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(opened, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            made.replace(path)
        key = path.read_bytes()
    except OSError as error:
        raise RepperError(
            f"cannot write the key of the noise to {path}: {error.strerror}"
        ) from error
    if len(key) != KEY_BYTES:
        raise RepperError(f"{path} is damaged: remove it, and a new key is drawn")
    return key
