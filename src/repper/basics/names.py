"""Parameter names, and what they mean.

A network is `encoder.*`, then `head.*`, `projection.*` and the like; a client's own copy of it is
`personal.*`. What travels beside the weights has the name of its part first: `control:head.bias`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def is_encoder(name: str) -> bool:
    return name.startswith("encoder.")


def is_head(name: str) -> bool:
    return name.startswith("head.")


def is_personal(name: str) -> bool:
    return name.startswith("personal.")


def is_weight(name: str) -> bool:
    """Whether a name is a weight of the network, not a part sent beside the weights."""
    return ":" not in name


def is_statistic(name: str) -> bool:
    """Whether a parameter is a running mean or variance of batch norm: measured, not trained."""
    return name.endswith((".running_mean", ".running_var"))


def is_variance(name: str) -> bool:
    """Whether a parameter is a running variance of batch norm."""
    return is_weight(name) and name.endswith(".running_var")


def part_of(values: Mapping[str, T], part: str) -> dict[str, T]:
    """A part sent beside the weights, keyed by the names of the weights."""
    return {n.removeprefix(f"{part}:"): v for n, v in values.items() if n.startswith(f"{part}:")}


def named_parts(parts: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """All parts in one table; `part_of` extracts them again."""
    return {f"{part}:{name}": v for part, values in parts.items() for name, v in values.items()}
