"""Compiled training, and training in half precision."""

import os
import shutil

import pytest
import torch

from repper import compiler
from repper.config import Config
from repper.engines.pool import PoolEngine
from repper.engines.serial import SerialEngine
from repper.errors import RepperError
from repper.params import params_of
from repper.runs.plan import plan
from test_engines import everything, task_for


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "compiled"
    monkeypatch.setenv(compiler.CACHE, str(folder))
    return folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch, in itself
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_compiled_results_depend_neither_on_workers_nor_on_who_comes_first(digits, cache):
    task, shared = task_for(digits, method="fedavg", compile=True)
    with SerialEngine(task, digits, 0) as engine:
        serial = everything(engine, shared, [3, 0, 1])
    assert (cache / "fxgraph").is_dir()
    with PoolEngine(task, digits, 2) as engine:
        assert everything(engine, shared, [0, 1, 3]) == serial
    task, _ = task_for(digits, method="fedavg")
    with SerialEngine(task, digits, 0) as engine:
        eager = {update.client: update for update in engine.fit(shared, [3, 0, 1], 1)}
    for client, _, examples, loss in serial["updates"]:
        assert eager[client].examples == examples
        assert eager[client].loss == pytest.approx(loss, rel=1e-3)


def test_compiling_leaves_the_network_as_it_was(digits, cache, monkeypatch):
    monkeypatch.setattr(compiler.torch, "compile", lambda function, **_: function)
    task, shared = task_for(digits, compile=True)
    with SerialEngine(task, digits, 0) as engine:
        network = engine._clients._network
        before = {name: tensor.clone() for name, tensor in params_of(network).items()}
        engine._clients._trainer.compile(engine._clients._phases)
        for name, tensor in params_of(network).items():
            assert torch.equal(tensor, before[name]), name
        compiled = everything(engine, shared, [0, 1])
    task, shared = task_for(digits)
    with SerialEngine(task, digits, 0) as engine:
        assert everything(engine, shared, [0, 1]) == compiled


def test_no_compiler_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RepperError, match=r"^--compile needs a C\+\+ compiler: install g"):
        plan(Config(compile=True))


def test_a_cache_that_cannot_be_written_is_named(monkeypatch):
    monkeypatch.setenv(compiler.CACHE, os.devnull + "/cache")
    with (
        pytest.raises(RepperError, match="cannot write compiled code to /dev/null/cache"),
        compiler.compiling(),
    ):
        pass


def test_bfloat16_computes_coarsely_and_keeps_weights_in_float32(digits):
    losses = {}
    for precision in ("float32", "bfloat16"):
        task, shared = task_for(digits, precision=precision)
        with SerialEngine(task, digits, 0) as engine:
            [update] = engine.fit(shared, [0], 1)
        assert {tensor.dtype for tensor in update.shared.values()} == {torch.float32}
        losses[precision] = update.loss
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
