"""The folder that `flwr run` takes is what repper writes, and knows every setting."""

import tomllib
from pathlib import Path

import pytest

from repper.settings.config import OPTIONS, Config

pytest.importorskip("flwr")

from repper.flower.app_folder import OF_THE_FEDERATION, write_app
from repper.flower.entry_points import config_in

APP = Path(__file__).parents[2] / "flower-app"


def files(folder):
    found = {p.relative_to(folder): p for p in folder.rglob("*") if p.is_file()}
    return {name: p.read_text() for name, p in found.items() if "__pycache__" not in p.parts}


def in_config():
    project = tomllib.loads((APP / "pyproject.toml").read_text())
    return project["tool"]["flwr"]["app"]["config"]


def test_the_folder_is_what_repper_writes(tmp_path):
    write_app(tmp_path)
    assert files(APP) == files(tmp_path), "write it again: write_app(Path('flower-app'))"


def test_every_setting_is_in_its_config():
    assert set(in_config()) == {option.key for option in OPTIONS.values()} | set(OF_THE_FEDERATION)


def test_its_config_is_that_of_a_run_without_settings():
    assert config_in(in_config()) == Config()
