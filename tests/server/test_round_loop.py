import pytest
import torch

from repper.basics.errors import RepperError
from repper.basics.seeds import Purpose, stream, torch_seed
from repper.engines.engine import Absent, Engine, Update
from repper.methods.fedavg import FedAvg
from repper.methods.stage import Stage
from repper.server import Mean
from repper.server import round_loop as module
from repper.server.round_loop import (
    Limits,
    Served,
    choose_cohort,
    federate,
    in_cohort_order,
    settle,
)


class Counting(Engine):
    """Clients that add their number to the weights, and answer in reverse order."""

    def __init__(self):
        self.asked = []

    def fit(self, received, cohort, number, stage=0):
        self.asked.append((number, cohort))
        for client in reversed(cohort):
            yield Update(
                client, {"w": received["w"] + client}, examples=client + 1, loss=float(client)
            )

    def personalize(self, received, clients, number, save_to, stage=0):
        raise AssertionError

    def probe(self, received, stage=0):
        raise AssertionError


def run(rounds=4, start=1, shared=0.0, participation=0.5, seed=0, clients=range(10)):
    engine = Counting()
    stage = Stage(FedAvg(), rounds, participation, clients=tuple(clients))
    served = Served({"w": torch.tensor([shared])})
    done = list(federate(engine, served, stage, seed=seed, start=start))
    return done, engine.asked


def test_a_round_is_the_mean_of_its_cohort_weighted_by_examples():
    [first, *_], asked = run()
    cohort = asked[0][1]
    examples = sum(client + 1 for client in cohort)
    expected = sum((client + 1) * client for client in cohort) / examples
    assert first.cohort == cohort
    assert first.examples == examples
    assert first.loss == pytest.approx(expected)
    assert float(first.shared["w"]) == pytest.approx(expected)


def test_the_next_round_starts_from_the_last_mean():
    done, asked = run(rounds=2, participation=1)
    step = sum((c + 1) * c for c in range(10)) / sum(c + 1 for c in range(10))
    assert float(done[1].shared["w"]) == pytest.approx(2 * step)
    assert [number for number, _ in asked] == [1, 2]


def test_starting_later_gives_the_same_rounds():
    whole, asked = run(rounds=4)
    half, asked_half = run(rounds=4, start=3, shared=float(whole[1].shared["w"]))
    assert asked_half == asked[2:]
    assert torch.equal(half[-1].shared["w"], whole[-1].shared["w"])


@pytest.mark.parametrize(
    ("clients", "participation", "size"),
    [(20, 0.2, 4), (20, 0.01, 1), (3, 0.5, 2), (5, 0.5, 2), (7, 1.0, 7), (1, 0.2, 1)],
)
def test_cohort_size_is_the_rounded_share_and_at_least_one(clients, participation, size):
    cohort = choose_cohort(range(clients), participation, stream(0, Purpose.COHORT, 1))
    assert len(cohort) == len(set(cohort)) == size
    assert list(cohort) == sorted(cohort)


def test_every_client_is_sampled_equally_often():
    counts = torch.zeros(10)
    for number in range(2000):
        for client in choose_cohort(range(10), 0.3, stream(0, Purpose.COHORT, number)):
            counts[client] += 1
    assert 0.27 < float(counts.min()) / 2000 <= float(counts.max()) / 2000 < 0.33


def test_only_the_given_clients_are_sampled():
    _, asked = run(rounds=30, clients=[2, 5, 7])
    assert {client for _, cohort in asked for client in cohort} == {2, 5, 7}


def test_order_of_arrival_does_not_matter():
    updates = [Update(c, {"w": torch.tensor([10.0**c])}, 1, 0.0) for c in (3, 1, 2)]
    assert [u.client for u in in_cohort_order(updates, (1, 2, 3), [])] == [1, 2, 3]


def test_a_missing_answer_is_an_error():
    updates = [Update(1, {}, 1, 0.0)]
    with pytest.raises(RepperError, match="client 2 sent no update in this round"):
        list(in_cohort_order(updates, (1, 2), []))


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (Update(4, {"w": torch.tensor([float("nan")])}, 1, 0.0), "client 4 in round 9.*NaN"),
        (Update(4, {"v": torch.tensor([1.0])}, 1, 0.0), "client 4 in round 9 lacks w"),
        (Update(4, {"w": torch.ones(2)}, 1, 0.0), r"client 4 in round 9 has w as \(2,\)"),
        (Update(4, {"w": torch.ones(1)}, 0, 0.0), "client 4 in round 9 counts 0 examples"),
        (Update(4, {"w": torch.ones(1)}, 1, float("nan")), "loss of client 4 in round 9 is nan"),
    ],
)
def test_bad_updates_are_refused_and_say_whose_they_are(update, message):
    with pytest.raises(RepperError, match=message):
        settle([update], Served({"w": torch.zeros(1)}), Mean(), FedAvg(), share=1.0, number=9)


