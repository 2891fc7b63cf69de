"""The command `repper verify`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from repper.basics.errors import RepperError
from repper.cli.arguments import AddCommand, path
from repper.cli.show import say


def add_commands(add: AddCommand) -> None:
    verify = add("verify", "check every file of a run, comparison, model or export", _verify)
    verify.add_argument(
        "folder",
        type=path,
        metavar="FOLDER",
        help="folder written by a command, or an exported file",
    )
    verify.add_argument(
        "--json", action="store_true", help="print one line of JSON at the end of stdout"
    )


def _verify(options: argparse.Namespace) -> int:
    from repper.checks import verify
    from repper.checks.check import WRONG

    found = []
    for one in verify(options.folder):
        say(" ".join(str(one).split()))
        found.append(one)
    wrong = [one for one in found if one.status == WRONG]
    if options.json:
        checks = [asdict(one) for one in found]
        say(json.dumps({"verified": str(options.folder), "ok": not wrong, "checks": checks}))
    if wrong:
        raise RepperError(f"{len(wrong)} of {len(found)} checks of {options.folder} failed")
    return 0
