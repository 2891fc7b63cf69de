"""Server rules that hostile clients cannot bend: their formulas, and what they withstand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import repper as api
from repper.basics.errors import RepperError
from repper.server import RULES, Mean, Sent, mean_of
from repper.server import robust as ours

ROBUST = {
    "median": ours.Median(),
    "trimmed": ours.TrimmedMean(),
    "krum": ours.Krum(),
    "multikrum": ours.MultiKrum(),
    "geometric": ours.GeometricMedian(),
    "clip": ours.NormClip(),
}
W, MEAN, VARIANCE = "encoder.0.weight", "encoder.1.running_mean", "encoder.1.running_var"


def model(values, mean=0.0, variance=1.0):
    return {
        W: torch.as_tensor(np.asarray(values, np.float32)),
        MEAN: torch.tensor([mean]),
        VARIANCE: torch.tensor([variance]),
    }


def near(center, count, seed=0, size=6):
    """Updates of honest clients: around a point, with examples and statistics of their own."""
    random = np.random.default_rng(seed)
    return [
        Sent(
            n,
            model(center + random.normal(size=size), random.normal(), random.uniform(0.5, 2)),
            int(random.integers(5, 50)),
        )
        for n in range(count)
    ]


def combined(rule, updates, received=None):
    received = received or model(np.zeros(len(updates[0].weights[W])))
    state, new = rule.apply({}, received, tuple(updates))
    assert state == {}
    return new


@given(st.integers(0, 10_000), st.integers(7, 12), st.sampled_from(sorted(ROBUST)))
@settings(max_examples=40, deadline=None)
def test_equal_updates_give_that_update(seed, count, name):
    [one] = near(np.ones(6), 1, seed)
    new = combined(ROBUST[name], [one._replace(client=n) for n in range(count)])
    assert all(torch.equal(new[key], one.weights[key]) for key in new)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("lie", [1e3, -1e3, 1e30], ids=str)
def test_a_fifth_of_hostile_clients_cannot_move_the_model_far(name, lie):
    """Honest clients stand around 5; two of ten send something else, as they like."""
    honest = near(np.full(6, 5.0), 8)
    hostile = [Sent(8 + n, model(np.full(6, lie), lie, abs(lie)), 50) for n in range(2)]
    new = combined(ROBUST[name], [*honest, *hostile], model(np.full(6, 4.0)))
    expected = mean_of(honest, honest[0].weights)
    assert float((new[W] - expected[W]).abs().max()) < 2
    assert 0.4 < float(new[VARIANCE]) < 4
    assert abs(float(new[MEAN])) < 3
    moved = Mean().apply({}, model(np.full(6, 4.0)), [*honest, *hostile])[1]
    assert float((moved[W] - expected[W]).abs().max()) > 100  # the mean is carried away


@pytest.mark.parametrize("name", ROBUST)
def test_the_order_of_clients_does_not_matter(name):
    updates = near(np.zeros(6), 9)
    one, other = (combined(ROBUST[name], part) for part in (updates, updates[::-1]))
    assert all(torch.allclose(one[key], other[key], atol=1e-6) for key in one)


@given(st.integers(0, 10_000), st.integers(3, 9))
@settings(max_examples=25, deadline=None)
def test_no_point_has_a_smaller_sum_of_distances_than_the_geometric_median(seed, count):
    updates = near(np.zeros(6), count, seed)

    def cost(point):
        return sum(u.examples * float((u.weights[W].double() - point).norm()) for u in updates)

    found = combined(ours.GeometricMedian(), updates)[W].double()
    random = torch.Generator().manual_seed(seed)
    for scale in (1e-3, 1e-1, 1.0):
        step = scale * torch.randn(6, generator=random, dtype=torch.float64)
        assert cost(found) <= cost(found + step) + 1e-4


def test_clipping_shortens_long_updates_to_the_median_length_and_leaves_short_ones():
    start = model([0.0, 0.0])
    updates = [
        Sent(n, model([length, 0.0], 0.0, 1.0), 1) for n, length in enumerate((1.0, 2.0, 30.0))
    ]
    assert combined(ours.NormClip(), updates, start)[W][0] == pytest.approx((1 + 2 + 2) / 3)
    twice = combined(ours.NormClip(clip_factor=2), updates, start)
    assert twice[W][0] == pytest.approx((1 + 2 + 4) / 3)


def test_medians_and_krum_count_clients_and_not_examples():
    """A client that declares a thousand times the images moves nothing."""
    updates = near(np.zeros(6), 7)
    loud = [*updates[:-1], updates[-1]._replace(examples=10**6)]
    for rule in (ours.Median(), ours.TrimmedMean(), ours.Krum()):
        one, other = combined(rule, updates), combined(rule, loud)
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("rule", "clients", "least"),
    [(ours.TrimmedMean(), 2, 3), (ours.Krum(), 4, 5), (ours.MultiKrum(hostile=0.4), 7, 9)],
)
def test_rounds_of_too_few_clients_are_refused_before_anything_is_written(
    rule, clients, least, tmp_path, digits
):
    name = next(n for n in RULES if RULES[n] is type(rule))
    given = {
        "clients": clients, "participation": 1.0, "rounds": 1, "epochs": 1, "width": 0.25,
        "knn": 0, "engine": "serial",
    }  # fmt: skip
    asked = dict(given, out=tmp_path / "run", server=name, hostile=rule.hostile)
    if clients >= least:
        assert api.run(digits, **asked).result["rounds"] == 1
        return
    with pytest.raises(RepperError, match=f"{type(rule).__name__} needs at least {least} clients"):
        api.run(digits, **asked)
    assert not (tmp_path / "run").exists()


def test_every_engine_gives_the_same_bits(digits, tmp_path):
    given = {
        "clients": 6, "participation": 1.0, "rounds": 2, "epochs": 1, "width": 0.25, "knn": 0,
        "server": "geometric", "train_images": 300,
    }  # fmt: skip
    serial, pool = (
        api.run("digits", out=tmp_path / engine, engine=engine, **given).result["encoder_digest"]
        for engine in ("serial", "pool")
    )
    assert serial == pool


@pytest.mark.parametrize(
    ("share", "clients", "hostile"), [(0.2, 4, 1), (0.2, 10, 2), (0.07, 100, 7)]
)
def test_the_number_of_hostile_clients_is_rounded_up(share, clients, hostile):
    assert ours.TrimmedMean(hostile=share).most_hostile(clients) == hostile


def test_krum_looks_at_the_nearest_clients_and_not_at_all():
    """Of 7 with 2 hostile, 3 neighbours count; the sum over all would prefer 0.35."""
    places = (0.0, 0.1, 0.2, 0.35, 10.0, 11.0, 12.0)
    updates = [Sent(n, model([place]), 1) for n, place in enumerate(places)]
    assert float(combined(ours.Krum(), updates)[W]) == pytest.approx(0.2)


def test_clipping_shortens_what_was_measured_by_itself():
    start = model([0.0])
    updates = [Sent(n, model([1.0], mean), 1) for n, mean in enumerate((1.0, 1.0, 100.0))]
    new = combined(ours.NormClip(), updates, start)
    assert float(new[W]) == 1.0
    assert float(new[MEAN]) == pytest.approx(1.0)
