"""Handle Ctrl-C while a command is still importing libraries.

An exception in the middle of an import can be lost, and PyTorch's makes the process abort. Nothing
is under way yet, so the process just ends. This file is loaded first and imports next to nothing.
"""

from __future__ import annotations

import os
import signal
import sys


class Loading:
    """A `with` block in which Ctrl-C ends this process at once, with exit code 130."""

    def __enter__(self) -> None:
        self._before = signal.getsignal(signal.SIGINT)
        # Whoever ignores the signal, or has an answer to it, is left alone.
        self._watched = self._before is signal.default_int_handler
        if self._watched:
            try:
                signal.signal(signal.SIGINT, _leave)
            except ValueError:  # only the main thread of a process hears signals
                self._watched = False

    def __exit__(self, *_: object) -> None:
        if self._watched:
            signal.signal(signal.SIGINT, self._before)


def _leave(_signal: int, _frame: object) -> None:
    sys.stderr.write("repper: interrupted\n")
    sys.stderr.flush()
    os._exit(130)
