"""Loaded first by our fork servers, so that Ctrl-C ends them silently.

It is started with the signal blocked (`processes.without_interruptions`), since Python would answer
with a traceback. Loading the rest takes seconds, in which the command may be long gone.
"""

from __future__ import annotations

import signal
import sys

if sys.platform != "win32" and signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
