"""A client's own part on top of the common head, and how much of it there is."""

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

import repper as api
from conftest import make_dataset
from repper.edge.saved_head import read_head
from repper.heads.class_frequencies import log_prior
from repper.heads.common_and_personal import ALONE, PULLS, PulledHead, residuals

QUICK = {
    "clients": 4, "epochs": 1, "width": 0.25, "participation": 0.5, "engine": "serial",
    "rounds": 1, "knn": 0, "common_rounds": 2,
}  # fmt: skip


def problem(images=120, features=6, classes=3, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(2, 3, (images, features)).astype(np.float32)
    truth = random.normal(size=(classes, features)), random.normal(size=classes)
    chances = x @ truth[0].T + truth[1] + random.gumbel(size=(images, classes))
    return x, chances.argmax(1), truth


def loss(x, offset, labels, layer, pull):
    weight, bias = layer
    logits = offset + x @ weight.T + bias
    fit = -log_softmax(logits, 1)[np.arange(len(x)), labels].sum()
    return fit + pull / 2 * ((weight**2).sum() + (bias**2).sum())


@pytest.mark.parametrize("pull", [100.0, 1.0])
def test_a_residual_is_where_its_loss_is_least(pull):
    x, labels, truth = problem()
    offset = x @ truth[0].T * 0.3
    [layer] = residuals(x.astype(float), offset, labels, [pull])
    least = loss(x, offset, labels, layer, pull)
    random = np.random.default_rng(1)
    for _ in range(20):
        near = tuple(part + 1e-3 * random.normal(size=part.shape) for part in layer)
        assert loss(x, offset, labels, near, pull) > least


def test_without_an_offset_it_is_a_logistic_regression():
    x, labels, _ = problem()
    x = (x - x.mean(0)) / x.std()
    wide = np.hstack([x, np.ones((len(x), 1))])  # ours pulls the bias, too
    theirs = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-8, max_iter=5000)
    theirs.fit(wide, labels)
    [(weight, bias)] = residuals(x.astype(float), np.zeros((len(x), 3)), labels, [1.0])
    assert np.allclose(np.hstack([weight, bias[:, None]]), theirs.coef_, atol=2e-3)


def test_an_infinite_pull_adds_nothing_and_a_path_ends_where_each_would():
    x, labels, truth = problem()
    offset = x @ truth[0].T
    path = residuals(x.astype(float), offset, labels, PULLS)
    assert not path[0][0].any()
    assert not path[0][1].any()
    for pull, layer in zip(PULLS[1:], path[1:], strict=True):
        [alone] = residuals(x.astype(float), offset, labels, [pull])
        assert np.allclose(alone[0], layer[0], atol=1e-3)


def fitted(x, labels, start, **settings):
    return PulledHead(start=start, **settings).fit(x, labels)


def test_where_the_common_head_is_right_nothing_is_added():
    """Then it answers as the common head with the client's class frequencies."""
    x, labels, (weight, bias) = problem(images=80)
    head = fitted(x, labels, (weight.astype(np.float32), bias.astype(np.float32)))
    assert head.pull_ == np.inf
    logits = x @ weight.T + bias + log_prior(labels, 3, 0.5)
    saved = head.saved(("a", "b", "c"), "e", unit_input=False)
    assert np.allclose(saved.scores(x), logits, atol=1e-3)


def test_where_the_common_head_is_wrong_it_is_left():
    x, labels, (weight, bias) = problem(images=400)
    wrong = (np.roll(10 * weight, 1, axis=0).astype(np.float32), bias.astype(np.float32))
    head = fitted(x, labels, wrong)
    assert head.pull_ in (ALONE, 1.0)
    right = (head.predict(x) == labels).mean()
    assert right > 0.8 > (np.argmax(x @ wrong[0].T + wrong[1], 1) == labels).mean() + 0.3


def test_a_little_wrong_is_mended_by_a_little():
    """A client whose classes are shifted a bit: the best of both beats each alone."""
    own = problem(images=60, features=40, classes=4, seed=5)
    x, labels, (weight, bias) = own
    random = np.random.default_rng(9)
    near = (weight + 0.3 * random.normal(size=weight.shape)).astype(np.float32)
    fresh = random.normal(2, 3, (4000, 40)).astype(np.float32)
    truth = (fresh @ weight.T + bias).argmax(1)
    head = fitted(x, labels, (near, bias.astype(np.float32)))
    alone = LogisticRegression(C=1.0, max_iter=5000).fit((x - x.mean(0)) / x.std(), labels)
    score = (head.predict(fresh) == truth).mean()
    assert score > (alone.predict((fresh - x.mean(0)) / x.std()) == truth).mean() + 0.03


@pytest.mark.parametrize("images", [1, 2, 7])
def test_clients_of_a_few_images_and_one_class(images):
    x, _, (weight, bias) = problem(images=images)
    start = weight.astype(np.float32), bias.astype(np.float32)
    head = fitted(x, np.ones(images, np.int64), start)
    saved = head.saved(("a", "b", "c"), "e", unit_input=False)
    assert saved.classes == (0, 1, 2)
    assert all(np.isfinite(array).all() for array in saved.arrays.values())
    if images > 1:  # with one, there is nothing to choose on
        assert (head.predict(x) == 1).mean() >= 0.5


def test_a_run_has_the_same_bits_on_every_engine_and_when_resumed(tmp_path):
    data = make_dataset()
    given = {**QUICK, "method": "repper", "personalize": "common+finetune"}
    alone = api.run(data, out=tmp_path / "a", **given)
    pool = api.run(data, out=tmp_path / "b", **given | {"engine": "pool", "workers": 2})
    for key in ("encoder_digest", "heads_digest"):
        assert alone.result[key] == pool.result[key]
    (tmp_path / "a" / "result.json").unlink()
    again = api.run(data, out=tmp_path / "a", resume=True, **given)
    assert again.result["heads_digest"] == pool.result["heads_digest"]
    assert read_head(tmp_path / "a" / "heads" / "0.safetensors").kind == "common+finetune"


def test_newcomers_add_their_own_part_to_the_runs_common_head(tmp_path):
    data = make_dataset()
    run = api.run(data, out=tmp_path / "a", personalize="common", method="fedavg", **QUICK)
    joined = api.join(run, data, out=tmp_path / "j", personalize="common+finetune")
    assert {score.personalize for score in joined.scores()} == {"common+finetune"}


def test_rows_of_a_comparison_may_end_with_it(tmp_path):
    found = api.compare(
        "fedavg+common,fedavg[lr=0.01]+common+finetune", make_dataset(), out=tmp_path, **QUICK
    )
    assert [line.row for line in found.lines] == [
        "fedavg+common", "fedavg[lr=0.01]+common+finetune",
    ]  # fmt: skip
    assert all(run[0].finished for run in found.runs().values())
