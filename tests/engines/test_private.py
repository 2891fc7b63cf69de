"""What clients keep for themselves: survives a resume, and never reaches the server."""

import json

import pytest
import torch

import repper as api
from conftest import make_dataset
from repper.basics.errors import RepperError
from repper.basics.names import is_encoder
from repper.basics.params import digest, read_params
from repper.data import Dataset
from repper.data.partition import split
from repper.edge import read_head
from repper.engines.private import PrivateStore
from repper.runs.execute import encoder_for_newcomers

QUICK = {
    "clients": 6, "epochs": 1, "width": 0.25, "participation": 0.34, "engine": "serial",
    "rounds": 4, "knn": 0,
}  # fmt: skip


@pytest.fixture
def store(tmp_path):
    made = PrivateStore(tmp_path / "private")
    made.begin({"head.w": torch.zeros(3), "head.b": torch.zeros(1)})
    return made


def head(value):
    return {"head.w": torch.full((3,), float(value))}


def files(store, client):
    return sorted(path.name for path in (store.folder / str(client)).iterdir())


def test_a_client_without_a_file_stands_at_the_initial_values(store):
    assert store.read(7, 100)["head.w"].tolist() == [0, 0, 0]
    assert store.digest(7, 100) == ""
    assert store.clients(100) == []


def test_a_repeated_round_begins_where_the_client_stood_before_it(store):
    for number in (2, 5, 9):
        store.write(3, number, head(number), keep_all=False)
    # Round 9 was interrupted: whoever repeats it asks for what there was after round 8.
    assert store.read(3, 8)["head.w"].tolist() == [5, 5, 5]
    assert store.read(3, 9)["head.w"].tolist() == [9, 9, 9]
    assert store.read(3, 9)["head.b"].tolist() == [0]  # not in the file: still initial
    assert files(store, 3) == ["5.safetensors", "9.safetensors"]
    store.write(3, 9, head(90), keep_all=False)
    assert store.read(3, 9)["head.w"].tolist() == [90, 90, 90]
    assert store.read(3, 8)["head.w"].tolist() == [5, 5, 5]
    assert store.digest(3, 9) == digest(head(90))


def test_all_rounds_can_be_kept_so_that_one_can_be_chosen(store):
    for number in (2, 5, 9):
        store.write(3, number, head(number), keep_all=True)
    assert [store.read(3, n)["head.w"][0] for n in (1, 2, 4, 5, 8, 9)] == [0, 2, 2, 5, 5, 9]


def test_a_linked_store_does_not_change_with_the_first(store, tmp_path):
    store.write(1, 1, head(1), keep_all=False)
    store.link_to(tmp_path / "other")
    store.write(1, 1, head(5), keep_all=False)
    other = PrivateStore(tmp_path / "other")
    assert other.read(1, 1)["head.w"].tolist() == [1, 1, 1]
    store.link_to(tmp_path / "other")  # once more, after an interruption
    assert other.read(1, 1)["head.w"].tolist() == [5, 5, 5]


def test_a_damaged_or_foreign_file_is_refused(store):
    store.write(1, 1, head(1), keep_all=False)
    path = store.folder / "1" / "1.safetensors"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(RepperError, match="do not match its digest"):
        store.read(1, 1)
    store.write(2, 1, head(1), keep_all=False)
    path.write_bytes((store.folder / "2" / "1.safetensors").read_bytes())
    with pytest.raises(RepperError, match="its client is 2, not 1"):
        store.read(1, 1)


@pytest.mark.parametrize("method", ["fedrep", "lg-fedavg", "ditto"])
def test_an_interrupted_round_is_repeated_with_what_clients_had_before(digits, tmp_path, method):
    whole = api.run(digits, out=tmp_path / "whole", method=method, **QUICK)
    api.run(digits, out=tmp_path / "cut", method=method, **QUICK | {"rounds": 3})
    cohort = whole.rounds()[3]["cohort"]
    store = PrivateStore(tmp_path / "cut" / "private")
    # A crash in the middle of round 4 leaves files of that round.
    for client in cohort:
        spoilt = {n: t + 1 for n, t in store.read(client, 3).items()}
        store.write(client, 4, spoilt, keep_all=False)
    resumed = api.run(digits, out=tmp_path / "cut", method=method, resume=True, **QUICK)
    for key in ("encoder_digest", "heads_digest"):
        assert resumed.result[key] == whole.result[key]


