"""What every method shares, and what distinguishes it from the others."""

import dataclasses
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from repper.basics.errors import RepperError
from repper.basics.names import is_encoder, is_head, is_personal
from repper.basics.params import clone, digest, params_of, select
from repper.data.partition import split
from repper.edge import read_head
from repper.encoders.encoder import EncoderSpec
from repper.engines.client import Clients
from repper.engines.private import PrivateStore
from repper.engines.trainer import TrainingInputs
from repper.methods import METHODS
from repper.methods.losses import proximal, pulled, supcon
from repper.methods.method import Phase, Seen
from repper.methods.network import Holds, build_network
from repper.methods.stage import Stage
from repper.runs.plan import plan
from repper.settings.config import OPTIONS, Config

SPEC = EncoderSpec("small", 1, 8, 0.25)


def network_of(method):
    return build_network(method, SPEC, classes=10, seed=1)


def method(name, **settings):
    return Config(method=name, **settings).build_method()


TRAVELS = {
    # method: the parts that travel, and what a client keeps from round to round
    "repper": ({"encoder"}, set()),
    "fedavg": ({"encoder", "head"}, set()),
    "fedprox": ({"encoder", "head"}, set()),
    "lg-fedavg": ({"head"}, {"encoder"}),
    "fedrep": ({"encoder"}, {"head"}),
    "fedper": ({"encoder"}, {"head"}),
    "fedbabu": ({"encoder"}, set()),
    "ditto": ({"encoder", "head"}, {"personal"}),
    "local": (set(), {"encoder", "head"}),
    "central": ({"encoder", "head"}, set()),
    "scaffold": ({"encoder", "head"}, set()),
    "fedbn": ({"encoder", "head"}, set()),
    "fedrod": ({"encoder", "head"}, {"own_head"}),
    "moon": ({"encoder", "head"}, {"previous"}),
    "feddbe": ({"encoder", "head"}, {"offset"}),
    "fedetf": ({"encoder", "projection"}, set()),
    "calibrated": ({"encoder", "head"}, set()),
}
NEITHER = {"fedbabu": {"head"}, "moon": {"received"}}
"""Parts that neither travel nor are kept."""
OWN_LOSSES = ("repper", "fedrod", "moon", "fedetf", "calibrated")
"""Methods that do not go down cross-entropy alone; their losses have tests of their own."""
TWO_VIEWS = ("repper", "calibrated")
"""Methods that see two views of an image at once."""


def is_norm(name):
    """Whether a parameter of SPEC's encoder is one of its normalization layers."""
    return is_encoder(name) and name.split(".")[3] == "1"


@pytest.mark.parametrize("name", METHODS)
def test_who_shares_what(name):
    travels, kept = TRAVELS[name]
    network = network_of(method(name))
    holds = Holds.of(method(name), network, local_norm=False)
    assert set(dict(network.named_children())) == travels | kept | NEITHER.get(name, set())
    for key in network.state_dict():
        part = key.split(".")[0]
        assert method(name).shared(key) is (part in travels)
        assert method(name).private(key) is (part in kept)
        if key in params_of(network):
            at_home = name == "fedbn" and is_norm(key)
            assert (key in holds.shared) is (part in travels and not at_home)
            assert (key in holds.private) is (part in kept or at_home)


