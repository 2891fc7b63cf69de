"""One client after the other, in this process: the definition of every result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

from repper.datasets.dataset import Dataset
from repper.engines.client import Clients, Task, groups
from repper.engines.engine import Engine, Personal, Update
from repper.params import Params, clone


@final
class SerialEngine(Engine):
    def __init__(self, task: Task, data: Dataset, workers: int) -> None:
        self._clients = Clients.of(task, data)
        self._partition = task.partition

    def fit(self, shared: Params, cohort: Sequence[int], number: int) -> Iterator[Update]:
        self._clients.receive(shared)
        for client in cohort:
            update = self._clients.fit(client, number)
            yield replace(update, shared=clone(update.shared))

    def personalize(
        self, shared: Params, clients: Sequence[int], number: int, save_to: Path | None
    ) -> Iterator[Personal]:
        self._clients.receive(shared)
        for group in groups(self._partition, clients, workers=1):
            yield from self._clients.personalize(group, number, save_to)

    def probe(self, shared: Params) -> float | None:
        self._clients.receive(shared)
        return self._clients.probe()
