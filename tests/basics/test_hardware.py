"""What the machine can do decides what `auto` means, and what was chosen is part of a run."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import repper as api
from conftest import make_dataset
from repper.basics import hardware
from repper.basics.errors import RepperError
from repper.basics.hardware import instruction_sets, resolve_precision
from repper.methods import Method, Phase, Seen, everything, losses

TINY = {"clients": 4, "rounds": 2, "epochs": 1, "width": 0.25, "knn": 20}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("avx2", "avx512f"), "float32"),
        (("avx2", "avx512_bf16"), "bfloat16"),
        (("avx2", "amx_bf16"), "bfloat16"),
        ((), "float32"),
    ],
)
def test_auto_is_bfloat16_where_the_cpu_multiplies_it(monkeypatch, flags, expected):
    monkeypatch.setattr(hardware, "instruction_sets", lambda: flags)
    assert resolve_precision("auto", "cpu") == expected
    assert resolve_precision("float32", "cpu") == "float32"
    assert resolve_precision("bfloat16", "cpu") == "bfloat16"


def test_the_instruction_sets_are_those_of_the_system(tmp_path, monkeypatch):
    text = "processor : 0\nflags : fpu sse avx2 avx512_bf16 amx_tile\n"
    monkeypatch.setattr(hardware.Path, "read_text", lambda _: text)
    assert instruction_sets() == ("avx2", "avx512_bf16", "amx_tile")


def test_what_auto_has_chosen_is_part_of_a_run(tmp_path, monkeypatch):
    data = make_dataset()
    monkeypatch.setattr(hardware, "instruction_sets", lambda: ("avx512_bf16",))
    auto = api.run(data, precision="auto", out=tmp_path / "a", engine="serial", **TINY)
    named = api.run(data, precision="bfloat16", out=tmp_path / "b", workers=2, **TINY)
    assert auto.config.precision == "bfloat16"
    assert auto.result["encoder_digest"] == named.result["encoder_digest"]
    assert auto.result["heads_digest"] == named.result["heads_digest"]
    monkeypatch.setattr(hardware, "instruction_sets", lambda: ())
    with pytest.raises(RepperError, match="its precision is bfloat16, not float32"):
        api.run(data, precision="auto", out=tmp_path / "a", resume=True, **TINY)


def test_a_comparison_says_what_auto_has_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "instruction_sets", lambda: ("avx512_bf16",))
    found = api.compare(
        ["fedavg"], make_dataset(), precision="auto", out=tmp_path / "c", engine="serial", **TINY
    )
    assert [run.config.precision for [run] in found.runs().values()] == ["bfloat16"]
    assert 'precision = "bfloat16"' in (tmp_path / "c" / "comparison.toml").read_text()


@dataclass(frozen=True)
class Watching(Method):
    """FedAvg that remembers what its loss has seen."""

    seen: ClassVar[list[Seen]] = []

    def shared(self, name):
        return True

    def phases(self, epochs):
        return (Phase(everything, epochs, self.loss),)

    def loss(self, seen):
        self.seen.append(seen)
        return losses.cross_entropy(seen)


def test_bfloat16_is_for_the_encoders_layers_alone(tmp_path):
    settings = {"engine": "serial", "method": Watching(), **TINY, "rounds": 1, "image_size": 16}
    first = {}
    for name in ("float32", "bfloat16"):
        Watching.seen.clear()
        api.run(data="digits", precision=name, out=tmp_path / name, **settings)
        first[name] = Watching.seen[1]  # the one before it was a trial
        for seen in Watching.seen:
            for part in (seen.outputs, seen.moving, seen.received):
                assert {tensor.dtype for tensor in part.values()} == {torch.float32}
    exact, rounded = (first[name].outputs for name in ("float32", "bfloat16"))
    for part in ("r", "head"):
        distance = (rounded[part] - exact[part]).norm() / exact[part].norm()
        assert 0 < distance < 0.2
    # A head that took bfloat16 features would give bfloat16 logits.
    assert not torch.equal(rounded["head"].bfloat16().float(), rounded["head"])
    assert not torch.equal(rounded["r"].bfloat16().float(), rounded["r"])
