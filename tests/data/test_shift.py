"""Clients whose images differ, each in its own way."""

import numpy as np
import pytest

import repper as api
from conftest import make_dataset
from repper.basics.errors import RepperError
from repper.data.partition import split
from repper.data.shift import SHIFTS, shifted
from repper.runs.newcomers import join_config
from repper.runs.plan import plan

QUICK = {
    "clients": 4, "epochs": 1, "width": 0.25, "participation": 0.5, "engine": "serial",
    "rounds": 1, "knn": 0,
}  # fmt: skip


def colours():
    grey = make_dataset()
    three = [
        api.Split(
            np.concatenate([part.images, np.roll(part.images, 1, 3), 255 - part.images], 1),
            part.labels,
        )
        for part in (grey.train, grey.test)
    ]
    return api.Dataset("colours", grey.classes, *three)


@pytest.mark.parametrize("kind", SHIFTS)
def test_a_clients_own_change_is_one_for_all_its_images(kind):
    data = colours()
    partition = split(data, "iid", clients=8, min_train=2, seed=3)
    found = shifted(data, partition, kind, seed=0)
    kept = 0
    for client in range(8):
        pairs = [
            (before.images[rows], after.images[rows])
            for before, after, rows in (
                (data.train, found.train, partition.train[client]),
                (data.test, found.test, partition.test[client]),
            )
        ]
        before, after = (np.concatenate(some) for some in zip(*pairs, strict=True))
        kept += np.array_equal(before, after)
        if kind == "rotation":
            turns = [t for t in range(4) if np.array_equal(np.rot90(before, t, axes=(2, 3)), after)]
            assert len(turns) == 1
        if kind == "contrast":
            # One line from old to new brightness, and none is cut off.
            slope, height = np.polyfit(before.ravel(), after.ravel(), 1)
            assert 0.25 <= slope <= 1.001
            assert np.abs(slope * before + height - after).max() < 1.5
        if kind == "colour":
            # Each new channel is one of the old ones, each a different one, times one strength.
            channels = before.reshape(len(before), 3, -1), after.reshape(len(after), 3, -1)
            taken = [
                (old, strength)
                for new in range(3)
                for old in range(3)
                for strength in [
                    np.polyfit(channels[0][:, old].ravel(), channels[1][:, new].ravel(), 1)[0]
                ]
                if 0.39 < strength < 1.01
                and np.abs(strength * channels[0][:, old] - channels[1][:, new]).max() < 3
            ]
            assert sorted(old for old, _ in taken) == [0, 1, 2]
    assert np.array_equal(found.train.labels, data.train.labels)
    assert kept == 8 if kind == "none" else kept < 8
    again, other = (shifted(data, partition, kind, seed=s).train.images for s in (0, 1))
    assert np.array_equal(found.train.images, again)
    assert np.array_equal(found.train.images, other) == (kind == "none")
    assert np.array_equal(data.train.images, colours().train.images)  # it is a copy


def test_grey_images_have_no_colours(tmp_path):
    with pytest.raises(RepperError, match="--shift colour needs colour images"):
        api.run(make_dataset(), shift="colour", out=tmp_path / "a", **QUICK)
    assert not (tmp_path / "a").exists()


def test_runs_and_comparisons_see_the_shifted_images(tmp_path):
    data = make_dataset()
    plain, moved = (
        api.run(data, method="fedavg", shift=kind, out=tmp_path / kind, **QUICK)
        for kind in ("none", "rotation")
    )
    assert plain.result["encoder_digest"] != moved.result["encoder_digest"]
    pool = api.run(
        data, method="fedavg", shift="rotation", out=tmp_path / "p", **QUICK | {"engine": "pool"}
    )
    assert pool.result["encoder_digest"] == moved.result["encoder_digest"]
    # By hand, on images that are shifted before they are given.
    partition = split(data, "dirichlet", clients=4, alpha=0.5, seed=0)
    by_hand = api.run(
        shifted(data, partition, "rotation", 0), method="fedavg", out=tmp_path / "h", **QUICK
    )
    assert by_hand.result["encoder_digest"] == moved.result["encoder_digest"]
    for resume in (False, True):  # a finished cell is recognized by its images
        found = api.compare(
            "fedavg,fedavg+linear", data, shift="rotation", out=tmp_path / "c", resume=resume, **QUICK
        )  # fmt: skip
        assert found.runs()["fedavg+keep"][0].result["heads_digest"] == moved.result["heads_digest"]


def test_the_same_clients_keep_their_shift(tmp_path):
    """In another run, and where their partition is given as a manifest with another seed."""
    data = make_dataset()
    before = api.run(data, method="fedavg", shift="rotation", out=tmp_path / "a", **QUICK)
    same = plan(join_config(before, {"data": data.name}, same_clients=True), data)
    new = plan(join_config(before, {"data": data.name}, same_clients=False), data)
    assert (same.config.seed, same.dealt.seed, new.dealt.seed) == (1, 0, 1)
    manifest = str(tmp_path / "a" / "partition.json")
    again = plan(api.Config(partition=manifest, shift="rotation", seed=7, **QUICK), data)
    assert again.dealt.seed == 0
    # Also those of those: a second time after the first.
    api.join(before, data, same_clients=True, shift="rotation", out=tmp_path / "b")
    twice = plan(
        join_config(api.open_run(tmp_path / "b"), {"data": data.name}, same_clients=True), data
    )
    assert twice.config.seed == 2
    assert twice.dealt.seed == 0
