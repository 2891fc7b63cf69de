"""The size of an anchor's gradient: closed forms against autograd."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import repper as api
from repper.basics.params import load_params, read_params
from repper.data.augment import normalize
from repper.data.partition import read_partition
from repper.encoders.encoder import read_encoder
from repper.methods.losses import supcon_per_anchor
from repper.methods.network import build_network
from repper.paper.gradients import (
    BySize,
    by_class_size,
    classifier_anchors,
    contrastive_anchors,
    measure_run,
    over_clients,
)
from repper.runs.run_folder import CHECKPOINT


def vectors(seed, count, features=6, classes=3):
    random = torch.Generator().manual_seed(seed)
    r = torch.randn(count, features, generator=random, dtype=torch.float64)
    return 3 * r, torch.randint(classes, (count,), generator=random)


@given(st.integers(0, 10_000), st.integers(3, 20), st.sampled_from([0.05, 0.1, 1.0]))
@settings(max_examples=10, deadline=None)
def test_the_contrastive_norm_of_the_usual_form_is_autograds(seed, count, temperature):
    r, labels = vectors(seed, count)
    anchors, has = contrastive_anchors(r, labels, temperature, form="usual")
    assert anchors.norm == pytest.approx(
        norms(r, labels, has, temperature, "usual"), rel=1e-6, abs=1e-9
    )


def norms(r, labels, has, temperature, form):
    """Of the gradient of each anchor's loss by its own vector, the others held constant."""
    found = []
    for j in torch.nonzero(has).flatten().tolist():
        own = r[j].clone().requires_grad_()
        rows = torch.stack([own if i == j else r[i] for i in range(len(r))])
        z = torch.nn.functional.normalize(rows, dim=1)
        z = torch.stack([z[i] if i == j else z[i].detach() for i in range(len(r))])
        loss, _ = supcon_per_anchor(z, labels, temperature, form)
        (gradient,) = torch.autograd.grad(loss[j], own)
        found.append(float(gradient.norm()))
    return found


@given(st.integers(0, 10_000), st.integers(3, 20), st.sampled_from([0.05, 0.1, 1.0]))
@settings(max_examples=25, deadline=None)
def test_the_contrastive_norm_is_autograds(seed, count, temperature):
    r, labels = vectors(seed, count)
    anchors, has = contrastive_anchors(r, labels, temperature)
    expected = norms(r, labels, has, temperature, "paper")
    assert anchors.norm == pytest.approx(expected, rel=1e-6, abs=1e-9)
    # X is at least P for positives, and sums to one over them.
    similarity = torch.nn.functional.normalize(r, dim=1) @ torch.nn.functional.normalize(r, dim=1).T
    share = (similarity / temperature).fill_diagonal_(-1e9).softmax(1)
    same = (labels[:, None] == labels[None, :]).fill_diagonal_(False)
    assert anchors.factor == pytest.approx(1 - (share * same).sum(1)[has].numpy(), abs=1e-9)
    # The three factors make the norm, and the last is the distance of two weighted means.
    product = anchors.factor * anchors.shrink * anchors.apart / temperature
    assert product == pytest.approx(anchors.norm, rel=1e-9)
    if not has.any():
        return
    j = int(torch.nonzero(has)[0])
    z = torch.nn.functional.normalize(r, dim=1)
    tangent = z - (z @ z[j])[:, None] * z[j]
    near = (similarity[j] / temperature).masked_fill(~same[j], -1e9).softmax(0)
    means = [
        (weight @ tangent) / weight.sum()
        for weight in ((near - share[j]) * same[j], share[j] * ~same[j])
        if weight.sum() > 0
    ]
    if len(means) == 2:
        assert anchors.apart[0] == pytest.approx(float((means[0] - means[1]).norm()), rel=1e-5)
    assert ((anchors.hardness >= 0) & (anchors.hardness <= 1)).all()


