"""Run one client after the other in this process: the reference for all results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

from repper.basics.params import Params, clone
from repper.data.dataset import Dataset
from repper.engines.client import Clients, groups
from repper.engines.engine import Engine, Personal, Update
from repper.engines.task import Work


@final
class SerialEngine(Engine):
    def __init__(self, work: Work, data: Dataset, workers: int) -> None:
        self._clients = Clients.of(work, data)
        self._partition = work.partition

    def fit(
        self, received: Params, cohort: Sequence[int], number: int, stage: int = 0
    ) -> Iterator[Update]:
        self._clients.receive(received, stage)
        for group in self._clients.groups(cohort):
            for update in self._clients.fit_together(group, number):
                yield replace(update, sent=clone(update.sent))

    def personalize(
        self,
        received: Params,
        clients: Sequence[int],
        number: int,
        save_to: Path | None,
        stage: int = 0,
    ) -> Iterator[Personal]:
        self._clients.receive(received, stage)
        for group in groups(self._partition, clients, workers=1):
            yield from self._clients.personalize(group, number, save_to)

    def probe(self, received: Params, stage: int = 0) -> float | None:
        self._clients.receive(received, stage)
        return self._clients.probe()
