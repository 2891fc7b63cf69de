"""The commands `reproduce` (the paper's tables) and `report` (one page about any folders)."""

from __future__ import annotations

import argparse
from pathlib import Path

from repper.basics.errors import RepperError, needs, unknown
from repper.cli.arguments import REUSE, AddCommand, add_settings, count, flags, path
from repper.cli.interrupt import Loading
from repper.cli.show import say
from repper.paper import EXPERIMENTS
from repper.paper.experiment import PRESETS, SETTINGS
from repper.settings.config import Config


def add_commands(add: AddCommand) -> None:
    _add_reproduce(add)
    _add_report(add)


def _add_reproduce(add: AddCommand) -> None:
    reproduce = add(
        "reproduce",
        "run an experiment of the paper, and compare our numbers with the paper's",
        _reproduce,
    )
    reproduce.add_argument(
        "experiment", metavar="|".join(EXPERIMENTS), help="experiment of the paper"
    )
    reproduce.add_argument(
        "--preset", default="small", metavar="|".join(PRESETS),
        help="size of the experiment: paper (for a GPU) or small (for two cores) (default: small)",
    )  # fmt: skip
    reproduce.add_argument(
        "--seeds", default="1", metavar="N", help="number of seeds, starting at 0 (default: 1)"
    )
    reproduce.add_argument(
        "--only", metavar="PART",
        help="run only panels whose names contain these words, such as 'cifar100, mobilenet' of "
        "table4; --resume runs the others later",
    )  # fmt: skip
    reproduce.add_argument(
        "--out", dest="folder", type=path, metavar="DIR",
        help="folder to write to (default: the experiment's and the preset's name, in runs/)",
    )  # fmt: skip
    reproduce.add_argument("--resume", action="store_true", help="resume what is in the folder")
    reproduce.add_argument("--reuse", type=path, metavar="DIR", help=REUSE)
    reproduce.add_argument(
        "--estimate",
        action="store_true",
        help="time some steps, print how long all trainings would take, and exit",
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
                "--estimate is for complete trainings: leave out --reuse and --resume"
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
        "folders",
        nargs="+",
        type=path,
        metavar="FOLDER",
        help="folders of runs, comparisons or reproductions",
    )
    report.add_argument(
        "--out",
        type=path,
        metavar="FILE",
        default="report.html",
        help="HTML file to write (default: report.html)",
    )
    report.add_argument(
        "--no-tsne",
        action="store_true",
        help="leave out the t-SNE pictures and measures of features, which need the images: faster",
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
