"""In a notebook, a run shows what it does without being asked."""

import re
import sys
import types

import pytest

import repper as api

SETTINGS = {"clients": 4, "epochs": 1, "width": 0.25, "engine": "serial", "knn": 0}


@pytest.fixture
def jupyter(monkeypatch):
    """What Jupyter has in place of a terminal: a shell of this name."""
    shell = type("ZMQInteractiveShell", (), {})()
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", module)


def test_a_run_prints_lines_in_a_notebook(jupyter, tmp_path, capsys):
    api.run("digits", rounds=2, out=tmp_path / "run", **SETTINGS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"digits, 4 clients, 2 rounds, in {tmp_path / 'run'}"
    assert re.fullmatch(r"round 1/2, loss \d\.\d{3}, about \d+ s left", lines[1])
    assert re.fullmatch(r"round 2/2, loss \d\.\d{3}, about 0 s left", lines[2])
    assert re.fullmatch(r"finished: accuracy \d+\.\d\d % in the mean", lines[3])
    assert len(lines) == 4


def test_nothing_is_printed_in_a_script_or_for_who_watches(tmp_path, capsys, request):
    api.run("digits", rounds=1, out=tmp_path / "script", **SETTINGS)
    request.getfixturevalue("jupyter")
    seen = []
    api.run("digits", rounds=1, out=tmp_path / "watched", watch=seen.append, **SETTINGS)
    assert capsys.readouterr().out == ""
    assert seen
