"""What tests of Flower's parts share; Flower itself is imported by those that need it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def identity():
    """What Flower sets in a process of its own before it starts an app there."""
    task_identity = pytest.importorskip("flwr.supercore.task_identity")
    one = task_identity.TaskIdentity
    one.run_id = one.node_id = one.task_id = 1
    yield
    one._run_id = one._node_id = one._task_id = None


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("repper.flower.grid_engine.PAUSE", 0.001)
    monkeypatch.setattr("repper.flower.grid_engine.LONGEST_PAUSE", 0.001)
    monkeypatch.setattr("repper.flower.grid_engine.LOOK", 0.0)


@pytest.fixture(scope="module")
def image_folders(tmp_path_factory):
    from .nodes import folder_of_site

    folder = tmp_path_factory.mktemp("sites")
    for site in range(2):
        folder_of_site(folder / f"site{site}", range(40 * site, 40 * site + 40))
    return folder
