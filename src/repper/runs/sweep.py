"""A comparison at several values of one setting, and the table over them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repper.basics.documents import read_json, write_covered
from repper.basics.errors import RepperError, unknown
from repper.basics.files import check_one_of
from repper.basics.table import Column, Number, Table, gain, places
from repper.data.dataset import Dataset
from repper.runs import run_folder
from repper.runs.build import build_partition, load_data
from repper.runs.compare import PER_CELL, SETTINGS, Compared, check_kept, compare
from repper.runs.comparison_table import Comparison
from repper.runs.execute import Event
from repper.runs.plan import plan
from repper.runs.row import Row, folder_name
from repper.runs.time_left import CellStarted, Work, WorkLeft, trainings_of
from repper.runs.tune import Tuning
from repper.settings.config import CHANGES_NOTHING, OPTIONS, Config

SWEEP = "sweep"


@dataclass(frozen=True)
class Sweep:
    """Comparisons by the value of a setting."""

    folder: Path
    setting: str
    found: Mapping[Any, Comparison]

    def table(self) -> Table:
        """Accuracy of every row (without the settings it chose) at every value."""
        key = OPTIONS[self.setting].key
        values = [Column(f"{key} {value}", beside=("difference",)) for value in self.found]
        cells = [self._column(found) for found in self.found.values()]
        rows = zip(self._rows(), *cells, strict=True)
        return Table.of(["row", *values], rows, caption=self._caption())

    def _rows(self) -> list[str]:
        """The rows as they were given: the settings each chose may differ from value to value."""
        return [line.asked for line in next(iter(self.found.values())).lines]

    def _column(self, found: Comparison) -> list[Number]:
        ranks, column = places(line.accuracy for line in found.lines), []
        for line in found.lines:
            more = gain(line.difference, line.low, line.high)
            column.append(
                Number(
                    line.accuracy,
                    deviation=line.deviation,
                    rank=ranks.get(line.accuracy),
                    beside=() if line.difference is None else (more,),
                )
            )
        return column

    def _caption(self) -> str:
        first = next(iter(self.found.values()))
        to = next(line.asked for line in first.lines if line.row == first.reference)
        return (
            f"Accuracy in %, mean over clients; of each column the best bold, the second "
            f"underlined; in brackets the paired difference to {to} with its 95 % interval. Every "
            f"column is a comparison of its own, with its table in its folder."
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "setting": self.setting,
            "values": list(self.found),
            "folders": [found.folder.name for found in self.found.values()],
            "comparisons": [found.as_dict() for found in self.found.values()],
        }

    def write(self) -> None:
        table = self.table()
        texts = {
            f"{SWEEP}.md": f"{table.markdown()}\n\n{table.caption}\n",
            f"{SWEEP}.csv": table.csv(),
            f"{SWEEP}.tex": table.latex(),
        }
        write_covered(self.folder / f"{SWEEP}.json", self.as_dict(), texts)


@dataclass(frozen=True)
class SweepStep:
    """The comparison at a value begins."""

    setting: str
    value: Any
    number: int
    values: int


@dataclass(frozen=True)
class Swept:
    sweep: Sweep


def asked_for(text: str) -> tuple[str, list[Any]]:
    """The setting and its values in `alpha=0.1,0.5,1`."""
    key, equals, listed = text.partition("=")
    name = key.strip().replace("-", "_")
    texts = [one.strip() for one in listed.split(",") if one.strip()]
    if not equals or not texts:
        raise RepperError(f"--sweep takes setting=value,value,.. such as alpha=0.1,1, got {text!r}")
    fixed = {*PER_CELL, *CHANGES_NOTHING}
    if name not in OPTIONS or name in fixed:
        known = [option.key for one, option in OPTIONS.items() if one not in fixed]
        raise unknown("setting in --sweep", key, known)
    values = [OPTIONS[name].check(OPTIONS[name].parse(one)) for one in texts]
    if len(set(values)) < len(values):
        raise RepperError(f"--sweep {text} has a value twice")
    return name, values


def sweep(
    config: Config,
    rows: Sequence[Row],
    seeds: int,
    setting: str,
    values: Sequence[Any],
    data: Dataset | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    reuse: Path | None = None,
    tuning: Tuning | None = None,
) -> Iterator[SweepStep | CellStarted | WorkLeft | Event | Compared | Swept]:
    """Run a comparison at every value, each in a folder of its own, and yield what happens."""
    if config.setting(setting) not in (OPTIONS[setting].default, None):
        raise RepperError(f"--{OPTIONS[setting].key} is given twice: for itself, and in --sweep")
    tried = (
        [one for some in tuning.tries_of(rows, config).values() for one in some] if tuning else []
    )
    for row in (*rows, *tried):
        if setting in dict(row.settings):
            key = OPTIONS[setting].key
            raise RepperError(f"{row.name} sets {key}, which --sweep sets for every row")
    folder = Path(config.out or Path("runs") / f"sweep-{setting}-{config.name()}")
    _check_folder(folder, setting, resume=resume, overwrite=overwrite)
    parts = {value: _at(config, setting, value, folder) for value in values}
    for part in parts.values():  # before the first one trains
        _check_value(part, rows, seeds, data)
    _check_used(setting, [row.config(part, 0, folder) for part in parts.values() for row in rows])
    if overwrite:
        for name in _earlier(folder):
            check_kept(folder / name, config, rows, reuse, tuning)
        if reuse is not None and folder.resolve() == reuse.resolve():
            raise RepperError(
                f"--overwrite would delete what --reuse {reuse} needs: choose another --out"
            )
        _clear(folder)
    found: dict[Any, Comparison] = {}
    work = Work(
        one for part in parts.values() for one in trainings_of(part, rows, seeds, tuning=tuning)
    )
    for number, (value, part) in enumerate(parts.items(), start=1):
        yield SweepStep(setting, value, number, len(values))
        running = compare(
            part, rows, seeds, data,
            resume=resume, overwrite=overwrite, reuse=reuse, tuning=tuning,
        )  # fmt: skip
        for event in work.watch(running):
            if isinstance(event, Compared):
                found[value] = event.comparison
            yield event
        done = Sweep(folder, setting, dict(found))
        done.write()  # what there is of it can be read before all is done
    yield Swept(done)


def _at(config: Config, setting: str, value: Any, folder: Path) -> Config:
    """The settings of the comparison at a value."""
    own = {**config.own, setting: value} if OPTIONS[setting].owners else config.own
    general = {} if OPTIONS[setting].owners else {setting: value}
    out = folder / folder_name(f"{OPTIONS[setting].key}={value}")
    return replace(config, own=own, **general, out=str(out))


def _check_value(config: Config, rows: Sequence[Row], seeds: int, data: Dataset | None) -> None:
    """Refuse a value with which a run could not start."""
    data = data or load_data(config)
    for row in rows:
        row.check(config)
        plan(row.config(config, config.seed, Path(str(config.out))), data)
    for seed in range(config.seed, config.seed + seeds):
        build_partition(replace(config, seed=seed), data)


def _check_used(setting: str, runs: Sequence[Config]) -> None:
    """Refuse to sweep a setting that changes nothing in any run."""
    owners = OPTIONS[setting].owners
    if owners and not any(setting in run.in_use() for run in runs):
        raise RepperError(
            f"--sweep {OPTIONS[setting].key} would change nothing: it is for {', '.join(owners)}"
        )
    kind = {"alpha": "dirichlet", "classes_per_client": "shards"}.get(setting)
    if kind and all(run.partition != kind for run in runs):
        raise RepperError(
            f"--sweep {OPTIONS[setting].key} would change nothing: it is for --partition {kind}"
        )


def _earlier(folder: Path) -> list[str]:
    """The folders of an earlier sweep's comparisons, also at values that are not asked for now."""
    if not (folder / f"{SWEEP}.json").is_file():
        return []
    names = read_json(folder / f"{SWEEP}.json").get("folders", [])
    return [name for name in names if (folder / name / SETTINGS).is_file()]


def _clear(folder: Path) -> None:
    for name in _earlier(folder):
        shutil.rmtree(folder / name)


def _check_folder(folder: Path, setting: str, *, resume: bool, overwrite: bool) -> None:
    check_one_of(resume, overwrite)
    if (folder / f"{SWEEP}.json").is_file():
        kept = read_json(folder / f"{SWEEP}.json")
        before = kept.get("setting") if isinstance(kept, dict) else None
        if before != setting:
            raise RepperError(f"{folder} holds a sweep over {before}: choose another --out")
        if not (resume or overwrite):
            raise RepperError(
                f"{folder} already holds a sweep: add --resume to go on with it, --overwrite to "
                f"replace it, or choose another --out"
            )
    elif run_folder.holds_more(folder) and not any(folder.glob(f"{OPTIONS[setting].key}=*")):
        raise RepperError(f"--out {folder} is not empty and holds no sweep: choose another")
