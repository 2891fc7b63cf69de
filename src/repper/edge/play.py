"""The page of a model: one file with the encoder and all code in it, which needs no server."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from repper.basics.errors import RepperError
from repper.edge.model_folder import MODEL, ModelNotes, read_model
from repper.edge.unknown import read_unknown

PLACE = '<script id="model" type="application/json">null</script>'
"""Where the page has its model; `make page` builds the page."""
LOOPBACK = "127.0.0.1"


def page_of(folder: Path) -> str:
    """The page of a model folder."""
    notes = read_model(folder)
    encoder = notes.encoder_bytes(folder)
    notes.read_head(folder)  # a damaged one is refused
    if notes.unknown is not None:
        read_unknown(folder / notes.unknown.file, notes.encoder.digest)
    content = {
        "model": notes.as_dict(),
        "encoder": _text(encoder),
        "head": _file(folder, notes, "head"),
        "unknown": _file(folder, notes, "unknown"),
    }
    try:
        written = json.dumps(content, allow_nan=False).replace("<", "\\u003c")
    except ValueError as error:
        raise RepperError(f"{folder / MODEL} is damaged: it holds NaN or Infinity") from error
    page = files("repper.edge").joinpath("page.html").read_text("utf-8")
    if page.count(PLACE) != 1:
        raise RepperError("this installation of repper has a damaged page.html: install it again")
    return page.replace(PLACE, f'<script id="model" type="application/json">{written}</script>')


def _file(folder: Path, notes: ModelNotes, part: str) -> str | None:
    described: Any = getattr(notes, part)
    return None if described is None else _text((folder / described.file).read_bytes())


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def serve(page: str, port: int, started: Callable[[str], None]) -> None:
    """Serve the page on this machine only, until it is interrupted."""
    content = page.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Another site's name that points to this machine must not get the model.
            host = self.headers.get("Host", "").partition(":")[0]
            if host not in (LOOPBACK, "localhost"):
                self.send_error(403)
            elif self.path != "/":
                self.send_error(404)
            else:
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                with suppress(ConnectionError):  # the browser has left
                    self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    try:
        server = ThreadingHTTPServer((LOOPBACK, port), Handler)
    except (OSError, OverflowError, socket.gaierror) as error:
        reason = getattr(error, "strerror", None) or error
        raise RepperError(
            f"cannot serve on port {port}: {reason}; choose another with --port"
        ) from error
    with server:
        started(f"http://{LOOPBACK}:{server.server_address[1]}/")
        server.serve_forever()
