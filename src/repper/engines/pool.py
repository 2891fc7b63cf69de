"""Several processes on this machine, one thread each; clients go to whichever is free."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor

from repper.datasets.dataset import Dataset
from repper.engines.client import Clients, Task, groups
from repper.engines.engine import Engine, Personal, Update, one_thread
from repper.engines.shared_memory import SharedTensor
from repper.errors import RepperError
from repper.methods.method import build_network
from repper.params import Params, copy_params, params_of, select

KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31),
    "MALLOC_TOP_PAD_": str(2**26),
}
"""For glibc: keep freed memory for the next tensor. It would give every tensor of more than 32 MB
back to the system at once and fetch fresh pages for the next, which took a fifth of a training step
of `small` at batches of 256."""

Job = tuple[Any, ...]
"""What a worker is asked to do: a verb and its arguments, such as ("fit", client, round)."""


@dataclass(frozen=True)
class Layout:
    """Where each named parameter lies in one flat float32 vector."""

    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, task: Task) -> Layout:
        method = task.config.build_method()
        network = build_network(method, task.spec, len(task.classes), seed=0)
        params = select(params_of(network), method.shared)
        return cls({name: tuple(t.shape) for name, t in params.items()})

    @property
    def size(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    def views(self, flat: Tensor) -> Params:
        """The parameters by name, as views of the vector."""
        parts = flat.split([torch.Size(shape).numel() for shape in self.shapes.values()])
        return {n: _view(p, s) for (n, s), p in zip(self.shapes.items(), parts, strict=True)}


def _view(part: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A part of a vector as a tensor; a convolution's as networks have it, channels last."""
    if len(shape) != 4:
        return part.view(shape)
    outputs, inputs, height, width = shape
    return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


@dataclass(eq=False)
class _Worker:
    number: int
    process: multiprocessing.process.BaseProcess
    connection: Connection
    sent: SharedTensor
    """What it answers with: two rows, for the job that is done and the one that is next."""
    given: int = 0
    jobs: deque[tuple[int, int, Job]] = field(default_factory=deque)
    """What it has to do, in order: the row to answer in, the job's place among all, and the job."""


