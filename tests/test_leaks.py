"""The attacks of benchmarks/leaks.py work where they must, and fail where there is nothing to find."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from leaking import counts, inversion, membership
from leaking.victim import ClipAndNoise, difference, fleet, length

import repper
from repper.basics.names import is_weight
from repper.basics.params import select
from repper.data.dataset import Split
from repper.engines.engine import one_thread
from repper.methods import Training

ONE_STEP = Training(epochs=1, batch=4096, augment="none")


@pytest.fixture(scope="module")
def digits():
    with one_thread():
        yield repper.load("digits")


def victim(digits, rows, method, training=ONE_STEP, **settings):
    return fleet(digits, [np.array(rows)], method, training, seed=0, **settings)


def attacked(digits, method, sending=()):
    """How near the attack comes to one digit behind an update of a linear model of its pixels."""
    one = victim(digits, [3], method, encoder="pixels", sending=sending)
    served = one.begin(seed=0)
    sent = one.update(served, 0).sent
    found = inversion.evidence(served.shared, sent, steps=1)
    label = digits.train.labels[[3]]
    guess = inversion.invert(one.work, served.shared, found, label, tries=150, seed=0)
    true, others = (
        digits.train.images[rows] / np.float32(127.5) - 1 for rows in ([3], range(100, 200))
    )
    return inversion.nearness(guess, true, others)


def test_a_digit_is_read_from_the_gradient_of_a_linear_model(digits):
    rank, _, likeness, others, *_ = attacked(digits, "scaffold")
    assert rank == 1
    assert likeness > 0.97 > 0.95 > others


def test_noise_of_the_size_of_the_update_hides_the_digit(digits):
    rank, _, likeness, *_ = attacked(digits, "scaffold", sending=(ClipAndNoise(1.0, 1.0),))
    assert rank > 1
    assert likeness < 0.6


def test_one_image_without_another_has_no_contrastive_gradient(digits):
    # Its only partner is its other view, so the loss is 0: weights change by their decay alone.
    one = victim(digits, [3], "repper")
    served = one.begin(seed=0)
    update = one.update(served, 0)
    assert update.loss == 0
    still = replace(one.work.stages[0], training=replace(ONE_STEP, weight_decay=0.0))
    one = replace(one, work=replace(one.work, stages=(still,)))
    change = difference(one.update(served, 0).sent, served.shared)
    assert {n for n, t in change.items() if t.any()} == {n for n in change if "running" in n}


def test_shares_behind_updates_are_read_off_where_updates_show_them():
    random = np.random.default_rng(0)
    mixes = random.dirichlet(np.ones(5), 60)
    shown = mixes @ random.normal(size=(5, 200)) + 0.01 * random.normal(size=(60, 200))
    guess = counts.read_off(shown[:50], mixes[:50], shown[50:])
    assert counts.errors(guess, mixes[50:])["error"] < 1
    assert counts.errors(guess, mixes[50:])["correlation"] > 0.99
    blind = counts.read_off(random.normal(size=(50, 200)), mixes[:50], shown[50:])
    mean = np.tile(mixes[:50].mean(0), (10, 1))
    assert (
        counts.errors(blind, mixes[50:])["error"] > 0.8 * counts.errors(mean, mixes[50:])["error"]
    )


def test_a_server_that_sends_its_own_heads_reads_class_counts_from_losses(digits):
    rows = np.flatnonzero(np.isin(digits.train.labels, [1, 4, 7]))[:50]
    one = victim(digits, rows, "fedavg")
    found = counts.counts_from_losses(one, one.begin(seed=0), 0)
    assert found.tolist() == np.bincount(digits.train.labels[rows], minlength=10).tolist()


def test_members_are_told_from_strangers_only_where_an_encoder_has_overfitted(digits):
    # Labels at random: what an encoder learns of them, it knows by heart.
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, len(digits.train))
    data = replace(digits, train=Split(digits.train.images, labels))
    parts = np.split(random.permutation(len(labels))[:360], 6)
    sides = []
    for seed in (0, 1):
        training = Training(epochs=60, batch=64, augment="none", lr=0.01)
        one = fleet(data, [np.sort(parts[seed])], "fedavg", training, seed=seed)
        params = select(one.update(one.begin(seed), 0).sent, is_weight)
        known = Split(data.train.images[parts[5]], labels[parts[5]])
        sides.append([
            membership.signs(one.work, params, Split(data.train.images[r], labels[r]), known, seed)
            for r in (parts[seed], parts[2], parts[3])
        ])  # fmt: skip
    (member, stranger, _), target = sides
    assert membership.attack((member, stranger), (target[0], target[1]))[0] > 0.9
    assert 0.3 < membership.attack((member, stranger), (target[2], target[1]))[0] < 0.7


def test_an_update_is_shortened_and_noised_as_much_as_was_asked():
    received = {"head.weight": torch.ones(200, 200), "a.running_var": torch.zeros(10)}
    params = {"head.weight": torch.full((200, 200), 2.0), "a.running_var": torch.zeros(10)}
    clipped = difference(ClipAndNoise(5.0, 0.0)(params, received, 1), received)
    assert length(clipped) == pytest.approx(5.0, rel=1e-4)
    noised = ClipAndNoise(5.0, 2.0)(params, received, 1)
    spread = (noised["head.weight"] - received["head.weight"]).std()
    assert float(spread) == pytest.approx(10.0, rel=0.02)
    assert noised["a.running_var"].min() >= 0
    other = ClipAndNoise(5.0, 2.0)(params, received, 2)
    assert not torch.equal(other["head.weight"], noised["head.weight"])
