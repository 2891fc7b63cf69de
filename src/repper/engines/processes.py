"""Start and end the processes that train: their imports, memory and parent.

Nothing here needs PyTorch.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import resource_tracker, util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31),
    "MALLOC_TOP_PAD_": str(2**26),
}
"""For glibc: keep freed memory for the next tensor. It would give every tensor of more than 32 MB
back to the system at once and fetch fresh pages for the next, which took a fifth of a training step
of `small` at batches of 256."""


SOCKETS, LOCK = "repper-sockets-", "lock"
"""What the folders of sockets are called, and the file in them that is locked."""
YOUNG = 60
"""Seconds in which such a folder may not be locked yet."""


def start_method() -> SpawnContext | ForkServerContext:
    """How workers start: on Linux they are forked from a process that has loaded all libraries.

    Every later pool of this process begins with it too. Elsewhere such copies are not safe.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    _keep_sockets_apart()
    # The last is what an optimizer would load at its first step.
    context.set_forkserver_preload(
        [
            "repper.engines.silent",
            "repper.engines.pool",
            "repper.heads.descent",
            "repper.heads.convex",
            "torch._dynamo",
        ]
    )
    return context


@cache
def _keep_sockets_apart() -> None:
    """Put this process's sockets into a folder of its own, locked while the process lives.

    Python would leave them behind if it was killed. So do we, but the next process sees by the lock
    that they are dead, and removes them.
    """
    import fcntl  # absent on Windows, which does not come here

    root = Path(tempfile.gettempdir())
    for folder in root.glob(f"{SOCKETS}*"):
        with suppress(OSError), (folder / LOCK).open() as lock:
            if time.time() - folder.stat().st_mtime > YOUNG:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
    before, own = tempfile.tempdir, tempfile.mkdtemp(prefix=SOCKETS)
    kept = os.open(Path(own) / LOCK, os.O_CREAT | os.O_RDWR)
    fcntl.flock(kept, fcntl.LOCK_EX)
    try:
        tempfile.tempdir = own
        util.get_temp_dir()  # Python asks once, and remembers
    finally:
        tempfile.tempdir = before
    # After Python has removed its own folder in it, at -100.
    util.Finalize(None, shutil.rmtree, args=(own, True), exitpriority=-101)


def warm_up(engine: str) -> None:
    """Start to load the libraries of a pool's workers while this process does its own start-up."""
    if engine == "pool" and sys.platform == "linux" and importlib.util.find_spec("torch"):
        from multiprocessing import forkserver  # Windows has none

        start_method()
        with without_main_module(), keeping_memory(), without_interruptions():
            forkserver.ensure_running()


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def without_main_module() -> Iterator[None]:
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
def keeping_memory() -> Iterator[None]:
    """Start processes that reuse the memory of freed tensors, unless the user has set it up."""
    added = {name: value for name, value in KEEP_MEMORY.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextmanager
def without_interruptions() -> Iterator[None]:
    """Start processes with Ctrl-C blocked, until they can take it without a traceback."""
    if sys.platform == "win32":
        yield
        return
    # It would unblock the signal if it started later.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_with_parent() -> None:
    """End this process when its parent was killed, even in the middle of a client.

    Else what the client keeps would be written later, perhaps into another run in the same folder.
    """
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)
