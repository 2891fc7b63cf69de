"""Heads of many clients at once: the same heads, to the bit, as one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repper.data.partition import Partition
from repper.engines.client import MOST_AT_ONCE, MOST_IMAGES, groups
from repper.engines.engine import one_thread
from repper.heads.batched import Problem, Stack, shape_of
from repper.heads.descent import LinearHead, MLPHead, _layer
from repper.heads.personalize import Features, FineTune, FitHead, HeadInputs, personalize

NAMES = tuple("abcdefghijkl")


def make_clients(seed, sizes, features, classes, whole_layer=False):
    """Clients with so many images each, of some of the classes."""
    random = np.random.default_rng(seed)
    found = []
    for size in sizes:
        own = random.permutation(len(NAMES))[:classes]
        y = random.choice(own, size)
        y[: len(own)] = own[:size]
        x = random.normal(size=(size, features)) + 0.5 * np.eye(max(features, 12))[y, :features]
        start = random.normal(size=(len(NAMES), features)), random.normal(size=len(NAMES))
        head = tuple(a.astype(np.float32) for a in start) if whole_layer else None
        found.append(HeadInputs(Features(x.astype(np.float32), y, "e"), head, seed))
    return found


def digests(personalizer, clients):
    """Those of the clients' heads, which are fitted in one call."""
    found = personalize([(personalizer, one) for one in clients], NAMES)
    heads = {place: head.digest() for place, _, head in found}
    return [heads[place] for place in range(len(clients))]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_loop_over_batches_takes_the_steps_of_a_stack(optimizer):
    """A client of many images is trained by the one, others by the other."""
    [one] = make_clients(0, [40], 16, 3, whole_layer=True)
    head = LinearHead(epochs=7, lr=0.05, optimizer=optimizer, weight_decay=0.01)
    problem = head.problem(one.train.r, one.train.labels, one.head)
    [(_, [(weight, bias)])] = head.solved([problem])
    layer = _layer(problem.start)
    for _ in head._train(layer, problem.x, problem.labels):
        pass
    assert np.allclose(weight, layer.weight.detach(), atol=1e-5)
    assert np.allclose(bias, layer.bias.detach(), atol=1e-5)


@given(
    seed=st.integers(0, 2**20),
    base=st.integers(0, 12),
    count=st.integers(2, 9),
    features=st.sampled_from([1, 7, 16, 33, 64, 255, 256]),
    classes=st.integers(2, 12),
    optimizer=st.sampled_from(["adam", "sgd"]),
    finetune=st.booleans(),
)
@settings(max_examples=40, deadline=None)
@pytest.mark.filterwarnings("ignore:The number of unique classes")  # scikit-learn's, of few images
def test_a_head_does_not_depend_on_who_is_fitted_beside_it(
    seed, base, count, features, classes, optimizer, finetune
):
    random = np.random.default_rng(seed)
    sizes = 16 * base + random.integers(1, 17, count)
    sizes = np.maximum(sizes, classes)
    given = (("epochs", 5), ("optimizer", optimizer))
    personalizer = FineTune(given) if finetune else FitHead(LinearHead, given)
    clients = make_clients(seed, sizes, features, classes, whole_layer=finetune)
    [shape] = {personalizer.begin(one).alike(one.train.r, one.train.labels) for one in clients}
    assert shape is not None  # so that all are fitted at once
    with one_thread():
        together = digests(personalizer, clients)
        backwards = digests(personalizer, clients[::-1])
        alone = [digests(personalizer, [one])[0] for one in clients]
    assert together == alone
    assert together == backwards[::-1]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_written_gradient_is_autograds(optimizer):
    """Some steps of every layer in a stack, against the same steps of a plain layer."""
    random = np.random.default_rng(0)
    problems = [
        Problem(
            random.normal(size=(n, 20)).astype(np.float32),
            random.integers(0, k, n),
            (random.normal(size=(k, 20)).astype(np.float32), np.zeros(k, np.float32)),
        )
        for n, k in ((17, 3), (32, 8), (25, 1))
    ]
    stack = Stack(problems)
    for _ in stack.train(7, optimizer, lr=0.05, weight_decay=0.01):
        pass
    for problem, (weight, bias) in zip(problems, stack.layers(), strict=True):
        layer = torch.nn.Linear(20, len(problem.start[1]))
        layer.weight.data = torch.tensor(problem.start[0])
        layer.bias.data = torch.tensor(problem.start[1])
        plain = (
            torch.optim.Adam(layer.parameters(), lr=0.05, weight_decay=0.01)
            if optimizer == "adam"
            else torch.optim.SGD(layer.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
        )
        for _ in range(7):
            plain.zero_grad()
            outputs = layer(torch.tensor(problem.x))
            torch.nn.functional.cross_entropy(outputs, torch.tensor(problem.labels)).backward()
            plain.step()
        assert np.allclose(weight, layer.weight.detach(), atol=1e-5)
        assert np.allclose(bias, layer.bias.detach(), atol=1e-5)


def test_only_epochs_of_one_step_are_taken_together():
    def alike(head, classes, features, images):
        labels = np.arange(images) % classes
        return head.alike(np.zeros((images, features), np.float32), labels)

    head = LinearHead(batch=64)
    assert alike(head, 10, 256, 64) == alike(head, 9, 270, 49) == shape_of(16, 260, 50)
    assert alike(head, 10, 256, 65) == (16, 272, 80)  # a last image joins the batch before it
    assert alike(head, 10, 256, 66) is None
    assert alike(LinearHead(), 1, 8, 20) is None
    assert alike(MLPHead(), 3, 8, 20) is None


def test_stops_are_the_same_together_and_alone():
    clients = make_clients(3, [20, 21, 22], 16, 3)
    personalizer = FitHead(LinearHead, (("epochs", 10),))
    together = [
        (place, epoch, head.digest())
        for place, epoch, head in personalize([(personalizer, c) for c in clients], NAMES, every=4)
    ]
    for place, client in enumerate(clients):
        alone = personalize([(personalizer, client)], NAMES, every=4)
        found = [(epoch, digest) for at, epoch, digest in together if at == place]
        assert [epoch for epoch, _ in found] == [4, 8, 10]
        assert [(epoch, head.digest()) for _, epoch, head in alone] == found


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=200), st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_groups_hold_every_client_once_in_order_and_stay_small(sizes, workers):
    rows = tuple(np.zeros(size, np.int64) for size in sizes)
    parts = list(groups(Partition(rows, rows), range(len(sizes)), workers))
    assert [client for part in parts for client in part] == list(range(len(sizes)))
    for part in parts:
        assert 1 <= len(part) <= min(MOST_AT_ONCE, -(-len(sizes) // (4 * workers)))
        assert len(part) == 1 or sum(sizes[client] for client in part) <= MOST_IMAGES
