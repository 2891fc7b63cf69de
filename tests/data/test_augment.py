import numpy as np
import pytest
import torch

from repper.data import augment as augmentation
from repper.data.augment import STRENGTHS, augment, normalize


def images(count=16, channels=3, size=32, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, size, size), generator=random, dtype=torch.uint8)


def view(batch, level="strong", flip=True, seed=0):
    return augment(batch, level, flip, torch.Generator().manual_seed(seed))


def test_normalize_spans_minus_one_to_one():
    pixels = torch.tensor([0, 255], dtype=torch.uint8).reshape(1, 1, 1, 2)
    assert normalize(pixels).flatten().tolist() == [-1, 1]


def test_none_is_only_normalization():
    assert torch.equal(view(images(), "none"), normalize(images()))


@pytest.mark.parametrize("level", ["weak", "medium", "strong"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [8, 28, 33])
def test_any_channels_and_size(level, channels, size):
    batch = images(6, channels, size)
    result = view(batch, level)
    assert result.shape == batch.shape
    assert result.dtype == torch.float32
    assert float(result.min()) >= -1.0001
    assert float(result.max()) <= 1.0001
    assert not torch.allclose(result, normalize(batch))


@pytest.mark.parametrize("level", ["weak", "medium", "strong"])
def test_each_image_has_its_own_parameters(level):
    result = view(images(1).expand(8, -1, -1, -1), level)
    differences = [(result[i] - result[j]).abs().max() for i in range(8) for j in range(i)]
    assert min(differences) > 0.01


def test_same_seed_same_view_other_seed_another():
    assert torch.equal(view(images()), view(images()))
    assert not torch.equal(view(images()), view(images(), seed=1))


def test_weak_views_without_flip_are_shifts_of_at_most_an_eighth():
    # A ramp from left to right: after a shift, every inner pixel has changed by the same amount.
    ramp = torch.arange(32, dtype=torch.uint8).mul(8).expand(64, 1, 32, 32)
    moved = (view(ramp, "weak", flip=False) + 1) * 127.5 / 8
    shift = moved[:, 0, 16, 12:20] - torch.arange(12, 20)
    assert float((shift - shift[:, :1]).abs().max()) < 1e-3
    assert 3.0 < float(shift.abs().max()) <= 4.001


@pytest.mark.parametrize("level", ["weak", "medium", "strong"])
def test_half_of_the_views_are_mirrored_unless_flip_is_off(level):
    ramp = torch.arange(32, dtype=torch.uint8).mul(8).expand(400, 1, 32, 32)
    rising = (view(ramp, level)[:, 0, 16].diff(dim=1).mean(1) > 0).float().mean()
    assert 0.4 < float(rising) < 0.6
    assert (view(ramp, level, flip=False)[:, 0, 16].diff(dim=1).mean(1) > 0).all()


def test_strong_crops_show_a_fifth_to_all_of_the_image():
    boxes = augmentation._crop_and_flip(torch.rand(20_000, 5), STRENGTHS["strong"], flip=False)
    width, height, x, y = boxes[:, 0, 0], boxes[:, 1, 1], boxes[:, 0, 2], boxes[:, 1, 2]
    area = width * height
    assert 0.19 < float(area.min()) < 0.21
    assert 0.97 < float(area.max()) <= 1.0001
    assert float((width / height).min()) >= 0.74
    assert float((x.abs() + width).max()) <= 1.0001
    assert float((y.abs() + height).max()) <= 1.0001


def test_a_grey_image_stays_grey_and_a_colour_keeps_its_brightness():
    u = torch.rand(64, 6, generator=torch.Generator().manual_seed(0))
    u[:, 0] = 0.0  # always jitter
    grey = torch.rand(64, 1, 4, 4).expand(-1, 3, -1, -1)
    result = augmentation._colour(grey, u, STRENGTHS["strong"])
    assert float((result - result[:, :1]).abs().max()) < 1e-4
    turned = torch.tensor([[0.5, 0.4, 0.6]]) @ augmentation._rotate_hue(torch.tensor([0.3]))
    weights = augmentation._grey_weights(3, torch.device("cpu"))
    assert float(turned[0] @ weights) == pytest.approx(0.299 * 0.5 + 0.587 * 0.4 + 0.114 * 0.6)
    assert float((turned[0, 0] - torch.tensor([0.5, 0.4, 0.6])).abs().max()) > 0.01


def plain_colour(image, u, strength):
    """Hue, saturation, brightness, contrast of one image, pixel by pixel, from the definitions."""
    grey = np.array([0.299, 0.587, 0.114])
    yiq = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
    on = u[0] < strength.colour_chance
    brightness, contrast, saturation = (
        1 + (2 * value - 1) * limit * on
        for value, limit in (
            (u[1], strength.brightness), (u[2], strength.contrast), (u[3], strength.saturation)
        )
    )  # fmt: skip
    if u[4] < strength.grey_chance:
        saturation = 0
    angle = (2 * u[5] - 1) * strength.hue * on * 2 * np.pi
    pixels = []
    for pixel in image.reshape(3, -1).T:
        value = brightness * pixel
        value = grey @ value + saturation * (value - grey @ value)
        y, i, q = yiq @ value
        turned = [y, i * np.cos(angle) - q * np.sin(angle), i * np.sin(angle) + q * np.cos(angle)]
        pixels.append(np.linalg.inv(yiq) @ turned)
    mean = np.mean([grey @ pixel for pixel in pixels])
    result = np.array([mean + contrast * (pixel - mean) for pixel in pixels]).clip(0, 1)
    return result.T.reshape(image.shape)


def test_colour_equals_a_plain_loop():
    random = torch.Generator().manual_seed(3)
    pixels, u = torch.rand(12, 3, 4, 4, generator=random), torch.rand(12, 6, generator=random)
    expected = [
        plain_colour(p.double().numpy(), v.double().numpy(), STRENGTHS["strong"])
        for p, v in zip(pixels, u, strict=True)
    ]
    result = augmentation._colour(pixels, u, STRENGTHS["strong"])
    assert np.abs(result.numpy() - np.stack(expected)).max() < 1e-5


def test_a_fifth_of_strong_views_is_grey():
    spread = (view(images(2000, size=4)) - view(images(2000, size=4))[:, :1]).abs().amax((1, 2, 3))
    assert 0.16 < float((spread < 1e-3).float().mean()) < 0.24
