"""Replaces a program of Flower's in the PATH, and lets a warm process do its work.

It runs for every message, as a script without site-packages, so it imports what is quick to load.
What it hands over is what makes a process: arguments, environment, working folder, umask, ignored
signals and the three standard streams. `fork_server.py` is the other end.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import stat
import struct
import sys
from types import FrameType

SOCKET, COLD = "socket", "cold"
"""In the private folder: where the fork server listens; there if none can be had."""
START = "--start-warm-process"
"""An argument of the shim's own: only start the fork server, which ends with the process named."""
LENGTH, STATUS = struct.Struct("!I"), struct.Struct("!i")
"""Of a request; a child's process id, and later its exit code or minus the signal that ended it."""
GO = b"!"
"""To the child, when its signals are passed on: until then it waits."""
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1,
             signal.SIGUSR2)  # fmt: skip


class NoneThereError(Exception):
    """No fork server takes a request; the text says why."""


def open_folder(folder: str) -> int:
    """A descriptor of the folder, which no other user may read or write."""
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    state = os.fstat(found)
    if state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & 0o077:
        os.close(found)
        raise NoneThereError(f"{folder} can be read or written by others")
    return found


def is_own(connection: socket.socket) -> bool:
    """Whether the process at the other end is our own user's."""
    size = struct.calcsize("3i")
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return bool(struct.unpack("3i", peer)[1] == os.getuid())


def connect(folder: int) -> socket.socket | None:
    """A connection to the fork server, if there is one."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        # By way of /proc, since the path of a socket may have 107 letters only.
        connection.connect(f"/proc/self/fd/{folder}/{SOCKET}")
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    if not is_own(connection):
        raise NoneThereError("the socket is somebody else's")
    return connection


def start(folder: int, program: str, idle: str, node: int) -> None:
    """Start a fork server for a program of Flower's.

    It ends when process `node` ends, and after `idle` seconds without a request ("": it stays).
    Requests can be made at once: they wait until it is warm.
    """
    import subprocess

    path = f"/proc/self/fd/{folder}/{SOCKET}"
    with socket.socket(socket.AF_UNIX) as listener:
        if os.path.lexists(path):
            os.unlink(path)
        before = os.umask(0o177)
        listener.bind(path)
        os.umask(before)
        listener.listen(64)
        code = "from repper.flower.fork_server import main; main()"
        subprocess.Popen(
            [sys.executable, "-P", "-c", code, str(listener.fileno()), str(node), program, idle],
            stdin=subprocess.DEVNULL, pass_fds=[listener.fileno()],
        )  # fmt: skip


def hand_over(connection: socket.socket, program: str, arguments: list[str]) -> int:
    """Hand a request to the fork server, and return the process id of its child."""
    ignored = [str(int(s)) for s in signal.valid_signals() if signal.getsignal(s) is signal.SIG_IGN]
    umask = os.umask(0o077)
    os.umask(umask)
    environment = [name + b"=" + value for name, value in os.environb.items()]
    words = [program, str(umask), " ".join(ignored), str(len(arguments)), *arguments]
    body = b"\0".join([*map(os.fsencode, words), *environment])
    here = os.open(".", os.O_PATH | os.O_DIRECTORY)
    try:
        head = LENGTH.pack(len(body))
        socket.send_fds(connection, [head], [0, 1, 2, here])
        connection.sendall(body)
    finally:
        os.close(here)
    return number(connection)


def number(connection: socket.socket) -> int:
    """Read the next number from the fork server."""
    data = b""
    while len(data) < STATUS.size:
        part = connection.recv(STATUS.size - len(data))
        if not part:
            raise NoneThereError("it ended without an answer")
        data += part
    found: int = STATUS.unpack(data)[0]
    return found


def find_child(
    folder: int, program: str, idle: str, arguments: list[str]
) -> tuple[socket.socket, int]:
    """Hand the request to the fork server, which is started if need be; return its child."""
    if connection := connect(folder):
        try:
            return connection, hand_over(connection, program, arguments)
        except (NoneThereError, OSError):
            connection.close()  # it was just ending, as nobody had asked for long
    if os.path.exists(f"/proc/self/fd/{folder}/{COLD}"):
        raise NoneThereError("it could not be started before")
    fcntl.flock(folder, fcntl.LOCK_EX)  # two messages start one
    connection = connect(folder)
    if connection is None:
        start(folder, program, idle, os.getppid())
        connection = connect(folder)
    fcntl.flock(folder, fcntl.LOCK_UN)
    if connection is None:
        raise NoneThereError("it does not listen")
    try:
        return connection, hand_over(connection, program, arguments)
    except (NoneThereError, OSError) as error:
        # Else every later message would try again, in vain.
        os.close(os.open(f"/proc/self/fd/{folder}/{COLD}", os.O_CREAT | os.O_WRONLY, 0o600))
        raise NoneThereError("it ended while it was loading") from error


def stand_for(connection: socket.socket, child: int) -> int:
    """Let the child begin, and pass signals on until it ends.

    Returns its exit code, or minus the number of the signal that ended it.
    """
    try:
        process = os.pidfd_open(child)
    except ProcessLookupError:  # it has ended already
        return number(connection)

    def pass_on(number: int, frame: FrameType | None) -> None:
        try:
            signal.pidfd_send_signal(process, number)
        except ProcessLookupError:
            return  # it ends just now

    for one in PASSED_ON:
        if signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, pass_on)
    try:
        connection.sendall(GO)
        return number(connection)
    except (NoneThereError, OSError):
        # The fork server was killed; the child goes on, but how it ends is for nobody to know.
        wait = select.poll()
        wait.register(process, select.POLLIN)
        wait.poll()
        return 1


def main(folder: str, idle: str, program: str, *arguments: str) -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interruption is no error of ours
    try:
        opened = open_folder(folder)
        if arguments[:1] == (START,):
            start(opened, program, idle, int(arguments[1]))
            return
        connection, child = find_child(opened, program, idle, [*arguments])
    except (NoneThereError, OSError) as error:
        sys.stderr.write(
            f"repper: no warm process for this message, so it starts a new process: {error}\n"
        )
        sys.stderr.flush()
        os.execv(program, [program, *arguments])
    os.close(opened)
    code = stand_for(connection, child)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
