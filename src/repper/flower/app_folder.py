"""The app folder that `flwr run` takes: all of it is written from repper's own settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

from repper.basics.files import write_atomically
from repper.settings.config import OPTIONS

OF_THE_FEDERATION: dict[str, Any] = {
    "sites": "", "classes": "", "round-timeout": 0.0, "min-cohort": 0,
    "resume": False, "overwrite": False,
}  # fmt: skip
"""Keys of a run's configuration that are no settings of `repper run`, with their defaults."""


def write_app(folder: Path) -> None:
    """The app folder that `flwr run` takes, with every setting of `repper run` in its config."""
    config = dict(OF_THE_FEDERATION)
    for option in OPTIONS.values():
        # Methods and heads may have different defaults: a setting not given is left empty.
        left = option.default is None or option.owners
        config[option.key] = "" if left else option.default
    project = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": "repper-app", "version": "1.0.0",
            "description": "Federated image classifiers that fit each client",
            "license": {"file": "LICENSE"},
            "dependencies": ["flwr>=1.41,<1.43", "repper[train,flower]"],
        },
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {
                "app": {
                    "publisher": "repper", "fab-format-version": 1,
                    "flwr-version-target": "1.41.0",
                    "components": {
                        "serverapp": "repper_app:server", "clientapp": "repper_app:client",
                    },
                    "config": config,
                }
            },
        },
    }  # fmt: skip
    (folder / "repper_app").mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "pyproject.toml", tomli_w.dumps(project))
    write_atomically(
        folder / "LICENSE", "Apache License 2.0, https://www.apache.org/licenses/LICENSE-2.0\n"
    )
    write_atomically(
        folder / "repper_app" / "__init__.py",
        '"""What Flower starts; everything is in repper itself."""\n\n'
        "from repper.flower.entry_points import client, server\n\n"
        '__all__ = ["client", "server"]\n',
    )