@final
class PoolEngine(Engine):
    """Images and weights lie in shared memory; only a job's name and its small answer are sent."""

    def __init__(self, task: Task, data: Dataset, workers: int) -> None:
        self._task = task
        self._count = min(workers or cores(), task.partition.clients)
        self._layout = Layout.of(task)
        self._received = SharedTensor((self._layout.size,), torch.float32)
        self._splits = [
            (SharedTensor.copy_of(split.images), SharedTensor.copy_of(split.labels))
            for split in (data.train, data.test)
        ]
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        super().__enter__()
        context = _start_method()
        for number in range(self._count):
            ours, theirs = context.Pipe()
            sent = SharedTensor((2, self._layout.size), torch.float32)
            process = context.Process(
                target=_work,
                args=(theirs, self._task, self._layout, self._splits, self._received, sent),
                name=f"repper worker {number}",
                daemon=True,
            )
            with _without_main_module(), _keeping_memory():
                process.start()
            theirs.close()
            self._workers.append(_Worker(number, process, ours, sent))
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        super().__exit__(*error)

    def fit(self, shared: Params, cohort: Sequence[int], number: int) -> Iterator[Update]:
        self._send(shared)
        jobs: list[Job] = [("fit", client, number) for client in cohort]

        def with_params(answer: Tensor, update: Update) -> Update:
            return replace(update, shared=self._layout.views(answer.clone()))

        yield from self._map(jobs, with_params, [self._examples(client) for client in cohort])

    def personalize(
        self, shared: Params, clients: Sequence[int], number: int, save_to: Path | None
    ) -> Iterator[Personal]:
        self._send(shared)
        parts = groups(self._task.partition, clients, self._count)
        jobs: list[Job] = [("personalize", part, number, save_to) for part in parts]
        for personal in self._map(jobs):
            yield from personal

    def probe(self, shared: Params) -> float | None:
        if not self._task.config.knn:
            return None
        self._send(shared)
        [accuracy] = self._map([("probe",)])
        return None if accuracy is None else float(accuracy)

    def _send(self, shared: Params) -> None:
        """Put the parameters where every worker reads them, once for a whole round."""
        if not self._workers:
            raise RuntimeError("the pool is used outside its `with` block, or after a failure")
        copy_params(shared, self._layout.views(self._received.tensor))
        for worker in self._workers:
            self._tell(worker, (0, "receive"))

    def _examples(self, client: int) -> int:
        """How much work a client is; one who holds the images of all is alone in his round."""
        held = self._task.partition.train
        return len(held[client]) if client < len(held) else 0

    def _map(
        self,
        jobs: Sequence[Job],
        take: Callable[[Tensor, Any], Any] = lambda _, answer: answer,
        sizes: Sequence[int] = (),
    ) -> Iterator[Any]:
        """Have all jobs done, each by a free worker, and yield the answers as they come.

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
                if kind == "error":
                    raise RepperError(answer)
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
        doing = {
            "fit": "training client {1} in round {2}",
            "personalize": "personalizing clients {1}",
            "probe": "testing the encoder",
        }
        job = worker.jobs[0][2] if worker.jobs else ("wait",)
        what = doing.get(job[0], "waiting for work")
        return RepperError(
            f"{worker.process.name} died ({how}) while {what.format(*job)}, "
            f"perhaps for lack of memory: run the same command with --resume to go on, "
            f"or with fewer --workers"
        )

    def _stop(self) -> None:
        for worker in self._workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
        self._workers.clear()


def _work(
    connection: Connection,
    task: Task,
    layout: Layout,
    splits: list[tuple[SharedTensor, SharedTensor]],
    received: SharedTensor,
    sent: SharedTensor,
) -> None:
    """A worker's life: do what is asked until the other side closes the connection, or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us.
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    with one_thread(), suppress(EOFError, OSError):
        clients: Clients | None = None
        shared = layout.views(received.tensor)
        outgoing = [layout.views(row) for row in sent.tensor]
        while True:
            row, verb, *arguments = connection.recv()
            try:
                clients = clients or Clients(task, *[(s.tensor, t.tensor) for s, t in splits])
                if verb == "receive":
                    clients.receive(shared)
                    continue
                answer = getattr(clients, verb)(*arguments)
                if isinstance(answer, Update):
                    copy_params(answer.shared, outgoing[row])
                    answer = replace(answer, shared={})
                message = ("done", answer)
            except RepperError as error:
                message = ("error", str(error))
            except Exception:
                message = ("crash", traceback.format_exc())
            connection.send(message)


def _leave_with_parent() -> None:
    """End in the middle of a client when the run was killed.

    Else what the client keeps would be written later, perhaps into another run in the same folder.
    """
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _start_method() -> SpawnContext | ForkServerContext:
    """How workers start: on Linux as copies of a process that has loaded everything once.

    Every later pool of this process begins with it too. Elsewhere such copies are not safe.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # The last is what an optimizer would load at its first step.
    context.set_forkserver_preload(
        ["repper.engines.pool", "repper.heads.descent", "repper.heads.solved", "torch._dynamo"]
    )
    return context


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Keep a starting process from importing the caller's script again.

    Our workers need nothing from it, and a script or notebook without the usual `__main__` guard
    would otherwise start itself over and over.
    """
    main = sys.modules["__main__"]
    names = ["__file__", "__spec__"]
    kept = {name: vars(main)[name] for name in names if name in vars(main)}
    vars(main).pop("__file__", None)
    vars(main)["__spec__"] = None
    try:
        yield
    finally:
        vars(main).update(kept)


@contextmanager
def _keeping_memory() -> Iterator[None]:
    """Start processes that reuse the memory of freed tensors, unless the user has set it up."""
    added = {name: value for name, value in KEEP_MEMORY.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
