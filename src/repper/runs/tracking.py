"""Report a run's measurements to other programs while it runs: TensorBoard and MLflow.

Both write to the disk only, and nothing here changes a result.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from repper.basics.documents import read_json, write_json
from repper.basics.errors import RepperError, missing_extra
from repper.basics.files import lock_file
from repper.runs.round_log import read_rounds
from repper.runs.run import Run
from repper.runs.run_folder import BOARD, MLFLOW_RUN
from repper.settings.config import Config

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient
    from torch.utils.tensorboard import SummaryWriter

STORE = "mlruns"
"""The folder of MLflow's runs, beside those of the runs: one table shows all of them."""
PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny"}
MEASURED = ("loss", "knn", "validation", "examples", "bytes_up", "bytes_down", "seconds", "epsilon")
LONGEST = 6000
"""The longest text that MLflow takes as a parameter."""


class Tracker(Protocol):
    """Takes what a run measures; after every call it is on the disk."""

    def round(self, record: Mapping[str, Any]) -> None:
        """Report a line of the log."""

    def finish(self, run: Run) -> None:
        """Report the result."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse to begin a run that could not be tracked."""
    for name in names:
        if find_spec(name) is None:
            raise missing_extra(PACKAGES[name], name, f"--track {name}")


@contextmanager
def open_trackers(
    folder: Path, config: Config, finished_rounds: int
) -> Iterator[tuple[Tracker, ...]]:
    """The trackers that the settings name; each has the rounds that are finished already."""
    opening = {"tensorboard": _tensorboard, "mlflow": _mlflow}
    if not config.trackers:
        yield ()
        return
    done = [one for one in read_rounds(folder) if one["round"] <= finished_rounds]
    with ExitStack() as stack:
        found: list[Tracker] = []
        for name in config.trackers:
            with _telling(name):
                found.append(_Told(name, stack.enter_context(opening[name](folder, config, done))))
        yield tuple(found)


@contextmanager
def _telling(name: str) -> Iterator[None]:
    """Make one sentence of whatever fails in a tracker; the run can be resumed without it."""
    try:
        yield
    except RepperError:
        raise
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise RepperError(
            f"--track {name} failed: {text}; leave out --track {name} and add --resume, or mend it"
        ) from error


class _Told:
    """A tracker whose failures are one sentence."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name, self._tracker = name, tracker

    def round(self, record: Mapping[str, Any]) -> None:
        with _telling(self._name):
            self._tracker.round(record)

    def finish(self, run: Run) -> None:
        with _telling(self._name):
            self._tracker.finish(run)


def _scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of the log, by the names that both programs show."""
    found = {f"round/{name}": record.get(name) for name in MEASURED}
    found |= {f"round/accuracy/{name}": v for name, v in record.get("accuracy", {}).items()}
    return {name: value for name, value in found.items() if value is not None}


def _results(run: Run) -> dict[str, float]:
    """The summary over all clients, by the names that both programs show."""
    found = run.accuracy.items()
    return {f"result/accuracy/{name}": value for name, value in found if value is not None}


class _TensorBoard:
    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer

    def round(self, record: Mapping[str, Any]) -> None:
        self._add(_scalars(record), record["round"])

    def finish(self, run: Run) -> None:
        number = run.result["rounds"]
        known = [score.accuracy for score in run.scores() if score.accuracy is not None]
        if known:
            self._writer.add_histogram("result/accuracy of clients", np.array(known), number)
        self._add(_results(run), number)

    def _add(self, values: Mapping[str, float], number: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()


@contextmanager
def _tensorboard(
    folder: Path, _config: Config, done: Sequence[Mapping[str, Any]]
) -> Iterator[Tracker]:
    # Imported only here: it is slow, and most runs do not need it.
    from torch.utils.tensorboard import SummaryWriter

    is_new = not (folder / BOARD).exists()
    # Drop what an interrupted run has reported of later rounds.
    writer = SummaryWriter(str(folder / BOARD), purge_step=len(done) + 1)
    try:
        tracker = _TensorBoard(writer)
        for record in done if is_new else ():
            tracker.round(record)
        yield tracker
    finally:
        writer.close()


class _MLflow:
    def __init__(self, client: MlflowClient, run: str) -> None:
        self._client, self._run = client, run

    def round(self, record: Mapping[str, Any]) -> None:
        self._log(_scalars(record), record["round"])

    def finish(self, run: Run) -> None:
        result = run.result
        self._log(_results(run), result["rounds"])
        tags = {name: result[name] for name in ("rounds", "encoder_digest", "heads_digest")}
        for name, value in tags.items():
            self._client.set_tag(self._run, name, str(value))

    def _log(self, values: Mapping[str, float], number: int) -> None:
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        metrics = [Metric(name, float(value), now, number) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)


@contextmanager
def _mlflow(folder: Path, config: Config, done: Sequence[Mapping[str, Any]]) -> Iterator[Tracker]:
    client = mlflow_client(folder.parent / STORE)
    run, logged = _mlflow_run(client, folder, config, len(done))
    tracker, status = _MLflow(client, run), "FAILED"
    try:
        for record in done[logged:]:
            tracker.round(record)
        yield tracker
        status = "FINISHED"
    except (KeyboardInterrupt, GeneratorExit):
        status = "KILLED"
        raise
    finally:
        with suppress(Exception):  # the run's own error, if there is one, says more
            client.set_terminated(run, status)


def mlflow_client(store: Path) -> MlflowClient:
    """An MLflow client for the runs in a folder; no network, no telemetry."""
    # MLflow reads these when it is imported. The last one: it prefers a database to files.
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "MLFLOW_ALLOW_FILE_STORE"):
        os.environ[name] = "true"
    from mlflow.tracking import MlflowClient

    store.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=store.resolve().as_uri())


def _mlflow_run(
    client: MlflowClient, folder: Path, config: Config, finished_rounds: int
) -> tuple[str, int]:
    """MLflow's run of a folder, existing or new, and how many rounds it has.

    MLflow can neither change a parameter nor take a round back; then the run is a new one.
    """
    from mlflow.exceptions import MlflowException

    params = {name: str(value)[:LONGEST] for name, value in config.identity().items()}
    if (folder / MLFLOW_RUN).is_file():
        known = str(read_json(folder / MLFLOW_RUN).get("run"))
        try:
            found = client.get_run(known)
            steps = [one.step for one in client.get_metric_history(known, "round/seconds")]
            logged = max(steps, default=0)
            if found.data.params == params and logged <= finished_rounds:
                client.update_run(known, status="RUNNING")
                return known, logged
        except MlflowException:
            pass  # its folder was left behind when this one was moved
    with lock_file(folder.parent / STORE / ".lock", wait=True):  # cells of other processes
        experiment = client.get_experiment_by_name("repper")
        number = experiment.experiment_id if experiment else client.create_experiment("repper")
    made = client.create_run(number, run_name=folder.name, tags={"folder": folder.name})
    for name, value in params.items():
        client.log_param(made.info.run_id, name, value)
    write_json(folder / MLFLOW_RUN, {"run": made.info.run_id})
    return made.info.run_id, 0
