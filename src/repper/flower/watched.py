"""Flower's node, watched: tells `kept` why the node stopped, so that it may be restarted.

Flower's node goes on as an idle process after many errors, and ends without a reason after others.
So its program is called from here. Its log, httpx's and the end of its threads say what happened.
How long it sleeps between two looks for a message is decided here, too (`pace.py`).
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from math import inf
from pathlib import Path

from repper.basics.files import plain
from repper.flower import kept
from repper.flower.kept import Ended
from repper.flower.pace import Pace, answer_at_once

AHEAD, BEHIND = 4.0, 290.0
"""Seconds that a site's clock may be wrong: Flower allows 5 and 305; dates are whole seconds."""
TAKEN_FOR_ALIVE = 100.0
"""Seconds in which Flower may refuse a restarted node: it counts a killed one as alive for 60 s."""
CLOCK_TIMEOUT = 5.0


def watched(home: Path, server: str, ca: Path, command: Sequence[str]) -> list[str]:
    """The command of Flower's node, wrapped so that it is watched, and restarted if that helps."""
    node = [sys.executable, "-m", __name__, str(home), server, str(ca), *command[1:]]
    return [sys.executable, "-SP", kept.__file__, *node]


@dataclass
class Watch(logging.Handler):
    """Hears all that Flower and httpx log, and tells `kept` the first reason to end."""

    home: Path
    server: str
    ca: Path
    line: socket.socket
    pace: Pace = field(default_factory=Pace)
    _away: bool = False
    _status: int = 0
    _told: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        super().__init__(logging.DEBUG)

    def __hash__(self) -> int:
        return id(self)

    @property
    def connected(self) -> Path:
        """A copy of the public key with which this site was last connected."""
        return self.home / "connected.pub"

    @property
    def status(self) -> str:
        """The HTTP status of the last answer, if Flower does not report it."""
        return " (403 Forbidden)" if self._status == 403 else ""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._hear(record)
        except Exception:  # a record like no other must not end the thread that logs it
            self.handleError(record)

    def _hear(self, record: logging.LogRecord) -> None:
        args = record.args if isinstance(record.args, tuple) else ()
        if record.name.startswith("httpx"):
            self._status = next((one for one in args if isinstance(one, int)), 0)
            if self._status == 401:
                # Flower then ends itself, as if it were told to.
                self.tell(self._unauthorized())
        elif isinstance(record.msg, Exception) and record.levelno >= logging.ERROR:
            self.tell(self.why(str(record.msg), record.msg))
        elif (text := record.getMessage()).startswith("Exit Code: "):
            self.tell(self.why(text + self.status))
        elif text.startswith(("Receiving: ", "Sent successfully")):
            self.pace.message()
        elif text == "Received successfully":
            self.pace.work.set()
        elif text.startswith("SuperNode ID"):
            self.connected.write_bytes((self.home / "site.pub").read_bytes())
        elif text.startswith("Connection successful"):
            self._away = False
        elif text.startswith("Connection attempt failed with exception") and not self._away:
            self._away = True
            reason = " ".join(str(args[0] if args else "").split()) or "no answer"
            _say(
                f"repper: the server {self.server} is not reachable ({reason}): "
                f"retrying until it answers"
            )

    def tell(self, ended: Ended) -> None:
        """Tell the first reason to end; later ones follow from it."""
        if self._told.acquire(blocking=False):
            with suppress(OSError):
                self.line.sendall(json.dumps(ended).encode() + b"\n")

    def why(self, text: str, error: BaseException | None = None) -> Ended:
        """Explain an error of Flower's node, and how long restarts may help."""
        text = " ".join(text.split())
        found = re.search(r"\b([45]\d\d) [A-Z]", text)
        status = int(found[1]) if found else 0
        low = text.lower()
        if "[code: 2004]" in text:
            return self._refused()
        if "certificate" in low:
            detail = re.search(r"certificate verify failed: ([^(]+)", text)
            return Ended(
                f"the certificate of {self.server} is not accepted "
                f"({detail[1].strip() if detail else text}): compare ca.crt with that in the "
                f"server's home, and this machine's clock with the right time",
                0,
            )
        if any(sign in low for sign in ("ssl", "tls", "eof")):
            return Ended(f"the connection to {self.server} broke off ({_short(text)})", inf)
        if status >= 500:
            return Ended(f"the server {self.server} had an internal error (status {status})", inf)
        if "does not recognize" in text:
            return Ended(f"the server {self.server} has counted this site as disconnected", inf)
        if status:
            return Ended(
                f"{self.server} does not answer as a server of repper (status {status}): is it the "
                f"server, and does its proxy let /v1/fleet/ through?",
                0,
            )
        if isinstance(error, ValueError) or "protobuf" in low:
            return Ended(
                f"the answer of {self.server} is unreadable: is it the server of this federation, "
                f"with the same version of Flower?",
                0,
            )
        if text.startswith("Exit Code"):
            return Ended(f"Flower's node could not start: {_short(text)}", 0)
        return Ended(f"Flower's node had an error: {_short(text)}", inf)

    def _unauthorized(self) -> Ended:
        """The server has refused a signature: because of the clock, or of the key."""
        ahead = clock_ahead(self.server, self.ca)
        if ahead is None:
            return Ended(
                f"{self.server} refuses the signatures of this site: is its clock right, and its "
                f"key still admitted?",
                0,
            )
        if not -BEHIND < ahead < AHEAD:
            way = "ahead of" if ahead > 0 else "behind"
            return Ended(
                f"this machine's clock is {abs(ahead):.0f} s {way} that of {self.server}, so its "
                f"signatures are refused: set the clock (NTP)",
                0,
            )
        self.connected.unlink(missing_ok=True)
        return Ended(
            f"{self.server} no longer admits the key of this site: ask whoever runs the server",
            0,
        )

    def _refused(self) -> Ended:
        """Flower gives one code for two things: the key is not admitted, or in use."""
        known = self.connected.is_file() and (
            self.connected.read_bytes() == (self.home / "site.pub").read_bytes()
        )
        if known:
            return Ended(
                f"{self.server} refuses this site: it still counts an earlier node of the site as "
                f"connected, or no longer admits its key",
                TAKEN_FOR_ALIVE,
            )
        return Ended(
            f"{self.server} has not admitted the key of this site: send {self.home / 'site.pub'} "
            f"to whoever runs the server",
            0,
        )


