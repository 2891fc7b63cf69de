import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from repper.methods.losses import supcon, supcon_per_anchor

FORMS = ("paper", "usual")


def plain_loop(z, labels, temperature, form):
    """The paper's equation 5 and Khosla's L_out, one anchor and one positive at a time."""
    losses = []
    for j in range(len(z)):
        others = [a for a in range(len(z)) if a != j]
        positives = [a for a in others if labels[a] == labels[j]]
        if not positives:
            continue
        s = {a: math.exp(float(z[j] @ z[a]) / temperature) for a in others}
        total = sum(s.values())
        if form == "paper":
            losses.append(-math.log(sum(s[p] / total for p in positives) / len(positives)))
        else:
            losses.append(-sum(math.log(s[p] / total) for p in positives) / len(positives))
    return sum(losses) / len(losses)


def batch(count=12, features=5, classes=3, seed=0):
    random = torch.Generator().manual_seed(seed)
    r = torch.randn(count, features, generator=random, dtype=torch.float64)
    return r, (torch.arange(count) % classes)[torch.randperm(count, generator=random)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(5))
def test_supcon_equals_a_plain_loop(form, seed):
    r, labels = batch(seed=seed)
    expected = plain_loop(normalize(r, dim=1), labels, 0.3, form)
    assert float(supcon(r, labels, 0.3, form)) == pytest.approx(expected, rel=1e-12)


def test_the_two_forms_differ():
    r, labels = batch()
    assert float(supcon(r, labels, 0.3, "usual")) > float(supcon(r, labels, 0.3, "paper")) + 0.01


def closed_form(z, labels, j, temperature):
    """Section 5: P, X and the gradient of one anchor's loss with respect to z_j."""
    others = torch.arange(len(z)) != j
    positive = others & (labels == labels[j])
    negative = others & ~positive
    weight = torch.exp(z @ z[j] / temperature)
    p = weight / weight[others].sum()
    x = weight / weight[positive].sum()
    coefficients = torch.where(positive, p - x, torch.where(negative, p, torch.zeros_like(p)))
    return coefficients, (coefficients[:, None] * z).sum(0) / temperature


@pytest.mark.parametrize("j", range(4))
def test_gradient_of_one_anchor_for_z_is_the_closed_form(j):
    r, labels = batch()
    z = normalize(r, dim=1)
    anchor = z[j].clone().requires_grad_()
    rows = torch.stack([anchor if i == j else z[i] for i in range(len(z))])
    supcon_per_anchor(rows, labels, 0.2, "paper")[0][j].backward()
    _, expected = closed_form(z, labels, j, 0.2)
    assert torch.allclose(anchor.grad, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("j", range(4))
def test_gradient_of_one_anchor_for_r_is_the_closed_form(j):
    r, labels = batch()
    z = normalize(r, dim=1)
    anchor = r[j].clone().requires_grad_()
    rows = torch.stack([anchor / anchor.norm() if i == j else z[i] for i in range(len(z))])
    supcon_per_anchor(rows, labels, 0.2, "paper")[0][j].backward()
    coefficients, _ = closed_form(z, labels, j, 0.2)
    # (z_a - (z_j . z_a) z_j) for every a, each times its coefficient, over temperature and length.
    tangent = z - (z @ z[j])[:, None] * z[j]
    expected = (coefficients[:, None] * tangent).sum(0) / (0.2 * r[j].norm())
    assert torch.allclose(anchor.grad, expected, rtol=1e-10, atol=1e-12)


@given(st.integers(0, 10_000), st.sampled_from(FORMS), st.floats(0.05, 5))
@settings(max_examples=40, deadline=None)
def test_order_rotation_and_names_of_labels_do_not_matter(seed, form, temperature):
    r, labels = batch(seed=seed)
    before = float(supcon(r, labels, temperature, form))
    order = torch.randperm(len(r), generator=torch.Generator().manual_seed(seed))
    rotation = torch.linalg.qr(batch(5, 5, seed=seed + 1)[0]).Q
    renamed = torch.tensor([70, 3, 11])[labels]
    assert float(supcon(r[order], labels[order], temperature, form)) == pytest.approx(before)
    assert float(supcon(r @ rotation, labels, temperature, form)) == pytest.approx(before)
    assert float(supcon(r, renamed, temperature, form)) == pytest.approx(before)
    assert float(supcon(3 * r, labels, temperature, form)) == pytest.approx(before)


def loss_and_gradient(r, labels, temperature=0.1, form="paper"):
    r = r.clone().requires_grad_()
    loss = supcon(r, labels, temperature, form)
    loss.backward()
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(r.grad).all())
    return float(loss.detach()), r.grad


@pytest.mark.parametrize("form", FORMS)
def test_a_single_image_has_no_loss(form):
    loss, gradient = loss_and_gradient(
        torch.ones(1, 4), torch.zeros(1, dtype=torch.long), form=form
    )
    assert loss == 0
    assert float(gradient.abs().max()) == 0


@pytest.mark.parametrize("form", FORMS)
def test_only_anchors_with_positives_count(form):
    r, _ = batch(4)
    with_single = torch.tensor([0, 0, 0, 1])
    loss, _ = loss_and_gradient(r, with_single, 0.3, form)
    assert loss == pytest.approx(plain_loop(normalize(r, dim=1), with_single, 0.3, form))
    loss, gradient = loss_and_gradient(r, torch.arange(4), 0.3, form)
    assert loss == 0
    assert float(gradient.abs().max()) == 0


def test_a_batch_of_one_class_has_the_constant_paper_loss():
    r, _ = batch(6)
    loss, gradient = loss_and_gradient(r, torch.zeros(6, dtype=torch.long))
    assert loss == pytest.approx(math.log(5))
    assert float(gradient.abs().max()) < 1e-12


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [1e-4, 1e-2, 1.0, 1e4])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1.0, 1e18])
def test_finite_at_any_temperature_and_length(form, temperature, scale):
    r, labels = batch()
    loss_and_gradient((scale * r).float(), labels, temperature, form)


@pytest.mark.parametrize("form", FORMS)
def test_equal_vectors_stay_finite(form):
    loss, _ = loss_and_gradient(torch.ones(8, 4), torch.arange(8) % 2, 1e-3, form)
    assert loss == pytest.approx(math.log(7), rel=1e-4)
