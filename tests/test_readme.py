"""The commands, settings and Python of the README and of the guides to it work as they stand there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import last_json

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "docs/index.md", "docs/compare.md", "docs/python.md"]
ELSEWHERE = ("serve", "node", "federate", "personalize", "play", "export")
"""Commands of several machines and of devices, which have tests of their own."""


def read(page):
    return (ROOT / page).read_text()


def blocks(page, language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", read(page), re.M | re.S)
    return [text for kind, text in found if kind == language]


def commands(page):
    lines = [
        line.split("#")[0].strip() for block in blocks(page, "") for line in block.splitlines()
    ]
    return [
        line for line in lines if line.startswith("repper ") and line.split()[1] not in ELSEWHERE
    ]


@pytest.mark.parametrize(("page", "count"), [*zip(PAGES, (3, 2, 12, 6), strict=True)])
def test_the_commands_work(repper, tmp_path, page, count):
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "image.png")
    inline = re.findall(r"`(repper predict [^`]+)`", read(page))
    assert len(commands(page)) == count
    assert bool(inline) == (page == "docs/compare.md")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command in [*commands(page), *inline]:
        trains = command.startswith(("repper run ", "repper compare "))
        shorter = " --rounds 1 --epochs 1" if trains else ""
        command = command.replace("--seeds 3", "--seeds 1 --engine serial")
        if command.startswith("repper report"):
            shorter = " --no-tsne"
        # Without the paper's data sets, whose steps would take long to time: then none can be timed.
        process = repper(*shlex.split(command + shorter)[1:], env={"REPPER_DATA": str(tmp_path)})
        expected = 2 if "--estimate" in command else 0
        assert process.returncode == expected, f"{command}: {process.stderr}"


def test_the_toml_works(repper, tmp_path):
    [text] = blocks("docs/compare.md", "toml")
    (tmp_path / "my.toml").write_text(text)
    assert last_json(repper("run", "--config", "my.toml", "--rounds", 0, "--json"))


def python(code, folder):
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_the_python_works(tmp_path):
    code, values, _ = blocks("docs/python.md", "python")  # the third: tests/edge/test_readme.py
    accuracy, predictions = python(code.replace("rounds=10", "rounds=1"), tmp_path).splitlines()
    assert 50 < float(accuracy.split()[0]) <= 100
    assert len(eval(predictions)) == 3
    python(values.replace("out=", "clients=4, rounds=1, epochs=1, engine='serial', out="), tmp_path)
    table = (tmp_path / "runs/values/table.md").read_text()
    for row in re.findall(r"`(fedprox\[[^`]+)`", read("docs/python.md")):
        assert f"| {row} |" in table


def test_make_has_the_targets_of_the_readme():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\w+)", read("README.md"), re.M)
    assert targets
    for target in targets:
        assert f"\n{target}:" in makefile