def clock_ahead(server: str, ca: Path) -> float | None:
    """Seconds by which this machine's clock is ahead of the server's; None if not known."""
    host, _, port = server.rpartition(":")
    with suppress(OSError, ValueError, TypeError, http.client.HTTPException):
        context = ssl.create_default_context(cafile=str(ca))
        connection = http.client.HTTPSConnection(
            host.strip("[]"), int(port), timeout=CLOCK_TIMEOUT, context=context
        )
        connection.request("GET", "/")
        date = connection.getresponse().headers["Date"]
        connection.close()
        return time.time() - parsedate_to_datetime(date).timestamp()
    return None


def _short(text: str) -> str:
    """The text of an error, without Flower's number and link."""
    text = re.sub(r"^Exit Code: \d+|For more information.*$", "", text).strip()
    return text[:300]


def _say(text: str) -> None:
    sys.stderr.write(f"{plain(text)}\n")
    sys.stderr.flush()


def run(watch: Watch, node: Callable[[], object]) -> None:
    """Run Flower's node until it ends, in whatever way."""

    def thread_ended(args: threading.ExceptHookArgs) -> None:
        # Heartbeats end so, among others, while the node goes on.
        watch.tell(watch.why(str(args.exc_value), args.exc_value))
        os.kill(os.getpid(), signal.SIGTERM)

    threading.excepthook = thread_ended
    threading.Thread(target=_until_kept_ends, args=(watch.line,), daemon=True).start()
    threading.Thread(target=_until_a_child_ends, args=(watch,), daemon=True).start()
    try:
        node()
        watch.tell(Ended("Flower's node stopped working without an error message", inf))
    except SystemExit:
        pass
    except BaseException as error:  # Flower has some that are no Exception
        watch.tell(watch.why(f"{type(error).__name__}: {error}{watch.status}", error))


def _until_kept_ends(line: socket.socket) -> None:
    with suppress(OSError):
        line.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _until_a_child_ends(watch: Watch) -> None:
    """Wait until the process ends that starts all work: Flower's node does not notice its end."""
    while True:
        with suppress(ChildProcessError):
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            break
        time.sleep(1)
    watch.tell(Ended("Flower's process that starts the work has ended", inf))
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    home, server, ca, *arguments = sys.argv[1:]
    line = socket.socket(fileno=int(os.environ.pop("REPPER_KEEPER")))
    os.set_inheritable(line.fileno(), False)
    watch = Watch(Path(home), server, Path(ca), line)
    vars(start_client_internal)["time"] = watch.pace
    answer_at_once(watch.pace)
    logging.getLogger("flwr").addHandler(watch)
    requests = logging.getLogger("httpx")
    requests.setLevel(logging.INFO)
    requests.propagate = False
    requests.addHandler(watch)
    sys.argv = ["flower-supernode", *arguments]
    run(watch, flower_supernode)
    sys.stdout.flush()
    sys.stderr.flush()
    # Flower's threads would keep an idle process.
    os._exit(1)


if __name__ == "__main__":
    main()
