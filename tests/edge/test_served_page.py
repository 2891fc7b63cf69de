"""The page of a model, written and served."""

from __future__ import annotations

import base64
import http.client
import re
import signal
import subprocess
import sys

import pytest

from repper.basics.documents import read_json

from .commands import model_in, refused
from .tiny_model import (
    pixel_encoder,
    write_model,
)


def test_the_page_holds_the_model(repper, model, tmp_path):
    said = repper("play", model, "--html", "page.html")
    assert said.returncode == 0
    assert "open it in a browser" in said.stdout
    found = model_in((tmp_path / "page.html").read_text("utf-8"))
    assert found["model"] == read_json(model / "model.json")
    for part, file in (("encoder", "encoder.onnx"), ("head", "head.safetensors"),
                       ("unknown", "unknown.safetensors")):  # fmt: skip
        assert base64.b64decode(found[part]) == (model / file).read_bytes()
    write_model(tmp_path / "bare", pixel_encoder())
    assert repper("play", "bare", "--html", "page.html").returncode == 0
    found = model_in((tmp_path / "page.html").read_text("utf-8"))
    assert (found["head"], found["unknown"], found["model"]["classes"]) == (None, None, None)


@pytest.fixture
def served(model):
    """A running `repper play`, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "repper", "play", str(model), "--no-browser"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        yield process, int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/ .*\n", line)[1])
    finally:
        process.kill()
        process.communicate()


def ask(port, path="/", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_the_page_is_served_to_this_machine_only(served, model):
    process, port = served
    status, page = ask(port)
    assert status == 200
    assert model_in(page)["model"] == read_json(model / "model.json")
    assert ask(port, Host=f"localhost:{port}")[0] == 200
    assert ask(port, Host="127.0.0.1")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "[::1]"):
        status, page = ask(port, Host=host)
        assert status == 403
        assert "encoder" not in page
    for path in ("/model.json", "/../../etc/passwd", "/?x"):
        assert ask(port, path)[0] == 404
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")


def test_a_port_in_use_is_a_sentence(served, repper, model):
    _, port = served
    refused(repper("play", model, "--port", port, "--no-browser"), f"port {port}", "--port")
