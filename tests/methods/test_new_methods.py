"""What sets each of the newer baselines apart."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

import repper as api
from repper.basics.names import is_encoder, is_statistic, part_of
from repper.basics.params import clone, digest, params_of, select
from repper.data.partition import split
from repper.engines.client import Clients
from repper.engines.private import PrivateStore
from repper.methods import METHODS, Seen
from repper.methods.calibrated import Calibrated
from repper.methods.fedetf import FedETF, simplex
from repper.methods.fedrod import FedRoD
from repper.methods.losses import prior_corrected_cross_entropy, supcon
from repper.methods.moon import MOON
from repper.methods.network import build_network
from repper.methods.scaffold import Scaffold
from repper.runs.plan import plan
from repper.server import Mean
from repper.server.round_loop import Served, settle
from repper.settings.config import Config


class Fleet:
    """Clients of a method on digits, without an engine around them."""

    def __init__(self, data, folder, **settings):
        settings = {"epochs": 2, "batch": 32, "augment": "none", "width": 0.25, **settings}
        config = Config(clients=4, out=str(folder), device="cpu", **settings)
        self.plan = plan(config, data, split(data, clients=4, alpha=1.0, seed=0))
        self.served = self.plan.enter(0)
        self.store = None
        if private := self.plan.work.private:
            private.parent.mkdir(parents=True, exist_ok=True)
            self.store = PrivateStore(private)
            self.store.begin(self.plan.first_kept())
        self.clients = Clients.of(self.plan.work, data)
        self.clients.receive(self.served.received)

    @property
    def bench(self):
        return self.clients._at

    def fit(self, client, number=1):
        update = self.clients.fit(client, number)
        return dataclasses.replace(update, sent=clone(update.sent))


@pytest.fixture
def fleet(digits, tmp_path):
    made = []

    def make(method, **settings):
        made.append(method)
        return Fleet(digits, tmp_path / f"{len(made)}", method=method, **settings)

    return make


def far(a, b):
    return sum(float((a[n] - b[n]).square().sum()) for n in b if not is_statistic(n)) ** 0.5


def seen(outputs, labels, **more):
    empty = {"moving": {}, "received": {}, "own": {}, "counts": torch.ones(4)}
    return Seen(outputs, labels, **(empty | more))


# FedBN and --bn local


def norm_names(fleet):
    return {n for n in fleet.bench.live if is_encoder(n) and n.split(".")[3] == "1"}


@pytest.mark.parametrize("settings", [{"method": "fedbn"}, {"method": "fedavg", "bn": "local"}])
def test_normalization_layers_stay_at_home_and_nothing_else(fleet, settings):
    one = fleet(**settings)
    norms = norm_names(one)
    assert len(norms) == 5 * 4  # weight, bias, mean and variance of five layers
    update = one.fit(0)
    assert set(update.sent) == set(one.bench.live) - norms
    assert set(one.store.read(0, 1)) == norms
    assert digest(one.store.read(0, 1)) != digest(one.store.read(0, 0))
    # The next round goes on with the client's own, whatever others do.
    one.fit(1)
    one.clients._load(0, 1)
    own = one.store.read(0, 1)
    assert all(torch.equal(one.bench.live[n], own[n]) for n in norms)


@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name].pooled])
def test_any_method_can_leave_normalization_layers_at_home(fleet, name):
    one = fleet(name, bn="local")
    norms = norm_names(one)
    for number in (1, 2):
        update = one.fit(0, number)
        assert np.isfinite(update.loss)
        assert not [n for n in update.sent if n.partition(":")[2] in norms or n in norms]
    kept = one.store.read(0, 2)
    assert norms <= set(kept)
    assert digest(select(kept, norms.__contains__)) != digest(
        select(one.store.read(1, 2), norms.__contains__)
    )


def test_images_in_one_place_have_no_layers_to_leave_at_home(digits, tmp_path):
    settings = {"method": "central", "clients": 4, "rounds": 1, "epochs": 1, "width": 0.25}
    found = [
        api.run(digits, bn=bn, engine="serial", knn=0, out=tmp_path / bn, **settings).result
        for bn in ("local", "average")
    ]
    assert found[0]["encoder_digest"] == found[1]["encoder_digest"]


def test_fedbn_is_fedavg_but_for_what_travels(fleet):
    fedbn, fedavg = fleet("fedbn").fit(1), fleet("fedavg").fit(1)
    assert digest(fedbn.sent) == digest(select(fedavg.sent, fedbn.sent.__contains__))


def test_a_client_of_fedbn_answers_with_its_own_layers(fleet):
    one = fleet("fedbn")
    one.fit(0)
    jobs = [one.clients._head_job(client, 1) for client in (0, 1)]
    assert jobs[0].inputs.train.encoder != jobs[1].inputs.train.encoder


# FedRoD


def test_fedrods_heads_have_losses_of_their_own():
    torch.manual_seed(0)
    generic, own = (torch.randn(12, 4, requires_grad=True) for _ in range(2))
    labels, counts = torch.arange(12) % 3, torch.tensor([6.0, 3.0, 3.0, 0.0])
    loss = FedRoD().loss(seen({"head": generic, "own_head": own}, labels, counts=counts))
    loss.backward()
    alone = generic.detach().clone().requires_grad_()
    prior_corrected_cross_entropy(alone, labels, counts).backward()
    assert torch.allclose(generic.grad, alone.grad)  # the personal loss does not reach it
    beside = own.detach().clone().requires_grad_()
    cross_entropy(generic.detach() + beside, labels).backward()
    assert torch.allclose(own.grad, beside.grad)


def test_prior_correction_leaves_classes_out_that_a_client_lacks():
    logits = torch.tensor([[1.0, 2.0, 50.0]], requires_grad=True)
    loss = prior_corrected_cross_entropy(logits, torch.tensor([0]), torch.tensor([1.0, 3.0, 0.0]))
    expected = cross_entropy(
        torch.tensor([[1.0, 2.0]]) + torch.tensor([0.25, 0.75]).log(), torch.tensor([0])
    )
    assert float(loss.detach()) == pytest.approx(float(expected), abs=1e-6)
    loss.backward()
    assert float(logits.grad[0, 2]) == 0


def test_fedrod_answers_with_the_sum_of_both_heads_and_sends_the_generic_one(fleet):
    one = fleet("fedrod")
    update = one.fit(0)
    assert not [n for n in update.sent if n.startswith("own_head")]
    own = one.store.read(0, 1)
    assert set(own) == {"own_head.weight", "own_head.bias"}
    assert float(own["own_head.weight"].abs().max()) > 0
    one.clients.receive(update.sent)
    head = one.clients._head_job(0, 1).inputs.head
    assert np.allclose(head[0], (update.sent["head.weight"] + own["own_head.weight"]).numpy())
    # Who has never trained answers with the generic head.
    assert np.array_equal(
        one.clients._head_job(1, 1).inputs.head[0], update.sent["head.weight"].numpy()
    )


def test_the_personal_head_of_fedrod_does_not_train_the_encoder(fleet):
    network = fleet("fedrod").bench.network
    outputs = network(torch.rand(4, 1, 8, 8))
    outputs["own_head"].sum().backward()
    assert all(p.grad is None for p in network.encoder.parameters())


# FedETF


@pytest.mark.parametrize("count", [2, 3, 10])
def test_the_simplex_has_unit_vectors_at_equal_angles(count):
    vectors = simplex(torch.zeros(count, dtype=torch.float64))
    cosines = vectors @ vectors.T
    expected = torch.full((count, count), -1 / (count - 1), dtype=torch.float64)
    assert torch.allclose(cosines, expected.fill_diagonal_(1.0))


def test_fedetf_has_nothing_but_encoder_and_projection(fleet):
    assert {n.split(".")[0] for n in fleet("fedetf").fit(0).sent} == {"encoder", "projection"}


def test_fedetfs_linear_layer_gives_the_class_with_the_nearest_vector():
    torch.manual_seed(0)
    projection = torch.nn.Linear(6, 4)
    r = torch.randn(50, 6)
    params = {f"projection.{n}": t.detach() for n, t in projection.named_parameters()}
    weight, bias = FedETF().classifier(params)
    nearest = (normalize(projection(r), dim=1) @ simplex(torch.zeros(4)).T).argmax(1)
    assert torch.equal((r @ weight.T + bias).argmax(1), nearest)


def test_fedetf_is_balanced_cross_entropy_of_cosines():
    torch.manual_seed(0)
    out, labels, counts = torch.randn(8, 4), torch.arange(8) % 4, torch.tensor([5.0, 1, 1, 1])
    logits = normalize(out, dim=1) @ simplex(out).T / 0.2
    expected = cross_entropy(logits + (counts / 8).log(), labels)
    loss = FedETF(etf_temperature=0.2).loss(seen({"projection": out}, labels, counts=counts))
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)


# FedDBE


def test_feddbe_keeps_an_offset_of_features_and_sends_the_rest(fleet):
    one = fleet("feddbe")
    update = one.fit(0)
    assert {n.split(".")[0] for n in update.sent} == {"encoder", "head"}
    own = one.store.read(0, 1)
    assert set(own) == {"offset.value"}
    assert float(own["offset.value"].abs().max()) > 0
    assert float(one.store.read(1, 1)["offset.value"].abs().max()) == 0


def test_feddbe_answers_as_its_network_does(fleet):
    network = fleet("feddbe").bench.network.eval()
    with torch.no_grad():
        network.get_parameter("offset.value").uniform_(-1, 1)
        outputs = network(torch.rand(5, 1, 8, 8))
        weight, bias = network.classifier
        assert torch.allclose(outputs["r"] @ weight.T + bias, outputs["head"], atol=1e-5)
        assert not torch.allclose(network.get_submodule("head")(outputs["r"]), outputs["head"])


# MOON


def moon_loss(r, near, far_, mu=1.0, tau=0.5):
    logits = torch.zeros(len(r), 2)
    outputs = {"r": r, "head": logits, "received.r": near, "previous.r": far_}
    labels = torch.zeros(len(r), dtype=torch.int64)
    return MOON(moon_mu=mu, moon_temperature=tau).loss(seen(outputs, labels))


def test_moon_is_the_log_share_of_the_received_models_likeness():
    torch.manual_seed(0)
    r, near, other = (torch.randn(6, 5) for _ in range(3))
    a, b = (torch.cosine_similarity(r, one) / 0.5 for one in (near, other))
    expected = torch.tensor(2.0).log() + 3 * -(a.exp() / (a.exp() + b.exp())).log().mean()
    assert float(moon_loss(r, near, other, mu=3.0)) == pytest.approx(float(expected), rel=1e-5)


def test_moon_draws_features_to_the_received_model_and_away_from_the_previous():
    r = torch.tensor([[1.0, 0.0]], requires_grad=True)
    near, other = torch.tensor([[0.7, 0.7]]), torch.tensor([[0.7, -0.7]])
    moon_loss(r, near, other).backward()
    assert float(r.grad[0, 1]) < 0  # down the gradient is up, towards `near`


def test_moons_first_round_is_fedavgs_and_its_second_is_not(fleet):
    moon, fedavg = fleet("moon", norm="group"), fleet("fedavg", norm="group")
    first = moon.fit(0)
    assert far(first.sent, fedavg.fit(0).sent) < 1e-3
    kept = moon.store.read(0, 1)
    assert {n.split(".")[0] for n in kept} == {"previous"}
    # What is kept is the model that the client ended with, not the one it received.
    last = {n.removeprefix("previous."): t for n, t in kept.items()}
    assert digest(last) == digest(first.sent)
    assert far(moon.fit(0, 2).sent, fedavg.fit(0, 2).sent) > 1e-2


def test_what_moon_looks_at_beside_is_frozen(fleet):
    moon = fleet("moon")
    moon.fit(0)
    moon.clients._load(0, 1)
    before = {n: t.clone() for n, t in moon.bench.live.items() if n.startswith("previous.")}
    moon.fit(0, 2)
    for name, tensor in before.items():
        assert torch.equal(moon.bench.live[name], tensor), name
    assert digest(select(params_of(moon.bench.network.copy_named("received")), lambda n: True)) == (
        digest(moon.served.shared)
    )


# SCAFFOLD


def test_scaffold_corrects_gradients_by_the_difference_of_controls():
    w = torch.randn(3, 4, requires_grad=True)
    x, labels = torch.randn(5, 4), torch.arange(5) % 3
    common, own = torch.randn(3, 4), torch.randn(3, 4)

    def gradient(c, c_i):
        received, kept = {"control:w": c}, {"control:w": c_i}
        found = seen({"head": x @ w.T}, labels, moving={"w": w}, received=received, own=kept)
        [result] = torch.autograd.grad(Scaffold().loss(found), w)
        return result

    plain = gradient(common, common)
    assert torch.allclose(gradient(common, own), plain + common - own, atol=1e-6)


def test_a_client_of_scaffold_keeps_its_mean_gradient_and_sends_the_change(fleet):
    """With one batch, one epoch and zero controls it is the gradient of the received model."""
    one = fleet("scaffold", epochs=1, batch=4096, norm="group")
    update = one.fit(0)
    network = build_network(one.plan.work.stages[0].method, one.plan.work.spec, 10, seed=0)
    network.load_state_dict({n: t for n, t in one.served.shared.items() if ":" not in n})
    rows = one.plan.work.train_rows(0)
    data = one.plan.dealt.data.train
    images = torch.from_numpy(data.images[rows]).float() / 127.5 - 1
    cross_entropy(network(images)["head"], torch.from_numpy(data.labels[rows])).backward()
    sent, kept = part_of(update.sent, "control"), part_of(one.store.read(0, 1), "control")
    for name, parameter in network.named_parameters():
        assert torch.allclose(sent[name], parameter.grad, atol=1e-5), name
        assert torch.equal(sent[name], kept[name])
    # The second round sends by how much it has changed.
    again = part_of(one.fit(0, 2).sent, "control")
    later = part_of(one.store.read(0, 2), "control")
    assert all(torch.allclose(again[n], later[n] - kept[n], atol=1e-6) for n in again)


def test_the_first_round_of_scaffold_is_fedavgs(fleet):
    scaffold, fedavg = fleet("scaffold").fit(2), fleet("fedavg").fit(2)
    weights = {n: t for n, t in scaffold.sent.items() if ":" not in n}
    assert weights.keys() == fedavg.sent.keys()
    assert far(weights, fedavg.sent) < 1e-4


def test_scaffolds_server_adds_the_mean_change_of_the_share_that_took_part(fleet):
    one = fleet("scaffold")
    served = Served({**one.served.shared, "control:head.bias": torch.full((10,), 2.0)})
    updates = [one.fit(client) for client in (0, 1)]
    settled, _, _ = settle(updates, served, Mean(), Scaffold(), share=0.5, number=1)
    name = "control:head.bias"
    sizes = [update.examples for update in updates]
    mean = sum(u.examples * u.sent[name] for u in updates) / sum(sizes)
    assert torch.allclose(settled.shared[name], 2.0 + 0.5 * mean, atol=1e-6)
    assert not [n for n in settled.shared if n.startswith("control:") and "running" in n]


@pytest.mark.parametrize("name", METHODS)
def test_no_class_count_and_no_feature_travels(fleet, name):
    """What is sent has the shapes of weights, and nothing has one number a class or an image."""
    if METHODS[name].pooled:
        pytest.skip("all images are in one place")
    one = fleet(name)
    update = one.fit(0)
    like = one.plan.shared_after(1)
    assert {n: t.shape for n, t in update.sent.items()} == {n: t.shape for n, t in like.items()}
    for key in update.sent:
        assert key.partition(":")[2] in (*one.bench.live, ""), key


# Calibrated


def one_batch() -> Seen:
    generator = torch.Generator().manual_seed(0)
    logits, r = torch.randn(12, 4, generator=generator), torch.randn(12, 8, generator=generator)
    counts = torch.tensor([6.0, 3.0, 3.0, 0.0])
    return seen({"head": logits, "r": r}, torch.arange(12) % 3, counts=counts)


def test_calibrated_adds_the_weighted_contrast_to_prior_corrected_cross_entropy():
    batch = one_batch()
    alone = prior_corrected_cross_entropy(batch.outputs["head"], batch.labels, batch.counts)
    contrast = supcon(batch.outputs["r"], batch.labels, 0.2, "usual")
    assert torch.equal(Calibrated(contrast=0).loss(batch), alone)
    both = Calibrated(contrast=0.7, temperature=0.2).loss(batch)
    assert float(both) == pytest.approx(float(alone + 0.7 * contrast), abs=1e-6)


def test_the_more_smoothing_the_closer_is_calibrated_to_plain_cross_entropy():
    batch = one_batch()
    plain = cross_entropy(batch.outputs["head"], batch.labels)
    away = [
        abs(float(Calibrated(contrast=0, prior_smoothing=s).loss(batch) - plain))
        for s in (0, 1, 100, 1e6)
    ]
    assert away == sorted(away, reverse=True)
    assert away[-1] < 1e-5 < 0.01 < away[0]
