"""Which settings a server may decide for a site.

No path and no code is among it: a server cannot point a site at other files than the site's own
choice, and the things it names (methods, heads, encoders) are those that the site has installed.
"""

from __future__ import annotations

from collections.abc import Mapping

from repper.basics.errors import RepperError
from repper.basics.options import Option
from repper.basics.registry import is_reference
from repper.heads import HEADS
from repper.heads.personalize import NEED_COMMON
from repper.methods import METHODS
from repper.settings.config import ATTACK_SETTINGS, GENERAL, OPTIONS

FROM_SERVER = frozenset({
    "method", "encoder", "width", "norm", "bn", "augment", "participation", "rounds", "epochs",
    "batch", "lr", "lr_decay", "lr_decay_every", "weight_decay", "precision", "upload",
    "personalize", "head_input", "pixels", "freeze_until", "seed", "image_size", "test_share",
    "clients", "clip", "noise", "noise_at", "delta",
})  # fmt: skip
"""Settings of every run that a site takes from a server."""
OF_THE_SERVER = frozenset({"server", "init", "out", "max_weight", "max_growth", "epsilon"})
"""Settings of a federation that stay at its server."""
NOT_IN_A_FEDERATION = frozenset({
    "data", "data_dir", "download", "train_images", "skip_unreadable", "partition", "alpha",
    "classes_per_client", "min_train", "min_test", "stage1_clients", "compile", "init_clients",
    "head_curve", "personalize_clients", "evaluate_every", "validation", "knn", "engine", "workers",
    "device", "track", "shift", "attack",
})  # fmt: skip
"""All other settings: decided by each site, or not available in a federation."""


MOST: Mapping[str, float] = {
    "clients": 10_000, "classes": 10_000, "image_size": 512, "width": 4.0, "rounds": 10_000,
    "epochs": 100, "batch": 4096, "fedrep_head_epochs": 100, "head_epochs": 1000,
    "head_batch": 65_536, "head_hidden": 4096, "common_rounds": 1000, "common_epochs": 100,
}  # fmt: skip
"""The most that a server may ask of a site's time and memory, if the site does not say otherwise
in its `site.toml`; `classes` is how many there are."""


def is_bounded(option: Option) -> bool:
    """Whether a setting takes numbers, truth values or one of some choices, but no free text."""
    return option.kind is not str or option.choices is not None


OF_CLIENTS = {*METHODS, *HEADS, *NEED_COMMON}
TRAVELS = tuple(
    name
    for name, option in OPTIONS.items()
    if name in FROM_SERVER or (OF_CLIENTS & {*option.owners} and is_bounded(option))
)
"""All that a federation decides for its sites. Of what methods and heads own, it is what cannot be
a path or a program: no free text."""
FEDERATE_SETTINGS = tuple(
    name
    for name in OPTIONS
    if name in TRAVELS or name in OF_THE_SERVER or name not in (*GENERAL, *ATTACK_SETTINGS)
)
"""Settings of a federation: those of its sites, and the server's own."""


def check_allowed(settings: dict[str, object]) -> None:
    """Refuse settings that a site does not take from a server."""
    for name, value in settings.items():
        if name not in TRAVELS:
            raise RepperError(f"it does not let a server set {name}")
        if is_reference(value):
            raise RepperError(f"it does not run code that a server names: {name}")
