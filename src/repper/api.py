"""The Python interface: what `import repper` offers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from repper.basics.errors import RepperError, needs, unknown
from repper.basics.options import check_kind, checked, checked_path
from repper.data import Dataset
from repper.data.partition import Partition
from repper.settings.config import JOIN_SETTINGS, Config

if TYPE_CHECKING:
    from repper.checks import Check
    from repper.methods import Method
    from repper.runs.comparison_table import Comparison
    from repper.runs.execute import Event
    from repper.runs.run import Run

Last = TypeVar("Last")


def run(
    data: Dataset | Path | str = "digits",
    partition: Partition | Path | str | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    watch: Callable[[Event], object] | None = None,
    **settings: Any,
) -> Run:
    """Run both stages and return the run.

    `partition` is one of `split`'s, or a name or a manifest as for `repper run`; `settings` are
    those of `repper run`, with `_` for `-`; `watch` is called with every event (without it, a
    notebook shows lines, and a script nothing). `method`, `server`, `personalize` and `encoder`
    may also be values: `FedProx(mu=0.1)`, or a class of your own.
    """
    with needs("train", "training"):
        from repper.runs.execute import Finished, execute
    if isinstance(partition, str):
        settings["partition"], partition = partition, None
    _check_switches(watch, resume=resume, overwrite=overwrite)
    if isinstance(partition, Path):
        settings["partition"], partition = str(partition), None
    if partition is not None:
        check_kind("partition", partition, Partition, "a name, a manifest or a repper.Partition")
    config, images = _config(data, settings)
    events = execute(config, images, partition, resume=resume, overwrite=overwrite)
    return _last(events, watch, Finished).run


def compare(
    methods: str | Sequence[str | Method | tuple[str | Method, str]],
    data: Dataset | Path | str = "digits",
    *,
    seeds: int = 1,
    resume: bool = False,
    overwrite: bool = False,
    reuse: Path | str | None = None,
    tune: Path | str | Mapping[str, Any] | None = None,
    watch: Callable[[Any], object] | None = None,
    **settings: Any,
) -> Comparison:
    """Run rows such as `repper+linear` and `fedavg` under equal conditions; return the table.

    A row may also be a method, `FedProx(mu=0.1)`, or a method and what its clients do last; it may
    have settings of its own, `fedavg[lr=0.01]+finetune`. Trainings of equal settings that are
    finished somewhere in the folder `reuse` are taken. `tune` is a file of settings to try, as for
    `repper compare --tune`, or its tables as a dictionary.
    """
    with needs("train", "training"):
        from repper.runs.compare import Compared, rows_of
        from repper.runs.compare import compare as compare_rows
        from repper.runs.tune import read_tuning
    for setting in ("method", "personalize"):
        if setting in settings:
            raise RepperError(
                f"{setting} is not a setting of compare: put methods and heads into the rows of "
                f"`methods`"
            )
    _check_switches(watch, resume=resume, overwrite=overwrite)
    config, images = _config(data, settings)
    folder = checked_path("reuse", reuse) if reuse is not None else None
    tries = checked_path("tune", tune) if isinstance(tune, str) else tune
    events = compare_rows(
        config, rows_of(methods), seeds, images, resume=resume, overwrite=overwrite, reuse=folder,
        tuning=None if tries is None else read_tuning(tries),
    )  # fmt: skip
    return _last(events, watch, Compared).comparison


def join(
    run: Run | Path | str,
    data: Dataset | Path | str | None = None,
    *,
    same_clients: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    watch: Callable[[Event], object] | None = None,
    **settings: Any,
) -> Run:
    """Fit heads of new clients on the encoder of a finished run; return the new run.

    `settings` are those of `repper join`, with `_` for `-`, and `head_epochs` for its epochs.
    """
    with needs("train", "training"):
        from repper.runs.execute import Finished
        from repper.runs.newcomers import join as join_run
        from repper.runs.run import Run
    _check_switches(watch, resume=resume, overwrite=overwrite, same_clients=same_clients)
    found = run if isinstance(run, Run) else open_run(run)
    for setting in settings:
        if setting not in JOIN_SETTINGS:
            raise unknown("setting", setting, JOIN_SETTINGS)
    images = None
    if data is not None:
        settings["data"], images = _named(data)
    _as_text(settings)
    events = join_run(
        found,
        settings,
        images,
        same_clients=same_clients,
        resume=resume,
        overwrite=overwrite,
    )
    return _last(events, watch, Finished).run


def open_run(folder: Path | str) -> Run:
    """Open an existing run folder."""
    with needs("train", "reading a run"):
        from repper.runs.run import Run
    found = Run(checked_path("the folder of a run", folder))
    _ = found.config
    return found


def open_comparison(folder: Path | str) -> Comparison:
    """Open the folder of a finished comparison."""
    with needs("train", "reading a comparison"):
        from repper.runs.comparison_table import Comparison
    return Comparison.open(checked_path("the folder of a comparison", folder))


def verify(folder: Path | str, data: Dataset | None = None) -> list[Check]:
    """Check every file of a run, comparison, model folder or export, as `repper verify` does.

    `data` are the images of a run that was given them as a value.
    """
    from repper.checks import verify as checks_of

    return list(checks_of(Path(folder), data))


def _last(
    events: Iterable[object], watch: Callable[[Any], object] | None, kind: type[Last]
) -> Last:
    """Run through all events, pass them to `watch`, and return the last one.

    In a notebook, lines of progress are printed if nobody watches.
    """
    from repper.runs.notebook import Lines, is_notebook

    seen = watch or (Lines() if is_notebook() else None)
    for event in events:
        if seen is not None:
            seen(event)
    assert isinstance(event, kind)
    return event


def _config(data: Dataset | Path | str, settings: dict[str, Any]) -> tuple[Config, Dataset | None]:
    """The settings as a `Config`, and the data set if it was given as a value."""
    _as_text(settings)
    name, images = _named(data)
    return Config(data=name, **settings), images


def _named(data: Dataset | Path | str) -> tuple[str, Dataset | None]:
    """The name of the data set, and the data set itself if it was given as a value."""
    check_kind("data", data, Dataset | Path | str, "a data set, its name or a folder of images")
    return (data.name, data) if isinstance(data, Dataset) else (str(data), None)


def _as_text(settings: dict[str, Any]) -> None:
    """Convert paths among the settings to strings."""
    for name in ("out", "init", "data_dir"):
        if settings.get(name) is not None:
            settings[name] = str(checked_path(name, settings[name]))


def _check_switches(watch: object, **switches: bool) -> None:
    for name, value in switches.items():
        checked(name, value, bool)
    if watch is not None and not callable(watch):
        raise RepperError(f"watch must be a function that takes an event, got {watch!r}")
