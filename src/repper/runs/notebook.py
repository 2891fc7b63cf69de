"""What a notebook shows of a run: a line now and then, where the command line has bars."""

from __future__ import annotations

import sys
import time

from repper.basics.table import figure
from repper.runs.execute import Finished, RoundDone, Started
from repper.runs.time_left import CellStarted

LINES = 20
"""So many lines of rounds at most, whatever the number of rounds."""


def is_notebook() -> bool:
    """Whether this is a cell of Jupyter, and no script or shell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class Lines:
    """Prints what happens as plain text."""

    def __init__(self) -> None:
        self._rounds, self._first, self._began = 0, 0, time.monotonic()

    def __call__(self, event: object) -> None:
        if isinstance(event, CellStarted):
            _say(f"[{event.number}/{event.cells}] {event.row.name}, seed {event.seed}")
        elif isinstance(event, Started):
            self._rounds, self._first = event.rounds, event.finished_rounds
            self._began = time.monotonic()
            clients = len(event.plan.personalized)
            _say(f"{event.data.name}, {clients} clients, {event.rounds} rounds, in {event.folder}")
        elif isinstance(event, RoundDone):
            self._round(event)
        elif isinstance(event, Finished):
            _say(f"finished: accuracy {figure(event.run.accuracy['mean'])} % in the mean")

    def _round(self, event: RoundDone) -> None:
        record, number = event.record, event.record["round"]
        every = -(-self._rounds // LINES)
        if number % every and number != self._rounds:
            return
        each = (time.monotonic() - self._began) / max(1, number - self._first)
        said = [f"round {number}/{self._rounds}"]
        if record["loss"] is not None:
            said.append(f"loss {record['loss']:.3f}")
        if record["knn"] is not None:
            said.append(f"k-NN {record['knn']:.1f} %")
        if "accuracy" in record:
            said.append(f"accuracy {figure(record['accuracy']['mean'])} %")
        _say(", ".join([*said, f"about {each * (self._rounds - number):.0f} s left"]))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
