"""Event files during a run, for people who watch with TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repper.errors import missing_extra
from repper.evaluate import Score, summarize

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

MEASURED = ("loss", "knn", "validation", "examples", "bytes_up", "bytes_down", "seconds", "epsilon")


def check_tensorboard() -> None:
    """Refuse to begin a run whose event files could not be written."""
    if find_spec("tensorboard") is None:
        raise missing_extra("tensorboard", "tensorboard", "--tensorboard")


class Board:
    """Writes what a run measures, by round; after every call it is on disk.

    Without a writer it does nothing.
    """

    def __init__(self, writer: SummaryWriter | None) -> None:
        self._writer = writer

    def round(self, record: Mapping[str, Any]) -> None:
        """What a line of the log says."""
        measured = {f"round/{name}": record.get(name) for name in MEASURED}
        for name, value in record.get("accuracy", {}).items():
            measured[f"round/accuracy/{name}"] = value
        self._scalars(measured, record["round"])

    def finish(self, number: int, scores: Sequence[Score]) -> None:
        """The scores of all clients after round `number`."""
        accuracy = summarize(scores)
        self._scalars({f"result/accuracy/{name}": v for name, v in accuracy.items()}, number)
        known = [s.accuracy for s in scores if s.accuracy is not None]
        if self._writer and known:
            self._writer.add_histogram("result/accuracy of clients", np.array(known), number)
            self._writer.flush()

    def _scalars(self, measured: Mapping[str, float | None], number: int) -> None:
        if self._writer is None:
            return
        for name, value in measured.items():
            if value is not None:
                self._writer.add_scalar(name, value, number)
        self._writer.flush()


@contextmanager
def open_board(folder: Path, finished_rounds: int, *, wanted: bool) -> Iterator[Board]:
    """A board in a folder; what an interrupted run wrote there of later rounds is void."""
    if not wanted:
        yield Board(None)
        return
    # Only here: it takes its time, and most runs do without.
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder), purge_step=finished_rounds + 1)
    try:
        yield Board(writer)
    finally:
        writer.close()
