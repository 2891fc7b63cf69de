"""A process of the pool: it does clients' work, with images and weights in shared memory."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from repper.basics.errors import RepperError, failure_of_machine
from repper.basics.params import Params, copy_params
from repper.basics.registry import mistake_in_own_code
from repper.engines.by_value import ByValue
from repper.engines.client import Clients
from repper.engines.engine import one_thread
from repper.engines.processes import leave_with_parent
from repper.engines.shared_memory import SharedTensor
from repper.engines.task import Work
from repper.methods.network import first_received, holdings, to_send


@dataclass(frozen=True)
class Layout:
    """Where each named parameter lies in one flat float32 vector."""

    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, params: Params) -> Layout:
        return cls({name: tuple(t.shape) for name, t in params.items()})

    @property
    def size(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    def views(self, flat: Tensor) -> Params:
        """The parameters by name, as views of the beginning of a vector."""
        sizes = [torch.Size(shape).numel() for shape in self.shapes.values()]
        parts = flat[: self.size].split(sizes)
        return {n: _view(p, s) for (n, s), p in zip(self.shapes.items(), parts, strict=True)}


def _view(part: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A part of a vector as a tensor; a convolution's as networks have it, channels last."""
    if len(shape) != 4:
        return part.view(shape)
    outputs, inputs, height, width = shape
    return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Layouts:
    """What the server sends in a stage, and what comes back."""

    received: Layout
    sent: Layout

    @classmethod
    def of(cls, work: Work) -> list[Layouts]:
        """Those of every stage."""
        networks, found = work.networks(), []
        for stage, network, holds in zip(
            work.stages, networks, holdings(work.stages, networks, work.local_norm), strict=True
        ):
            received = first_received(stage.method, network, holds)
            found.append(cls(Layout.of(received), Layout.of(to_send(received, holds))))
        return found


@contextmanager
def failing_in_silence() -> Iterator[None]:
    """End this process where the machine fails, without a word: who has started it says so."""
    try:
        yield
    except Exception as error:
        if failure_of_machine(error) is None:
            raise
        sys.exit(1)


def serve(
    connection: Connection,
    packed: ByValue,
    layouts: list[Layouts],
    splits: list[tuple[SharedTensor, SharedTensor]],
    received: SharedTensor,
    sent: SharedTensor,
) -> None:
    """A worker's life: do what is asked until the other side closes the connection, or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us.
    with failing_in_silence():
        threading.Thread(target=leave_with_parent, daemon=True).start()
    with failing_in_silence(), one_thread(), suppress(EOFError, OSError):
        clients: Clients | None = None
        stage = 0
        while True:
            row, verb, *arguments = connection.recv()
            try:
                clients = clients or Clients(
                    packed.open(), *[(s.tensor, t.tensor) for s, t in splits]
                )
                if verb == "receive":
                    [stage] = arguments
                    clients.receive(layouts[stage].received.views(received.tensor), stage)
                    continue
                answer = getattr(clients, verb)(*arguments)
                if verb == "fit_together":
                    for place, update in enumerate(answer):
                        into = layouts[stage].sent.views(sent.tensor[row, place])
                        copy_params(update.sent, into)
                    answer = [replace(update, sent={}) for update in answer]
                message = ("done", answer)
            except RepperError as error:
                message = ("error", (str(error), ""))
            except Exception as error:
                whole = traceback.format_exc()
                own = mistake_in_own_code(error)
                machine = failure_of_machine(error)
                message = ("error", (own, whole)) if own else ("crash", whole)
                if machine and not own:
                    message = ("machine", (machine, whole))
            connection.send(message)
