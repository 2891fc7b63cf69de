"""The subjects of a report: runs by row, read from a run, a comparison or a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from repper.basics.documents import read_json
from repper.basics.errors import RepperError
from repper.data.partition import KINDS
from repper.runs.compare import SETTINGS as COMPARISON
from repper.runs.comparison_table import TABLE, Comparison
from repper.runs.row import Row
from repper.runs.run import Run
from repper.runs.run_folder import CONFIG, PARTITION, read_manifest, read_run_config
from repper.runs.sweep import SWEEP
from repper.settings.config import CHANGES_NOTHING, JOIN_SETTINGS, OPTIONS, Config
from repper.settings.config_file import read_config

CHANGED_BY_JOIN = {"seed", "head_curve", "personalize"}
"""Settings of `repper join` that, when not given, are not taken from the run."""


@dataclass(frozen=True)
class Subject:
    """Runs that are shown together: by row, one per seed. A single run is a row of its own."""

    title: str
    rows: dict[Row, list[Run]]
    comparison: Comparison | None
    command: str

    @property
    def first(self) -> Run:
        return next(iter(self.rows.values()))[0]

    @property
    def names(self) -> list[str]:
        """Those of its rows."""
        return [row.name for row in self.rows]

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.comparison.seeds if self.comparison else (self.first.config.seed,)


def subjects_of(folder: Path) -> list[Subject]:
    """Read a folder: a run, a comparison, or the comparisons of a sweep."""
    name = folder.resolve().name
    if (folder / f"{SWEEP}.json").is_file():
        inside = read_json(folder / f"{SWEEP}.json")["folders"]
        return [subject_of_comparison(folder / one, one.replace("=", " ")) for one in inside]
    if (folder / COMPARISON).is_file():
        return [subject_of_comparison(folder, name)]
    if (folder / CONFIG).is_file():
        run = Run(folder)
        _ = run.result  # a run that is not finished is refused
        row = Row.named(f"{run.result['method']}+{run.result['personalize']}")
        return [Subject(name, {row: [run]}, None, command_of("run", run.config, folder))]
    raise RepperError(f"{folder} holds no results: give a folder that was --out")


def subject_of_comparison(folder: Path, title: str) -> Subject:
    if not (folder / f"{TABLE}.json").is_file():
        raise RepperError(f"no run of the comparison in {folder} is finished yet")
    comparison = Comparison.open(folder)
    rows = {Row.named(name): runs for name, runs in comparison.runs().items()}
    if missing := [row for row, runs in rows.items() if not all(run.finished for run in runs)]:
        raise RepperError(f"{folder} lacks the runs of {missing[0].name}, which its table names")
    extra = "--methods " + quote(",".join(comparison.asked_rows))
    if comparison.asked_seeds > 1:
        extra += f" --seeds {comparison.asked_seeds}"
    common = Config(**read_config(folder / COMPARISON))
    return Subject(title, rows, comparison, f"{command_of('compare', common, folder)} {extra}")


def command_of(command: str, config: Config, folder: Path) -> str:
    """The command that repeats the runs.

    Where single clients have settings of their own, only the run's own file has them; and only its
    manifest has a partition that was made in Python.
    """
    if command == "run" and config.init is not None and config.rounds == 0:
        return _join_command(config)
    parts = [f"repper {command}"]
    if config.overrides:
        parts.append(f"--config {quote(str(folder / CONFIG))} --out again")
    if command == "run" and not config.partition.endswith(".json") and _made_before(config, folder):
        config = replace(config, partition=str(folder / PARTITION))
    skipped = (*CHANGES_NOTHING, *(("method", "personalize") if command == "compare" else ()))
    chosen = [
        name
        for name, option in OPTIONS.items()
        if name not in skipped and config.setting(name) not in (option.default, None)
    ]
    return " ".join([*parts, *_flags(config, chosen)])


def _made_before(config: Config, folder: Path) -> bool:
    """Whether the run was given its partition: its settings would not draw it again."""
    dealt = read_manifest(folder)["settings"]
    return config.partition in (*KINDS, "given") and dealt.get("seed") != config.seed


def _join_command(config: Config) -> str:
    """The command by which clients joined a run: settings that differ from run and defaults."""
    try:
        before = read_run_config(Path(str(config.init)))
    except RepperError:
        before = Config()
    chosen = [
        name
        for name in JOIN_SETTINGS
        if name not in CHANGES_NOTHING
        and (value := config.setting(name)) is not None
        and (name in CHANGED_BY_JOIN or not _as_before(before, name, value))
    ]
    same = ["--same-clients"] if config.init_clients == "same" else []
    flags = [flag.replace("--head-epochs", "--epochs") for flag in _flags(config, chosen)]
    return " ".join([f"repper join --run {quote(str(config.init))}", *same, *flags])


def _as_before(before: Config, name: str, value: Any) -> bool:
    """Whether the run has this value too, and it is the default."""
    default, earlier = OPTIONS[name].default, before.setting(name)
    return value == default and (earlier is None or earlier == default)


def _flags(config: Config, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        value, key = config.setting(name), OPTIONS[name].key
        yield f"--{key}" if value is True else f"--{key} {quote(str(value))}"
