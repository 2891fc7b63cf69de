import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from repper.config import Config
from repper.encoders.encoder import EncoderSpec
from repper.losses import supcon
from repper.methods import METHODS
from repper.methods.method import build_network

SPEC = EncoderSpec("small", 1, 8, 0.25)


def network_of(method):
    return build_network(method, SPEC, classes=10, seed=1)


def method(name, **settings):
    return Config(method=name, **settings).build_method()


TRAVELS = {
    # method: encoder, head, what follows the encoder in stage 1
    "repper": (True, None, set()),
    "fedavg": (True, True, {"head"}),
}


@pytest.mark.parametrize("name", METHODS)
def test_who_shares_what(name):
    encoder, head, top = TRAVELS[name]
    network = network_of(method(name))
    assert set(dict(network.named_children())) == {"encoder"} | top
    for key in network.state_dict():
        expected = encoder if key.startswith("encoder.") else head
        assert method(name).shared(key) is expected


def test_repper_is_one_contrastive_phase_on_two_views():
    [phase] = method("repper", epochs=7, temperature=0.2, loss="usual").phases()
    assert (phase.epochs, phase.views) == (7, 2)
    r, labels = torch.randn(8, 5), torch.arange(8) % 3
    assert torch.equal(phase.loss(r, labels), supcon(r, labels, 0.2, "usual"))


def test_fedavg_is_one_cross_entropy_phase_on_one_view():
    [phase] = method("fedavg", epochs=3).phases()
    assert (phase.epochs, phase.views) == (3, 1)
    logits, labels = torch.randn(8, 5), torch.arange(8) % 3
    assert torch.equal(phase.loss(logits, labels), cross_entropy(logits, labels))


@pytest.mark.parametrize(("projection", "layers"), [("none", 0), ("linear", 1), ("mlp", 2)])
def test_a_projection_follows_the_encoder_in_stage_1(projection, layers):
    network = network_of(method("repper", projection=projection))
    linear = [m for m in network.modules() if isinstance(m, nn.Linear)]
    assert len(linear) == layers
    assert network(torch.rand(2, 1, 8, 8)).shape == (2, 128 if layers else 64)


def test_a_projection_does_not_change_the_encoders_initial_values():
    plain, projected = (network_of(method("repper", projection=p)) for p in ("none", "mlp"))
    for key, value in plain.state_dict().items():
        assert torch.equal(value, projected.state_dict()[key])


@pytest.mark.parametrize("name", METHODS)
def test_every_field_of_a_method_is_a_setting(name):
    settings = {f.name for f in dataclasses.fields(Config)}
    assert {f.name for f in dataclasses.fields(METHODS[name])} <= settings


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_where_it_comes_from(name):
    assert "20" in (METHODS[name].__doc__ or "")
