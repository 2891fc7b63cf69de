"""Locks between processes, which end with the process that holds them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repper.basics.errors import RepperError
from repper.basics.files import InUseError, alone_in, lock_file
from repper.runs import run_folder

HOLD = """
import sys
from pathlib import Path
from repper.basics.files import lock_file
with lock_file(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holding(tmp_path):
    """Another process that holds a lock; `stop` ends it kindly, or by a signal."""
    started = []

    def start(path: Path):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout.readline() == b"held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.mark.parametrize("end", ["close", signal.SIGTERM, signal.SIGKILL])
def test_a_lock_ends_with_its_process_however_it_ends(holding, tmp_path, end):
    path = tmp_path / "lock"
    other = holding(path)
    with pytest.raises(InUseError), lock_file(path, wait=False):
        pass
    if end == "close":
        other.stdin.close()
    else:
        other.send_signal(end)
    began = time.monotonic()
    with lock_file(path, wait=True):
        assert other.wait(60) == (0 if end == "close" else -end)
        assert time.monotonic() - began < 60
    with lock_file(path, wait=False, keep=False):
        assert path.exists()
    assert os.listdir(tmp_path) == []


def test_a_run_folder_is_kept_for_one_process(holding, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    other = holding(folder / run_folder.LOCK)
    with (
        pytest.raises(RepperError, match="another process is running in"),
        run_folder.locked(folder),
    ):
        pass
    other.kill()
    other.wait()
    with run_folder.locked(folder), pytest.raises(RepperError), run_folder.locked(folder):
        pass


def test_a_model_folder_is_locked_without_a_file(tmp_path):
    with alone_in(tmp_path):
        assert os.listdir(tmp_path) == []
        with pytest.raises(RepperError, match="another command is changing"), alone_in(tmp_path):
            pass
    with alone_in(tmp_path):
        pass
