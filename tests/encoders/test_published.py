"""A start from published weights: files with the names of torchvision and timm, made here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

import repper as api
from repper.basics.errors import RepperError
from repper.basics.params import params_of
from repper.encoders.encoder import EncoderSpec, features_of, read_encoder
from repper.encoders.published import Published
from repper.engines.trainer import set_moving
from repper.methods.fedavg import FedAvg
from repper.methods.network import build_network

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def torchvision_weights(depth: int, seed: int = 0) -> dict[str, Tensor]:
    """Random weights by torchvision's names, with its sizes."""
    random = torch.Generator().manual_seed(seed)
    found: dict[str, Tensor] = {}

    def conv(name: str, outputs: int, inputs: int, kernel: int) -> None:
        shape = (outputs, inputs, kernel, kernel)
        found[f"{name}.weight"] = torch.randn(shape, generator=random) / (kernel * inputs**0.5)

    def norm(name: str, channels: int) -> None:
        for what in ("weight", "bias", "running_mean", "running_var"):
            found[f"{name}.{what}"] = torch.rand(channels, generator=random) + 0.5
        found[f"{name}.num_batches_tracked"] = torch.tensor(7)

    conv("conv1", 64, 3, 7)
    norm("bn1", 64)
    inputs = 64
    for layer, blocks in enumerate(BLOCKS[depth], start=1):
        outputs = 32 * 2**layer
        for block in range(blocks):
            at = f"layer{layer}.{block}"
            conv(f"{at}.conv1", outputs, inputs, 3)
            norm(f"{at}.bn1", outputs)
            conv(f"{at}.conv2", outputs, outputs, 3)
            norm(f"{at}.bn2", outputs)
            if layer > 1 and block == 0:
                conv(f"{at}.downsample.0", outputs, inputs, 1)
                norm(f"{at}.downsample.1", outputs)
            inputs = outputs
    found["fc.weight"], found["fc.bias"] = torch.zeros(1000, 512), torch.zeros(1000)
    return found


def as_published(weights: dict[str, Tensor], depth: int, images: np.ndarray[Any, Any]) -> Tensor:
    """ResNet as the paper and torchvision have it, written down without a single layer of ours."""
    x = torch.from_numpy((images / 255.0 - MEAN[:, None, None]) / DEVIATION[:, None, None]).float()

    def norm(x: Tensor, name: str) -> Tensor:
        keys = ("running_mean", "running_var", "weight", "bias")
        return functional.batch_norm(x, *(weights[f"{name}.{key}"] for key in keys))

    x = functional.conv2d(x, weights["conv1.weight"], stride=2, padding=3)
    x = functional.max_pool2d(functional.relu(norm(x, "bn1")), 3, 2, 1)
    for layer, blocks in enumerate(BLOCKS[depth], start=1):
        for block in range(blocks):
            at, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            y = functional.conv2d(x, weights[f"{at}.conv1.weight"], stride=stride, padding=1)
            y = functional.relu(norm(y, f"{at}.bn1"))
            y = norm(functional.conv2d(y, weights[f"{at}.conv2.weight"], padding=1), f"{at}.bn2")
            if f"{at}.downsample.0.weight" in weights:
                x = functional.conv2d(x, weights[f"{at}.downsample.0.weight"], stride=stride)
                x = norm(x, f"{at}.downsample.1")
            x = functional.relu(x + y)
    return x.mean((2, 3))


def images(channels: int = 3, size: int = 64) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 256, (3, channels, size, size), np.uint8)


def save_safetensors(weights: dict[str, Tensor], path: Path) -> Path:
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path / "model.safetensors"


def save_pth(weights: dict[str, Tensor], path: Path) -> Path:
    wrapped = {"epoch": 3, "state_dict": {f"module.{n}": v for n, v in weights.items()}}
    torch.save(wrapped, path / "best.pth")
    return path / "best.pth"


