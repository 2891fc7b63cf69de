"""Nodes that cannot work: each says why in one sentence, and ends or is started again."""

from __future__ import annotations

import datetime
import os
import re
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from email.utils import format_datetime
from pathlib import Path

import pytest

from repper.flower import kept
from repper.flower.keys import CA, CERTIFICATE, KEY, make_certificates

from .conftest import Process, command, until

SOON = 300.0
"""Seconds for what takes ten on a machine that has nothing else to do."""


class Answers:
    """A server with a certificate that gives every request one answer, or none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_certificates(folder, ["127.0.0.1"])
        self.answer: tuple[str, bytes, float] | None = None
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(folder / CERTIFICATE, folder / KEY)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def say(self, status: str, body: bytes = b"", clock: float = 0) -> None:
        """Answer so; `clock` is how many seconds the server's own clock is behind."""
        self.answer = (status, body, clock)

    def _bytes(self) -> bytes:
        status, body, clock = self.answer or ("", b"", 0.0)
        now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=clock)
        head = (
            f"HTTP/1.1 {status}", f"Date: {format_datetime(now, usegmt=True)}",
            f"Content-Length: {len(body)}", "Connection: close", "", "",
        )  # fmt: skip
        return "\r\n".join(head).encode() + body

    def _serve(self) -> None:
        while True:
            try:
                raw, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(raw,), daemon=True).start()

    def _one(self, raw: socket.socket) -> None:
        with raw:
            if self.answer is None:
                return  # a connection that ends in the middle of the handshake
            try:
                with self._tls.wrap_socket(raw, server_side=True) as tls:
                    tls.recv(1 << 16)
                    tls.sendall(self._bytes())
            except OSError:
                return

    def close(self) -> None:
        self._socket.close()


class Site:
    """A node and the server that it knows, in a folder of their own."""

    def __init__(self, folder: Path, images: Path) -> None:
        folder.mkdir()
        self.folder, self.images, self.server = folder, images, Answers(folder)

    def start(self) -> Process:
        arguments = (
            "node", self.folder / "site", "--server", self.server.address,
            "--data", self.images / "north", "--ca", self.folder / CA,
        )  # fmt: skip
        self.process = Process(command(*arguments), self.folder / "node.log")
        return self.process

    def close(self) -> None:
        self.process.kill()
        self.server.close()


@pytest.fixture
def site(tmp_path, images) -> Iterator[Callable[[str], Site]]:
    """Make sites, which end with the test."""
    made: list[Site] = []

    def make(name: str) -> Site:
        made.append(Site(tmp_path / name, images))
        return made[-1]

    yield make
    for one in made:
        one.close()


def sentence(process: Process) -> str:
    """The one line by which a node ends."""
    assert process.end(SOON) == kept.GIVEN_UP, process.said()
    last = process.said().strip().splitlines()[-1]
    assert last.startswith("repper: "), process.said()
    return last


HOPELESS = {
    "ahead": ("401 Unauthorized", b"", 20, "this machine's clock is 2[01] s ahead of that of"),
    "behind": ("401 Unauthorized", b"", -600, "this machine's clock is (600|599) s behind that of"),
    "revoked": ("401 Unauthorized", b"", 0, "no longer admits the key of this site"),
    "nothing": ("404 Not Found", b"", 0, r"not answer as a server of repper \(status 404\)"),
    "forbidden": ("403 Forbidden", b"", 0, r"not answer as a server of repper \(status 403\)"),
    "page": ("200 OK", b"<html>Please log in</html>", 0, "the answer of .* is unreadable"),
    "other": ("200 OK", b"", 0, r"is not accepted \(.*certificate"),
}
"""What a node is answered, by how much the server's clock is behind, and what the node says."""


