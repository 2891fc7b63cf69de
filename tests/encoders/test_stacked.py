"""Small clients trained at once: the arithmetic of PyTorch's layers, and the same bits in any company."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from repper.basics.params import clone, copy_params, digest, params_of
from repper.data.partition import split
from repper.encoders.encoder import EncoderSpec
from repper.encoders.stacked import Frame, is_stackable, row_of, stacked
from repper.engines import ENGINES
from repper.engines.client import Clients
from repper.engines.private import PrivateStore
from repper.engines.serial import SerialEngine
from repper.engines.small_clients import Stack, Stacking
from repper.engines.trainer import Trainer, TrainingInputs
from repper.methods.fedavg import FedAvg, FedProx
from repper.methods.network import build_network
from repper.methods.partial import FedRep
from repper.methods.repper import RepPer
from repper.methods.scaffold import Scaffold
from repper.methods.stage import Training
from repper.runs.plan import plan
from repper.settings.config import Config

CPU = torch.device("cpu")


def fill(layer, copies):
    """Put the weights of layers side by side into a stacked one."""
    storages = params_of(layer)
    for client, one in enumerate(copies):
        for name, value in params_of(one).items():
            row_of(storages[name], client, value).copy_(value)


def together_and_apart(layers, x, gradient, counts=None):
    """Outputs and gradients of a stacked layer, client by client, and those of the layers."""
    clients = len(layers)
    counts = counts or [len(x[0])] * clients
    frame = Frame(clients, torch.tensor(counts, dtype=torch.float32))
    if min(counts) < len(x[0]):
        frame.mask = torch.tensor([[float(i < n) for i in range(len(x[0]))] for n in counts])
    layer = stacked(layers[0], frame).train(layers[0].training)
    fill(layer, layers)
    inputs = torch.cat(list(x))
    if inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    inputs.requires_grad_()
    output = frame.rows(layer(inputs))
    kept = torch.stack([gradient] * clients)
    for client, count in enumerate(counts):
        kept[client, count:] = 0
    output.backward(kept)
    moved = params_of(layer)
    for client, (one, count) in enumerate(zip(layers, counts, strict=True)):
        own = x[client][:count].clone().requires_grad_()
        alone = one(own)
        alone.backward(gradient[:count])
        yield output[client][:count], alone
        yield frame.rows(inputs.grad)[client][:count], own.grad
        for name, parameter in one.named_parameters():
            found = dict(layer.named_parameters())[name].grad
            yield row_of(found, client, parameter), parameter.grad
        for name, buffer in one.named_buffers():
            if buffer.is_floating_point():
                yield row_of(moved[name], client, buffer), buffer


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 7), kernel=st.sampled_from([1, 3, 5]), stride=st.integers(1, 2),
    padded=st.booleans(), clients=st.integers(1, 3), seed=st.integers(0, 999),
)  # fmt: skip
def test_stacked_convolutions_are_pytorchs(size, kernel, stride, padded, clients, seed):
    padding = kernel // 2 if padded or size < kernel else 0
    random = torch.Generator().manual_seed(seed)
    layers = [nn.Conv2d(3, 8, kernel, stride, padding, bias=False) for _ in range(clients)]
    x = torch.randn(clients, 4, 3, size, size, generator=random)
    gradient = torch.randn(layers[0](x[0]).shape, generator=random)
    for found, expected in together_and_apart(layers, x, gradient):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("counts", [None, [8, 5, 7]])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["batch", "group"])
def test_stacked_norms_are_pytorchs_and_do_not_see_rows_that_are_no_images(kind, training, counts):
    random = torch.Generator().manual_seed(0)
    layers = []
    for _ in range(3):
        layer = nn.BatchNorm2d(16) if kind == "batch" else nn.GroupNorm(2, 16)
        for tensor in params_of(layer).values():
            tensor.copy_(torch.rand(tensor.shape, generator=random) + 0.5)
        layers.append(layer.train(training))
    x = torch.randn(3, 8, 16, 2, 2, generator=random)
    for client, count in enumerate(counts or []):
        x[client, count:] = 0
    gradient = torch.randn(8, 16, 2, 2, generator=random)
    for found, expected in together_and_apart(layers, x, gradient, counts):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_stacked_linear_layers_are_pytorchs():
    random = torch.Generator().manual_seed(0)
    layers = [nn.Linear(7, 3) for _ in range(4)]
    x, gradient = (torch.randn(*shape, generator=random) for shape in ((4, 8, 7), (8, 3)))
    for found, expected in together_and_apart(layers, x, gradient):
        torch.testing.assert_close(found, expected)


def test_layers_that_are_not_known_are_not_stacked():
    class Own(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    assert is_stackable(nn.Sequential(nn.Conv2d(1, 8, 3, bias=False), nn.ReLU()))

    class OwnConv(nn.Conv2d):
        def forward(self, x):
            return super().forward(x).flip(0)

    for layer in (
        Own(), OwnConv(8, 8, 3, bias=False), nn.Conv2d(8, 8, 3, groups=8, bias=False),
        nn.Conv2d(8, 8, (1, 3), bias=False), nn.Conv2d(8, 8, 3, stride=(2, 1), bias=False),
        nn.Conv2d(8, 8, 3, padding=(1, 0), bias=False), nn.Conv2d(8, 8, 3), nn.Flatten(0),
        nn.Dropout(), nn.BatchNorm1d(3), nn.BatchNorm2d(3, momentum=None),
    ):  # fmt: skip
        assert not is_stackable(nn.Sequential(nn.Linear(2, 2), layer))
    assert not is_stackable(EncoderSpec("mobilenet", 1, 8).build())
    for name in ("small", "resnet18", "resnet34-7x7"):
        assert is_stackable(EncoderSpec(name, 1, 8, 0.125).build())


METHODS = {
    "fedavg": (FedAvg(), "none", "small"),
    "fedprox, which looks at what moves": (FedProx(mu=0.5), "none", "small"),
    "fedrep, with two phases": (FedRep(), "weak", "small"),
    "scaffold, with gradients": (Scaffold(), "none", "small"),
    "repper, with two views": (RepPer(), "strong", "small"),
    "resnet, with shortcuts": (FedAvg(), "none", "resnet18"),
}


class Fleet:
    """Clients with a few images, and their training in stacks or alone."""

    def __init__(self, name, sizes):
        self.method, level, encoder = METHODS[name]
        self.spec = EncoderSpec(encoder, 1, 8, 0.25)
        self.network = build_network(self.method, self.spec, 10, 0)
        self.training = Training(epochs=2, batch=16, augment=level)
        params = clone(params_of(self.network))
        parts, kept = self.method.begin(params)
        beside = {f"{part}:{n}": t for part, values in parts.items() for n, t in values.items()}
        self.received = params | beside
        random = torch.Generator().manual_seed(1)
        self.several = []
        for count in sizes:
            images = torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=random)
            labels = torch.randint(0, 10, (count,), generator=random)
            counts = torch.bincount(labels, minlength=10).float()
            self.several.append(TrainingInputs(images, labels, self.received, kept, counts))

    def in_stacks(self, parts):
        """Digests and losses by client, trained in these parts."""
        found = {}
        for part in parts:
            stack = Stack(self.network, self.training, False, len(part))
            stack.receive(self.received)
            randoms = [torch.Generator().manual_seed(i) for i in part]
            several = [self.several[i] for i in part]
            results = [
                stack.train(phase, several, 1e-3, randoms) for phase in self.method.phases(2)
            ]
            for place, client in enumerate(part):
                loss = [result[place][0] for result in results]
                gradients = [digest(result[place][1]) for result in results]
                found[client] = digest(stack.live(place)), loss, gradients, clone(stack.live(place))
        return found

    def alone(self, client):
        trainer = Trainer(self.network, self.training, self.spec, False, CPU, 64)
        live, random = params_of(self.network), torch.Generator().manual_seed(client)
        copy_params({n: t for n, t in self.received.items() if n in live}, live)
        losses = [
            trainer.train(phase, self.several[client], 1e-3, random)[0]
            for phase in self.method.phases(2)
        ]
        return clone(live), losses


@pytest.mark.parametrize("name", METHODS)
def test_a_client_has_the_same_bits_in_stacks_of_any_size(name):
    fleet = Fleet(name, [21, 24, 22, 21, 23, 24, 22])
    alone = fleet.in_stacks([[i] for i in range(7)])
    for parts in ([list(range(7))], [[6, 3], [1, 0, 2, 5], [4]]):
        again = fleet.in_stacks(parts)
        assert [again[i][:3] for i in range(7)] == [alone[i][:3] for i in range(7)]


def test_a_client_has_the_same_bits_in_a_stack_of_32():
    fleet = Fleet("fedavg", [20] * 32)
    alone = fleet.in_stacks([[0], [31]])
    all_of_them = fleet.in_stacks([list(range(32))])
    for client in alone:
        assert alone[client][:2] == all_of_them[client][:2]


@pytest.mark.parametrize("name", METHODS)
def test_a_stack_trains_as_the_trainer_does_but_for_rounding(name):
    fleet = Fleet(name, [21, 24])
    for client, (_, losses, _, live) in fleet.in_stacks([[0, 1]]).items():
        expected, known = fleet.alone(client)
        assert losses == pytest.approx(known, rel=1e-4)
        moved = sum(float((expected[n] - fleet.received[n]).norm()) for n in live)
        apart = sum(float((expected[n] - t).norm()) for n, t in live.items())
        assert apart < 0.02 * moved


def many_small(digits, tmp_path=None, **changed):
    """A run with cohorts of 20 of 60 clients, with some 10 to 40 digits each."""
    config = Config(
        **{"clients": 60, "participation": 0.34, "epochs": 2, "width": 0.25, "batch": 32, "knn": 0,
           "device": "cpu", "augment": "weak", **changed}
    )  # fmt: skip
    partition = split(digits, clients=60, alpha=5.0, seed=0)
    planned = plan(config, digits, partition)
    private = tmp_path if tmp_path and planned.keeps_own else None
    if private:
        PrivateStore(private).begin(planned.first_kept())
    return dataclasses.replace(planned.work, private=private), planned.enter(0).received


def stacking_of(work):
    return Stacking.of(work, 0, work.networks()[0])


@pytest.fixture(scope="module")
def stacking(digits):
    return stacking_of(many_small(digits)[0])


@settings(max_examples=30, deadline=None)
@given(cohort=st.lists(st.integers(0, 59), unique=True, min_size=1), workers=st.integers(1, 4))
def test_every_client_of_a_cohort_is_in_one_group_of_its_like(stacking, cohort, workers):
    groups = list(stacking.groups(cohort, workers))
    assert sorted(c for group in groups for c in group) == sorted(cohort)
    for group in groups:
        assert len({stacking.key(client) for client in group}) == 1
        assert len(group).bit_count() == 1
        assert len(group) <= max(1, len(cohort) // workers)


@pytest.mark.parametrize("method", ["repper", "fedprox", "fedrep", "scaffold", "fedbn"])
def test_engines_agree_to_the_bit_where_clients_are_stacked(digits, tmp_path, method):
    cohort = list(range(0, 60, 3))
    found = {}
    for name in ("serial", "pool", "one by one"):
        work, received = many_small(digits, tmp_path / name, method=method)
        assert sum(len(group) > 1 for group in stacking_of(work).groups(cohort)) > 3
        kind = ENGINES["serial" if name == "one by one" else name]
        with kind(work, digits, 2) as engine:
            asked = [[client] for client in cohort] if name == "one by one" else [cohort]
            updates = [u for part in asked for u in engine.fit(received, part, 1)]
            again = [u for part in asked for u in engine.fit(received, part, 2)]
            found[name] = sorted(
                (u.client, digest(u.sent), u.examples, u.loss) for u in updates + again
            )
    assert found["serial"] == found["pool"] == found["one by one"]


def test_what_is_not_small_or_not_many_is_trained_as_ever(digits):
    work, _ = many_small(digits, method="fedavg")
    assert all(stacking_of(work).key(client) for client in range(60))
    for changed in (
        {"participation": 0.1}, {"precision": "bfloat16"}, {"method": "ditto"},
        {"method": "feddbe"}, {"encoder": "mobilenet"}, {"width": 4.0},
    ):  # fmt: skip
        other, _ = many_small(digits, **changed)
        assert not any(stacking_of(other).key(client) for client in range(60)), changed
    large = dataclasses.replace(work, spec=dataclasses.replace(work.spec, size=64))
    assert not any(stacking_of(large).key(client) for client in range(60))
    # Two views of the largest clients are too much for a stack, one is not.
    largest = max(range(60), key=lambda client: len(work.partition.train[client]))
    assert stacking_of(many_small(digits, method="repper", batch=256)[0]).key(largest) is None


def test_a_client_of_a_stack_learns(digits):
    work, received = many_small(digits, method="fedavg", epochs=20, lr=0.01)
    with SerialEngine(work, digits, 1) as engine:
        [update] = engine.fit(received, [0], 1)
    assert Clients.of(work, digits)._benches[0].stacking.key(0)
    assert update.loss < 0.7 * float(torch.log(torch.tensor(10.0)))
