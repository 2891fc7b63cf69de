"""Server rules: what becomes of a round's updates, and of their state."""

import gc
import weakref

import pytest
import torch

from conftest import QUICK, last_json
from repper.basics.errors import RepperError
from repper.basics.names import part_of
from repper.basics.params import digest, read_params, select
from repper.encoders.encoder import read_encoder
from repper.engines.engine import Update
from repper.methods.fedavg import FedAvg
from repper.server import RULES, Mean, Rule, Sent, mean_of
from repper.server.adaptive import FedAdam, FedYogi
from repper.server.momentum import FedAvgM
from repper.server.round_loop import Served, settle
from repper.server.window import Window

W, STATISTIC = "encoder.0.weight", "encoder.1.running_var"


def model(value, statistic=1.0):
    return {W: torch.tensor([value]), STATISTIC: torch.tensor([statistic])}


def updates(*values):
    """A client for every value, each with as many examples as its number plus one."""
    return [Sent(n, model(float(v), 2.0), n + 1) for n, v in enumerate(values)]


def rounds(rule, means, start=0.0):
    """The models after rounds whose five clients send the same, and the state at the end."""
    weights, found = model(start), []
    state = rule.init(weights)
    for mean in means:
        state, weights = rule.apply(state, weights, tuple(updates(*[mean] * 5)))
        found.append(float(weights[W]))
    return found, state, weights


def test_the_mean_is_weighted_by_examples():
    _, new = Mean().apply({}, model(0.0), updates(1, 4))
    assert float(new[W]) == pytest.approx((1 * 1 + 2 * 4) / 3)


def test_momentum_goes_on_where_clients_have_stopped():
    # v1 = 0 - 1, w1 = 1; then clients stay at 1: v2 = 0.9 v1, w2 = 1.9
    found, _, _ = rounds(FedAvgM(), [1.0, 1.0])
    assert found == pytest.approx([1.0, 1.9])
    assert rounds(FedAvgM(server_lr=0.5, server_momentum=0.0), [1.0, 1.0])[0] == [0.5, 0.75]


def test_without_momentum_it_is_the_mean():
    plain = rounds(Mean(), [1.0, 3.0, 2.0])[0]
    assert rounds(FedAvgM(server_momentum=0.0), [1.0, 3.0, 2.0])[0] == pytest.approx(plain)


@pytest.mark.parametrize("kind", [FedAdam, FedYogi])
def test_adaptive_rules_follow_their_paper(kind):
    rule = kind(server_lr=0.1, server_beta1=0.5, server_beta2=0.75, server_tau=0.1)
    w, m, v, expected = 0.0, 0.0, 0.1**2, []
    means = [1.0, -0.5, 0.2]
    for mean in means:
        move = mean - w
        m = 0.5 * m + 0.5 * move
        if kind is FedAdam:
            v = 0.75 * v + 0.25 * move**2
        else:
            v = v - 0.25 * move**2 * (1 if v > move**2 else -1)
        w = w + 0.1 * m / (v**0.5 + 0.1)
        expected.append(w)
    found, state, _ = rounds(rule, means)
    assert found == pytest.approx(expected, rel=1e-5)
    assert float(part_of(state, "second")[W]) == pytest.approx(v, rel=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_statistics_of_batch_norm_are_never_pushed_beyond_what_clients_measured(name):
    """A variance that a momentum has pushed below zero would make an encoder answer NaN."""
    _, _, weights = rounds(RULES[name](), [1.0, -1.0, 1.0])
    assert float(weights[STATISTIC]) == 2.0


def test_a_window_uses_the_mean_of_the_last_models_and_trains_on_from_the_last():
    rule = Window(window=3)
    found, state, weights = rounds(rule, [1.0, 2.0, 6.0, 7.0])
    assert found == [1.0, 2.0, 6.0, 7.0]
    assert float(rule.use(state, weights)[W]) == pytest.approx((2 + 6 + 7) / 3)
    _, state, weights = rounds(rule, [1.0, 2.0])
    assert float(rule.use(state, weights)[W]) == pytest.approx(1.5)
    _, state, weights = rounds(Window(window=1), [1.0, 2.0])
    assert float(Window(window=1).use(state, weights)[W]) == 2.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedAvgM(server_momentum=1.0), "^server_momentum must be at most 0.9999, got 1$"),
        (lambda: FedAdam(server_lr=0), "^server_lr must be above 0, got 0$"),
        (lambda: Window(window=0), "^window must be at least 1, got 0$"),
    ],
)
def test_a_rule_refuses_wrong_values_itself_and_speaks_of_no_flag(make, message):
    with pytest.raises(RepperError, match=message):
        make()


class Gathering(Rule):
    streams = False

    def apply(self, state, received, updates):
        assert isinstance(updates, tuple)
        return state, mean_of(updates, received)


