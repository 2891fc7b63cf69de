"""Differential privacy of clients: what hides them, what it spends, and what is written down."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

import repper as api
from conftest import make_dataset
from repper.basics.documents import read_json, write_json
from repper.basics.errors import RepperError
from repper.methods.common_head import CommonHead
from repper.privacy import SITE, Privacy
from repper.privacy.accountant import ORDERS, Release, epsilon, noise_for, within
from repper.privacy.gaussian import gaussian, key_of_seed
from repper.privacy.ledger import Ledger
from repper.privacy.secret import secret_key
from repper.runs.plan import plan
from repper.server import Mean, Sent
from repper.server.adaptive import FedAdam
from repper.server.noised import NoisedMean
from repper.settings.config import Config
from repper.updates.transforms import HideUpdate

KEY = key_of_seed(0)


def model(values):
    values = torch.as_tensor(np.asarray(values), dtype=torch.float64)
    return {"encoder.a": values[:2].clone(), "head.b": values[2:].clone()}


def flat(params):
    return torch.cat([params[name].flatten() for name in sorted(params)])


def mean_of(updates, clip, noise=0.0, clients=None, key=KEY, start=None):
    start = start if start is not None else model(np.zeros(len(flat(updates[0]))))
    sent = [Sent(client, update, 10 + client) for client, update in enumerate(updates)]
    rule = NoisedMean(clip, noise, clients or len(updates), key, Mean())
    return flat(rule.apply({}, start, iter(sent))[1])


VALUES = st.floats(-1e6, 1e6, allow_nan=False)
UPDATE = st.lists(VALUES, min_size=5, max_size=5)


@given(st.lists(UPDATE, min_size=1, max_size=5), UPDATE, UPDATE, st.floats(1e-3, 1e3))
@settings(max_examples=100, deadline=None)
def test_one_client_in_anothers_place_moves_the_sum_by_twice_the_clip_at_most(
    others, one, other, clip
):
    start = model(np.arange(5.0))
    count = len(others) + 1
    sums = [
        count * mean_of([*map(model, others), model(last)], clip, start=start)
        for last in (one, other)
    ]
    assert float((sums[0] - sums[1]).norm()) <= 2 * clip + 1e-6 * (1 + clip)


@given(st.lists(UPDATE, min_size=2, max_size=5), st.floats(1e-3, 1e3))
@settings(max_examples=50, deadline=None)
def test_a_client_that_gives_no_update_moves_the_sum_by_the_clip_at_most(updates, clip):
    """The denominator stays, so its absence changes nothing of what the others weigh."""
    start, count = model(np.zeros(5)), len(updates)
    whole = count * mean_of([*map(model, updates)], clip, clients=count, start=start)
    without = count * mean_of([*map(model, updates[1:])], clip, clients=count, start=start)
    assert float((whole - without).norm()) <= clip + 1e-6 * (1 + clip)


def test_clients_weigh_the_same_whatever_they_declare():
    updates = [model([1.0, 0, 0, 0, 0]), model([0, 3.0, 0, 0, 0])]
    assert mean_of(updates, 100.0).tolist() == [0.5, 1.5, 0, 0, 0]
    assert mean_of(updates, 1.0).tolist() == [0.5, 0.5, 0, 0, 0]


def test_the_noise_has_the_standard_deviation_it_says():
    update = model(np.full(200_000, 1e-4))
    drawn = (mean_of([update] * 4, 2.0, noise=3.0) - mean_of([update] * 4, 2.0)).numpy() * 4
    assert drawn.std() == pytest.approx(2.0 * 3.0, rel=0.01)
    assert abs(drawn.mean()) < 4 * 6.0 / math.sqrt(len(drawn))
    inside = [np.mean(abs(drawn) < at * 6.0) for at in (1, 2, 3)]
    assert inside == pytest.approx([0.6827, 0.9545, 0.9973], abs=0.004)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.01


def test_what_is_equal_is_hidden_by_equal_noise_and_nothing_else_is():
    """A repeated round says the same again; another sum is not hidden by the same numbers."""
    one, other = model(np.ones(4000)), model(np.full(4000, 1.001))
    first = mean_of([one], 1e3, noise=1.0)
    assert torch.equal(first, mean_of([one], 1e3, noise=1.0))
    for differs in (
        mean_of([other], 1e3, noise=1.0),
        mean_of([one], 1e3, noise=1.0, key=key_of_seed(1)),
        mean_of([one], 1e3, noise=1.0, start=model(np.full(4000, 1e-3))),
    ):
        assert abs(np.corrcoef(first, differs)[0, 1]) < 0.1


def test_noise_of_a_key_never_changes():
    """It is part of every result."""
    assert gaussian(KEY, b"of what", 3) == pytest.approx(
        [0.849504570892, 0.745201511148, 1.261243848751], abs=1e-12
    )


def test_a_rule_after_the_noise_sees_nothing_but_the_noised_mean():
    start, updates = model(np.zeros(6)), [model(np.ones(6)), model(-2 * np.ones(6))]
    noised = mean_of(updates, 1.0, noise=1.0, start=start)
    rule = NoisedMean(1.0, 1.0, 2, KEY, FedAdam())
    sent = [Sent(n, update, 1) for n, update in enumerate(updates)]
    _, found = rule.apply(rule.init(start), start, iter(sent))
    shapes = {name: len(value) for name, value in start.items()}
    parts = dict(
        zip(sorted(shapes), noised.split([shapes[n] for n in sorted(shapes)]), strict=True)
    )
    _, expected = FedAdam().apply(FedAdam().init(start), start, (Sent(0, parts, 1),))
    assert torch.equal(flat(found), flat(expected))


def test_a_site_shortens_its_update_and_adds_noise_of_its_own():
    start, update = model(np.zeros(100_000)), model(np.full(100_000, 1.0))
    short = flat(HideUpdate(2.0, 0.0, KEY)(update, start, 7))
    assert float(short.norm()) == pytest.approx(2.0)
    drawn = [
        flat(HideUpdate(2.0, 3.0, KEY)(update, start, seed)) - short for seed in (7, 8)
    ]  # rounds and clients have seeds of their own
    assert [float(one.std()) for one in drawn] == pytest.approx([6.0] * 2, rel=0.01)
    assert abs(np.corrcoef(*drawn)[0, 1]) < 0.02
    assert torch.equal(flat(HideUpdate(2.0, 0.0, KEY)(start, start, 7)), flat(start))


def by_the_package(event, times, delta):
    accountant = RdpAccountant(ORDERS, NeighboringRelation.REPLACE_ONE)
    accountant.compose(SelfComposedDpEvent(event, times))
    return accountant.get_epsilon(delta)


def test_epsilon_is_that_of_the_accountant_for_a_sample_of_fixed_size():
    """The noise is 4 in lengths of an update, so 2 in what one client can change: twice that."""
    privacy = Privacy(clip=7.0, noise=4.0, delta=1e-3)
    releases = [Release(200, tuple(range(n, n + 40))) for n in range(30)]
    event = SampledWithoutReplacementDpEvent(200, 40, GaussianDpEvent(2.0))
    assert epsilon(privacy, releases) == by_the_package(event, 30, 1e-3)
    assert 4 < epsilon(privacy, releases) < 5


def test_all_clients_are_no_sample():
    releases = [Release(20, tuple(range(20)))] * 10
    found = epsilon(Privacy(1.0, 8.0, 1e-2), releases)
    assert found == by_the_package(GaussianDpEvent(4.0), 10, 1e-2)


def test_where_cohorts_are_known_the_client_that_takes_part_most_often_counts():
    releases = [Release(20, cohort) for cohort in ((0, 1), (0, 2), (0, 3), (4, 5))]
    found = epsilon(Privacy(1.0, 8.0, 1e-2, SITE, known_cohorts=True), releases)
    assert found == by_the_package(GaussianDpEvent(4.0), 3, 1e-2)


def test_another_accountant_of_the_package_agrees_on_what_one_client_changes():
    """It takes the noise in lengths of an update, and doubles what one can change itself."""
    other = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    other.compose(GaussianDpEvent(6.0), 10)
    found = epsilon(Privacy(1.0, 6.0, 1e-5), [Release(20, tuple(range(20)))] * 10)
    assert other.get_epsilon(1e-5) < found < 1.15 * other.get_epsilon(1e-5)


def test_no_noise_is_no_privacy_and_no_round_spends_nothing():
    assert epsilon(Privacy(1.0, 0.0, 0.0), [Release(20, (0,))]) == math.inf
    assert epsilon(Privacy(1.0, 1.0, 1e-2), []) == 0


def test_the_noise_for_a_budget_is_the_least():
    target = 2.0
    releases = [Release(200, tuple(range(40)))] * 10 + [Release(200, tuple(range(200)))] * 3
    privacy = Privacy(1.0, 0.0, 1e-3)
    noise = noise_for(target, privacy, releases)
    assert epsilon(Privacy(1.0, noise, 1e-3), releases) <= target
    assert epsilon(Privacy(1.0, 0.998 * noise, 1e-3), releases) > target


def test_as_many_releases_as_the_budget_allows():
    releases = [Release(20, (0, 1, 2, 3))] * 30
    privacy = Privacy(1.0, 4.0, 1e-2)
    count = within(privacy, 2.0, releases)
    assert epsilon(privacy, releases[:count]) <= 2.0 < epsilon(privacy, releases[: count + 1])
    assert 0 < count < 30


def test_a_secret_key_is_drawn_once_and_is_nobody_elses(tmp_path):
    key = secret_key(tmp_path / "key")
    assert len(key) == 32
    assert secret_key(tmp_path / "key") == key != secret_key(tmp_path / "other")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(RepperError, match="damaged"):
        secret_key(tmp_path / "key")


def test_the_ledger_counts_what_is_released_and_no_repetition(tmp_path):
    privacy = Privacy(1.0, 8.0, 1e-2)
    ledger, release = Ledger(tmp_path / "ledger", privacy), Release(20, (3, 7))
    once = ledger.add(1, release, "a model")
    assert ledger.add(1, release, "a model") == once == ledger.spent
    twice = ledger.add(1, release, "another model")
    assert once < twice == epsilon(privacy, [release, release])
    assert ledger.repeated() == [1]
    everyone = Release(20, tuple(range(20)))
    spent = [ledger.add(number, everyone, "a model") for number in (2, 3)]
    exhausted = Ledger(ledger.path, replace(privacy, budget=spent[-1] + 1e-6))
    with pytest.raises(RepperError, match=r"would spend epsilon .* more than the budget of"):
        exhausted.add(4, everyone, "a model")
    assert [line["round"] for line in ledger.lines()] == [1, 1, 2, 3]


def test_a_run_does_not_go_on_without_its_ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger", Privacy(1.0, 8.0, 1e-2))
    ledger.begin(0)
    ledger.add(1, Release(20, (3, 7)), "a model")
    ledger.begin(1)
    with pytest.raises(RepperError, match="lacks round 2"):
        ledger.begin(2)
    (tmp_path / "ledger").write_text('{"releases": [{"round": 1, "clients": 20}]}\n')
    with pytest.raises(RepperError, match="damaged"):
        ledger.begin(0)


HIDDEN = {
    "clients": 6, "rounds": 3, "epochs": 1, "width": 0.25, "norm": "group", "participation": 0.5,
    "knn": 0, "engine": "serial", "batch": 8, "min_train": 2, "clip": 1.0, "delta": 0.01,
}  # fmt: skip


def run(out, **given):
    return api.run(make_dataset(), out=out, **{**HIDDEN, **given})


@pytest.mark.parametrize("given", [{}, {"noise_at": "site", "upload": "float16"}], ids=str)
def test_serial_and_pool_give_the_same_bits(tmp_path, given):
    serial, pool = (
        run(tmp_path / engine, engine=engine, noise=1.0, workers=2, personalize="common",
            common_rounds=2, **given).result
        for engine in ("serial", "pool")
    )  # fmt: skip
    for name in ("encoder_digest", "heads_digest", "privacy"):
        assert serial[name] == pool[name], name


def test_a_run_says_what_it_has_spent(tmp_path):
    done = run(tmp_path / "run", epsilon=5.0)
    spent = [record["epsilon"] for record in done.rounds()]
    assert 0 < spent[0] < spent[1] < spent[2] <= 5.0
    said = done.result["privacy"]
    assert said["epsilon"] == spent[2]
    assert said["noise"] == done.config.noise
    lines = read_json(tmp_path / "run" / "privacy.json")["releases"]
    assert [(one["round"], one["epsilon"]) for one in lines] == [*enumerate(spent, start=1)]
    assert [tuple(one["cohort"]) for one in lines] == [tuple(r["cohort"]) for r in done.rounds()]
    assert [record["loss"] for record in done.rounds()] == [None] * 3


def test_a_round_repeated_after_a_crash_spends_nothing(tmp_path):
    whole = run(tmp_path / "whole", noise=1.0)
    crashed = tmp_path / "crashed"
    run(crashed, noise=1.0, rounds=1)
    checkpoint = (crashed / "checkpoint" / "last.safetensors").read_bytes()
    run(crashed, noise=1.0, rounds=2, resume=True)
    # Killed after round 2 was written down, and before its model was.
    (crashed / "checkpoint" / "last.safetensors").write_bytes(checkpoint)
    (crashed / "result.json").unlink()
    again = run(crashed, noise=1.0, rounds=3, resume=True)
    assert again.result["privacy"] == whole.result["privacy"]
    assert again.result["encoder_digest"] == whole.result["encoder_digest"]
    assert (crashed / "privacy.json").read_bytes() == (
        tmp_path / "whole" / "privacy.json"
    ).read_bytes()


def test_a_round_that_comes_to_something_else_when_repeated_spends_twice(tmp_path):
    run(tmp_path / "run", noise=1.0, rounds=1)
    ledger = tmp_path / "run" / "privacy.json"
    [line] = read_json(ledger)["releases"]
    other = line | {"round": 2, "release": "of other images"}
    write_json(ledger, {"releases": [line, other]})
    found = run(tmp_path / "run", noise=1.0, rounds=2, resume=True).result["privacy"]
    assert found["repeated"] == [2]
    privacy = Privacy(1.0, 1.0, 0.01)
    assert found["epsilon"] == epsilon(privacy, [Release(6, (0, 1, 2))] * 3)


def test_training_ends_when_the_budget_is_spent(tmp_path, capsys):
    one = epsilon(Privacy(1.0, 4.0, 0.01), [Release(6, (0, 1, 2))] * 2)
    done = run(tmp_path / "run", noise=4.0, epsilon=one + 1e-9, rounds=5)
    assert [record["round"] for record in done.rounds()] == [1, 2]
    assert done.result["privacy"]["rounds"] == 2
    more = run(tmp_path / "run", noise=4.0, epsilon=one + 1e-9, rounds=9, resume=True)
    assert len(more.rounds()) == 2
    assert more.result["privacy"] == done.result["privacy"]


def test_a_run_that_was_asked_for_nothing_has_no_ledger(tmp_path):
    plain = {name: HIDDEN[name] for name in HIDDEN if name not in ("clip", "delta")}
    done = api.run(make_dataset(), out=tmp_path / "run", **plain)
    assert not (tmp_path / "run" / "privacy.json").exists()
    assert "privacy" not in done.result
    assert not {"clip", "noise", "noise-at", "epsilon", "delta"} & done.config.identity().keys()


def test_a_hidden_common_head_sends_nothing_but_its_weights():
    """The first round of others, in which clients tell the moments of their features, is left out."""
    config = Config(**HIDDEN, noise=1.0, personalize="common", common_rounds=4, out="nowhere")
    planned = plan(config, make_dataset())
    stage = planned.work.stages[-1]
    assert stage.method == CommonHead(scaled=False)
    assert stage.rounds == 4
    assert {*planned.shared_after(planned.rounds)} == {"common.weight", "common.bias"}
    open_one = plan(
        Config(personalize="common", common_rounds=4, clients=6, min_train=2), make_dataset()
    )
    assert open_one.work.stages[-1].rounds == 5


def test_newcomers_of_a_hidden_run_spend_nothing(tmp_path):
    """There may be more of them than clients, for whom delta was chosen."""
    run(tmp_path / "run", noise=1.0, rounds=1, delta=0.1)
    joined = api.join(
        tmp_path / "run", make_dataset(), clients=12, min_train=2, out=tmp_path / "joined"
    )
    assert "privacy" not in joined.result
    assert not (tmp_path / "joined" / "privacy.json").exists()


def test_heads_of_one_training_have_one_ledger(tmp_path):
    rows = "repper+linear,repper+svm"
    given = {**HIDDEN, "noise": 1.0, "rounds": 2}
    api.compare(rows, make_dataset(), out=tmp_path / "both", **given)
    [ledger] = (tmp_path / "both").rglob("privacy.json")
    assert ledger.parent.parent == tmp_path / "both" / "trainings"
    spent = [
        api.open_run(cell).result["privacy"]["epsilon"]
        for cell in (tmp_path / "both" / "cells").iterdir()
    ]
    assert spent == [read_json(ledger)["releases"][-1]["epsilon"]] * 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--noise 1 --delta 0.01", "--noise needs --clip"),
        ("--clip 1", "--clip needs --noise, or --epsilon"),
        ("--clip 1 --epsilon 2", "need --delta"),
        ("--clip 1 --noise 1", "need --delta"),
        ("--clip 1 --epsilon 0 --delta 0.01", "--epsilon must be above 0, got 0"),
        ("--clip 1 --epsilon -1 --delta 0.01", "--epsilon must be above 0, got -1"),
        ("--clip 1 --epsilon 2 --noise 0 --delta 0.01", "--noise 0 gives no privacy, so it has no epsilon"),
        ("--clip 0 --epsilon 2 --delta 0.01", "--clip must be above 0, got 0"),
        ("--clip 1 --epsilon 2 --delta 0.2", "--delta must be below 1 / clients, which is 0.05"),
        ("--clip 1 --noise 1 --delta 0.01", "--clip needs --norm group, or --bn local"),
        ("--clip 1 --noise 1 --delta 0.01 --norm group --method scaffold", "send 'control' beside"),
        ("--clip 1 --noise 1 --delta 0.01 --norm group --method local", "send nothing"),
        ("--clip 1 --noise 1 --delta 0.01 --norm group --method central", "send nothing"),
        ("--clip 1 --noise 1 --delta 0.01 --norm group --server median", "compares single updates"),
        ("--clip 1 --noise 1 --delta 0.01 --norm group --max-weight 0.5", "all clients have the same weight"),
        (
            "--clip 1 --noise 1 --delta 0.01 --norm group --validation 0.1 --evaluate-every 1",
            "would reveal what the noise hides",
        ),
        (
            "--clip 1 --noise 1 --delta 0.01 --norm group --epsilon 0.01",
            "spent after 0 of 30 rounds",
        ),
        (
            "--clip 1 --noise 4 --delta 0.01 --norm group --epsilon 2 --personalize common",
            "before the last stage",
        ),
        ("--clip 1 --noise-at cloud --noise 1 --delta 0.01", "unknown noise at 'cloud'"),
    ],
    ids=str,
)  # fmt: skip
def test_a_mistake_is_one_sentence(repper, tmp_path, flags, said):
    process = repper("run", *flags.split(), "--out", "run")
    assert process.returncode == 2
    assert said in process.stderr
    assert len(process.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flags", ["--norm group", "--bn local", "--rounds 0 --personalize common"])
def test_normalization_that_is_not_shared_goes_with_noise(tmp_path, flags):
    given = dict(zip(*[iter(flags.replace("--", "").split())] * 2, strict=True))
    given = {name: int(value) if value.isdigit() else value for name, value in given.items()}
    assert plan(Config(**{**HIDDEN, "norm": "batch", "noise": 1.0, **given}), make_dataset())
