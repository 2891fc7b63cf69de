"""The warm process of a site or a server: it has loaded everything, and forks for every message.

It never reads a request: the child does, which then becomes what a fresh process of Flower's
program would have been. So nothing of one message is there in the next, and nothing has to be
cleared away.
"""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from pkgutil import iter_modules
from typing import NoReturn

from repper.flower.programs import QUIET
from repper.flower.shim import GO, LENGTH, PASSED_ON, STATUS, is_own

NEEDED = {
    "flwr-clientapp": ("flwr.supernode.cli",),
    "flwr-serverapp": ("flwr.superlink.cli",),
}
"""Where Flower's programs begin."""
PACKAGES = ("repper.methods", "repper.encoders", "repper.heads", "repper.server")
"""Packages from which a federation's settings choose modules."""


def main() -> None:
    number, node, program, idle = sys.argv[1:]
    listener = socket.socket(fileno=int(number))
    before = dict(os.environb)
    try:
        alive = os.pidfd_open(int(node))
    except ProcessLookupError:
        return
    handlers = {one: signal.getsignal(one) for one in PASSED_ON}
    for one, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(one, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    load(Path(program).name)
    _let_go_of_streams()
    loaded = {name: value for name, value in os.environb.items() if before.get(name) != value}
    taken = serve(listener, alive, float(idle) if idle else None)
    if taken is None:
        return
    for one, handler in handlers.items():
        signal.signal(one, handler)
    end(lambda: run(receive(taken), loaded))


def load(program: str) -> None:
    """Load all that a message needs, and make an optimizer's first step, which loads a lot more.

    A process with threads must not be forked. Those of OpenBLAS end by themselves at a fork, and
    are not there any more after the first; no other may have been started.
    """
    os.environ.update(QUIET)  # Flower reads it when it is imported
    quiet_memory = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
    os.environ.update(quiet_memory)
    for name in (*NEEDED[program], "repper.flower.entry_points", "torch._dynamo"):
        import_module(name)
    for name in PACKAGES:
        for found in iter_modules(import_module(name).__path__, f"{name}."):
            import_module(found.name)
    for name in quiet_memory:
        del os.environ[name]
    import torch
    from PIL import Image

    Image.preinit()
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.zeros(1)  # without going backward, which starts threads where GPUs are
    optimizer = torch.optim.Adam([weight])
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    if threads := len([*Path("/proc/self/task").iterdir()]) - 1:
        raise RuntimeError(f"a process with {threads} threads besides its own cannot be forked")
    gc.collect()
    gc.freeze()  # what is loaded stays, and looking for garbage in it would copy its pages


def _let_go_of_streams() -> None:
    """Close the first message's streams: their reader waits for its end, not for ours."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)


def serve(listener: socket.socket, node: int, idle: float | None) -> socket.socket | None:
    """Fork a child for every request, and return its connection there; here, None in the end."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(node, select.POLLIN)
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        patience = None if children or idle is None else idle * 1000
        ready = [number for number, _ in poll.poll(patience)]
        if node in ready or not ready:
            return None
        number = ready[0]  # one at a time: numbers of what is closed come back
        if number == listener.fileno():
            connection, _ = listener.accept()
            if not is_own(connection):
                connection.close()
                continue
            child = os.fork()
            if child == 0:
                listener.close()
                os.close(node)
                for process, (_, other) in children.items():
                    os.close(process)
                    other.close()
                return connection
            process = os.pidfd_open(child)
            children[process] = child, connection
            poll.register(process, select.POLLIN)
            poll.register(connection, 0)  # not its request, which the child reads: its end
        elif number in children:  # it has ended
            child, connection = children.pop(number)
            poll.unregister(number)
            with suppress(KeyError):
                poll.unregister(connection)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with suppress(OSError):  # whoever asked may have gone
                connection.send(STATUS.pack(code))
            connection.close()
            os.close(number)
        else:
            # Whoever asked was killed, and so would have been the program that it stands for.
            [child] = [one for one, asked in children.values() if asked.fileno() == number]
            os.kill(child, signal.SIGKILL)
            poll.unregister(number)


@dataclass(frozen=True)
class Request:
    """What a process starts with: arguments, environment, folder, streams."""

    connection: socket.socket
    program: str
    umask: int
    ignored: tuple[int, ...]
    arguments: list[str]
    environment: dict[bytes, bytes]
    streams: list[int]
    folder: int


def receive(connection: socket.socket) -> Request:
    head, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, 4)
    head += _exactly(connection, LENGTH.size - len(head))
    body = _exactly(connection, LENGTH.unpack(head)[0])
    program, umask, ignored, count, *words = body.split(b"\0")
    arguments = [os.fsdecode(word) for word in words[: int(count)]]
    pairs = (word.partition(b"=") for word in words[int(count) :])
    *streams, folder = descriptors
    return Request(
        connection, os.fsdecode(program), int(umask), tuple(map(int, ignored.split())), arguments,
        {name: value for name, _, value in pairs}, streams, folder,
    )  # fmt: skip


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            os._exit(1)  # whoever asked has gone
        data += part
    return bytes(data)


def run(request: Request, loaded: dict[bytes, bytes]) -> None:
    """Become Flower's program, as if it had been started with the request.

    `loaded` are the variables that modules have set when they were imported.
    """
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.fchdir(request.folder)
    os.close(request.folder)
    os.umask(request.umask)
    for one in request.ignored:
        if one not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(one, signal.SIG_IGN)
    os.environb.clear()
    os.environb.update(request.environment | loaded)
    sys.argv = [request.program, *request.arguments]
    sys.path.insert(0, str(Path(request.program).parent))
    if isinstance(sys.stdout, TextIOWrapper) and not sys.stdout.write_through:
        sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    import numpy as np

    np.random.seed()  # the only generator that does not do so itself after a fork
    request.connection.sendall(STATUS.pack(os.getpid()))
    if request.connection.recv(len(GO)) != GO:
        os._exit(1)  # whoever asked has gone
    request.connection.close()
    runpy.run_path(request.program, run_name="__main__")


def end(program: Callable[[], None]) -> NoReturn:
    """Run a program and end as Python would, but do not take apart what was loaded.

    Nobody needs that, and to touch all objects would copy all pages of the warm process.
    """
    code = 0
    try:
        program()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            sys.stderr.write(f"{leaving.code}\n")
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    # What children of multiprocessing do, too, and what is left to atexit.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)