@pytest.mark.parametrize("save", [save_safetensors, save_pth])
@pytest.mark.parametrize("depth", [18, 34])
def test_features_are_those_of_the_published_network(
    depth: int, save: Callable[[dict[str, Tensor], Path], Path], tmp_path: Path
) -> None:
    weights = torchvision_weights(depth)
    spec = EncoderSpec(f"resnet{depth}-7x7", 3, 64, pixels="imagenet")
    fitting = Published.read(save(weights, tmp_path)).fitting(spec)
    assert fitting.unused == ("fc.bias", "fc.weight")
    assert fitting.at_random == ()
    expected = as_published(weights, depth, images())
    assert torch.from_numpy(features_of(spec, fitting.params, images())).allclose(
        expected, rtol=1e-4, atol=1e-4
    )


def test_a_grey_image_is_seen_as_three_equal_channels(tmp_path: Path) -> None:
    weights = torchvision_weights(18)
    spec = EncoderSpec("resnet18-7x7", 1, 64, pixels="imagenet")
    params = Published.read(save_pth(weights, tmp_path)).fitting(spec).params
    grey = images(channels=1)
    expected = as_published(weights, 18, np.repeat(grey, 3, axis=1))
    assert torch.from_numpy(features_of(spec, params, grey)).allclose(
        expected, rtol=1e-4, atol=1e-4
    )


def test_a_small_stem_begins_at_random_and_says_so(tmp_path: Path) -> None:
    path = save_safetensors(torchvision_weights(18), tmp_path)
    fitting = Published.read(path).fitting(EncoderSpec("resnet18", 3, 32, pixels="imagenet"))
    assert fitting.at_random == ("encoder.body.0.0.weight",)
    assert "random initial values: encoder.body.0.0.weight" in str(fitting)


def without(name: str) -> dict[str, Tensor]:
    return {n: v for n, v in torchvision_weights(18).items() if n != name}


@pytest.mark.parametrize(
    ("weights", "encoder", "said"),
    [
        (torchvision_weights(34), "resnet18-7x7", "is a ResNet-34 .* --encoder resnet34-7x7"),
        (torchvision_weights(18), "small", "is a ResNet-18 .* --encoder resnet18-7x7"),
        (without("layer3.1.conv2.weight"), "resnet18-7x7", "no weights of the right size for"),
        (
            without("conv1.weight"),
            "resnet18-7x7",
            "neither an encoder of repper nor a ResNet-18 or ResNet-34",
        ),
        (
            {"fc.weight": torch.zeros(2, 2)},
            "resnet18-7x7",
            "neither an encoder of repper nor a ResNet-18 or ResNet-34",
        ),
        (
            torchvision_weights(18) | {"layer1.0.bn1.bias": torch.full((64,), torch.nan)},
            "resnet18-7x7",
            "NaN or infinity",
        ),
    ],
)
def test_other_weights_are_refused(
    weights: dict[str, Tensor], encoder: str, said: str, tmp_path: Path
) -> None:
    spec = EncoderSpec(encoder, 3, 32, pixels="imagenet")
    with pytest.raises(RepperError, match=said):
        Published.read(save_safetensors(weights, tmp_path)).fitting(spec)


