"""The command `completion`: shell completion scripts for `repper`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping

from repper.basics.errors import unknown
from repper.cli.arguments import AddCommand, Parser, path

SHELLS = {
    "bash": "~/.local/share/bash-completion/completions/repper",
    "zsh": "_repper in a folder of your fpath",
    "fish": "~/.config/fish/completions/repper.fish",
}
"""Where each shell looks for what it completes."""


def add_commands(
    add: AddCommand, parser: Callable[[], tuple[Parser, Mapping[str, Parser]]]
) -> None:
    """Add the command; `parser` makes the parsers of all commands."""

    def complete(options: argparse.Namespace) -> int:
        if options.shell not in SHELLS:
            raise unknown("shell", options.shell, SHELLS)
        sys.stdout.write(completion(*parser(), options.shell) + "\n")
        return 0

    places = "; ".join(f"{shell}: {place}" for shell, place in SHELLS.items())
    command = add("completion", "print a shell completion script for `repper`", complete)
    command.add_argument(
        "shell", metavar="|".join(SHELLS), help=f"shell; write the script to {places}"
    )


def each_parser(commands: Mapping[str, Parser]) -> Iterator[Parser]:
    """The parsers of all commands, and of what commands such as `repper runs` do."""
    for command in commands.values():
        yield command
        for action in command._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from each_parser(action.choices)


def completion(parser: Parser, commands: Mapping[str, Parser], shell: str) -> str:
    """The completion script of a shell: commands, flags, known values, and files."""
    import shtab

    for command in each_parser(commands):
        for action in command._actions:
            if isinstance(action.metavar, str) and "|" in action.metavar:
                # What help shows to choose from. It only offers: other values are taken as well.
                action.choices = [name for name in action.metavar.split("|") if name.islower()]
            elif action.type is path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    script: str = shtab.complete(parser, shell=shell)
    return script
