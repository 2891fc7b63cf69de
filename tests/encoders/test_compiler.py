"""Compiled training, and training in half precision."""

import os
import shutil

import pytest
import torch

from engines.test_engines import everything, work_for
from repper.basics.errors import RepperError
from repper.basics.params import digest, params_of
from repper.encoders import compiler
from repper.engines.client import Clients
from repper.engines.pool import PoolEngine
from repper.engines.private import PrivateStore
from repper.engines.serial import SerialEngine
from repper.engines.trainer import TrainingInputs
from repper.runs.plan import plan
from repper.settings.config import Config


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "compiled"
    monkeypatch.setenv(compiler.CACHE, str(folder))
    return folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch, in itself
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_compiled_results_depend_neither_on_workers_nor_on_who_comes_first(digits, cache):
    work, shared = work_for(digits, method="fedavg", compile=True)
    with SerialEngine(work, digits, 0) as engine:
        serial = everything(engine, shared, [3, 0, 1])
    assert (cache / "fxgraph").is_dir()
    with PoolEngine(work, digits, 2) as engine:
        assert everything(engine, shared, [0, 1, 3]) == serial
    work, _ = work_for(digits, method="fedavg")
    with SerialEngine(work, digits, 0) as engine:
        eager = {update.client: update for update in engine.fit(shared, [3, 0, 1], 1)}
    for client, _, examples, loss in serial["updates"]:
        assert eager[client].examples == examples
        assert eager[client].loss == pytest.approx(loss, rel=1e-3)


def like_a_client(work, shared, digits):
    """What compiling looks at of a client: the images are none of its own."""
    own = PrivateStore(work.private).read(0, 0) if work.private else {}
    none = torch.zeros(0, dtype=torch.int64)
    # In the order of memory in which clients have what they receive: sums depend on it.
    clients = Clients.of(work, digits)
    clients.receive(shared)
    return TrainingInputs(none, none, clients._received, own, torch.ones(10), features=none.float)


def two_rounds(engine, shared, later):
    """Losses that look at what was sent, or kept, are to see that of every client and round."""
    first = everything(engine, shared, [0, 1])
    second = [(digest(u.sent), u.loss) for u in engine.fit(later, [1, 0], 2)]
    return first, second


@pytest.mark.parametrize("method", ["repper", "fedprox", "ditto", "scaffold", "moon"])
def test_compiling_leaves_the_network_as_it_was(digits, cache, tmp_path, monkeypatch, method):
    monkeypatch.setattr(compiler.torch, "compile", lambda function, **_: function)
    monkeypatch.setattr("repper.runs.plan.check_compiler", lambda: None)
    work, shared = work_for(digits, tmp_path / "one", method=method, compile=True)
    later = {name: tensor + 0.05 for name, tensor in shared.items()}
    with SerialEngine(work, digits, 0) as engine:
        at = engine._clients._at
        before = {name: tensor.clone() for name, tensor in params_of(at.network).items()}
        at.trainer.compile(at.phases, like_a_client(work, shared, digits))
        for name, tensor in params_of(at.network).items():
            assert torch.equal(tensor, before[name]), name
        compiled = two_rounds(engine, shared, later)
    work, shared = work_for(digits, tmp_path / "other", method=method)
    with SerialEngine(work, digits, 0) as engine:
        assert two_rounds(engine, shared, later) == compiled


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
        work, shared = work_for(digits, precision=precision)
        with SerialEngine(work, digits, 0) as engine:
            [update] = engine.fit(shared, [0], 1)
        assert {tensor.dtype for tensor in update.sent.values()} == {torch.float32}
        losses[precision] = update.loss
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
