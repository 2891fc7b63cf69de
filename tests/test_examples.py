"""The files of settings in examples/configs: each says what it is for, and runs as it says."""

import re
import shlex
from pathlib import Path

import pytest

from conftest import last_json
from repper.settings.config_file import read_config

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "examples" / "configs").glob("*.toml"))
HEAD = re.compile(
    r"# .+\.\n#\n#     (repper run --config examples/configs/(.+)\.toml)\n#\n"
    r"# About \d+ (?:s|min) on two cores; expect a mean accuracy of (\d\d\.\d) % over clients\.\n\n"
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_config_opens_with_its_command_time_and_score(file):
    found = HEAD.match(file.read_text())
    assert found, "its first lines"
    assert found[2] == file.stem
    assert read_config(file)["seed"] == 0  # else the score could be another


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_config_runs(file, repper, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = shlex.split(HEAD.match(file.read_text())[1])[1:]
    settings = read_config(file)
    short = ["--rounds", 1, "--epochs", 1, "--knn", 0, "--engine", "serial", "--json"]
    if settings["data"] == "cifar10":  # which is not everywhere; the rest of the file is tried
        short += ["--data", "digits", "--train-images", 500]
    if settings.get("personalize") == "common":
        short += ["--common-rounds", 1]
    result = last_json(repper(*command, *short, "--out", "run"))
    assert 0 < result["accuracy"]["mean"] <= 100


def test_every_example_has_a_config_and_the_readme_lists_them():
    shown = (ROOT / "examples" / "README.md").read_text()
    for file in FILES:
        assert f"configs/{file.name}" in shown
    named = "".join(file.read_text() for file in FILES)
    own = {p.name for p in (ROOT / "examples").glob("*.py")} - {"loop_by_hand.py"}
    assert {name for name in own if name not in named} == set()
