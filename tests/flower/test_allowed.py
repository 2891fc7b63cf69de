"""What a server may decide for a site, setting by setting: no path, no text, and no code."""

from __future__ import annotations

import dataclasses
import json
import runpy

import pytest

pytest.importorskip("flwr")

from repper.basics.errors import RepperError
from repper.basics.options import Option
from repper.flower import allowed, wire
from repper.flower.allowed import FROM_SERVER, NOT_IN_A_FEDERATION, OF_THE_SERVER, TRAVELS
from repper.flower.site import travelling
from repper.settings.config import GENERAL, OPTIONS, Config

from .nodes import CLASSES, CONFIG, Home

TABLES = {"overrides", "own", "sources", "values"}
"""Fields of `Config` that are no single setting, and never travel."""
MAY_BE_CODE = ("method", "encoder", "personalize")
TOLD = {"run": "ab" * 8, "client": 0, "classes": "\n".join(CLASSES)}


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Config)])
def test_it_is_decided_of_every_setting_whether_a_server_may_decide_it(name):
    """Whoever adds a setting to `Config` has to say whose it is in a federation: just one's."""
    kinds = (FROM_SERVER, OF_THE_SERVER, NOT_IN_A_FEDERATION)
    assert sum(name in kind for kind in kinds) == (0 if name in TABLES else 1)
    assert (name in TRAVELS) == (name in FROM_SERVER)


def test_only_settings_that_there_are_have_been_decided_of():
    assert GENERAL.keys() == FROM_SERVER | OF_THE_SERVER | NOT_IN_A_FEDERATION
    assert set(TRAVELS) <= OPTIONS.keys()


@pytest.mark.parametrize("name", TRAVELS)
def test_what_travels_is_no_free_text(name):
    """A number, a truth value, or one of some words: what could be a path or a program stays."""
    option = OPTIONS[name]
    assert option.kind in (int, float, bool) or (option.kind is str and option.choices is not None)
    assert option.takes_own == (name in MAY_BE_CODE)


@pytest.mark.parametrize("owner", ["fedavg", "svm"])
def test_no_free_text_of_a_method_or_head_travels(monkeypatch, owner):
    """Not even one that somebody adds: the list is made from what a setting can be."""
    for name, kind, choices in (
        ("start_from", str, None),
        ("shape", str, lambda: ("round", "square")),
        ("steps", int, None),
    ):
        option = Option("new", choices=choices, name=name, kind=kind, owners=(owner,))
        monkeypatch.setitem(OPTIONS, name, option)
    travels = runpy.run_path(allowed.__file__)["TRAVELS"]
    assert set(travels) - set(TRAVELS) == {"shape", "steps"}


@pytest.fixture
def code(tmp_path):
    """A file that leaves a trace if somebody loads it."""
    (tmp_path / "evil.py").write_text(
        f"open({str(tmp_path / 'loaded')!r}, 'w').close()\nclass Evil: ...\n"
    )
    return tmp_path / "evil.py"


@pytest.mark.parametrize("kind", [wire.WHO, wire.FIT, wire.PERSONALIZE])
@pytest.mark.parametrize("name", MAY_BE_CODE)
def test_a_site_runs_no_code_that_a_server_names(
    tmp_path, image_folders, code, name, kind, caplog, monkeypatch
):
    """And says so to the server, which learns nothing of the site by it."""
    monkeypatch.chdir(tmp_path)
    nodes, settings = Home(tmp_path / "sites", image_folders), json.loads(travelling(CONFIG))
    for reference in (f"{code}:Evil", "evil.py:Evil", "evil:Evil", "evil.deep:Evil"):
        told = TOLD | {"settings": json.dumps(settings | {name: reference})}
        told |= {"round": 1, "last": 0, "stage": 0}
        [number] = nodes.push_messages([wire.question(kind, 0, told, wire.arrays_of({}))])
        [reply] = nodes.pull_messages([number])
        assert wire.problem_in(reply) == f"it does not run code that a server names: {name}"
        assert set(wire.told_in(reply)) == {"problem"}
    assert not (tmp_path / "loaded").exists()
    assert not (tmp_path / "sites" / "site0" / "runs").exists()
    assert caplog.text == ""  # nothing that only the site's log would say


@pytest.mark.parametrize("name", [*sorted(TABLES), *sorted(OF_THE_SERVER), "no_setting"])
def test_tables_of_settings_and_what_is_the_servers_are_refused(name):
    with pytest.raises(RepperError, match=f"it does not let a server set {name}"):
        allowed.check_allowed({"rounds": 1, name: {"method": "evil.py:Evil"}})
