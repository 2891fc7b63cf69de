"""Flower's simulation: Ray's processes, which take half a minute to start, so not in `make test`."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from conftest import last_json
from test_own import check_a_class_of_a_script


def test_the_simulation_is_the_serial_run(repper_process):
    """A method that keeps parameters at the clients, in Ray's processes."""
    settings = (
        "run", "--data", "digits", "--clients", 4, "--rounds", 2, "--epochs", 1, "--width", 0.25,
        "--participation", 0.5, "--method", "fedrep", "--personalize", "keep", "--workers", 2,
        "--json",
    )  # fmt: skip
    serial, flower = (
        last_json(repper_process(*settings, "--engine", engine, "--out", engine, timeout=600))
        for engine in ("serial", "flower")
    )
    for name in ("encoder_digest", "heads_digest", "accuracy"):
        assert flower[name] == serial[name]


def test_a_class_of_a_script_reaches_rays_workers(tmp_path):
    check_a_class_of_a_script(tmp_path, "flower")
