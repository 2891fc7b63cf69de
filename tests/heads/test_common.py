"""The head that all clients train together, and what each makes of it with its own class mix."""

import numpy as np
import pytest
import torch

import repper as api
from conftest import make_dataset
from repper.basics.errors import RepperError
from repper.basics.params import digest, read_params
from repper.data import Dataset, Split
from repper.data.partition import read_partition
from repper.edge.saved_head import read_head
from repper.encoders.encoder import features_of, read_encoder
from repper.methods.common_head import CommonHead
from repper.runs.execute import RoundDone, execute

SETTINGS = {
    "clients": 4, "rounds": 2, "epochs": 1, "width": 0.25, "knn": 0, "participation": 0.5,
    "engine": "serial",
}  # fmt: skip


def config(folder, personalize="common", method="fedavg", **more):
    given = {**SETTINGS, "common_rounds": 3, **more}
    return api.Config(out=str(folder), personalize=personalize, method=method, **given)


def run(folder, *args, resume=False, **more):
    events = execute(config(folder, *args, **more), make_dataset(), resume=resume)
    return list(events)[-1].run


def partition_of(folder):
    return read_partition(folder / "partition.json", make_dataset())


def digests(done):
    return done.result["encoder_digest"], done.result["heads_digest"]


def test_the_first_round_only_measures_features(tmp_path):
    """Then the moments are those of all clients' images, and stay; the head stands still."""
    events, found = execute(config(tmp_path / "a"), make_dataset()), {}
    for event in events:
        if isinstance(event, RoundDone):
            found[event.record["round"]] = event.checkpoint.served.shared
            found["given"] = event.checkpoint.served.given
    first, last = found[3], found[6]
    assert not first["common.weight"].any()
    assert last["common.weight"].any()
    spec, encoder = read_encoder(tmp_path / "a")
    rows = np.concatenate(partition_of(tmp_path / "a").train)
    r = torch.from_numpy(features_of(spec, encoder, make_dataset().train.images[rows]))
    for shared in (first, last):
        assert torch.allclose(shared["moments:mean"], r.mean(0), atol=1e-5)
        assert torch.allclose(shared["moments:square"], r.square().mean(0), atol=1e-5)


def test_a_head_on_scaled_features_is_the_same_on_features_as_they_are():
    torch.manual_seed(0)
    r = 3 + 2 * torch.randn(50, 6)
    params = {
        "common.weight": torch.randn(4, 6), "common.bias": torch.randn(4),
        "moments:mean": r.mean(0), "moments:square": r.square().mean(0),
    }  # fmt: skip
    weight, bias = CommonHead().classifier(params)
    scaled = (r - r.mean(0)) / r.var(0, correction=0).mean().sqrt()
    expected = scaled @ params["common.weight"].T + params["common.bias"]
    assert torch.allclose(r @ weight.T + bias, expected, atol=1e-4)


def test_a_client_adds_its_own_class_frequencies(tmp_path):
    run(tmp_path / "a", common_smoothing=2.0)
    common, notes = read_params(tmp_path / "a" / "common.safetensors")
    assert notes["encoder"] == digest(read_encoder(tmp_path / "a")[1])
    data = make_dataset()
    partition = partition_of(tmp_path / "a")
    for client in range(4):
        head = read_head(tmp_path / "a" / "heads" / f"{client}.safetensors")
        counts = np.bincount(data.train.labels[partition.train[client]], minlength=3) + 2.0
        prior = np.log(counts / counts.sum())
        assert (head.kind, head.classes) == ("common", (0, 1, 2))
        assert (head.arrays["weight"] == common["common.weight"].numpy()).all()
        assert np.allclose(head.arrays["bias"], common["common.bias"].numpy() + prior, atol=1e-6)


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "repper", "central", "ditto"])
def test_every_engine_gives_the_same_bits(tmp_path, method):
    alone = run(tmp_path / "a", "common", method)
    pool = run(tmp_path / "b", "common", method, engine="pool", workers=2)
    assert digests(alone) == digests(pool)


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_run_that_ends_in_any_round_goes_on_with_the_same_bits(tmp_path, stop):
    whole = run(tmp_path / "a")
    events = execute(config(tmp_path / "b"), make_dataset())
    for event in events:
        if isinstance(event, RoundDone) and event.record["round"] == stop:
            events.close()
            break
    again = run(tmp_path / "b", resume=True)
    assert digests(again) == digests(whole)
    assert again.result["cost"] == whole.result["cost"]


