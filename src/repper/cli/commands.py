"""The command line. It imports PyTorch only for a command that needs it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from repper import __version__
from repper.cli.arguments import (
    Parser,
    add_run_settings,
    add_settings,
    count,
    flags,
    help_of,
    path,
    settings,
)
from repper.cli.federation import add_commands
from repper.config import JOIN_SETTINGS, OPTIONS, Config
from repper.errors import RepperError, missing_extra, nearest, unknown
from repper.files import check_one_of
from repper.heads import HEADS
from repper.methods import METHODS
from repper.paper import EXPERIMENTS
from repper.paper.experiment import PRESETS

if TYPE_CHECKING:
    from repper.runs.run import Run

JSON_KEYS = (
    "run", "method", "personalize", "rounds", "accuracy", "encoder_digest", "heads_digest",
    "seconds",
)  # fmt: skip
EXAMPLES = """examples:
  repper run
  repper run --data digits --clients 20 --alpha 0.1 --personalize svm --out my-run
  repper run --config my.toml --rounds 50 --resume
  repper compare --methods repper+linear,fedavg,fedavg+finetune --seeds 3
  repper reproduce table2 --preset small --out table2
  repper report my-run --out report.html
  repper join --run my-run --clients 10 --alpha 1 --epochs 100
  repper partition --data digits --alpha 0.1 --out bubbles.png
  repper predict --run my-run --client 7 image.png
