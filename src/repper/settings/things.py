"""The method, server rule, attack, heads and encoder of a run, and their settings.

Each may be one of ours, by its name, or the user's own: `my_file.py:MyMethod`, or a value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from repper.basics.errors import RepperError
from repper.basics.options import Option, options_of
from repper.basics.registry import Registry, reference_to
from repper.encoders import ENCODERS
from repper.heads import HEAD_SETTINGS, HEADS
from repper.methods import METHODS, Method
from repper.server import RULES, Rule
from repper.updates.attacks import ATTACKS, Attack

STAGE1, STAGE2 = "stage 1: the encoder", "stage 2: the heads"
PRIVACY = "differential privacy of clients"
"""Groups of settings."""
KINDS_OF_THINGS: dict[str, Registry[Any]] = {
    "method": METHODS, "server": RULES, "personalize": HEADS, "encoder": ENCODERS,
    "attack": ATTACKS,
}  # fmt: skip
"""Settings that name a thing, which may be the user's own."""
MAY_BE_OWN = (*KINDS_OF_THINGS, "data")


def taken(name: str, value: Any, registry: Registry[Any]) -> tuple[str, dict[str, Any], Any]:
    """Split a value into its name, its settings, and the value itself if it is the user's own."""
    if isinstance(value, type):
        value = value()
    kind = value if name == "encoder" else type(value)
    if name == "encoder" and not hasattr(value, "__module__"):
        raise RepperError(f"encoder must be a name or a function that builds one, got {value!r}")
    if name != "encoder":
        base = {"method": Method, "server": Rule, "attack": Attack}.get(name)
        if base is not None and not isinstance(value, base):
            raise RepperError(f"{name} must be a name or a {base.__name__}, got {value!r}")
    if (known := registry.name_of(kind)) is None:
        return reference_of(name, value), {}, value
    flat = flat_options(kind, name) if name != "encoder" else {}
    return known, {key: getattr(value, option.name) for key, option in flat.items()}, None


def reference_of(name: str, value: Any) -> str:
    return reference_to(value if name == "encoder" else type(value))


def flat_options(kind: type, name: str) -> dict[str, Option]:
    """The settings of a class, by the names of their flags."""
    prefix = "head_" if name == "personalize" else ""
    if not dataclasses.is_dataclass(kind):
        return {}
    found = options_of(kind)
    return {o.flag or prefix + n: o for n, o in found.items() if n not in ("random_state", "start")}


def owned_options() -> Iterator[tuple[str, Option]]:
    """The settings of all methods, rules, attacks and heads of repper, by flat names.

    One that several own is one flag: if they have other defaults or meanings, its help says so, and
    its limits are the widest: each still checks its own.
    """
    found: dict[str, list[tuple[str, Option]]] = {}
    groups: dict[str, str] = {}
    kinds: dict[str, tuple[Registry[Any], str]] = {
        "method": (METHODS, STAGE1),
        "server": (RULES, STAGE1),
        "attack": (ATTACKS, STAGE1),
        "personalize": (HEAD_SETTINGS, STAGE2),
    }
    for name, (registry, group) in kinds.items():
        for owner in registry:
            for key, option in flat_options(registry[owner], name).items():
                found.setdefault(key, []).append((owner, option))
                groups[key] = group
    for key, owned in found.items():
        owners, (_, first) = tuple(owner for owner, _ in owned), owned[0]
        option = dataclasses.replace(first, name=key, flag="", group=groups[key], owners=owners)
        if len({(o.help, o.default) for _, o in owned}) > 1:
            helps = "; ".join(f"{owner}: {o.help} (default: {o.default})" for owner, o in owned)
            option = dataclasses.replace(
                option, help=helps, default=None, optional=True,
                least=min(o.least for _, o in owned), above=min(o.above for _, o in owned),
                most=max(o.most for _, o in owned),
            )  # fmt: skip
        yield key, option
