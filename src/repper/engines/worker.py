"""A process of the pool: it does clients' work, with images and weights in shared memory."""

from __future__ import annotations

import signal
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from repper.engines.client import Clients, Task
from repper.engines.engine import Update, one_thread
from repper.engines.processes import leave_with_parent
from repper.engines.shared_memory import SharedTensor
from repper.errors import RepperError
from repper.methods.method import build_network
from repper.params import Params, copy_params, params_of, select


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


def work(
    connection: Connection,
    task: Task,
    layout: Layout,
    splits: list[tuple[SharedTensor, SharedTensor]],
    received: SharedTensor,
    sent: SharedTensor,
) -> None:
    """A worker's life: do what is asked until the other side closes the connection, or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us.
    threading.Thread(target=leave_with_parent, daemon=True).start()
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
