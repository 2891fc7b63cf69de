"""The heads of devices without PyTorch: the same as PyTorch's, on the same features."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import SkipTestWarning
from sklearn.utils.estimator_checks import check_estimator

from repper.basics.options import options_of
from repper.edge.saved_head import softmax
from repper.heads import DEVICE_HEADS, HEAD_SETTINGS, HEADS
from repper.heads.descent_numpy import _gradients

SEEDS = (0, 1, 2)
VARIANTS = {
    "linear": DEVICE_HEADS["linear"](epochs=25),
    "scaled linear": DEVICE_HEADS["linear"](epochs=25, scale=True),
    "linear with sgd": DEVICE_HEADS["linear"](epochs=25, optimizer="sgd", lr=0.1),
    "mlp": DEVICE_HEADS["mlp"](epochs=25, hidden=32),
    "mlp with sgd": DEVICE_HEADS["mlp"](epochs=25, hidden=32, optimizer="sgd", lr=0.1),
}


@pytest.fixture(scope="module")
def pixels(digits):
    """Real digits: features and labels to learn from, and to test on."""

    def flat(split):
        return split.images.reshape(len(split.images), -1).astype(np.float32) / 255, split.labels

    return *flat(digits.train), *flat(digits.test)


@pytest.mark.parametrize("head", VARIANTS.values(), ids=VARIANTS)
def test_scikit_learns_own_checks_pass(head):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        warnings.filterwarnings("ignore", message=".*set_output.*")
        check_estimator(clone(head))


@pytest.mark.parametrize("kind", list(DEVICE_HEADS))
def test_heads_of_devices_have_the_settings_of_the_others(kind):
    assert list(DEVICE_HEADS) == list(HEADS)
    assert DEVICE_HEADS[kind]().get_params() == HEADS[kind]().get_params()
    assert {**options_of(DEVICE_HEADS[kind])}.keys() >= options_of(HEAD_SETTINGS[kind]).keys()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_whole_batches_give_the_weights_of_pytorch(pixels, optimizer, scale, decay):
    x, y, new, _ = pixels
    x, y = x[:200], y[:200]
    settings = {"optimizer": optimizer, "scale": scale, "weight_decay": decay, "epochs": 60}
    ours, theirs = (heads["linear"](**settings).fit(x, y) for heads in (DEVICE_HEADS, HEADS))
    for name in ("weight", "bias"):
        assert np.abs(theirs.arrays_[name]).max() > 0.03
        assert ours.arrays_[name] == pytest.approx(theirs.arrays_[name], abs=2e-4)
    assert (ours.predict(new) == theirs.predict(new)).all()


def mean_accuracy(heads, kind, pixels, rows, **settings):
    x, y, new, truth = pixels
    found = []
    for seed in SEEDS:
        some = np.random.default_rng(seed).permutation(len(x))[:rows]
        head = heads[kind](random_state=seed, **settings).fit(x[some], y[some])
        found.append(100 * head.score(new, truth))
    return np.mean(found)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("linear", {}),
        ("linear", {"optimizer": "sgd", "lr": 0.3}),
        ("mlp", {"epochs": 30}),
        ("mlp", {"optimizer": "sgd", "lr": 0.2, "epochs": 30}),
    ],
    ids=["linear", "linear with sgd", "mlp", "mlp with sgd"],
)
def test_batches_in_another_order_are_as_good_as_with_pytorch(pixels, kind, settings):
    ours, theirs = (
        mean_accuracy(heads, kind, pixels, 1200, **settings) for heads in (DEVICE_HEADS, HEADS)
    )
    assert theirs > 90
    assert ours == pytest.approx(theirs, abs=0.5)


@pytest.mark.parametrize("hidden", [0, 5])
def test_gradients_are_the_slopes_of_the_loss(hidden):
    random = np.random.default_rng(0)
    x, codes = random.normal(size=(9, 4)), random.integers(0, 3, 9)
    shapes = [(hidden, 4), (hidden,), (3, hidden), (3,)] if hidden else [(3, 4), (3,)]
    layers = [random.normal(size=shape) for shape in shapes]

    def loss():
        inner = np.maximum(x @ layers[0].T + layers[1], 0) if hidden else x
        return -np.log(softmax(inner @ layers[-2].T + layers[-1])[np.arange(9), codes]).mean()

    for layer, slopes in zip(layers, _gradients(layers, x, np.eye(3)[codes]), strict=True):
        assert slopes.shape == layer.shape
        for place in np.ndindex(layer.shape):
            before, step = layer[place], 1e-6
            layer[place] = before + step
            above = loss()
            layer[place] = before - step
            below = loss()
            layer[place] = before
            assert slopes[place] == pytest.approx((above - below) / (2 * step), abs=1e-6)


@pytest.mark.parametrize("head", VARIANTS.values(), ids=VARIANTS)
def test_one_class_is_predicted_for_everything(head, pixels):
    x = pixels[0][:20]
    fitted = clone(head).fit(x, np.full(20, 5))
    assert set(fitted.predict(x + 100)) == {5}


@pytest.mark.parametrize("head", VARIANTS.values(), ids=VARIANTS)
def test_a_seed_decides_all(head, pixels):
    x, y, *_ = pixels
    x, y = x[:600], y[:600]  # more than one batch

    def digest(seed):
        fitted = clone(head).set_params(random_state=seed, epochs=3).fit(x, y)
        return fitted.saved(tuple("0123456789"), "", unit_input=False).digest()

    assert digest(1) == digest(1) != digest(2)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_labels_may_be_any_text_and_features_any_numbers(kind):
    x = np.array([[0, 0], [0, 1], [5, 5], [5, 6]])
    head = DEVICE_HEADS[kind]().fit(x, ["no", "no", "yes", "yes"])
    assert head.predict(x).tolist() == ["no", "no", "yes", "yes"]
    assert head.arrays_["weight"].dtype == np.float32


def test_looking_at_a_head_on_the_way_does_not_change_it(pixels):
    x, y, *_ = pixels
    seen, whole = (DEVICE_HEADS["mlp"](epochs=6) for _ in range(2))
    stops = []
    for epoch in seen.fits(x[:600], y[:600], every=2):
        stops.append((epoch, seen.score(x[:600], y[:600])))
    assert [epoch for epoch, _ in stops] == [2, 4, 6]
    assert stops[0][1] < stops[-1][1]
    whole.fit(x[:600], y[:600])
    assert (whole.arrays_["weight"] == seen.arrays_["weight"]).all()
