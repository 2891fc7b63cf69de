"""Everything the README tells a reader to type does what it says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from conftest import last_json

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ELSEWHERE = ("serve", "node", "federate", "personalize", "play")
"""Commands of several machines and of devices, which have tests of their own."""


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)
    return [text for kind, text in found if kind == language]


def commands():
    lines = [line.split("#")[0].strip() for block in blocks("") for line in block.splitlines()]
    return [
        line for line in lines if line.startswith("repper ") and line.split()[1] not in ELSEWHERE
    ]


def test_the_commands_work(repper, tmp_path):
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "image.png")
    inline = re.findall(r"`(repper predict [^`]+)`", README)
    assert len(commands()) == 8
    assert inline
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command in [*commands(), *inline]:
        trains = command.startswith(("repper run", "repper compare"))
        shorter = " --rounds 1 --epochs 1" if trains else ""
        command = command.replace("--seeds 3", "--seeds 1 --engine serial")
        if command.startswith("repper report"):
            shorter = " --no-tsne"
        # Without the paper's data sets, whose steps would take long to time: then none can be timed.
        process = repper(*shlex.split(command + shorter)[1:], env={"REPPER_DATA": str(tmp_path)})
        expected = 2 if "--estimate" in command else 0
        assert process.returncode == expected, f"{command}: {process.stderr}"


def test_the_toml_works(repper, tmp_path):
    [text] = blocks("toml")
    (tmp_path / "my.toml").write_text(text)
    assert last_json(repper("run", "--config", "my.toml", "--rounds", 0, "--json"))


def test_the_python_works(tmp_path):
    code, _ = blocks("python")
    process = subprocess.run(
        [sys.executable, "-c", code.replace("rounds=10", "rounds=1")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    accuracy, predictions = process.stdout.splitlines()
    assert 50 < float(accuracy.split()[0]) <= 100
    assert len(eval(predictions)) == 3


def test_links_and_targets_exist():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        assert (ROOT / path).is_file(), target
        headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.M) if heading else []
        assert heading in ["", *(h.lower().replace(" ", "-") for h in headings)], target
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.M):
        assert f"\n{target}:" in makefile