def test_hard_positives_are_at_right_angles_and_easy_ones_coincide():
    r = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    anchors, has = contrastive_anchors(r, torch.tensor([0, 0, 1, 1]), 1.0)
    assert has.all()
    assert anchors.hardness == pytest.approx([1, 1, 0, 0], abs=1e-3)


def test_the_other_view_of_an_image_can_be_left_out_of_its_hardness():
    r = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    images = torch.tensor([0, 0, 1, 2])
    anchors, _ = contrastive_anchors(r, torch.tensor([0, 0, 0, 1]), 1.0, images)
    assert anchors.hardness == pytest.approx([0.5, 0.5, 1], abs=1e-3)
    assert anchors.hardness_of_others == pytest.approx([1, 1, 1], abs=1e-3)
    alone, _ = contrastive_anchors(r[:2], torch.tensor([0, 0]), 1.0, images[:2])
    assert np.isnan(alone.hardness_of_others).all()


def test_an_anchor_without_a_positive_is_left_out():
    r, _ = vectors(0, 3)
    anchors, has = contrastive_anchors(r, torch.tensor([0, 1, 1]), 0.1)
    assert has.tolist() == [False, True, True]
    assert len(anchors.norm) == 2


def test_the_classifiers_norm_is_autograds():
    r, labels = vectors(1, 9)
    weight, bias = torch.randn(3, 6).double(), torch.randn(3).double()
    rows = r.clone().requires_grad_()
    torch.nn.functional.cross_entropy(rows @ weight.T + bias, labels, reduction="sum").backward()
    found = classifier_anchors(r, labels, weight, bias)
    assert found.norm == pytest.approx(rows.grad.norm(dim=1).numpy())
    assert found.hardness is None


def test_classes_count_once_and_are_split_at_the_median():
    values = np.array([5.0, 3.0, 3.0, 1.0, 1.0, 1.0, 3.0])
    labels = np.array([0, 1, 1, 2, 2, 2, 2])
    found = by_class_size(values, labels, np.array([1, 20, 300, 0]))
    assert found == BySize(tail=5.0, head=1.5, correlation=pytest.approx(-1.0))


def test_clients_without_a_tail_do_not_count():
    nan = float("nan")
    summary = over_clients([BySize(4, 2, -1.0), BySize(1, 2, -0.5), BySize(nan, 3, nan)])
    assert summary == {
        "clients": 2, "tail": 2.5, "head": 2.0, "ratio": 1.0,
        "larger_for_tail": 0.5, "correlation": -0.75,
    }  # fmt: skip


def test_gradients_are_those_of_the_trained_network_in_training(tmp_path, digits):
    settings = {"clients": 3, "rounds": 1, "epochs": 1, "width": 0.25, "engine": "serial", "knn": 0}
    run = api.run(
        digits, method="fedavg", augment="none", batch=4096, out=tmp_path / "r", **settings
    )
    network = build_network(run.config.build_method(), read_encoder(run.folder)[0], 10, seed=5)
    load_params(network, read_params(run.folder / CHECKPOINT)[0])
    rows = read_partition(run.folder / "partition.json", digits).train[0]
    images, labels = (torch.from_numpy(a[rows]) for a in (digits.train.images, digits.train.labels))
    with torch.no_grad():
        outputs = network.train()(normalize(images))["head"].double()
    error = outputs.softmax(1) - torch.nn.functional.one_hot(labels, 10)
    counts = np.bincount(labels, minlength=10)
    by_weight = (error @ network.head.weight.double()).norm(dim=1).detach().numpy()
    expected = [
        by_class_size(values, labels.numpy(), counts)
        for values in (by_weight, error.norm(dim=1).numpy())
    ]
    for found, one in zip(measure_run(run, digits), expected, strict=True):
        assert found.clients[0].head == pytest.approx(one.head, rel=1e-4)
        assert found.clients[0].tail == pytest.approx(one.tail, rel=1e-4)