class Fleet:
    """Clients of a method on digits, without an engine around them."""

    def __init__(self, data, folder, name, **settings):
        settings = {"clients": 4, "epochs": 2, "batch": 64, "augment": "none", **settings}
        out = folder / f"{name}-{len(list(folder.iterdir()))}"
        out.mkdir()
        config = Config(method=name, width=0.25, device="cpu", out=str(out), **settings)
        self.partition = split(data, clients=4, alpha=1.0, seed=0)
        planned = plan(config, data, self.partition)
        self.work, [stage] = planned.work, planned.work.stages
        self.method, self.phases = stage.method, stage.method.phases(stage.training.epochs)
        self.initial = clone(params_of(planned.networks[0]))
        self.shared = planned.enter(0).received
        self.store = PrivateStore(out / "private")
        if self.work.private:
            self.store.begin(planned.first_kept())
        self.clients = Clients.of(self.work, data)
        self.clients.receive(self.shared)

    @property
    def network(self):
        return self.clients._at.network

    @property
    def trainer(self):
        return self.clients._at.trainer

    def fit(self, client, number=1):
        update = self.clients.fit(client, number)
        return dataclasses.replace(update, sent=clone(update.sent))

    def inputs(self, client, received):
        """A client before its first round, in whose network all stands as it begins."""
        own = self.clients._load(client, 0)
        rows = self.work.train_rows(client)
        images, labels = self.clients._pick(self.clients._train_split, rows)
        counts = torch.bincount(labels, minlength=10).float()
        features = partial(self.clients._looked_at, client, images)
        return TrainingInputs(images, labels, received, own, counts, features)


@pytest.fixture
def fleet(digits, tmp_path):
    return lambda name, **settings: Fleet(digits, tmp_path, name, **settings)


def distance(a, b):
    return sum(float((a[n] - b[n]).square().sum()) for n in a if "running" not in n) ** 0.5


def seen(labels, **outputs):
    """What a loss looks at, in a client that stands where the server is."""
    still, control = {"w": torch.ones(3)}, {"control:w": torch.ones(3)}
    return Seen(outputs, labels, still, still | control, control, torch.bincount(labels).float())


def test_repper_is_one_contrastive_phase_on_two_views():
    [phase] = method("repper", temperature=0.2, loss="usual").phases(7)
    assert (phase.epochs, phase.views) == (7, 2)
    r, labels = torch.randn(8, 5), torch.arange(8) % 3
    assert torch.equal(phase.loss(seen(labels, r=r)), supcon(r, labels, 0.2, "usual"))


@pytest.mark.parametrize("name", METHODS)
def test_methods_see_one_view_unless_they_compare_two(name):
    expected = 2 if name in TWO_VIEWS else 1
    assert {phase.views for phase in method(name).phases(3)} == {expected}


@pytest.mark.parametrize("name", [name for name in METHODS if name not in OWN_LOSSES])
def test_most_baselines_go_down_cross_entropy(name):
    logits, labels = torch.randn(8, 5), torch.arange(8) % 3
    for phase in method(name).phases(3):
        found = phase.loss(seen(labels, r=torch.randn(8, 7), head=logits))
        assert torch.equal(found, cross_entropy(logits, labels))


def test_the_proximal_term_pulls_in_proportion_to_the_distance():
    w = {"a": torch.randn(3, 4, requires_grad=True), "b": torch.randn(5, requires_grad=True)}
    anchors = {"b": torch.randn(5), "a": torch.randn(3, 4), "not trained": torch.randn(2)}
    value = proximal(w, anchors)
    value.backward()
    squares = [(p - anchors[name]).detach().square().sum() for name, p in w.items()]
    assert value.item() == pytest.approx(0.5 * float(sum(squares)))
    for name, p in w.items():
        assert torch.allclose(p.grad, (p - anchors[name]).detach(), atol=1e-6)


def test_a_pull_is_half_its_weight_times_the_squared_distance(fleet):
    fedprox = fleet("fedprox", batch=4096)
    anchors = {name: tensor + 0.1 for name, tensor in fedprox.initial.items()}
    inputs = fedprox.inputs(0, anchors)
    phase = Phase(
        lambda name: True, 1, lambda seen: pulled(0 * seen.outputs["head"].sum(), seen, 0.3)
    )
    count = sum(p.numel() for p in fedprox.network.parameters())
    loss, _ = fedprox.trainer.train(phase, inputs, 1e-3, torch.Generator())
    assert loss == pytest.approx(0.5 * 0.3 * 0.1**2 * count, rel=1e-3)


def test_fedprox_without_its_pull_is_fedavg_to_the_bit(fleet):
    fedavg, fedprox = fleet("fedavg"), fleet("fedprox", mu=0.0)
    assert digest(fedavg.fit(1).sent) == digest(fedprox.fit(1).sent)


