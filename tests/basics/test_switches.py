"""Global switches of PyTorch and numpy that a caller has set change no digest, and stay set."""

from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch

import repper as api
from conftest import make_dataset
from repper.basics.switches import default_switches, each_step
from repper.runs.execute import RoundDone

HOW = {"clients": 3, "rounds": 2, "epochs": 1, "width": 0.25, "engine": "serial", "alpha": 100.0}
DATA = make_dataset()


def digests(folder, **how):
    run = api.run(DATA, out=folder, **HOW, **how)
    return run.result["encoder_digest"], run.result["heads_digest"]


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    return digests(tmp_path_factory.mktemp("ordinary") / "run")


@contextmanager
def switched(put, now, other):
    """A switch set to another value for a while; it must still have that one in the end."""
    before = now()
    put(other)
    try:
        yield
        assert now() == other
    finally:
        put(before)


def flushes():
    return (torch.tensor(1e-40) * 0.5).item() == 0


def of(owner, name, other):
    return switched(lambda v: setattr(owner, name, v), lambda: getattr(owner, name), other)


SWITCHES = {
    "precision": lambda: switched(
        torch.set_float32_matmul_precision, torch.get_float32_matmul_precision, "medium"
    ),
    "precision of convolutions": lambda: (
        of(torch.backends.mkldnn.conv, "fp32_precision", "bf16")
        if hasattr(torch.backends.mkldnn, "conv")
        else nullcontext()
    ),
    "deterministic": lambda: switched(
        torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, True
    ),
    "oneDNN": lambda: of(torch.backends.mkldnn, "enabled", False),
    "numbers": lambda: switched(torch.set_default_dtype, torch.get_default_dtype, torch.float64),
    "device": lambda: switched(
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
        torch.get_default_device,
        torch.device("meta"),
    ),
    "threads": lambda: switched(torch.set_num_threads, torch.get_num_threads, 2),
    "tiny numbers": lambda: switched(torch.set_flush_denormal, flushes, True),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "numpy's errors": lambda: np.errstate(all="raise"),
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_of_the_caller_changes_no_digest(tmp_path, ordinary, switch):
    with SWITCHES[switch]():
        found = digests(tmp_path / "run")
    assert found == ordinary


def test_neither_does_one_that_is_set_while_a_run_is_watched(tmp_path, ordinary):
    def watch(event):
        assert torch.get_num_threads() == threads
        if isinstance(event, RoundDone):
            torch.set_float32_matmul_precision("medium")
            torch.set_default_dtype(torch.float64)

    threads = torch.get_num_threads()
    try:
        assert digests(tmp_path / "run", watch=watch) == ordinary
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.set_default_dtype(torch.float32)


def test_a_prediction_is_computed_without_them(tmp_path, ordinary):
    run = api.run(DATA, out=tmp_path / "run", **HOW)
    plain = run.predict_with_scores(0, DATA.test.images)
    for switch in ("precision", "oneDNN", "numbers", "autocast", "device"):
        with SWITCHES[switch]():
            assert run.predict_with_scores(0, DATA.test.images) == plain, switch


def test_a_run_that_is_left_early_puts_the_switches_back():
    def events():
        with default_switches():
            yield torch.get_num_threads()
            yield 0

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        steps = each_step(default_switches, events())
        assert next(steps) == 1
        assert torch.get_num_threads() == 2
        steps.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
