"""The commands about the paper's tables, and the page about anything: `reproduce`, `report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from repper.cli.arguments import REUSE, AddCommand, add_settings, count, flags, path
from repper.cli.interrupt import Loading
from repper.cli.show import say
from repper.config import Config
from repper.errors import RepperError, needs, unknown
from repper.paper import EXPERIMENTS
from repper.paper.experiment import PRESETS, SETTINGS


def add_commands(add: AddCommand) -> None:
    _add_reproduce(add)
    _add_report(add)


def _add_reproduce(add: AddCommand) -> None:
    reproduce = add("reproduce", "run a table of the paper, and put ours beside it", _reproduce)
    reproduce.add_argument("experiment", metavar="|".join(EXPERIMENTS), help="which one")
    reproduce.add_argument(
        "--preset", default="small", metavar="|".join(PRESETS),
        help="the paper's own setting, for a GPU, or one for two cores (default: small)",
    )  # fmt: skip
    reproduce.add_argument(
        "--seeds", default="1", metavar="N", help="how many seeds, from 0 on (default: 1)"
    )
    reproduce.add_argument(
        "--only", metavar="PART",
        help="a part of it, by words of its lines' names, such as 'cifar100, mobilenet' of table4; "
        "the rest stays for --resume",
    )  # fmt: skip
    reproduce.add_argument(
        "--out", dest="folder", type=path, metavar="DIR",
        help="folder to write to (default: runs/ and a name made from the table's and preset's)",
    )  # fmt: skip
    reproduce.add_argument("--resume", action="store_true", help="go on with what is in the folder")
    reproduce.add_argument("--reuse", type=path, metavar="DIR", help=REUSE)
    reproduce.add_argument(
        "--estimate",
        action="store_true",
        help="only time some steps, and say what all trainings would take",
    )
    add_settings(reproduce, ["data_dir", "download", "engine", "workers", "device", "track"])


def _reproduce(options: argparse.Namespace) -> int:
    for name, known in (("experiment", EXPERIMENTS), ("preset", PRESETS)):
        if getattr(options, name) not in known:
            raise unknown(name, getattr(options, name), known)
    experiment = EXPERIMENTS[options.experiment]()
    preset = PRESETS[options.preset]
    seeds = count(options.seeds, "seeds")
    folder = options.folder or Path("runs") / f"{experiment.name}-{preset.name}"
    how = flags(options)
    Config(**how)
    with Loading(), needs("train", "repper reproduce"):
        from repper.cli.progress import Display
        from repper.cli.results import print_estimates, print_reproduction
        from repper.paper.estimate import estimate
        from repper.paper.events import Reproduced
        from repper.paper.reproduce import reproduce
    if options.estimate:
        if options.reuse or options.resume:
            raise RepperError(
                "--estimate is of trainings from their start: leave out --reuse and --resume"
            )
        found = estimate(experiment, preset, seeds=seeds, only=options.only, how=how)
        part = f" ({options.only})" if options.only else ""
        print_estimates(f"{experiment.name}{part}", found)
        return 0
    with Display() as display:
        for event in reproduce(
            experiment, preset, folder, seeds=seeds, only=options.only,
            resume=options.resume, reuse=options.reuse, how=how,
        ):  # fmt: skip
            display.show(event)
    if isinstance(event, Reproduced):
        print_reproduction(event.reproduction)
    return 0


def _add_report(add: AddCommand) -> None:
    report = add("report", "write one page about runs, comparisons or reproductions", _report)
    report.add_argument(
        "folders", nargs="+", type=path, metavar="FOLDER", help="what was --out of those"
    )
    report.add_argument(
        "--out", type=path, metavar="FILE", default="report.html", help="the page to write"
    )
    report.add_argument(
        "--no-tsne",
        action="store_true",
        help="leave out what needs the images, pictures of features and their numbers: quicker",
    )


def _report(options: argparse.Namespace) -> int:
    with Loading(), needs("train", "repper report"):
        from repper.paper.chapter import chapter_of
        from repper.report import write_report
    sources = [
        chapter_of(folder) if (folder / SETTINGS).is_file() else folder
        for folder in options.folders
    ]
    write_report(sources, options.out, tsne=not options.no_tsne)
    say(f"Report: {options.out.resolve().as_uri()}")
    return 0
