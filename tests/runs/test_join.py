"""Clients that a run has never seen take its encoder and fit their own heads."""

import dataclasses
import hashlib
import json
import shutil

import pytest
import tomli_w

import repper as api
from conftest import last_json, make_dataset
from repper.basics.errors import RepperError
from repper.basics.names import is_encoder
from repper.basics.params import digest, read_params, select
from repper.edge import read_head
from repper.encoders.encoder import read_encoder
from repper.engines.private import PrivateStore
from repper.runs.newcomers import join_config

QUICK = {
    "clients": 5, "epochs": 1, "width": 0.25, "participation": 0.4, "engine": "serial",
    "rounds": 2, "knn": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    methods = ("repper", "fedavg", "lg-fedavg", "ditto")
    return {m: api.run(digits, out=folder / m, method=m, **QUICK) for m in methods}


def tree(folder):
    """Everything in a folder, to see that nothing was changed."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return [(str(p), hashlib.sha256(p.read_bytes()).hexdigest()) for p in files]


def encoders_of_heads(run, clients):
    heads = [read_head(run.folder / "heads" / f"{c}.safetensors") for c in range(clients)]
    return [head.encoder for head in heads]


@pytest.mark.parametrize("method", ["repper", "fedavg", "lg-fedavg", "ditto"])
def test_newcomers_fit_heads_on_the_encoder_of_the_run(runs, digits, tmp_path, method):
    before = tree(runs[method].folder)
    joined = api.join(
        runs[method], digits, clients=7, alpha=1.0, head_epochs=20, out=tmp_path / "j"
    )
    assert tree(runs[method].folder) == before
    theirs = digest(read_encoder(runs[method].folder)[1])
    assert encoders_of_heads(joined, 7) == [theirs] * 7
    assert digest(read_encoder(joined.folder)[1]) == theirs
    origin = "averaged after training" if method == "lg-fedavg" else "shared in training"
    assert joined.result["encoder_origin"] == origin
    assert (joined.result["clients"], joined.result["rounds"]) == (7, 0)
    assert joined.config.seed == runs[method].config.seed + 1


def test_accuracy_is_recorded_after_every_epoch(runs, digits, tmp_path):
    joined = api.join(runs["repper"], digits, head_epochs=20, out=tmp_path / "j")
    curves, scores = joined.curves(), joined.scores()
    assert sorted(curves) == list(range(5))
    for client, curve in curves.items():
        assert [epoch for epoch, _ in curve] == list(range(1, 21))
        assert curve[-1][1] == scores[client].accuracy
    # Shorter training is the beginning of longer training.
    shorter = api.join(runs["repper"], digits, head_epochs=7, out=tmp_path / "short")
    assert {c: curve[:7] for c, curve in curves.items()} == shorter.curves()
    solved = api.join(runs["repper"], digits, personalize="svm", out=tmp_path / "svm")
    assert {len(curve) for curve in solved.curves().values()} == {1}


def test_heads_that_are_done_at_once_are_in_every_curve(runs, tmp_path):
    """Svm heads have one epoch, and only every fourth is looked at."""
    joined = api.join(
        runs["fedavg"], personalize="svm", head_curve=4, clients=3, out=tmp_path / "j"
    )
    assert list(joined.mean_curve()) == [4]
    assert joined.mean_curve()[4] == pytest.approx(joined.accuracy["mean"])


def test_newcomers_may_have_other_images_and_other_classes(runs, tmp_path):
    other = make_dataset(train=90, test=45, channels=3, size=12)  # not 1 x 8 x 8 as the run's
    joined = api.join(runs["repper"], other, clients=3, partition="iid", out=tmp_path / "j")
    assert joined.classes == other.classes
    head = read_head(joined.folder / "heads" / "0.safetensors")
    assert head.names == other.classes
    assert joined.accuracy["mean"] > 60  # by brightness, even an encoder of digits tells them apart
    assert joined.config.data == "toy"


@pytest.mark.parametrize("method", ["repper", "lg-fedavg", "ditto"])
def test_the_same_clients_keep_encoders_of_their_own(runs, digits, tmp_path, method):
    run = runs[method]
    joined = api.join(run, same_clients=True, alpha=10.0, head_epochs=5, out=tmp_path / "j")
    common = digest(read_encoder(run.folder)[1])
    if method == "repper":
        assert encoders_of_heads(joined, 5) == [common] * 5
    else:
        store = PrivateStore(run.folder / "private")
        trained = store.clients(9)
        assert 1 < len(trained) < 5
        # Who has never trained has no encoder of his own: he takes what a newcomer would.
        expected = [
            digest(store.encoder_of(client, 2)) if client in trained else common
            for client in range(5)
        ]
        assert encoders_of_heads(joined, 5) == expected
    assert joined.config.alpha == 10.0
    manifests = [(r.folder / "partition.json").read_text() for r in (run, joined)]
    assert manifests[0] != manifests[1]
    # Predictions are those of the client's own encoder, too.
    assert len(joined.predict(0, digits.test.images[:3])) == 3
    params = read_params(run.folder / "checkpoint" / "last.safetensors")[0]
    assert method == "lg-fedavg" or digest(select(params, is_encoder)) == common


def test_newcomers_to_a_run_with_a_manifest_are_dealt_other_images(digits, tmp_path):
    partition = api.split(digits, clients=4, alpha=1.0, seed=3)
    partition.save(tmp_path / "p.json", digits)
    run = api.run(
        digits, out=tmp_path / "run", **QUICK | {"partition": str(tmp_path / "p.json"), "rounds": 1}
    )
    joined = api.join(run, head_epochs=3, out=tmp_path / "j")
    assert joined.config.partition == "dirichlet"
    assert joined.config.alpha == run.config.alpha == 1.0  # the manifest's
    hashes = [json.loads((r.folder / "partition.json").read_text())["hash"] for r in (run, joined)]
    assert hashes[0] == partition.hash != hashes[1]


def test_a_run_is_not_replaced_by_those_who_join_it(runs, digits):
    before = tree(runs["fedavg"].folder)
    with pytest.raises(RepperError, match="holds the encoder to start from"):
        api.join(runs["fedavg"], digits, out=runs["fedavg"].folder, overwrite=True)
    with pytest.raises(RepperError, match="holds the encoder to start from"):
        api.run(
            digits, init=str(runs["fedavg"].folder / "encoder.safetensors"),
            out=runs["fedavg"].folder, overwrite=True, **QUICK,
        )  # fmt: skip
    assert tree(runs["fedavg"].folder) == before


def test_heads_have_the_settings_of_the_run_unless_told_otherwise(digits, tmp_path):
    run = api.run(
        digits, out=tmp_path / "run", head_lr=0.5, head_input="z", **QUICK | {"rounds": 0}
    )
    joined = api.join(run, head_input="r", head_epochs=2, out=tmp_path / "j")
    assert (joined.config.setting("head_lr"), joined.config.head_input) == (0.5, "r")


def test_newcomers_do_not_inherit_the_leave_to_download(runs, tmp_path):
    run = api.open_run(shutil.copytree(runs["fedavg"].folder, tmp_path / "copy"))
    settings = dataclasses.replace(run.config, download=True).to_toml()
    (run.folder / "config.toml").write_text(tomli_w.dumps(settings))
    assert run.config.download
    assert not join_config(run, {"data": "cifar100"}, same_clients=False).download
    assert join_config(run, {"download": True}, same_clients=False).download


def test_what_cannot_join_is_refused(runs, digits, tmp_path):
    with pytest.raises(RepperError, match="--personalize keep starts from a head of the method"):
        api.join(runs["fedavg"], digits, personalize="keep", out=tmp_path / "j")
    with pytest.raises(RepperError, match="keeps the run's 5 clients"):
        api.join(runs["fedavg"], clients=9, same_clients=True, out=tmp_path / "j")
    with pytest.raises(RepperError, match="keeps the run's data set 'digits'"):
        api.join(runs["fedavg"], make_dataset(), same_clients=True, out=tmp_path / "j")
    with pytest.raises(RepperError, match="unknown setting 'rounds'"):
        api.join(runs["fedavg"], digits, rounds=3, out=tmp_path / "j")
    with pytest.raises(RepperError, match="needs a run of fedrep, .* is one of fedavg"):
        api.run(
            digits, method="fedrep", init=str(runs["fedavg"].folder), init_clients="same",
            out=tmp_path / "j", **{k: v for k, v in QUICK.items() if k != "method"},
        )  # fmt: skip
    with pytest.raises(RepperError, match="is not a run folder"):
        api.join(tmp_path, digits, out=tmp_path / "j")
    assert not (tmp_path / "j").exists()


def test_the_command_joins(repper, runs, tmp_path):
    process = repper(
        "join", "--run", runs["lg-fedavg"].folder, "--data", "digits", "--clients", 3,
        "--alpha", 1, "--personalize", "linear", "--epochs", 12, "--engine", "serial",
        "--out", "j", "--json",
    )  # fmt: skip
    found = last_json(process)
    assert (found["method"], found["personalize"], found["rounds"]) == ("lg-fedavg", "linear", 0)
    assert "(lg-fedavg, averaged after training)" in process.stderr
    curve = api.open_run(tmp_path / "j").curves()[2]
    assert [epoch for epoch, _ in curve] == list(range(1, 13))


def test_what_was_said_of_one_data_set_is_not_said_of_another(tmp_path):
    settings = QUICK | {"rounds": 0, "train_images": 500, "partition": "iid"}
    run = api.run("digits", out=tmp_path / "r", **settings)
    same, other = (join_config(run, given, False) for given in ({}, {"data": "cifar10"}))
    assert (same.train_images, same.partition) == (500, "iid")
    assert (other.train_images, other.partition) == (None, "dirichlet")


def test_newcomers_of_a_run_on_arrays_bring_them_again(tmp_path, digits):
    data = api.Dataset("arrays", digits.classes, digits.train, digits.test, flip=False)
    settings = {"clients": 4, "epochs": 1, "width": 0.25, "engine": "serial", "knn": 0}
    run = api.run(data, rounds=1, out=tmp_path / "run", **settings)
    with pytest.raises(
        RepperError, match="'arrays', neither a known data set .* give others by --data"
    ):
        api.join(run, clients=3, out=tmp_path / "new")
    joined = api.join(run, data, clients=3, head_epochs=2, out=tmp_path / "new")
    assert len(joined.scores()) == 3
