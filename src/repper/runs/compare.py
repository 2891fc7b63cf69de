"""A fair comparison: several methods on the same partitions, cohorts, initial values and budget.

Every cell of the table is a run folder of its own, so a comparison is resumed cell by cell. Rows
that differ only in what clients do last share one training: their cells point to its folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from repper.basics.documents import read_json, write_json
from repper.basics.errors import RepperError, unknown
from repper.basics.files import check_one_of, check_same
from repper.basics.hardware import resolve_device, resolve_precision
from repper.basics.options import check_kind, checked
from repper.basics.registry import absolute_reference, is_reference, reference_to
from repper.data.dataset import Dataset
from repper.data.partition import read_partition
from repper.engines import ENGINES
from repper.heads.personalize import personalizer_names
from repper.methods import METHODS, Method
from repper.runs import run_folder
from repper.runs.build import build_partition, load_data
from repper.runs.comparison_table import OVER_ROUNDS, TABLE, Comparison
from repper.runs.execute import Event, execute
from repper.runs.plan import plan
from repper.runs.reuse import Trainings, branch, is_trained
from repper.runs.row import CELLS, Row, Settings, row_settings, split_name
from repper.runs.run import Run
from repper.runs.time_left import CellStarted, Work, WorkLeft, trainings_of
from repper.runs.tune import MOST_SEEDS, TUNING, Tuning, choose
from repper.settings.config import Config, check_known
from repper.settings.config_file import read_config, write_config

SETTINGS = "comparison.toml"
TUNED = "tuning.json"
PER_CELL = {"method", "personalize", "seed"}
"""Settings in which the cells of one comparison may differ."""


@dataclass(frozen=True)
class Compared:
    comparison: Comparison


Rowlike = str | Method | tuple[str | Method, str]
"""A row: `fedavg+finetune`, a method as a value, or a method and a personalizer."""


def rows_of(rows: str | Sequence[Rowlike]) -> list[Row]:
    """Rows from `repper+linear,fedavg[augment=weak],fedavg+finetune`."""
    check_kind("methods", rows, str | Sequence, "rows such as 'fedavg+finetune', or a list of rows")
    listed: Sequence[Rowlike] = rows
    if isinstance(rows, str):
        listed = [row.strip() for row in rows.split(",") if row.strip()]
    found: list[Row] = []
    for one in listed:
        row = _row(one)
        if row.name in [other.name for other in found]:
            raise RepperError(f"--methods names {row.name} twice")
        found.append(row)
    if not found:
        raise RepperError("--methods names no method")
    return found


def _row(one: Rowlike) -> Row:
    given, last = one if isinstance(one, tuple) and len(one) == 2 else (one, "")
    check_kind("what a row's clients do last", last, str, "a name")
    settings: Settings = ()
    if isinstance(given, Method):
        method = METHODS.name_of(type(given)) or reference_to(type(given))
        name = type(given).__name__
        kind, value = type(given), given
    else:
        check_kind("a row of a comparison", given, str, "a name or a method")
        name = given
        method, texts, after = split_name(given)
        last = after or last
        if method not in METHODS and not is_reference(method):
            raise unknown("method in --methods", method, METHODS)
        method = absolute_reference(method) if is_reference(method) else method
        kind, value = METHODS[method], None
        settings = row_settings(name, texts)
    last = last or kind.personalize
    if last not in personalizer_names() and not is_reference(last):
        raise unknown(f"personalizer of {name} in --methods", last, personalizer_names())
    return Row(method, last, settings, value)


def compare(
    config: Config,
    rows: Sequence[Row],
    seeds: int,
    data: Dataset | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    reuse: Path | None = None,
    tuning: Tuning | None = None,
) -> Iterator[CellStarted | WorkLeft | Event | Compared]:
    """Run all cells that are not finished, and yield what happens.

    `config` holds what the cells have in common; the seeds are `config.seed` and those after it.
    Trainings that are finished somewhere in the folder `reuse` are not made again. With `tuning`,
    rows first choose settings of their own: a comparison of all tries, in a folder of its own, on
    other seeds and without any test image.
    """
    elsewhere = check_asked(config, seeds, reuse)
    precision = resolve_precision(config.precision, resolve_device(config.device))
    config = replace(config, precision=precision)
    folder = Path(config.out or Path("runs") / f"compare-{config.name()}")
    _check_folder(folder, config, resume=resume, overwrite=overwrite)
    if resume:
        _check_tuning(folder, tuning)
    if overwrite:
        check_kept(folder, config, rows, reuse, tuning)
    data = data or load_data(config)
    check_known(config, [row.config(config, config.seed, folder) for row in rows])
    for row in rows:
        row.check(config)
        plan(row.config(config, config.seed, folder), data)
    tries = tuning.tries_of(rows, config) if tuning else {}
    if tuning:
        tuning_config, apart = tuning.setting_apart(config, folder, data)
        for row in [one for some in tries.values() for one in some]:
            row.check(config)
            plan(row.config(tuning_config, tuning_config.seed, folder), apart)
    hashes = {
        seed: build_partition(replace(config, seed=seed), data).hash
        for seed in range(config.seed, config.seed + seeds)
    }
    work = Work(trainings_of(replace(config, out=str(folder)), rows, seeds, tuning=tuning))
    with run_folder.locked(folder):
        if overwrite:
            _clear(folder)
        if tuning:
            write_json(folder / TUNED, tuning.settings(), indent=None)
        write_config(folder / SETTINGS, config)
        if tuning:
            every = list(dict.fromkeys(one for some in tries.values() for one in some))
            trying = compare(tuning_config, every, tuning.seeds, apart, resume=True, reuse=reuse)
            for event in work.watch(trying):
                if isinstance(event, Compared):
                    found = event.comparison
                yield event
            rows = choose(tries, found)
        cells = [(row, seed) for seed in range(config.seed, config.seed + seeds) for row in rows]
        for number, (row, seed) in enumerate(cells, start=1):
            cell = row.config(config, seed, folder)
            target = row.cell(folder, seed)
            if Run(target).finished:
                _check_same_images(target, data, hashes[seed])
                run_folder.check_init(target, cell)
                continue
            # With --evaluate-every, heads may choose the round: each row trains itself.
            # So does a row whose own rounds decide the noise.
            alone = config.evaluate_every or (cell.epsilon is not None and cell.noise is None)
            planned = plan(cell, data)
            if alone or (target / run_folder.CONFIG).is_file():  # or it was begun alone
                training = planned.training
            else:
                training = folder / run_folder.TRAININGS / planned.name_of_training
            trained = training != target and is_trained(training, planned.rounds)
            own = None if alone or trained else _trained(rows, row, seed, folder)
            taken, damaged = None, list[str]()
            if elsewhere and not (own or trained):
                taken, damaged = elsewhere.find(cell, data, hashes[seed])
            if source := own or taken:
                branch(source, training, elsewhere=source is taken)
            started = CellStarted(
                row, seed, number, len(cells), trained or source is not None, taken is not None,
                () if source else tuple(damaged),
            )  # fmt: skip
            if training != target and not (target / run_folder.CONFIG).is_file():
                shutil.rmtree(target, ignore_errors=True)  # what is left of a cell: heads, perhaps
            running = execute(cell, data, resume=True, training=training)
            yield from work.watch(chain([started], running))
            if so_far := Comparison.of(folder, config, rows, seeds):
                so_far.write()  # what there is of it can be read before all is done
        comparison = Comparison.of(folder, config, rows, seeds)
        if comparison is None or comparison.so_far:
            raise RepperError(f"runs are missing in {folder}: give the command again with --resume")
        comparison.write()
        yield Compared(comparison)


def check_asked(config: Config, seeds: int, reuse: Path | None) -> Trainings | None:
    """Refuse what no comparison can do, before anything is written; open what is to be reused."""
    if config.overrides:
        raise RepperError("a comparison gives all clients the same head: leave out [clients.N]")
    seeds = checked("seeds", seeds, int)
    if not 1 <= seeds <= MOST_SEEDS:
        raise RepperError(f"--seeds must be 1 to {MOST_SEEDS}, got {seeds}")
    resolve_device(config.device)
    _ = ENGINES[config.engine]  # it may not be installed
    if reuse is not None and config.evaluate_every:
        raise RepperError(
            "--reuse takes finished trainings, whose earlier rounds cannot be evaluated any more: "
            "leave out --evaluate-every"
        )
    return Trainings(reuse) if reuse is not None else None


def _trained(rows: Sequence[Row], row: Row, seed: int, folder: Path) -> Path | None:
    """A finished run with the training that this cell needs, if there is one."""
    for other in rows:
        path = other.cell(folder, seed)
        if other.training == row.training and Run(path).finished:
            return path
    return None


def check_kept(
    folder: Path, config: Config, rows: Sequence[Row], reuse: Path | None, tuning: Tuning | None
) -> None:
    """Refuse to delete files that the comparison in a folder starts from."""
    tried = (
        [one for some in tuning.tries_of(rows, config).values() for one in some] if tuning else []
    )
    inits = {config.init, *(dict(row.settings).get("init") for row in (*rows, *tried))}
    manifest = config.partition if config.partition.endswith(".json") else None
    used = [("--reuse", reuse), ("--partition", manifest), *(("--init", one) for one in inits)]
    gone = {(folder / name).resolve() for name in (CELLS, run_folder.TRAININGS, TUNING)}
    for flag, path in used:
        if path is None:
            continue
        own = Path(path).resolve()
        if own == folder.resolve() or gone & {own, *own.parents}:
            raise RepperError(
                f"--overwrite would delete what {flag} {path} needs: choose another --out"
            )


def _clear(folder: Path) -> None:
    """Remove what a comparison has written, its tables first."""
    for path in (*folder.glob(f"{TABLE}.*"), folder / OVER_ROUNDS):
        path.unlink(missing_ok=True)
    for path in (folder / CELLS, folder / run_folder.TRAININGS, folder / TUNING):
        if path.exists():
            shutil.rmtree(path)
    (folder / TUNED).unlink(missing_ok=True)  # last: until then the folder is what it was


def _check_same_images(cell: Path, data: Dataset, partition: str) -> None:
    """Refuse to put cells with different images or partitions into one table."""
    if read_partition(cell / run_folder.PARTITION, data).hash != partition:
        raise RepperError(f"{cell} was made with another partition: choose another --out")


def _check_folder(folder: Path, config: Config, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that this comparison may not be written to; write nothing."""
    check_one_of(resume, overwrite)
    if (folder / SETTINGS).is_file():
        earlier = Config(**read_config(folder / SETTINGS))  # else it is not ours to replace
        if overwrite:
            return
        if not resume:
            raise RepperError(
                f"{folder} already holds a comparison: add --resume to go on with it, "
                f"--overwrite to replace it, or choose another --out"
            )
        check_same(folder, "comparison", _common(earlier), _common(config))
    elif run_folder.holds_more(folder):
        raise RepperError(f"--out {folder} is not empty and holds no comparison: choose another")


def _check_tuning(folder: Path, tuning: Tuning | None) -> None:
    """Refuse to resume a comparison with other tuning than it was begun with."""
    if not (folder / SETTINGS).is_file():
        return
    before = read_json(folder / TUNED) if (folder / TUNED).is_file() else None
    now = tuning.settings() if tuning else None
    if before != now:
        was, given = (
            "with [tuning] " + str(one) if one else "without --tune" for one in (before, now)
        )
        raise RepperError(
            f"{folder} was begun {was}, but this command is {given}: choose another --out"
        )


def _common(config: Config) -> Mapping[str, object]:
    return config.in_common(PER_CELL)