class Lazy(Rule):
    def apply(self, state, received, updates):
        return state, next(iter(updates)).weights


def watched(count, alive):
    """Updates that are counted for as long as somebody holds them."""
    seen = weakref.WeakSet()
    for client in range(count):
        tensor = torch.full((1000,), float(client))
        seen.add(tensor)
        yield Update(client, {"w": tensor}, 1, 0.0)
        del tensor
        gc.collect()
        alive.append(len(seen))


@pytest.mark.parametrize(("rule", "most"), [(Mean(), 1), (FedAvgM(), 1), (Gathering(), 8)])
def test_a_rule_that_streams_holds_one_update_at_a_time(rule, most):
    served, alive = Served({"w": torch.zeros(1000)}), []
    served = Served(served.shared, rule.init(served.shared))
    settled, examples, _ = settle(watched(8, alive), served, rule, FedAvg(), 1.0, 1)
    assert examples == 8
    assert float(settled.shared["w"][0]) == pytest.approx(3.5)
    assert max(alive) == most


def test_a_rule_that_overlooks_updates_is_found_out():
    both = [Update(n, {"w": torch.ones(1)}, 1, 0.0) for n in range(2)]
    with pytest.raises(TypeError, match="Lazy has not looked at every update"):
        settle(both, Served({"w": torch.zeros(1)}), Lazy(), FedAvg(), 1.0, 1)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda m: {}, "the model returned by Spoiling lacks w"),
        (lambda m: m | {"v": m["w"]}, "the model returned by Spoiling has an unexpected v"),
        (lambda m: {"w": m["w"][:1]}, r"has w of shape torch.Size\(\[1\]\), expected \(2,\)"),
        (lambda m: {"w": 3.0}, "has w of shape None, expected"),
    ],
)
def test_a_rule_must_give_a_model_like_the_one_before(spoil, said):
    class Spoiling(Rule):
        def apply(self, state, received, updates):
            return state, spoil(mean_of(updates, received))

    update = Update(0, {"w": torch.ones(2)}, 1, 0.0)
    with pytest.raises(RepperError, match=said):
        settle([update], Served({"w": torch.zeros(2)}), Spoiling(), FedAvg(), 1.0, 1)


RUN = ("run", *QUICK, "--method", "fedavg", "--knn", 0, "--json")


@pytest.mark.parametrize("rule", ["fedavgm", "fedadam", "fedyogi", "window"])
def test_a_resumed_run_goes_on_with_the_rules_state(repper, tmp_path, rule):
    whole = last_json(repper(*RUN, "--server", rule, "--rounds", 3, "--out", tmp_path / "a"))
    assert repper(*RUN, "--server", rule, "--rounds", 2, "--out", tmp_path / "b").returncode == 0
    more = ("--rounds", 3, "--out", tmp_path / "b", "--resume")
    again = last_json(repper(*RUN, "--server", rule, *more))
    assert again["encoder_digest"] == whole["encoder_digest"]
    assert again["heads_digest"] == whole["heads_digest"]
    mean = last_json(repper(*RUN, "--rounds", 3, "--out", tmp_path / "c"))
    assert mean["encoder_digest"] != whole["encoder_digest"]


def test_a_rules_settings_are_flags_and_part_of_what_a_run_is(repper, tmp_path):
    asked = ("--server", "fedavgm", "--server-momentum", 0, "--out", tmp_path / "a")
    done = last_json(repper(*RUN, *asked))
    plain = last_json(repper(*RUN, "--out", tmp_path / "b"))
    assert done["encoder_digest"] != plain["encoder_digest"]  # last digits: w - (w - mean)
    assert abs(done["accuracy"]["mean"] - plain["accuracy"]["mean"]) < 2
    other = repper(*RUN, "--server", "fedavgm", "--out", tmp_path / "a", "--resume")
    assert other.returncode == 2
    assert "its server-momentum is 0.0, not 0.9" in other.stderr
    wrong = repper(*RUN, "--server", "fedavgm", "--server-momentum", 2, "--out", tmp_path / "d")
    assert wrong.stderr == "repper: --server-momentum must be at most 0.9999, got 2\n"
    assert not (tmp_path / "d").exists()


def test_the_window_is_what_heads_are_fitted_on(repper, tmp_path):
    last_json(repper(*RUN, "--server", "window", "--out", tmp_path / "a"))
    _, used = read_encoder(tmp_path / "a")
    params, _ = read_params(tmp_path / "a" / "checkpoint" / "last.safetensors")
    assert digest(select(params, used.__contains__)) != digest(used)
    models = [part_of(params, f"rule:{n}") for n in range(3)]
    name = "encoder.body.0.0.weight"
    assert torch.allclose(used[name], torch.stack([m[name] for m in models]).mean(0), atol=1e-6)
