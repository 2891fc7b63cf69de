"""Ctrl-C from the first moment on ends a command with exit code 130 and one sentence."""

import os
import signal
import subprocess
import sys
from functools import partial

import pytest


@pytest.mark.parametrize("loaded", ["numpy.linalg", "repper.cli.runs", "torch.functional"])
def test_an_interruption_while_loading_is_no_traceback(tmp_path, loaded):
    """Python tells on stderr which module it has just imported."""
    command = [sys.executable, "-X", "importtime", "-m", "repper", "run", "--out", "run"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # tests may run in the background
    ) as process:  # fmt: skip
        said = []
        for line in process.stderr:
            if line.startswith("import time:"):
                if line.rpartition("|")[2].strip() == loaded:
                    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            else:
                said.append(line)
    assert process.returncode == 130
    assert said == ["repper: interrupted\n"]
    assert not list(tmp_path.iterdir())


def test_the_package_itself_loads_nothing(tmp_path):
    """The signal has its own answer once `repper.cli.interrupt` is there: nothing slow comes before."""
    code = "import sys; before = {*sys.modules}; import repper.cli; print(*{*sys.modules} - before)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {"repper", "repper.cli", "repper.cli.interrupt"}
    heavy = {"typing", "re", "threading", "numpy", "argparse", "dataclasses", "inspect"}
    assert ours <= {*found.stdout.split()}
    assert not heavy & {*found.stdout.split()}