def test_streams_depend_on_purpose_and_key_only():
    def draw(*key):
        return float(stream(7, *key).random())

    keys = [(Purpose.TRAIN, 1, 2), (Purpose.TRAIN, 2, 1), (Purpose.HEAD, 1, 2), (Purpose.TRAIN, 1)]
    keys.append((Purpose.TRAIN, 1, 2, 0))
    assert len({draw(*key) for key in keys}) == len(keys)
    assert draw(*keys[0]) == draw(*keys[0])
    assert len({torch_seed(7, *key) for key in keys}) == len(keys)
    # Frozen: a change here would change every published result.
    assert torch_seed(0, Purpose.TRAIN, 1, 2) == 2682218288029005339


@pytest.mark.parametrize(
    ("counts", "share", "most"),
    [
        ([10, 10, 10**9], 0.5, 20),  # half of 10 + 10 + 20
        ([10, 20, 70], 0.5, 30),
        ([10, 10, 10], 0.5, 10),
        ([7, 100, 100], 0.4, 14),  # 14 of 35
        ([10, 40], 0.3, 1),  # two of them cannot have less than half each: they count the same
        ([5], 0.5, 1),
        ([10**9] * 3 + [1], 0.3, 3),
    ],
)
def test_one_client_has_at_most_its_share_of_the_mean(counts, share, most):
    found = Limits(share).most_examples(counts)
    assert found == most
    weights = [min(count, found) for count in counts]
    assert max(weights) <= share * sum(weights) or len(set(weights)) == 1


def test_a_limited_share_is_that_of_every_rule_and_of_the_loss():
    """Client n has n + 1 examples and sends n: with 4 of 10 at most, the last counts as 4."""
    stage = Stage(FedAvg(), 1, 1, clients=(0, 1, 2, 9))
    served = Served({"w": torch.tensor([0.0])})
    counts = {client: client + 1 for client in stage.clients}
    [done] = federate(Counting(), served, stage, seed=0, limits=Limits(0.4), counts=counts)
    weights = {0: 1, 1: 2, 2: 3, 9: 4}
    assert done.examples == 10
    expected = sum(client * weight for client, weight in weights.items()) / 10
    assert float(done.shared["w"]) == pytest.approx(expected)
    assert done.loss == pytest.approx(expected)
    [free] = federate(Counting(), served, stage, seed=0, limits=Limits(1.0), counts=counts)
    assert free.examples == 16


def test_a_round_refuses_values_that_have_grown_too_much():
    """Client 9 sends 10 where 1 was sent."""
    stage = Stage(FedAvg(), 1, 1, clients=(0, 9))
    served = Served({"w": torch.tensor([1.0])})
    [done] = federate(Counting(), served, stage, seed=0, limits=Limits(growth=11))
    assert done.examples == 11
    with pytest.raises(RepperError, match="client 9 in round 1"):
        list(federate(Counting(), served, stage, seed=0, limits=Limits(growth=9)))


def test_memory_does_not_grow_with_updates_that_come_before_their_turn(monkeypatch):
    """Most of them wait on the disk, and come back as they were."""
    written = []
    save = module.save_params
    monkeypatch.setattr(
        module, "save_params", lambda path, *rest: (written.append(path), save(path, *rest))
    )
    monkeypatch.setattr(module, "IN_MEMORY", 3)
    sent = [torch.randn(3, generator=torch.Generator().manual_seed(n)) for n in range(8)]
    updates = [Update(n, {"w": sent[n]}, n + 1, n / 3) for n in range(8)]
    answers = [*reversed(updates)]
    answers[3] = Absent(4, "away")
    absent = []
    found = list(in_cohort_order(iter(answers), range(8), absent))
    assert [(u.client, u.examples, u.loss) for u in found] == [
        (n, n + 1, n / 3) for n in range(8) if n != 4
    ]
    assert all(torch.equal(u.sent["w"], sent[u.client]) for u in found)
    assert [one.client for one in absent] == [4]
    assert [int(path.name) for path in written] == [3, 2, 1]
    assert not any(path.parent.exists() for path in written)


def test_a_model_that_a_rule_has_spoilt_is_refused():
    class Overflowing(Mean):
        def apply(self, state, received, updates):
            _, mean = super().apply(state, received, updates)
            return state, {name: tensor / 0 for name, tensor in mean.items()}

    update = Update(0, {"w": torch.ones(1)}, 1, 0.5)
    served = Served({"w": torch.ones(1)})
    with pytest.raises(RepperError, match="returned by Overflowing has NaN or infinity"):
        settle([update], served, Overflowing(), FedAvg(), 1.0, 1)