def test_more_rounds_are_more_of_the_first_stage(tmp_path):
    whole = run(tmp_path / "a", rounds=4)
    run(tmp_path / "b")
    longer = run(tmp_path / "b", rounds=4, resume=True)
    assert digests(longer) == digests(whole)
    assert [record["stage"] for record in longer.rounds()] == [0] * 4 + [1] * 4


@pytest.mark.parametrize("rows", ["fedavg+common,fedavg+linear", "fedavg+linear,fedavg+common"])
def test_rows_share_a_training_in_either_order(tmp_path, rows):
    settings = {**SETTINGS, "common_rounds": 3}
    api.compare(rows, make_dataset(), out=tmp_path / "c", **settings)
    for last in ("common", "linear"):
        cell = api.open_run(tmp_path / "c" / "cells" / f"fedavg+{last}-seed0")
        assert digests(cell) == digests(run(tmp_path / last, last))
        assert cell.result["cost"] == api.open_run(tmp_path / last).result["cost"]


def test_newcomers_take_the_common_head(tmp_path):
    done = run(tmp_path / "a")
    common, _ = read_params(tmp_path / "a" / "common.safetensors")
    joined = api.join(done, make_dataset(), out=tmp_path / "j", personalize="common")
    assert joined.rounds() == []
    for client in range(4):
        head = read_head(tmp_path / "j" / "heads" / f"{client}.safetensors")
        assert (head.arrays["weight"] == common["common.weight"].numpy()).all()
    without = run(tmp_path / "b", "linear")
    with pytest.raises(RepperError, match="has no common head"):
        api.join(without, make_dataset(), out=tmp_path / "k", personalize="common")


@pytest.mark.parametrize("method", ["local", "lg-fedavg"])
def test_encoders_of_each_client_have_no_head_in_common(tmp_path, method):
    with pytest.raises(RepperError, match="needs an encoder that clients share"):
        run(tmp_path / "a", "common", method)
    assert not (tmp_path / "a").exists()


def test_a_head_of_no_rounds_is_refused(tmp_path):
    with pytest.raises(RepperError, match="leave out --common-rounds 0"):
        run(tmp_path / "a", common_rounds=0)


def test_tail_classes_gain_from_the_images_of_all(tmp_path):
    """On digits, as the paper's clients have them: tail classes, above all, and the mean."""
    rows = "fedavg+linear,fedavg+common"
    table = api.compare(rows, out=tmp_path / "c", rounds=4, epochs=2, knn=0, seeds=2)
    own, common = table.lines
    assert common.accuracy > own.accuracy + 3
    assert common.tail_classes > own.tail_classes + 10


def many_classes(classes=40) -> Dataset:
    """Images that differ from their class's own by noise."""
    random = np.random.default_rng(0)
    own = random.integers(60, 196, (classes, 1, 8, 8))

    def split(each):
        labels = np.repeat(np.arange(classes), each)
        images = own[labels] + random.normal(0, 45, (len(labels), 1, 8, 8))
        return Split(np.clip(images, 0, 255).astype(np.uint8), labels)

    return Dataset("many", tuple(f"class {n}" for n in range(classes)), split(20), split(10))


def test_classes_that_most_clients_lack_do_not_fade(tmp_path):
    """A client without a class must leave its weights alone; with Adam they decayed: 34 %."""
    settings = {"clients": 10, "alpha": 0.1, "method": "fedavg", "rounds": 2, "epochs": 2, "batch": 32,
                "knn": 0, "engine": "serial"}  # fmt: skip
    own, common = (
        api.run(many_classes(), out=tmp_path / kind, personalize=kind, **settings).result[
            "accuracy"
        ]
        for kind in ("linear", "common")
    )
    assert common["mean"] > own["mean"] + 5
    assert common["tail_classes"] > own["tail_classes"] + 30
