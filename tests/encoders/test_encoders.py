import json

import pytest
import torch

from repper.basics.errors import RepperError
from repper.basics.params import params_of
from repper.encoders import ENCODERS, NORMS
from repper.encoders.encoder import EncoderSpec, read_encoder, save_encoder


def parameters(spec):
    return sum(p.numel() for p in spec.build().parameters())


def named(encoder):
    return {f"encoder.{name}": tensor for name, tensor in params_of(encoder).items()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet34", 21_276_992),  # 21.3 million
        ("resnet34-7x7", 21_284_672),
        ("resnet18", 11_168_832),
        ("resnet18-7x7", 11_176_512),
        ("mobilenet", 3_206_976),  # 3.2 million
        ("pixels", 0),
    ],
)
def test_sizes_are_those_of_the_papers(name, expected):
    assert parameters(EncoderSpec(name, channels=3, size=32)) == expected


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32), (3, 64)])
def test_one_feature_vector_per_image(name, norm, channels, size):
    encoder = EncoderSpec(name, channels, size, width=0.25, norm=norm).build()
    r = encoder(torch.rand(2, channels, size, size))
    assert r.shape == (2, encoder.features)
    assert bool(torch.isfinite(r).all())


def test_stems_differ_in_how_much_of_the_image_they_keep():
    positions = {}
    for name in ("resnet18", "resnet18-7x7"):
        body = EncoderSpec(name, 3, 32, width=0.125).build().body
        positions[name] = body[:-2](torch.rand(2, 3, 32, 32)).shape[-1]
    assert positions == {"resnet18": 4, "resnet18-7x7": 1}


@pytest.mark.parametrize("name", ["small", "resnet18", "mobilenet"])
def test_width_scales_the_channels(name):
    half, whole = (EncoderSpec(name, 3, 32, width).build().features for width in (0.5, 1.0))
    assert 2 * half == whole


@pytest.mark.parametrize("name", ["small", "resnet18", "mobilenet"])
def test_only_batch_norm_keeps_running_statistics(name):
    batch, group = (EncoderSpec(name, 3, 32, 0.25, norm).build() for norm in NORMS)
    assert any("running" in key for key in params_of(batch))
    assert not any("running" in key for key in params_of(group))
    assert not any("num_batches" in key for key in params_of(batch))
    # With group norm an image's features do not depend on the others in its batch.
    images = torch.rand(4, 3, 32, 32)
    assert torch.allclose(group(images)[:1], group(images[:1]), atol=1e-5)
    assert not torch.allclose(batch.train()(images)[:1], batch(images[:2])[:1], atol=1e-5)


def test_same_seed_same_encoder_and_the_global_generator_is_left_alone():
    spec = EncoderSpec("small", 3, 32)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = spec.build(1), spec.build(1), spec.build(2)
    assert torch.equal(torch.rand(3), expected)
    name = "body.0.0.weight"
    assert torch.equal(first.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])


def test_unknown_encoder_names_the_nearest():
    with pytest.raises(RepperError, match="unknown encoder 'resnet43', did you mean 'resnet34'"):
        EncoderSpec("resnet43", 3, 32).build()


def test_saved_encoder_is_read_back(tmp_path):
    spec = EncoderSpec("small", 1, 8, 0.5, "group")
    params = named(spec.build(3))
    save_encoder(tmp_path / "encoder.safetensors", spec, params, "test")
    for path in (tmp_path, tmp_path / "encoder.safetensors"):
        spec_again, params_again = read_encoder(path)
        assert spec_again == spec
        assert all(torch.equal(params_again[name], params[name]) for name in params)


def test_damaged_or_foreign_encoder_files_are_refused(tmp_path):
    path = tmp_path / "encoder.safetensors"
    spec = EncoderSpec("small", 1, 8, 0.25)
    save_encoder(path, spec, named(spec.build()), "test")
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(RepperError, match="do not match its digest"):
        read_encoder(path)
    path.write_bytes(good[:100])
    with pytest.raises(RepperError, match="is damaged or not a safetensors file"):
        read_encoder(path)
    path.write_bytes(json.dumps({}).encode())
    with pytest.raises(RepperError, match="is damaged or not a safetensors file"):
        read_encoder(path)
    with pytest.raises(RepperError, match="there is no file"):
        read_encoder(tmp_path / "none.safetensors")
    save_encoder(path, EncoderSpec("small", 1, 8, 0.5), named(spec.build()), "test")
    with pytest.raises(RepperError, match="does not contain the parameters of its encoder 'small'"):
        read_encoder(path)


@pytest.mark.parametrize("shape", [(1, 8, 4, 4), (20, 256, 1, 1), (64, 256, 4, 4), (5, 40, 7, 7)])
def test_the_mean_over_positions_is_that_of_pytorch_to_the_bit(shape):
    from torch import nn

    from repper.encoders.blocks import MeanOverPositions

    random = torch.Generator().manual_seed(0)
    maps = torch.randn(shape, generator=random).contiguous(memory_format=torch.channels_last)
    gradient = torch.randn(shape[:2], generator=random)
    found = []
    for pool in (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), MeanOverPositions()):
        start = maps.clone().requires_grad_()
        features = pool(start.relu())
        features.backward(gradient)
        found.append((features, start.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
