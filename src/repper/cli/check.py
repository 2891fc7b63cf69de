"""The command `check`: list all faults of a folder of images."""

from __future__ import annotations

import argparse

from repper.basics.errors import RepperError
from repper.cli.arguments import AddCommand, path
from repper.cli.show import say


def add_commands(add: AddCommand) -> None:
    check = add("check", "list all faults of a folder of images at once", _check)
    check.add_argument("folder", type=path, metavar="FOLDER", help="folder of images, <class>/*")
    check.add_argument(
        "--by-client", action="store_true",
        help="the folder has one subfolder per client, <client>/<class>/*, as for --partition "
        "folders",
    )  # fmt: skip


def _check(options: argparse.Namespace) -> int:
    from repper.data.check import check_images

    found = check_images(options.folder, by_client=options.by_client)
    whose = f" of {found.clients} clients" if options.by_client else ""
    say(f"{found.images} readable images of {len(found.classes)} classes{whose}")
    if found.passed.over:
        say(found.passed)
    for fault in found.faults:
        say(f"fault: {fault}")
    if found.faults:
        count = "1 fault" if len(found.faults) == 1 else f"{len(found.faults)} faults"
        raise RepperError(f"{options.folder} has {count}")
    return 0
