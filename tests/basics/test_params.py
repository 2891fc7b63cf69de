import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from repper.basics.errors import RepperError
from repper.basics.params import (
    WeightedMean,
    check_growth,
    check_update,
    clone,
    digest,
    load_params,
    params_of,
    read_params,
    save_params,
)


def some_params(seed=0):
    random = torch.Generator().manual_seed(seed)
    return {
        "encoder.weight": torch.randn(3, 4, generator=random),
        "encoder.bias": torch.randn(4, generator=random) * 1e-6,
    }


def mean_of(*weighted):
    mean = WeightedMean(weighted[0][0])
    for params, examples in weighted:
        mean.add(params, examples)
    return mean.value()


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=8), st.integers(0, 100))
@settings(max_examples=50, deadline=None)
def test_the_mean_of_equal_models_is_that_model_to_the_bit(counts, seed):
    params = some_params(seed)
    assert digest(mean_of(*((params, count) for count in counts))) == digest(params)


def test_a_client_three_times_larger_counts_three_times():
    a, b = some_params(1), some_params(2)
    mean = mean_of((a, 30), (b, 10))
    for name in a:
        assert torch.allclose(mean[name], 0.75 * a[name] + 0.25 * b[name], atol=1e-7)
    assert not torch.allclose(
        mean["encoder.weight"], (a["encoder.weight"] + b["encoder.weight"]) / 2
    )


def test_batch_norm_statistics_are_parameters_and_counters_are_not():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    names = set(params_of(module))
    assert {"1.running_mean", "1.running_var", "1.weight", "0.weight"} <= names
    assert not any("num_batches_tracked" in name for name in names)


def test_loading_sets_values_in_place_and_a_clone_is_independent():
    module = nn.Linear(3, 2)
    before = params_of(module)["weight"]
    copy = clone(params_of(module))
    load_params(module, {"weight": torch.ones(2, 3)})
    assert before.eq(1).all()
    assert not copy["weight"].eq(1).all()


def test_digest_covers_names_shapes_and_every_bit():
    params = some_params()
    different = [
        {**params, "encoder.extra": torch.zeros(1)},
        {"encoder.weights": params["encoder.weight"], "encoder.bias": params["encoder.bias"]},
        {**params, "encoder.weight": params["encoder.weight"].reshape(4, 3)},
        {**params, "encoder.weight": params["encoder.weight"].nextafter(torch.tensor(9.0))},
    ]
    assert len({digest(p) for p in [params, *different]}) == 5
    reordered = dict(reversed(params.items()))
    assert digest(reordered) == digest(params)
    # The digest sees values, not how they lie in memory.
    image = torch.rand(2, 3, 4, 4)
    laid_out = image.contiguous(memory_format=torch.channels_last)
    assert digest({"a": image}) == digest({"a": laid_out})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("encoder.bias"), "of client 3 lacks encoder.bias"),
        (lambda p: p.update(more=torch.zeros(1)), "of client 3 has unexpected more"),
        (lambda p: p.update({"encoder.bias": torch.zeros(5)}), r"encoder.bias as \(5,\)"),
        (lambda p: p.update({"encoder.bias": torch.zeros(4).double()}), "torch.float64"),
        (lambda p: p["encoder.weight"][1].fill_(float("nan")), "NaN or infinity in encoder.weight"),
        (lambda p: p["encoder.bias"][1].fill_(float("inf")), "NaN or infinity in encoder.bias"),
    ],
)
def test_a_bad_update_is_refused_and_named(change, message):
    sent = clone(some_params())
    check_update(sent, some_params(), "client 3")
    change(sent)
    with pytest.raises(RepperError, match=message):
        check_update(sent, some_params(), "client 3")


def test_saved_then_read_is_identity(tmp_path):
    save_params(tmp_path / "p.safetensors", some_params(), {"round": "7"})
    params, notes = read_params(tmp_path / "p.safetensors")
    assert digest(params) == digest(some_params())
    assert notes["round"] == "7"
    assert not list(tmp_path.glob(".*"))


def test_no_parameters_at_all_can_be_saved_too(tmp_path):
    save_params(tmp_path / "p.safetensors", {}, {})
    assert read_params(tmp_path / "p.safetensors")[0] == {}


NAMES = ("encoder.w", "encoder.n.running_mean", "encoder.n.running_var", "control:encoder.w")
SENT = dict(zip(NAMES, (torch.tensor([-0.5, 1.0]), torch.zeros(2), torch.ones(2), torch.zeros(2)), strict=True))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "least", "kind"),
    [
        ("encoder.w", 30, "weights"),
        ("encoder.n.running_mean", 27_000, "running statistics"),
        ("encoder.n.running_var", 27_000, "running statistics"),
        ("control:encoder.w", 1e6, "control"),
    ],
)
def test_values_may_grow_only_so_much_in_a_round(name, least, kind):
    for sign in (1, -1):
        largest = sign * least * torch.tensor([0.0, 1.0])
        check_growth(SENT | {name: largest}, SENT, 30, "client 1")
        with pytest.raises(RepperError, match=f"client 1 has .* among its {kind}, but the largest"):
            check_growth(SENT | {name: largest * 1.01}, SENT, 30, "client 1")


def test_what_travels_beside_weights_has_its_own_measure_once_it_is_known():
    known = SENT | {"control:encoder.w": torch.tensor([0.0, 2.0])}
    check_growth(known | {"control:encoder.w": torch.tensor([0.0, 54_000.0])}, known, 30, "")
    with pytest.raises(RepperError, match="5.41e\\+04 among its control"):
        check_growth(known | {"control:encoder.w": torch.tensor([0.0, 54_100.0])}, known, 30, "")
    none = {"common.w": torch.zeros(2)}  # a head that begins with zeros
    check_growth({"common.w": torch.full((2,), 30.0)}, none, 30, "")
    with pytest.raises(RepperError, match="31 among its weights"):
        check_growth({"common.w": torch.full((2,), 31.0)}, none, 30, "")


def test_a_negative_variance_is_refused():
    negative = {"encoder.n.running_var": torch.tensor([1.0, -1e-9])}
    with pytest.raises(
        RepperError, match="client 1 has a negative variance in encoder.n.running_var"
    ):
        check_update(SENT | negative, SENT, "client 1")
    check_update(SENT | {"encoder.n.running_mean": torch.tensor([1.0, -1e-9])}, SENT, "client 1")
    # The change of a control variate has the name of its weight, and may be negative.
    control = {"control:encoder.n.running_var": torch.tensor([-1.0])}
    check_update(control, control, "client 1")