@pytest.mark.parametrize("method", ["lg-fedavg", "ditto", "fedrep", "local"])
def test_only_clients_that_took_part_have_a_file(digits, tmp_path, method):
    run = api.run(digits, out=tmp_path / "run", method=method, **QUICK | {"rounds": 2})
    took_part = {client for record in run.rounds() for client in record["cohort"]}
    store = PrivateStore(tmp_path / "run" / "private")
    assert set(store.clients(9)) == took_part
    assert len(took_part) == (6 if method == "local" else len(took_part)) > 1
    # Nothing private is in what the server keeps.
    kept, _ = read_params(tmp_path / "run" / "checkpoint" / "last.safetensors")
    assert not set(kept) & set(store.read(0, 0))
    # Every client, sampled or not, predicts with its own parameters.
    for client in range(6):
        rows = split(digits, clients=6, alpha=0.5, seed=0).test[client]
        score = run.scores()[client]
        answers = run.predict(client, digits.test.images[rows])
        right = [
            digits.classes[n] == a for n, a in zip(digits.test.labels[rows], answers, strict=True)
        ]
        assert sum(right) == score.correct.sum()


def test_a_lost_file_is_noticed(digits, tmp_path):
    run = api.run(digits, out=tmp_path / "run", method="lg-fedavg", **QUICK)
    last = {c: record["round"] for record in run.rounds() for c in record["cohort"]}
    client, number = min(last.items())
    lost = tmp_path / "run" / "private" / str(client) / f"{number}.safetensors"
    lost.unlink()
    expected = f"{client}/{number}.safetensors is missing: client {client} has its own parameters"
    with pytest.raises(RepperError, match=expected):
        api.run(
            digits, out=tmp_path / "run", method="lg-fedavg", resume=True, **QUICK | {"rounds": 5}
        )
    with pytest.raises(RepperError, match=expected):
        run.predict(0, digits.test.images[:1])
    with pytest.raises(RepperError, match=expected):
        api.join(run, same_clients=True, out=tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


def test_the_digest_covers_private_parameters(digits, tmp_path):
    runs = [
        api.run(digits, out=tmp_path / str(share), method="lg-fedavg", **QUICK | {"lr": share})
        for share in (1e-3, 1e-3 + 1e-9)
    ]
    assert runs[0].result["encoder_digest"] != runs[1].result["encoder_digest"]
    assert runs[0].result["encoder_digest"] != digest(
        read_params(tmp_path / "0.001" / "checkpoint" / "last.safetensors")[0]
    )


def test_the_chosen_round_comes_with_the_private_parameters_of_that_round(digits, tmp_path):
    settings = QUICK | {"evaluate_every": 1, "validation": 0.2, "method": "fedrep"}
    run = api.run(digits, out=tmp_path / "run", **settings, personalize="keep")
    accuracies = [record["accuracy"]["mean"] for record in run.rounds()]
    assert run.accuracy["mean"] == accuracies[run.result["chosen_round"] - 1]


def test_with_validation_every_round_is_kept(digits, tmp_path):
    settings = QUICK | {"evaluate_every": 1, "validation": 0.2, "method": "fedrep"}
    run = api.run(digits, out=tmp_path / "run", **settings | {"participation": 1.0})
    store = PrivateStore(tmp_path / "run" / "private")
    names = sorted(f"{number}.safetensors" for number in range(1, 5))
    assert [files(store, client) for client in range(6)] == [names] * 6
    assert run.result["chosen_round"] in range(1, 5)


def test_what_came_after_the_chosen_round_does_not_count(digits, tmp_path):
    settings = QUICK | {"evaluate_every": 1, "validation": 0.2, "method": "lg-fedavg"}
    run = api.run(digits, out=tmp_path / "run", **settings)
    chosen, log = run.result["chosen_round"], run.rounds()
    before = {client for record in log[:chosen] for client in record["cohort"]}
    after = {client for record in log[chosen:] for client in record["cohort"]}
    assert before & after  # else this seed shows nothing
    assert after - before
    assert run.result["groups"]["took_part"]["clients"] == len(before)
    joined = api.join(run, same_clients=True, head_epochs=1, out=tmp_path / "joined")
    store = PrivateStore(tmp_path / "run" / "private")
    for client in before:
        head = read_head(joined.folder / "heads" / f"{client}.safetensors")
        assert head.encoder == digest(store.encoder_of(client, chosen))


def test_only_what_is_wanted_is_given_to_another_store(store, tmp_path):
    store.write(1, 3, head(3) | {"head.b": torch.ones(1)}, keep_all=False)
    store.write(2, 9, head(9), keep_all=False)
    other = PrivateStore(tmp_path / "other")
    other.begin({"head.w": torch.zeros(3), "head.b": torch.zeros(1)})
    store.copy_to(other, 5, lambda name: name == "head.w")
    assert other.clients(0) == [1]
    assert other.read(1, 0)["head.w"].tolist() == [3, 3, 3]
    assert other.read(1, 0)["head.b"].tolist() == [0]


def test_who_trained_after_the_chosen_round_is_not_in_the_mean(tmp_path):
    store = PrivateStore(tmp_path / "private")
    store.begin({"encoder.w": torch.zeros(3)})
    store.write(0, 1, {"encoder.w": torch.ones(3)}, keep_all=True)
    store.write(1, 5, {"encoder.w": torch.full((3,), 9.0)}, keep_all=True)
    partition = split(make_dataset(), "iid", clients=2)
    for number, expected, origin in (
        (0, 0.0, "not trained"),
        (3, 1.0, "averaged after training"),
        (5, 5.0, "averaged after training"),
    ):
        found, said = encoder_for_newcomers({}, store, partition, number)
        assert found["encoder.w"].tolist() == [expected] * 3
        assert said == origin


@pytest.mark.parametrize("more", [{}, {"validation": 0.3, "evaluate_every": 4}])
def test_without_a_common_encoder_newcomers_get_the_mean_of_the_trained_ones(
    digits, tmp_path, more
):
    """Weighted by all training images that a client holds, those for validation among them."""
    run = api.run(digits, out=tmp_path / "run", method="lg-fedavg", **QUICK | {"knn": 50} | more)
    params, notes = read_params(tmp_path / "run" / "encoder.safetensors")
    assert notes["origin"] == "averaged after training"
    store = PrivateStore(tmp_path / "run" / "private")
    manifest = json.loads((tmp_path / "run" / "partition.json").read_text())
    sizes = {c: len(manifest["clients"][c]["train"]) for c in store.clients(9)}
    name = "encoder.body.0.0.weight"
    name = name if name in params else sorted(filter(is_encoder, params))[0]
    expected = sum(store.encoder_of(c, 4)[name].double() * size for c, size in sizes.items()) / sum(
        sizes.values()
    )
    assert torch.allclose(params[name].double(), expected, atol=1e-6)
    assert [record["knn"] for record in run.rounds()] == [None] * 4  # whose would it be?


def test_many_clients_with_private_heads_leave_files_of_the_cohorts_only(tmp_path):
    data: Dataset = make_dataset(train=600, test=300, classes=2)
    run = api.run(
        data, out=tmp_path / "run", method="fedrep", partition=split(data, "iid", clients=300, min_train=2, seed=0),
        **QUICK | {"participation": 0.03, "rounds": 2, "personalize": "keep"},
    )  # fmt: skip
    assert run.result["clients"] == 300
    assert len(PrivateStore(tmp_path / "run" / "private").clients(9)) in range(9, 19)