def test_fedprox_stays_nearer_to_the_server_the_stronger_its_pull(fleet):
    moved = []
    for mu in (0.0, 1.0, 100.0):
        prox = fleet("fedprox", mu=mu, epochs=5)
        moved.append(distance(prox.fit(1).sent, prox.shared))
    assert moved[0] > 1.1 * moved[1] > 1.1 * moved[2] > 0


def test_lg_fedavg_sends_the_head_and_keeps_the_encoder(fleet):
    lg = fleet("lg-fedavg")
    first, second = lg.fit(0), lg.fit(1)
    assert set(first.sent) == {"head.weight", "head.bias"}
    assert not torch.equal(first.sent["head.weight"], lg.shared["head.weight"])
    encoders = [lg.store.encoder_of(client, 1) for client in range(3)]
    assert len({digest(e) for e in encoders}) == 3
    # A client that has not trained stands where all began; one that has goes on from its own.
    assert digest(encoders[2]) == digest(select(lg.initial, is_encoder))
    again = lg.fit(0, 2)
    fresh = fleet("lg-fedavg")
    assert digest(again.sent) != digest(fresh.fit(0, 2).sent)
    assert second.examples == len(lg.partition.train[1])


def test_fedper_trains_its_own_head_together_with_the_encoder(fleet):
    fedper = fleet("fedper")
    [phase] = fedper.phases
    assert phase.moves("encoder.x")
    assert phase.moves("head.x")
    update = fedper.fit(0)
    assert all(map(is_encoder, update.sent))
    assert distance(update.sent, fedper.shared) > 0
    assert set(fedper.store.read(0, 1)) == {"head.weight", "head.bias"}
    assert digest(fedper.store.read(0, 1)) != digest(fedper.store.read(0, 0))
    # With the same start, encoder and head move as FedAvg's do: only what travels differs.
    fedavg = fleet("fedavg").fit(0)
    assert digest(update.sent) == digest(select(fedavg.sent, is_encoder))
    assert digest(fedper.store.read(0, 1)) == digest(select(fedavg.sent, is_head))


@pytest.mark.parametrize(
    ("epochs", "given", "expected"),
    [(5, None, (2, 3)), (10, None, (5, 5)), (1, None, (1, 1)), (2, None, (1, 1)), (5, 4, (4, 1))],
)
def test_fedrep_divides_a_rounds_epochs_between_head_and_encoder(epochs, given, expected):
    head, encoder = method("fedrep", fedrep_head_epochs=given).phases(epochs)
    assert (head.epochs, encoder.epochs) == expected
    assert head.moves("head.weight")
    assert not head.moves("encoder.x")
    assert encoder.moves("encoder.x")
    assert not encoder.moves("head.weight")


def test_fedrep_must_leave_epochs_to_the_encoder(fleet):
    with pytest.raises(RepperError, match="leaves none of 5 epochs for the encoder"):
        method("fedrep", fedrep_head_epochs=5).phases(5)
    with pytest.raises(RepperError, match="leaves none of 5 epochs for the encoder"):
        fleet("fedrep", epochs=5, fedrep_head_epochs=5)


def test_fedrep_fits_the_head_on_an_encoder_that_stands_still(fleet):
    fedrep = fleet("fedrep", epochs=2)
    head_phase, encoder_phase = fedrep.phases
    inputs = fedrep.inputs(0, {})
    random = torch.Generator().manual_seed(0)
    before = clone(params_of(fedrep.network))
    fedrep.trainer.train(head_phase, inputs, 1e-2, random)
    between = clone(params_of(fedrep.network))
    fedrep.trainer.train(encoder_phase, inputs, 1e-2, random)
    after = clone(params_of(fedrep.network))
    for name in before:  # batch norm's statistics are among them
        assert torch.equal(before[name], between[name]) == is_encoder(name), name
        assert torch.equal(between[name], after[name]) == is_head(name), name


