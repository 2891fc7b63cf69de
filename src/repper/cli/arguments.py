"""Flags and files of settings, as the command line takes them."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from repper.basics.errors import RepperError
from repper.basics.options import Option
from repper.basics.registry import is_reference
from repper.runs.row import split_name
from repper.settings.config import OPTIONS, options_of_own
from repper.settings.config_file import read_config
from repper.settings.things import KINDS_OF_THINGS

REUSE = "reuse finished trainings with equal settings from this folder of another command"

JSON = "print one line of JSON on stdout, and everything else on stderr"


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RepperError(f"{message} (see {self.prog} --help)")


AddCommand = Callable[[str, str, Callable[[argparse.Namespace], int]], Parser]
"""Adds a command by its name, what it does, and the function that does it."""


def path(text: str) -> Path:
    """A path from the command line; expands `~` also after `=`, where a shell does not."""
    # Unlike that of Path, it leaves `~unknown-user` unchanged.
    return Path(os.path.expanduser(text))  # noqa: PTH111


def add_run_settings(
    parser: Parser,
    names: list[str],
    defaults: Mapping[str, str] | None = None,
    choices: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """Add the flags of every command that trains into a folder."""
    parser.add_argument(
        "--config", type=path, metavar="FILE", help="TOML file of these settings; flags override it"
    )
    add_settings(parser, names, defaults, choices, takes_own=True)
    parser.add_argument("--resume", action="store_true", help="resume what is in the folder")
    parser.add_argument("--overwrite", action="store_true", help="replace what is in the folder")
    parser.add_argument("--json", action="store_true", help=JSON)


def add_settings(
    parser: Parser,
    names: list[str],
    defaults: Mapping[str, str] | None = None,
    choices: Mapping[str, Iterable[str]] | None = None,
    *,
    takes_own: bool = False,
) -> None:
    """Add a flag for each setting; flags not given stay None, so that a TOML file can give them.

    `defaults` and `choices` are what help says where a command has others than `repper run`;
    with `takes_own`, it says that things may be the user's own.
    """
    groups: dict[str, Any] = {}
    for name in names:
        option = OPTIONS[name]
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        known = [*((choices or {}).get(name) or (option.choices() if option.choices else ()))]
        known += ["FILE.py:NAME"] if takes_own and option.takes_own else []
        _add_flag(groups[option.group], name, option, (defaults or {}).get(name), known)


def _add_flag(
    group: Any, name: str, option: Option, default: str | None, known: Iterable[str]
) -> None:
    if option.kind is bool:
        group.add_argument(
            f"--{option.key}", dest=name, action="store_const", const="true", help=option.help
        )
        return
    group.add_argument(
        f"--{option.key}",
        dest=name,
        metavar="|".join(known) or "X",
        help=help_of(option, default),
    )


def help_of(option: Option, default: str | None = None) -> str:
    """The help text of an option, with its default, or with the command's own default."""
    if default is not None:
        return re.sub(r" \(default: .*\)$", "", option.help) + f" (default: {default})"
    return option.help + (f" (default: {option.default})" if option.default is not None else "")


def flags(options: argparse.Namespace) -> dict[str, Any]:
    """The settings given by flags; settings that only the user's own code has are in `own`."""
    found, own = dict[str, Any](), dict[str, Any]()
    own_options: dict[str, Option] = getattr(options, "own_options", {})
    for name, option in (OPTIONS | own_options).items():
        if (text := getattr(options, name, None)) is not None:
            into = found if name in OPTIONS else own
            into[name] = option.parse(text)
    return found | ({"own": own} if own else {})


NAMES_THINGS = {f"--{name}": name for name in KINDS_OF_THINGS} | {"--methods": "methods"}


def own_options(arguments: Sequence[str]) -> dict[str, Option]:
    """The settings of the user's own classes that a command line names."""
    found: dict[str, Option] = {}
    for place, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        kind = NAMES_THINGS.get(flag)
        if kind is None or (not equals and place + 1 == len(arguments)):
            continue
        text = value if equals else arguments[place + 1]
        for row in text.split(",") if kind == "methods" else [text]:
            named = {kind: text}
            if kind == "methods":
                method, _, last = split_name(row)
                named = {"method": method, "personalize": last}
            for name, reference in named.items():
                if is_reference(reference):
                    found |= options_of_own(name, reference)
    return {name: option for name, option in found.items() if name not in OPTIONS}


def add_own(parser: Parser, options: Mapping[str, Option]) -> None:
    """Add flags for the settings of the user's own classes."""
    group = parser.add_argument_group("your own")
    for name, option in options.items():
        _add_flag(group, name, replace(option, name=name, flag=""), None, ())
    parser.set_defaults(own_options=dict(options))


def settings(options: argparse.Namespace, known: Collection[str] | None = None) -> dict[str, Any]:
    """The settings of the TOML file and of flags, which override it; only `known` ones."""
    given = read_config(options.config) if options.config else {}
    if known is not None:
        if not given.get("overrides", True):
            del given["overrides"]
        if strange := sorted(set(given) - set(known)):
            key = OPTIONS[strange[0]].key if strange[0] in OPTIONS else "clients.N"
            raise RepperError(f"{options.config}: {key} is not a setting of this command")
    from_flags = flags(options)
    given = {name: value for name, value in given.items() if name not in from_flags.get("own", {})}
    return given | from_flags


def count(text: str, name: str) -> int:
    """Parse a whole number of at least 1."""
    option = Option("", "", name=name, kind=int, least=1)
    number: int = option.check(option.parse(text))
    return number


def client_number(text: str) -> int:
    """Parse the client number of `--client`."""
    try:
        return int(text)
    except ValueError as error:
        raise RepperError(f"--client must be a whole number, got {text!r}") from error
