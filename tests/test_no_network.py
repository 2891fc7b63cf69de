"""Nothing goes out: importing, running and predicting on digits open no connection."""

import os
import shutil
import subprocess
import sys

import pytest

WATCHED = """
import sys

def look(event, arguments):
    if event == "socket.getaddrinfo" or event == "socket.gethostbyname":
        raise SystemExit(f"asked for the address of {arguments[0]}")
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        if isinstance(address, tuple):  # a path is a socket of this machine, as between processes
            raise SystemExit(f"connects to {address}")

sys.addaudithook(look)
import repper
from repper.cli import main
"""
RUN = ["run", "--clients", "4", "--rounds", "1", "--epochs", "1", "--width", "0.25", "--out", "run"]


def test_a_run_opens_no_connection(tmp_path):
    """In the command's own process; the workers' are looked at by the next test."""
    code = f"{WATCHED}sys.exit(main({[*RUN, '--engine', 'serial']}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "result.json").is_file()


def test_the_hook_hears_a_connection():
    for call in ("create_connection(('127.0.0.1', 9))", "getaddrinfo('localhost', 80)"):
        code = f"{WATCHED}import socket; socket.{call}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith(("connects to", "asked for"))


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("unshare"),
    reason="namespaces without a network need root on Linux",
)
def test_a_run_needs_no_network(tmp_path):
    """In a network namespace that has no interface that is up, workers included."""
    command = ["unshare", "-n", sys.executable, "-m", "repper", *RUN, "--workers", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "result.json").is_file()