def test_what_only_a_person_can_mend_ends_the_node(site, tmp_path):
    sites = {name: site(name) for name in HOPELESS}
    (tmp_path / "another").mkdir()
    make_certificates(tmp_path / "another", ["127.0.0.1"])
    (sites["other"].folder / CA).write_bytes((tmp_path / "another" / CA).read_bytes())
    for name, one in sites.items():
        one.server.say(*HOPELESS[name][:3])
        one.start()
    for name, one in sites.items():
        assert re.search(HOPELESS[name][3], sentence(one.process)), name


def test_what_passes_starts_the_node_again(site):
    """A connection that breaks off, an error of the server, a server that is away."""
    broken, failing, away = site("broken"), site("failing"), site("away")
    failing.server.say("500 Internal Server Error")
    away.server.close()
    for one in (broken, failing, away):
        one.start()
    broken.process.says("broke off", SOON)
    failing.process.says("had an internal error (status 500)", SOON)
    for one in (broken, failing):
        one.process.says("starting the node again in", SOON)
        [pause] = re.findall(r"starting the node again in (\d+) s", one.process.said())[:1]
        assert 3 <= int(pause) <= 7
    said = away.process.said
    until(lambda: said().count("Connection attempt failed, retrying") > 1, "no tries", SOON)
    assert said().count("is not reachable") == 1
    # Who ends `repper node` ends all that it has started.
    os.kill(broken.process.process.pid, signal.SIGTERM)
    assert broken.process.end(SOON) == 0
    until(lambda: not broken.process.family(), "something of the node still runs", 30)


def test_pauses_grow_and_a_hopeless_end_is_the_last(tmp_path):
    """`kept` alone, with a program that ends at once and pauses that are short."""
    tries = tmp_path / "tries"
    program = (
        "import json, os, socket, sys; from pathlib import Path\n"
        f"tries = Path({str(tries)!r}); tries.open('a').write('x')\n"
        "line = socket.socket(fileno=int(os.environ['REPPER_KEEPER']))\n"
        "helps = float('inf') if len(tries.read_text()) < 3 else 0\n"
        "line.sendall(json.dumps(['it broke', helps]).encode())\n"
    )
    short = (
        f"import sys; sys.path.insert(0, {str(Path(kept.__file__).parent)!r}); import kept\n"
        "kept.FIRST_PAUSE = 0.3; sys.exit(kept.main(sys.argv[1:]))"
    )
    process = Process(
        [sys.executable, "-SPc", short, sys.executable, "-c", program], tmp_path / "log"
    )
    assert process.end(60) == kept.GIVEN_UP
    assert tries.read_text() == "xxx"
    lines = process.said().splitlines()
    assert [line.split(";")[0] for line in lines] == ["repper: it broke"] * 3
    assert "again" not in lines[-1]


@pytest.mark.parametrize(
    ("happens", "expected"),
    [
        ("threading.Thread(target=heartbeat).start()", "counted this site as disconnected"),
        ("subprocess.Popen(['true'])", "process that starts the work has ended"),
        ("return", "stopped working without an error message"),
        ("raise SystemExit(0)", "None"),
    ],
)
def test_a_node_that_no_longer_works_is_noticed(tmp_path, happens, expected):
    """What Flower's node lives through: its heart stops, its worker ends, it returns."""
    program = (
        "import os, signal, socket, subprocess, sys, threading, time; from pathlib import Path\n"
        "from repper.flower.watched import Watch, run\n"
        "ours, theirs = socket.socketpair()\n"
        "def heartbeat():\n"
        "    raise RuntimeError('The SuperLink does not recognize this SuperNode.')\n"
        "def node():\n"
        "    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        f"    {happens}\n"
        "    time.sleep(60)\n"
        "run(Watch(Path('.'), 'server:1', Path('ca.crt'), theirs), node)\n"
        "ours.setblocking(False)\n"
        "try: said = ours.recv(9999).decode()\n"
        "except BlockingIOError: said = 'None'\n"
        "print(said, flush=True); os._exit(0)\n"
    )
    process = Process([sys.executable, "-c", program], tmp_path / "log")
    assert process.end(50) == 0, process.said()
    assert expected in process.said()
