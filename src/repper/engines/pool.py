"""Run clients in several processes on this machine, with one thread each."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor

from repper.basics.errors import RepperError
from repper.basics.params import Params, copy_params
from repper.data.dataset import Dataset
from repper.engines.by_value import ByValue
from repper.engines.client import groups
from repper.engines.engine import Engine, Personal, Update
from repper.engines.processes import (
    cores,
    keeping_memory,
    start_method,
    without_interruptions,
    without_main_module,
)
from repper.engines.shared_memory import SharedTensor
from repper.engines.small_clients import Stacking
from repper.engines.task import Work
from repper.engines.worker import Layouts, serve

Job = tuple[Any, ...]
"""What a worker is asked to do: a verb and its arguments, such as ("fit_together", [3, 7], 1)."""


@dataclass(eq=False)
class _Worker:
    number: int
    process: multiprocessing.process.BaseProcess
    connection: Connection
    sent: SharedTensor
    """What it answers with, client by client: for the job that is done and the one that is next."""
    given: int = 0
    jobs: deque[tuple[int, int, Job]] = field(default_factory=deque)
    """What it has to do, in order: the row to answer in, the job's place among all, and the job."""


@final
class PoolEngine(Engine):
    """A pool of processes; images and weights are shared memory, only small messages are sent."""

    def __init__(self, work: Work, data: Dataset, workers: int) -> None:
        self._work = work
        self._count = min(workers or cores(), work.partition.clients)
        self._layouts = Layouts.of(work)
        self._stackings = [
            Stacking.of(work, index, network) for index, network in enumerate(work.networks())
        ]
        self._received = SharedTensor(
            (max(layouts.received.size for layouts in self._layouts),), torch.float32
        )
        self._splits = [
            (SharedTensor.copy_of(split.images), SharedTensor.copy_of(split.labels))
            for split in (data.train, data.test)
        ]
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        super().__enter__()
        context, packed = start_method(), ByValue.pack(self._work)
        size = max(layouts.sent.size for layouts in self._layouts)
        at_once = max(1, *(stacking.most for stacking in self._stackings))
        for number in range(self._count):
            ours, theirs = context.Pipe()
            sent = SharedTensor((2, at_once, size), torch.float32)
            process = context.Process(
                target=serve,
                args=(theirs, packed, self._layouts, self._splits, self._received, sent),
                name=f"repper worker {number}",
                daemon=True,
            )
            with without_main_module(), keeping_memory(), without_interruptions():
                process.start()
            theirs.close()
            self._workers.append(_Worker(number, process, ours, sent))
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        super().__exit__(*error)

    def fit(
        self, received: Params, cohort: Sequence[int], number: int, stage: int = 0
    ) -> Iterator[Update]:
        self._send(received, stage)
        groups = list(self._stackings[stage].groups(cohort, self._count))
        jobs: list[Job] = [("fit_together", group, number) for group in groups]
        layout = self._layouts[stage].sent

        def with_params(answers: Tensor, updates: list[Update]) -> list[Update]:
            return [
                replace(update, sent=layout.views(answer.clone()))
                for answer, update in zip(answers, updates, strict=False)
            ]

        sizes = [sum(len(self._work.train_rows(c)) for c in group) for group in groups]
        for updates in self._map(jobs, with_params, sizes):
            yield from updates

    def personalize(
        self,
        received: Params,
        clients: Sequence[int],
        number: int,
        save_to: Path | None,
        stage: int = 0,
    ) -> Iterator[Personal]:
        self._send(received, stage)
        parts = groups(self._work.partition, clients, self._count)
        jobs: list[Job] = [("personalize", part, number, save_to) for part in parts]
        for personal in self._map(jobs):
            yield from personal

    def probe(self, received: Params, stage: int = 0) -> float | None:
        if not self._work.knn:
            return None
        self._send(received, stage)
        [accuracy] = self._map([("probe",)])
        return None if accuracy is None else float(accuracy)

    def _send(self, received: Params, stage: int) -> None:
        """Put the parameters where every worker reads them, once for a whole round."""
        if not self._workers:
            raise RuntimeError("the pool is used outside its `with` block, or after a failure")
        copy_params(received, self._layouts[stage].received.views(self._received.tensor))
        for worker in self._workers:
            self._tell(worker, (0, "receive", stage))

    def _map(
        self,
        jobs: Sequence[Job],
        take: Callable[[Tensor, Any], Any] = lambda _, answer: answer,
        sizes: Sequence[int] = (),
    ) -> Iterator[Any]:
        """Run all jobs, each in a free worker, and yield the answers as they come.

        `take` makes an answer independent of the memory it came in. The largest job goes first, so
        that workers end together. But none starts that is more than a few places ahead of the
        oldest unfinished one: the caller puts answers in order, and so never has to hold more.
        """
        ahead = 4 * len(self._workers)
        waiting, unfinished = list(range(len(jobs))), set(range(len(jobs)))

        def hand_out() -> None:
            end = min(unfinished, default=0) + ahead
            for busy in (0, 1):
                for worker in self._workers:
                    # While many wait, a worker has its next job at hand before it is done.
                    many = len(waiting) > 2 * len(self._workers)
                    if len(worker.jobs) != busy or (busy and not many):
                        continue
                    if near := [place for place in waiting[:ahead] if place < end]:
                        place = max(near, key=lambda p: sizes[p]) if sizes else near[0]
                        waiting.remove(place)
                        row, worker.given = worker.given % 2, worker.given + 1
                        worker.jobs.append((row, place, jobs[place]))
                        self._tell(worker, (row, *jobs[place]))

        try:
            hand_out()
            while unfinished:
                worker, answer = self._next_answer()
                row, place, _ = worker.jobs.popleft()
                taken = take(worker.sent.tensor[row], answer)
                unfinished.discard(place)
                hand_out()
                yield taken
        finally:
            if unfinished:
                # The caller gave up, or something failed: workers may be in the middle of a job.
                self._stop()

    def _tell(self, worker: _Worker, message: Job) -> None:
        try:
            worker.connection.send(message)
        except OSError:
            raise self._death(worker) from None

    def _next_answer(self) -> tuple[_Worker, Any]:
        """Wait until a worker answers; a dead one, or one that failed, is an error."""
        busy = [worker for worker in self._workers if worker.jobs]
        sentinels = {worker.process.sentinel: worker for worker in self._workers}
        ready = wait([*(worker.connection for worker in busy), *sentinels])
        for worker in busy:
            if worker.connection.poll():
                try:
                    kind, answer = worker.connection.recv()
                except (EOFError, ConnectionResetError):
                    raise self._death(worker) from None
                if kind in ("error", "machine"):
                    sentence, whole = answer
                    if kind == "machine":
                        sentence = (
                            f"{worker.process.name} failed while {_doing(worker)}: {sentence}"
                        )
                    failure: Exception = RepperError(sentence)
                    failure.add_note(whole)
                    raise failure
                if kind == "crash":
                    failure = RuntimeError(f"{worker.process.name}: {answer.splitlines()[-1]}")
                    failure.add_note(answer)
                    raise failure
                return worker, answer
        raise self._death(next(sentinels[one] for one in ready if isinstance(one, int)))

    def _death(self, worker: _Worker) -> RepperError:
        worker.process.join(timeout=5)
        code = worker.process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        return RepperError(
            f"{worker.process.name} died ({how}) while {_doing(worker)}, perhaps for lack of "
            f"memory: run the same command with --resume to continue, or with fewer --workers"
        )

    def _stop(self) -> None:
        for worker in self._workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
        self._workers.clear()


def _doing(worker: _Worker) -> str:
    """What a worker is doing, for an error sentence."""
    doing = {
        "fit_together": "training {who} in round {2}",
        "personalize": "personalizing {who}",
        "probe": "testing the encoder",
    }
    job = worker.jobs[0][2] if worker.jobs else ("wait",)
    what = doing.get(job[0], "waiting for work")
    clients = job[1] if len(job) > 1 else []
    who = f"client{'s' if len(clients) > 1 else ''} {', '.join(map(str, clients))}"
    return what.format(*job, who=who)
