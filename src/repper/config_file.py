"""Settings in a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from repper.client_list import as_text
from repper.config import OPTIONS, Config
from repper.errors import RepperError, nearest
from repper.files import write_atomically


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, as arguments for `Config`."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RepperError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RepperError(f"{path} is not a TOML file: {error}") from error
    settings: dict[str, Any] = {}
    for key, value in tables.items():
        name = key.replace("-", "_")
        if name in settings:
            raise RepperError(f"{path}: {OPTIONS[name].key} is given twice")
        if name == "clients" and isinstance(value, dict):
            settings |= _clients_table(path, dict(value))
        elif name not in OPTIONS:
            raise _unknown_key(path, key)
        elif name == "stage1_clients" and not isinstance(value, str):
            settings[name] = as_text(value) if isinstance(value, list) else str(value)
        else:
            try:
                settings[name] = OPTIONS[name].check(value)
            except RepperError as error:
                raise RepperError(f"{path}: {error}") from error
    return settings


def _clients_table(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if "count" in table:
        settings["clients"] = table.pop("count")
    for client, values in table.items():
        named = client.isdecimal() and str(int(client)) == client
        if not named or not isinstance(values, dict):
            raise RepperError(
                f"{path}: [clients] takes count = N and tables such as [clients.7], got {client!r}"
            )
    settings["overrides"] = {int(client): values for client, values in table.items()}
    return settings


def _unknown_key(path: Path, key: str) -> RepperError:
    guess = nearest(key, [setting.key for setting in OPTIONS.values()])
    hint = f", did you mean {guess!r}?" if guess else " (see repper run --help for all settings)"
    return RepperError(f"{path}: unknown setting {key!r}{hint}")


def write_config(path: Path, config: Config) -> None:
    """Write settings so that `read_config` reads them again."""
    write_atomically(path, tomli_w.dumps(config.to_toml()))
