"""The commands about runs: `run`, `compare`, `join` and `partition`."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from repper.basics.errors import RepperError, needs
from repper.cli.arguments import (
    REUSE,
    AddCommand,
    add_run_settings,
    add_settings,
    count,
    flags,
    help_of,
    path,
    settings,
)
from repper.cli.interrupt import Loading
from repper.cli.show import say
from repper.engines.processes import warm_up
from repper.heads import HEADS
from repper.methods import METHODS
from repper.runs.build import build_partition, load_data
from repper.settings.config import JOIN_SETTINGS, OPTIONS, Config
from repper.settings.things import STAGE2

if TYPE_CHECKING:
    from repper.runs.run import Run

JSON_KEYS = (
    "run", "method", "personalize", "rounds", "accuracy", "encoder_digest", "heads_digest",
    "seconds",
)  # fmt: skip
JOIN_DEFAULTS = {
    "personalize": "linear",
    "head_curve": "1",
    "seed": "the run's seed plus 1",
    "train_images": "the run's; all images of another data set",
    "partition": "the run's if it is dirichlet, iid or shards on the same data set, else dirichlet",
    "image_size": "the data set's size, or the encoder's for a folder",
}
"""What newcomers do not take from the run as it is."""


def add_commands(add: AddCommand) -> None:
    _add_run(add)
    _add_compare(add)
    _add_join(add)
    _add_partition(add)


def _add_run(add: AddCommand) -> None:
    run = add("run", "train an encoder across clients, then fit a head for each client", _run)
    add_run_settings(run, list(OPTIONS))


def _run(options: argparse.Namespace) -> int:
    given = settings(options)
    config = Config(**given)
    with Loading(), needs("train", "repper run"):
        warm_up(config.engine)
        from repper.cli.progress import Display
        from repper.cli.results import print_results
        from repper.cli.unused_settings import say_what_is_idle
        from repper.runs.execute import Finished, execute
    say_what_is_idle(given, [config])
    with Display() as display:
        for event in execute(config, resume=options.resume, overwrite=options.overwrite):
            display.show(event)
    if isinstance(event, Finished):
        print_results(event.run, stderr=options.json)
        _print_json(event.run, options)
    return 0


def _add_compare(add: AddCommand) -> None:
    compare = add(
        "compare", "compare several methods under equal conditions in one table", _compare
    )
    compare.add_argument(
        "--methods", required=True, metavar="ROWS",
        help=f"rows of the table, such as repper+linear,fedavg,fedavg+finetune; settings of one "
        f"row in brackets, 'fedavg[lr=0.01 augment=weak]+finetune' (methods: "
        f"{', '.join(METHODS)})",
    )  # fmt: skip
    compare.add_argument(
        "--seeds", default="1", metavar="N", help="number of seeds, starting at --seed (default: 1)"
    )
    compare.add_argument(
        "--tune", type=path, metavar="FILE",
        help="TOML file of hyperparameters to try: each row chooses from equally many tries, on "
        "held-out training images",
    )  # fmt: skip
    compare.add_argument(
        "--sweep", metavar="SETTING=V,V,..",
        help="one comparison per value of a setting, such as alpha=0.1,0.5,1",
    )  # fmt: skip
    compare.add_argument("--reuse", type=path, metavar="DIR", help=REUSE)
    add_run_settings(compare, [n for n in OPTIONS if n not in ("method", "personalize")])


def _compare(options: argparse.Namespace) -> int:
    given = settings(options)
    config = Config(**given)
    if (config.method, config.personalize) != (OPTIONS["method"].default, None):
        raise RepperError(
            f"{options.config}: a comparison takes its methods from --methods, not from a file"
        )
    seeds = count(options.seeds, "seeds")
    with Loading(), needs("train", "repper compare"):
        warm_up(config.engine)
        from repper.cli.progress import Display
        from repper.cli.results import print_comparison, print_sweep
        from repper.cli.unused_settings import say_what_is_idle
        from repper.runs.compare import Compared, compare, rows_of
        from repper.runs.sweep import Swept, asked_for, sweep
        from repper.runs.tune import read_tuning
    rows = rows_of(options.methods)
    say_what_is_idle(given, [row.config(config, config.seed, Path()) for row in rows])
    how = {
        "resume": options.resume, "overwrite": options.overwrite, "reuse": options.reuse,
        "tuning": read_tuning(options.tune) if options.tune else None,
    }  # fmt: skip
    with Display() as display:
        for event in (
            sweep(config, rows, seeds, *asked_for(options.sweep), **how)
            if options.sweep
            else compare(config, rows, seeds, **how)
        ):
            display.show(event)
    if isinstance(event, Compared):
        print_comparison(event.comparison, stderr=options.json)
    elif isinstance(event, Swept):
        print_sweep(event.sweep, stderr=options.json)
    if isinstance(event, Compared | Swept) and options.json:
        found = event.comparison if isinstance(event, Compared) else event.sweep
        say(json.dumps(found.as_dict()))
    return 0


def _add_join(add: AddCommand) -> None:
    join = add("join", "fit heads of new clients on the encoder of a run", _join)
    join.add_argument(
        "--run", required=True, type=path, metavar="RUN", help="folder of a finished run"
    )
    join.add_argument(
        "--same-clients", action="store_true",
        help="take the run's own clients, with a new class mix, instead of new clients",
    )  # fmt: skip
    defaults = {n: JOIN_DEFAULTS.get(n, "the run's") for n in JOIN_SETTINGS if n != "out"}
    join.add_argument(
        "--epochs", dest="epochs_of_heads", metavar="X",
        help=help_of(OPTIONS["head_epochs"], defaults["head_epochs"]),
    )  # fmt: skip
    names = [name for name in JOIN_SETTINGS if name != "head_epochs"]
    add_run_settings(join, names, defaults, {"personalize": HEADS})


def _join(options: argparse.Namespace) -> int:
    given = settings(options, JOIN_SETTINGS)
    if options.epochs_of_heads is not None:
        option = replace(OPTIONS["head_epochs"], name="epochs")
        given["head_epochs"] = option.check(option.parse(options.epochs_of_heads))
    Config(**given)  # a wrong value is an error before anything is loaded
    with Loading(), needs("train", "repper join"):
        from repper.cli.progress import Display
        from repper.cli.results import print_joined, print_results
        from repper.cli.unused_settings import say_what_is_idle
        from repper.runs.execute import Finished
        from repper.runs.newcomers import join
        from repper.runs.run import Run
    heads = [name for name in given if OPTIONS[name].group == STAGE2]
    say_what_is_idle(heads, [Config(**{"personalize": "linear", **given})])
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
        print_results(event.run, stderr=options.json)
        print_joined(event.run, stderr=options.json)
        _print_json(event.run, options)
    return 0


def _print_json(run: Run, options: argparse.Namespace) -> None:
    if options.json:
        result = run.result
        keys = (*JSON_KEYS, "attack") if "attack" in result else JSON_KEYS
        say(json.dumps({key: result[key] for key in keys}))


def _add_partition(add: AddCommand) -> None:
    partition = add(
        "partition",
        "divide a data set among clients and draw which classes each client has",
        _partition,
    )
    chosen = [name for name, option in OPTIONS.items() if option.group == "data"]
    add_settings(partition, [*chosen, "seed"])
    partition.add_argument(
        "--out", dest="file", type=path, metavar="FILE", default="bubbles.png",
        help="file to write: a picture (.png, .svg, .pdf) or a manifest for `repper run "
        "--partition` (.json)",
    )  # fmt: skip


def _partition(options: argparse.Namespace) -> int:
    file = options.file
    config = Config(**flags(options))
    data = load_data(config)
    partition = build_partition(config, data)
    if file.suffix.lower() == ".json":
        partition.save(file, data)
    else:
        with Loading(), needs("train", "drawing"):
            from repper.figures.plots import bubbles
        mix = f", alpha {config.alpha:g}" if config.partition == "dirichlet" else ""
        bubbles(file, data, partition, f"{data.name}, {config.partition}{mix}")
    counts, tested = partition.counts(data)
    sizes, kinds = counts.sum(1), (counts > 0).sum(1)
    say(
        f"{partition.clients} clients with {sizes.min()} to {sizes.max()} training images, "
        f"{tested.sum(1).min()} to {tested.sum(1).max()} test images, "
        f"{kinds.min()} to {kinds.max()} of {len(data.classes)} classes"
    )
    say(f"hash {partition.hash}")
    say(f"written to {file}")
    return 0