class Runs:
    """What a pickle must not do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("ran"),))


def test_a_pickle_that_would_run_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"conv1.weight": torch.zeros(1), "more": Runs()}, "bad.pth")
    with pytest.raises(RepperError, match="contains objects other than tensors"):
        Published.read(Path("bad.pth"))
    Path("cut.pth").write_bytes(save_pth(torchvision_weights(18), tmp_path).read_bytes()[:10_000])
    with pytest.raises(RepperError, match="damaged"):
        Published.read(Path("cut.pth"))
    assert not Path("ran").exists()


def run(out: Path, weights: Path, **more: Any) -> Any:
    settings: dict[str, Any] = {
        "clients": 3, "participation": 1.0, "epochs": 1, "encoder": "resnet18", "knn": 0,
        "init": str(weights), "engine": "serial", "train_images": 60, "min_train": 2, "batch": 16,
    }  # fmt: skip
    return api.run("digits", **settings | more, out=out)


def test_ready_made_features_and_a_local_head_without_any_federation(tmp_path: Path) -> None:
    weights = save_safetensors(torchvision_weights(18), tmp_path)
    done = run(tmp_path / "run", weights, rounds=0)
    spec, params = read_encoder(done.folder)
    assert spec.pixels == "imagenet"
    taken = Published.read(weights).fitting(spec).params
    assert all(torch.equal(params[name], value) for name, value in taken.items())
    assert done.result["encoder_origin"] == "published weights"
    assert done.result["accuracy"]["mean"] > 50  # of ten classes; random filters are not useless


def test_frozen_layers_stay_travel_once_and_come_back_never(tmp_path: Path) -> None:
    weights = save_safetensors(torchvision_weights(18), tmp_path)
    done = {
        engine: run(
            tmp_path / engine, weights, rounds=1, freeze_until="layer4", method="fedavg",
            engine=engine, workers=2,
        )
        for engine in ("serial", "pool")
    }  # fmt: skip
    serial = done["serial"]
    assert serial.result["encoder_digest"] == done["pool"].result["encoder_digest"]
    spec, params = read_encoder(serial.folder)
    taken = Published.read(weights).fitting(spec).params
    first = spec.build().parts["layer4"]
    frozen = {n for n in taken if int(n.split(".")[2]) < first}
    assert frozen
    assert all(torch.equal(params[n], taken[n]) for n in frozen)
    trained = {n for n in taken if n not in frozen}
    assert not any(torch.equal(params[n], taken[n]) for n in trained)
    _, holds = serial.stages_and_holds
    assert not frozen & holds[0].shared
    assert frozen <= holds[0].given
    up = json.loads((serial.folder / "rounds.jsonl").read_text().splitlines()[0])["bytes_up"]
    shared = [t for n, t in params_of(nn.ModuleDict({"encoder": spec.build()})).items()
              if n in holds[0].shared]  # fmt: skip
    head = 512 * 10 + 10
    assert up == 3 * 4 * (sum(t.numel() for t in shared) + head)


def test_later_commands_know_the_pixels(tmp_path: Path) -> None:
    weights = save_safetensors(torchvision_weights(18), tmp_path)
    first = run(tmp_path / "run", weights, rounds=0)
    again = run(tmp_path / "again", first.folder, rounds=0)
    assert read_encoder(again.folder)[0].pixels == "imagenet"
    assert again.result["encoder_digest"] == first.result["encoder_digest"]
    photos = api.load("digits").test.images[:5]
    assert first.predict(0, photos) == again.predict(0, photos)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"freeze_until": "layer3", "encoder": "small", "init": None}, "has no such part"),
        ({"pixels": "half"}, "grey ones with --pixels imagenet"),
    ],
)
def test_mistakes(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    weights = save_safetensors(torchvision_weights(18), tmp_path)
    with pytest.raises(RepperError, match=said):
        run(tmp_path / "run", weights, **more)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("mean", "expected"),
    [([0.5] * 3, "half"), ([0.485, 0.456, 0.406], "imagenet")],
)
def test_the_card_beside_weights_says_which_pixels(
    mean: list[float], expected: str, tmp_path: Path
) -> None:
    deviation = [0.5] * 3 if expected == "half" else [0.229, 0.224, 0.225]
    card = {"pretrained_cfg": {"mean": mean, "std": deviation}}
    (tmp_path / "config.json").write_text(json.dumps(card))
    path = save_safetensors(torchvision_weights(18), tmp_path)
    assert Published.read(path).pixels == expected


def test_frozen_layers_use_the_statistics_they_came_with() -> None:
    """What a client measures in frozen layers never leaves it, so no later digest would tell."""
    spec, method = EncoderSpec("resnet18", 3, 32, 0.125), FedAvg()
    network = build_network(method, spec, 10, seed=0, freeze_until="layer3")
    moving = set_moving(network, method.phases(1)[0])
    first = network.encoder.parts["layer3"]
    for name, module in network.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            frozen = int(name.split(".")[2]) < first
            assert module.training is not frozen
            assert (f"{name}.weight" in moving) is not frozen
