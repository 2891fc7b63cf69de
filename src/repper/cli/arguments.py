"""Flags and files of settings, as the command line takes them."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from repper.config import OPTIONS
from repper.config_file import read_config
from repper.errors import RepperError
from repper.options import Option

REUSE = "take trainings of equal settings that are finished in this folder, from another command"


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RepperError(f"{message} (see {self.prog} --help)")


AddCommand = Callable[[str, str, Callable[[argparse.Namespace], int]], Parser]
"""Adds a command by its name, what it does, and the function that does it."""


def path(text: str) -> Path:
    """A path as it was typed; a shell leaves `~` alone after `=`."""
    # Unlike that of Path, it leaves names of nobody as they are.
    return Path(os.path.expanduser(text))  # noqa: PTH111


def add_run_settings(
    parser: Parser,
    names: list[str],
    defaults: Mapping[str, str] | None = None,
    choices: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """What every command takes that trains into a folder."""
    parser.add_argument(
        "--config", type=path, metavar="FILE", help="TOML file of these settings; flags win"
    )
    add_settings(parser, names, defaults, choices)
    parser.add_argument("--resume", action="store_true", help="go on with what is in the folder")
    parser.add_argument("--overwrite", action="store_true", help="replace what is in the folder")
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")


def add_settings(
    parser: Parser,
    names: list[str],
    defaults: Mapping[str, str] | None = None,
    choices: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """A flag for each setting; those not given stay None, so that a TOML file can give them.

    `defaults` and `choices` are what help says where a command has others than `repper run`.
    """
    groups: dict[str, Any] = {}
    for name in names:
        option = OPTIONS[name]
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        if option.kind is bool:
            groups[option.group].add_argument(
                f"--{option.key}", dest=name, action="store_const", const="true", help=option.help
            )
            continue
        known = (choices or {}).get(name) or (option.choices() if option.choices else ())
        groups[option.group].add_argument(
            f"--{option.key}",
            dest=name,
            metavar="|".join(known) or "X",
            help=help_of(option, (defaults or {}).get(name)),
        )


def help_of(option: Option, default: str | None = None) -> str:
    """What an option means, with its default, or the one that a command has instead."""
    if default is not None:
        return re.sub(r" \(default: .*\)$", "", option.help) + f" (default: {default})"
    return option.help + (f" (default: {option.default})" if option.default is not None else "")


def flags(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that flags give."""
    given = {name: getattr(options, name, None) for name in OPTIONS}
    return {name: OPTIONS[name].parse(text) for name, text in given.items() if text is not None}


def settings(options: argparse.Namespace, known: Collection[str] | None = None) -> dict[str, Any]:
    """The settings of a file, and of flags, which win; a file may give only those `known`."""
    given = read_config(options.config) if options.config else {}
    if known is not None:
        if not given.get("overrides", True):
            del given["overrides"]
        if strange := sorted(set(given) - set(known)):
            key = OPTIONS[strange[0]].key if strange[0] in OPTIONS else "clients.N"
            raise RepperError(f"{options.config}: {key} is not a setting of this command")
    return given | flags(options)


def count(text: str, name: str) -> int:
    """A whole number of at least 1."""
    option = Option("", "", name=name, kind=int, least=1)
    number: int = option.check(option.parse(text))
    return number