def test_fedbabu_never_trains_its_head(fleet):
    fedbabu = fleet("fedbabu")
    update = fedbabu.fit(0)
    assert all(map(is_encoder, update.sent))
    assert distance(update.sent, fedbabu.shared) > 0
    for name, value in select(fedbabu.initial, is_head).items():
        assert torch.equal(params_of(fedbabu.network)[name], value)
    assert fedbabu.store.clients(1) == []  # so there is nothing to keep for each client
    assert METHODS["fedbabu"].personalize == "finetune"


def test_ditto_trains_the_global_model_as_fedavg_does(fleet):
    ditto, fedavg = fleet("ditto"), fleet("fedavg")
    assert digest(ditto.fit(2).sent) == digest(fedavg.fit(2).sent)


def test_dittos_pull_has_the_slope_lambda_times_the_distance():
    """The gradient of lambda/2 |v - w|^2 is lambda (v - w)."""
    own = torch.tensor([1.0, -2.0], requires_grad=True)
    labels, sent = torch.tensor([0]), {"a": torch.tensor([0.5, 1.0])}
    outputs = {"head": 0 * own[None, :] + torch.tensor([[30.0, -30.0]])}
    seen = Seen(outputs, labels, {"a": own}, sent, {}, torch.ones(2))
    method("ditto", ditto_lambda=0.3).held_near(seen).backward()
    assert torch.allclose(own.grad, 0.3 * (own.detach() - sent["a"]), atol=1e-6)


def test_ditto_holds_the_personal_model_near_what_the_server_sent(fleet):
    far = []
    for pull in (0.0, 1.0, 100.0):
        ditto = fleet("ditto", ditto_lambda=pull, epochs=5)
        # The server's model of a later round, which is not where the personal model began.
        ditto.clients.receive({n: t + 0.05 for n, t in ditto.shared.items()})
        ditto.fit(0, 2)
        own = {n.removeprefix("personal."): t for n, t in ditto.store.read(0, 2).items()}
        sent = {n: t + 0.05 for n, t in ditto.shared.items()}
        far.append(distance(own, sent))
    assert far[0] > 1.1 * far[1] > 1.1 * far[2]


def test_ditto_answers_with_the_personal_model(fleet):
    ditto = fleet("ditto")
    ditto.fit(0)
    ditto.clients._load(0, 1)
    own = ditto.network.own
    assert all(map(is_personal, ditto.store.read(0, 1)))
    expected = {n.removeprefix("personal."): t for n, t in ditto.store.read(0, 1).items()}
    assert digest(params_of(own)) == digest(expected)
    assert digest(params_of(own)) != digest(select(params_of(ditto.network), ditto.method.shared))


def test_ditto_keeps_the_personal_head(fleet, tmp_path):
    ditto = fleet("ditto", personalize="keep")
    ditto.fit(0)
    ditto.clients.personalize([0], 1, tmp_path)
    own = ditto.store.read(0, 1)["personal.head.weight"]
    assert np.array_equal(read_head(tmp_path / "0.safetensors").arrays["weight"], own.numpy())
    # Who has never trained answers with what the server sent, encoder and head.
    ditto.clients.personalize([1], 1, tmp_path)
    head = read_head(tmp_path / "1.safetensors")
    assert np.array_equal(head.arrays["weight"], ditto.shared["head.weight"].numpy())
    assert head.encoder == digest(select(ditto.shared, is_encoder))


def test_the_loss_is_the_mean_over_the_epochs_of_all_phases(fleet):
    fedrep = fleet("fedrep", epochs=4, fedrep_head_epochs=3, lr=0.01)
    losses = []
    train = fedrep.trainer.train

    def watched(*arguments):
        loss, gradients = train(*arguments)
        losses.append(loss)
        return loss, gradients

    fedrep.trainer.train = watched
    assert fedrep.fit(0).loss == pytest.approx((3 * losses[0] + losses[1]) / 4)
    assert abs(losses[0] - losses[1]) > 1e-3


