"""Settings in a TOML file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from repper.basics.client_list import as_text
from repper.basics.documents import read_toml, write_toml
from repper.basics.errors import RepperError, nearest
from repper.basics.registry import Registry, is_reference
from repper.heads import HEAD_SETTINGS
from repper.methods import METHODS
from repper.server import RULES
from repper.settings.config import OPTIONS, Config
from repper.settings.things import KINDS_OF_THINGS, flat_options
from repper.updates.attacks import ATTACKS


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, as arguments for `Config`."""
    settings: dict[str, Any] = {}
    for key, value in read_toml(path).items():
        for name, found in _settings_in(path, key, value).items():
            if name in settings:
                raise RepperError(f"{path}: {name.replace('_', '-')} is given twice")
            settings[name] = found
    things = [settings.get(name) for name in KINDS_OF_THINGS]
    for name in settings:
        # What a thing of the user's own owns is known when it is loaded.
        if name not in (*OPTIONS, "overrides", "sources", "own") and not any(
            map(is_reference, things)
        ):
            raise _unknown_key(path, name.replace("_", "-"))
    return settings


def _settings_in(path: Path, key: str, value: Any) -> dict[str, Any]:
    """Parse a line or a table of the file into settings, by their flat names."""
    name = key.replace("-", "_")
    if name == "tensorboard" and isinstance(value, bool):  # what older folders have
        return {"track": "tensorboard" if value else None}
    if name == "clients" and isinstance(value, dict):
        return _clients_table(path, dict(value))
    if name in ("sources", "own") and isinstance(value, dict):
        return {name: value}
    if name in TABLES and isinstance(value, dict):
        return _table(path, name, dict(value))
    if name == "stage1_clients" and not isinstance(value, str):
        return {name: as_text(value) if isinstance(value, list) else str(value)}
    if name not in OPTIONS:
        if isinstance(value, dict):
            raise _unknown_key(path, key)
        return {name: value}
    try:
        return {name: OPTIONS[name].check(value)}
    except RepperError as error:
        raise RepperError(f"{path}: {error}") from error


TABLES: dict[str, Registry[Any]] = {
    "method": METHODS,
    "server": RULES,
    "attack": ATTACKS,
    "personalize": HEAD_SETTINGS,
}
"""Settings that name a thing, and can be tables with that thing's own settings."""


def _table(path: Path, kind: str, table: dict[str, Any]) -> dict[str, Any]:
    """Parse a table such as `[method]`: a name, and the settings of the class of this name."""
    named = table.pop("name", None)
    if not isinstance(named, str):
        one = next(iter(TABLES[kind]))
        raise RepperError(f'{path}: [{kind}] needs a name, such as name = "{one}"')
    settings = _settings_in(path, kind, named)
    owned: dict[str, str] = {}
    if named in TABLES[kind]:
        flat = flat_options(TABLES[kind][named], kind)
        owned = {option.name: key for key, option in flat.items()}
        owned |= {key: key for key in flat}
    for key, value in table.items():
        name = key.replace("-", "_")
        if named in TABLES[kind]:
            if name not in owned:
                known = _listed(owned)
                raise RepperError(f"{path}: {named} has no setting {key!r} (its settings: {known})")
            name = owned[name]
        settings |= _settings_in(path, name, value)
    return settings


def _listed(names: Iterable[str]) -> str:
    return ", ".join(name.replace("_", "-") for name in names) or "none"


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
    write_toml(path, config.to_toml())