"""
JOIN_DEFAULTS = {
    "personalize": "linear",
    "head_curve": "1",
    "seed": "the run's next",
    "train_images": "the run's; all of another data set",
    "partition": "the run's if it deals images; else dirichlet",
    "image_size": "a data set's own, the encoder's for a folder",
}
"""What newcomers do not take from the run as it is."""
REUSE = "take trainings of equal settings that are finished in this folder, from another command"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        return _dispatch(arguments)
    except BrokenPipeError:
        # Whoever read our output has left, as in `repper run | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exc()
        message, code = _explain(error)
        hint = " (--debug shows where)" if code == 1 and not debug else ""
        print(f"repper: {' '.join(message.split())}{hint}", file=sys.stderr)
        return code


def _explain(error: BaseException) -> tuple[str, int]:
    """An error as one sentence, and the exit code that goes with it."""
    if isinstance(error, RepperError):
        return str(error), 2
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; the same command with --resume goes on", 130
    if isinstance(error, OSError):
        name = f": {error.filename}" if error.filename else " while writing the output"
        return f"{error.strerror or error}{name}", 2
    return f"internal error, {type(error).__name__}: {error}", 1


def _dispatch(arguments: list[str]) -> int:
    parser, commands = _parser()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        raise unknown("command", arguments[0], commands)
    options, rest = parser.parse_known_args(arguments)
    if rest:
        known = commands[options.command]._option_string_actions if options.command else ["--help"]
        guess = nearest(rest[0].split("=")[0], known)
        hint = f", did you mean {guess}?" if guess else f" (see {parser.prog} --help)"
        raise RepperError(f"unknown option {rest[0]}{hint}")
    if options.command is None:
        parser.print_help()
        return 0
    check_one_of(getattr(options, "resume", False), getattr(options, "overwrite", False))
    command: Callable[[argparse.Namespace], int] = options.function
    return command(options)


def _parser() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(
        prog="repper",
        description="Federated image classifiers that fit each client.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"repper {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    built: dict[str, Parser] = {}

    def add(name: str, help: str, function: Callable[[argparse.Namespace], int]) -> Parser:
        built[name] = commands.add_parser(
            name, help=help, description=help[0].upper() + help[1:] + ".", allow_abbrev=False
        )
        built[name].set_defaults(function=function)
        built[name].add_argument("--debug", action="store_true", help="show tracebacks")
        return built[name]

    run = add("run", "learn an encoder across clients, then a head for each", _run)
    add_run_settings(run, list(OPTIONS))

    compare = add("compare", "run several methods under equal conditions, into one table", _compare)
    compare.add_argument(
        "--methods", required=True, metavar="ROWS",
        help=f"rows such as repper+linear,fedavg,fedavg+finetune (methods: {', '.join(METHODS)})",
    )  # fmt: skip
    compare.add_argument(
        "--seeds", default="1", metavar="N", help="how many seeds, from --seed on (default: 1)"
    )
    compare.add_argument(
        "--augment-for", metavar="METHOD=LEVEL,...",
        help="another --augment for some methods, such as fedavg=none,fedprox=none",
    )  # fmt: skip
    compare.add_argument("--reuse", type=path, metavar="DIR", help=REUSE)
    add_run_settings(compare, [n for n in OPTIONS if n not in ("method", "personalize")])

    join = add("join", "let clients that a run has never seen fit heads on its encoder", _join)
    join.add_argument(
        "--run", required=True, type=path, metavar="RUN", help="folder of a finished run"
    )
    join.add_argument(
        "--same-clients", action="store_true",
        help="the run's own clients, with a new class mix, instead of new ones",
    )  # fmt: skip
    defaults = {n: JOIN_DEFAULTS.get(n, "the run's") for n in JOIN_SETTINGS if n != "out"}
    join.add_argument(
        "--epochs", dest="epochs_of_heads", metavar="X",
        help=help_of(OPTIONS["head_epochs"], defaults["head_epochs"]),
    )  # fmt: skip
    names = [name for name in JOIN_SETTINGS if name != "head_epochs"]
    add_run_settings(join, names, defaults, {"personalize": HEADS})

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
    add_settings(reproduce, ["data_dir", "download", "engine", "workers", "device"])

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

    add_commands(add)

    partition = add(
        "partition", "divide a data set among clients and draw who holds what", _partition
    )
    chosen = [name for name, option in OPTIONS.items() if option.group == "data"]
    add_settings(partition, [*chosen, "seed"])
    partition.add_argument(
        "--out", dest="file", type=path, metavar="FILE", default="bubbles.png",
        help="a picture (.png, .svg, .pdf) or a manifest for `repper run --partition` (.json)",
    )  # fmt: skip

    predict = add("predict", "classify images with a client's own classifier", _predict)
    predict.add_argument("--run", required=True, type=path, metavar="RUN", help="run folder")
    predict.add_argument("--client", required=True, metavar="N", help="the client's number")
    predict.add_argument("--json", action="store_true", help="print one line of JSON with scores")
    predict.add_argument("images", nargs="+", metavar="IMAGE", help="image files")
    return parser, built


def _run(options: argparse.Namespace) -> int:
    config = Config(**settings(options))
    try:
        from repper.cli.progress import Display, print_results
        from repper.runs.execute import Finished, execute
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "PyTorch", "train", "repper run") from error
    with Display() as display:
        for event in execute(config, resume=options.resume, overwrite=options.overwrite):
            display.show(event)
    if isinstance(event, Finished):
        print_results(event.run)
        _print_json(event.run, options)
    return 0


def _compare(options: argparse.Namespace) -> int:
    config = Config(**settings(options))
    if (config.method, config.personalize) != (OPTIONS["method"].default, None):
        raise RepperError(
            f"{options.config}: a comparison takes its methods from --methods, not from a file"
        )
    seeds = count(options.seeds, "seeds")
    try:
        from repper.cli.progress import Display, print_comparison
        from repper.runs.compare import Compared, compare, rows_of
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "PyTorch", "train", "repper compare") from error
    rows = rows_of(options.methods, options.augment_for)
    with Display() as display:
        for event in compare(
            config, rows, seeds, resume=options.resume, overwrite=options.overwrite,
            reuse=options.reuse,
        ):  # fmt: skip
            display.show(event)
    if isinstance(event, Compared):
        print_comparison(event.comparison)
        if options.json:
            print(json.dumps(event.comparison.as_dict()))
    return 0


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
    try:
        from repper.cli.progress import Display, print_estimates, print_reproduction
        from repper.paper.estimate import estimate
        from repper.paper.events import Reproduced
        from repper.paper.reproduce import reproduce
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "PyTorch", "train", "repper reproduce") from error
    if options.estimate:
        if options.reuse or options.resume:
            raise RepperError("--estimate is of all trainings: leave out --reuse and --resume")
        print_estimates(estimate(experiment, preset, seeds=seeds, how=how))
        return 0
    with Display() as display:
        for event in reproduce(
            experiment, preset, folder, seeds=seeds, resume=options.resume,
            reuse=options.reuse, how=how,
        ):  # fmt: skip
            display.show(event)
    if isinstance(event, Reproduced):
        print_reproduction(event.reproduction)
    return 0


def _report(options: argparse.Namespace) -> int:
    try:
        from repper.report import write_report
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "PyTorch", "train", "repper report") from error
    write_report(options.folders, options.out, tsne=not options.no_tsne)
    print(f"Report: {options.out.resolve().as_uri()}")
    return 0


def _join(options: argparse.Namespace) -> int:
    given = settings(options, JOIN_SETTINGS)
    if options.epochs_of_heads is not None:
        option = replace(OPTIONS["head_epochs"], name="epochs")
        given["head_epochs"] = option.check(option.parse(options.epochs_of_heads))
    Config(**given)  # a wrong value is an error before anything is loaded
    try:
        from repper.cli.progress import Display, print_joined, print_results
        from repper.runs.execute import Finished
        from repper.runs.newcomers import join
        from repper.runs.run import Run
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "PyTorch", "train", "repper join") from error
    with Display() as display:
        for event in join(
            Run(options.run),
            given,
            same_clients=options.same_clients,
            resume=options.resume,
            overwrite=options.overwrite,
        ):
            display.show(event)
    if isinstance(event, Finished):
        print_results(event.run)
        print_joined(event.run)
        _print_json(event.run, options)
    return 0


def _print_json(run: Run, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps({key: run.result[key] for key in JSON_KEYS}))


def _partition(options: argparse.Namespace) -> int:
    file = options.file
    config = Config(**flags(options))
    data = config.load_data()
    partition = config.build_partition(data)
    if file.suffix.lower() == ".json":
        partition.save(file, data)
    else:
        try:
            from repper.plots import bubbles
        except ModuleNotFoundError as error:
            raise missing_extra(error.name or "matplotlib", "train", "drawing") from error
        mix = f", alpha {config.alpha:g}" if config.partition == "dirichlet" else ""
        bubbles(file, data, partition, f"{data.name}, {config.partition}{mix}")
    counts, tested = partition.counts(data)
    sizes, kinds = counts.sum(1), (counts > 0).sum(1)
    print(
        f"{partition.clients} clients with {sizes.min()} to {sizes.max()} training images, "
        f"{tested.sum(1).min()} to {tested.sum(1).max()} test images, "
        f"{kinds.min()} to {kinds.max()} of {len(data.classes)} classes"
    )
    print(f"hash {partition.hash}")
    print(f"written to {file}")
    return 0


def _predict(options: argparse.Namespace) -> int:
    try:
        client = int(options.client)
    except ValueError as error:
        raise RepperError(f"--client must be a whole number, got {options.client!r}") from error
    from repper import open_run

    answers = open_run(options.run).predict_with_scores(client, options.images)
    if options.json:
        rows = [
            {"image": image, "class": name, "scores": scores}
            for image, (name, scores) in zip(options.images, answers, strict=True)
        ]
        print(json.dumps({"client": client, "predictions": rows}))
    else:
        for image, (name, _) in zip(options.images, answers, strict=True):
            print(f"{image}\t{name}")
    return 0