def test_the_learning_rate_of_the_floor_falls_with_the_rounds_it_stands_for(fleet):
    """With C = 0.25, its second round stands for the fifth to eighth of the others."""
    falling = {"lr_decay": 1e-9, "lr_decay_every": 4, "participation": 0.25}
    local, fedavg = fleet("local", **falling), fleet("fedavg", **falling)
    local.fit(0)
    local.fit(0, 2)
    before, after = local.store.read(0, 1), local.store.read(0, 2)
    assert distance(before, after) < 1e-5
    assert distance(fedavg.fit(0, 4).sent, fedavg.shared) > 0.1
    assert distance(fedavg.fit(0, 5).sent, fedavg.shared) < 1e-5


def test_local_clients_share_nothing_and_go_on_from_where_they_were(fleet):
    local, fedavg = fleet("local"), fleet("fedavg")
    assert local.shared == {}
    assert local.fit(0).sent == {}
    after_one = local.store.read(0, 1)
    assert digest(after_one) == digest(fedavg.fit(0).sent)  # the first round is FedAvg's
    fedavg.clients.receive(after_one)
    local.fit(1)  # what others do changes nothing
    local.fit(0, 2)
    assert digest(local.store.read(0, 2)) == digest(fedavg.fit(0, 2).sent)


@pytest.mark.parametrize("name", ["local", "central"])
@pytest.mark.parametrize(
    ("share", "rounds", "expected"),
    [(0.2, 30, 6), (0.5, 3, 2), (0.2, 1, 1), (1.0, 7, 7), (0.2, 0, 0)],
)
def test_floor_and_ceiling_have_the_epochs_of_an_average_client(name, share, rounds, expected):
    share = Fraction(share).limit_denominator(10)
    asked = Stage(method(name), rounds, share)
    assert method(name).stages(asked) == (
        Stage(method(name), expected, Fraction(1), stands_for=1 / share),
    )
    asked = Stage(method("fedavg"), rounds, share)
    assert method("fedavg").stages(asked) == (asked,)


def test_central_learns_from_the_images_of_all_clients_in_stage_1(fleet):
    central = fleet("central", stage1_clients="0,2,")
    update = central.fit(4)  # client K is the pooled client
    rows = np.concatenate([central.partition.train[0], central.partition.train[2]])
    assert update.examples == len(rows)
    assert sorted(central.work.train_rows(4)) == sorted(rows)
    assert distance(update.sent, central.shared) > 0


@pytest.mark.parametrize(("projection", "layers"), [("none", 0), ("linear", 1), ("mlp", 2)])
def test_a_projection_follows_the_encoder_in_stage_1(projection, layers):
    repper = method("repper", projection=projection)
    network = network_of(repper)
    linear = [m for m in network.modules() if isinstance(m, nn.Linear)]
    assert len(linear) == layers
    outputs = network(torch.rand(4, 1, 8, 8))
    last = outputs["projection" if layers else "r"]
    assert last.shape == (4, 128 if layers else 64)
    # That is what the loss looks at.
    [phase], labels = repper.phases(1), torch.tensor([0, 1, 0, 1])
    assert torch.equal(phase.loss(seen(labels, **outputs)), supcon(last, labels, 0.1, "usual"))


def test_all_methods_begin_with_the_same_encoder_and_the_same_head():
    plain = network_of(method("fedavg")).state_dict()
    for name in METHODS:
        copies = tuple(f"{copy}." for copy in METHODS[name].copies)
        for key, value in network_of(method(name, projection="mlp")).state_dict().items():
            part = key.partition(".")[2] if key.startswith(copies) else key
            if not part.startswith(("projection.", "own_head.", "offset.")):
                assert torch.equal(value, plain[part])


@pytest.mark.parametrize("name", METHODS)
def test_every_field_of_a_method_is_a_setting(name):
    for field in dataclasses.fields(METHODS[name]):
        assert name in OPTIONS[field.name].owners


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_where_it_comes_from(name):
    assert "20" in (METHODS[name].__doc__ or "")
