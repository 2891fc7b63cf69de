"""A run of several stages: one after the other, on every engine, whenever it is interrupted."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch

import repper as api
from conftest import make_dataset
from repper.basics.names import is_encoder, is_head
from repper.basics.params import digest, read_params, select
from repper.basics.registry import load_reference
from repper.engines.client import Clients
from repper.methods.fedavg import FedAvg
from repper.methods.stage import Stage, Training, rounds_of, stage_at
from repper.runs.execute import RoundDone, execute
from repper.runs.plan import plan

FILE = Path(__file__).parents[2] / "examples" / "two_stages.py"
SETTINGS = {
    "method": f"{FILE}:EncoderThenHead", "clients": 4, "rounds": 2, "epochs": 1, "width": 0.25,
    "knn": 0, "participation": 0.5,
}  # fmt: skip


def config(folder, **more):
    return api.Config(**SETTINGS, out=str(folder), own={"head_rounds": 3}, engine="serial", **more)


def run(folder, **more):
    return list(execute(config(folder, **more), make_dataset()))[-1].run


def test_rounds_are_counted_through_all_stages():
    stages = [Stage(FedAvg(), rounds) for rounds in (2, 0, 3)]
    assert rounds_of(stages) == 5
    assert [stage_at(stages, n) for n in range(1, 7)] == [
        (0, 1), (0, 2), (2, 1), (2, 2), (2, 3), (2, 4),
    ]  # fmt: skip


def test_the_learning_rate_falls_by_the_rounds_of_its_stage():
    training = Training(lr=1.0, lr_decay=0.5, lr_decay_every=2)
    stage = Stage(FedAvg(), 4, training=training)
    assert [stage.lr(n) for n in range(1, 6)] == [1, 1, 0.5, 0.5, 0.25]
    everyone = replace(stage, participation=Fraction(1, 2)).as_everyone()
    assert (everyone.rounds, [everyone.lr(n) for n in (1, 2)]) == (2, [1, 0.5])


def test_in_the_second_stage_only_a_head_comes_back(tmp_path):
    done = run(tmp_path / "a")
    log = done.rounds()
    assert [record["stage"] for record in log] == [0, 0, 1, 1, 1]
    assert [len(record["cohort"]) for record in log] == [2, 2, 4, 4, 4]
    head = 4 * (64 * 3 + 3)
    assert {record["bytes_up"] for record in log[2:]} == {4 * head}
    # The encoder stands still: each client gets it once.
    encoder = log[0]["bytes_down"] // 2
    assert [record["bytes_down"] for record in log[2:]] == [
        4 * (encoder + head),
        4 * head,
        4 * head,
    ]
    params, _ = read_params(tmp_path / "a" / "checkpoint" / "last.safetensors")
    assert {name.split(".")[0] for name in params} == {"head", "given:encoder"}
    # Every image is looked at once a round, for all its epochs.
    assert [record["images"] for record in log[2:]] == [60] * 3
    assert done.result["personalize"] == "keep"
    assert log[4]["loss"] < log[2]["loss"]


def test_the_encoder_is_the_one_that_the_first_stage_has_left(tmp_path):
    whole = run(tmp_path / "a")
    alone = api.run(
        make_dataset(), **{**SETTINGS, "method": "repper"}, loss="usual", engine="serial",
        out=tmp_path / "b",
    )  # fmt: skip
    ours, theirs = (
        select(read_params(one.folder / "encoder.safetensors")[0], is_encoder)
        for one in (whole, alone)
    )
    assert digest(ours) == digest(theirs)


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_a_run_that_ends_in_any_round_goes_on_with_the_same_bits(tmp_path, stop):
    whole = run(tmp_path / "a")
    events = execute(config(tmp_path / "b"), make_dataset())
    for event in events:
        if isinstance(event, RoundDone) and event.record["round"] == stop:
            events.close()
            break
    again = list(execute(config(tmp_path / "b"), make_dataset(), resume=True))[-1].run
    for key in ("encoder_digest", "heads_digest", "cost"):
        assert again.result[key] == whole.result[key]


@pytest.mark.parametrize(("last", "first"), [("keep", 3), ("linear", 1)])
def test_rounds_are_tested_in_every_stage_that_has_what_heads_begin_with(tmp_path, last, first):
    """To keep the common head there must be one: the first stage has none."""
    done = run(tmp_path / "a", validation=0.2, evaluate_every=1, personalize=last)
    tested = {r["round"]: r["validation"] for r in done.rounds() if "validation" in r}
    assert list(tested) == list(range(first, 6))
    assert done.result["chosen_round"] == max(tested, key=tested.get)
    assert done.result["accuracy"]["mean"] is not None


def test_predictions_are_those_of_the_common_head(tmp_path):
    done, data = run(tmp_path / "a"), make_dataset()
    again = done.predict(1, data.test.images)
    heads = {digest_of(tmp_path / "a" / "heads" / f"{client}.safetensors") for client in range(4)}
    assert len(heads) == 1
    assert set(again) <= set(data.classes)


def digest_of(path):
    from repper.edge import read_head

    return read_head(path).digest()


def test_features_are_found_once_for_as_long_as_the_encoder_stays(monkeypatch, tmp_path):
    import repper.engines.client as module

    looked = []
    extract = module.extract
    planned = plan(config(tmp_path / "a"), make_dataset())  # with a trial of the example's code
    monkeypatch.setattr(module, "extract", lambda *a: looked.append(1) or extract(*a))
    clients = Clients.of(planned.work, planned.dealt.data)
    served = planned.enter(1, planned.enter(0))
    assert set(map(is_head, served.shared)) == {True}
    clients.receive(served.received, 1)
    first = clients.fit(0, 3)
    before = first.sent["head.weight"].clone()
    clients.receive(served.received, 1)
    again = clients.fit(0, 3)
    assert torch.equal(before, again.sent["head.weight"])
    assert len(looked) == 1
    moved = {n: t + 0.1 if is_encoder(n) else t for n, t in served.received.items()}
    clients.receive(moved, 1)
    other = clients.fit(0, 3)
    assert len(looked) == 2
    assert not torch.equal(before, other.sent["head.weight"])


def test_the_head_is_trained_as_if_classes_were_equally_frequent():
    """With prior correction and no features to learn from, nothing is left to learn."""
    kind = load_reference(f"{FILE}:CommonHead")
    from repper.methods import Seen

    logits, counts = torch.zeros(8, 2, requires_grad=True), torch.tensor([6.0, 2.0])
    labels = torch.tensor([0] * 6 + [1] * 2)
    kind().loss(Seen({"head": logits}, labels, {}, {}, {}, counts)).backward()
    assert torch.allclose(logits.grad.sum(0), torch.zeros(2), atol=1e-6)


def test_the_log_of_a_run_with_one_stage_is_as_it_was(tmp_path):
    api.run(make_dataset(), **{**SETTINGS, "method": "fedavg"}, engine="serial", out=tmp_path / "a")
    for line in (tmp_path / "a" / "rounds.jsonl").read_text().splitlines():
        assert "stage" not in json.loads(line)
