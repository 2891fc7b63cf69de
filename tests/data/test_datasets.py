import dataclasses
import gzip
import io
import re

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from conftest import make_dataset
from repper.basics.errors import RepperError
from repper.data import DATASETS, Dataset, Split, fashion, hub, load
from repper.data.images import read_image
from repper.data.shape import part_of, shaped


def test_digits_are_the_real_ones_in_a_fixed_stratified_split(digits):
    assert digits.train.images.shape == (1437, 1, 8, 8)
    assert digits.test.images.shape == (360, 1, 8, 8)
    assert digits.train.images.max() == 255
    assert digits.digest == load("digits").digest
    train, test = (np.bincount(s.labels) for s in (digits.train, digits.test))
    assert np.abs(test / 360 - train / 1437).max() < 0.003


def test_digits_lose_nothing_as_bytes(digits):
    from sklearn.datasets import load_digits

    original = {image.tobytes() for image in load_digits().images.astype(np.uint8)}
    back = np.round(np.concatenate([digits.train.images, digits.test.images]) * (16 / 255))
    assert {image.tobytes() for image in back.astype(np.uint8)} == original


def test_unknown_data_set_names_the_nearest():
    with pytest.raises(RepperError, match="unknown data set 'digit', did you mean 'digits'"):
        load("digit")


def test_a_name_that_is_no_folder_either_says_so():
    with pytest.raises(RepperError, match=rf"{[*DATASETS][-1]}, or a folder of images\)$"):
        load("nothing-like-it")


NEED_NO_FILES = {"digits"}
"""Data sets that are always there."""


@pytest.mark.parametrize("name", [n for n in DATASETS if n not in NEED_NO_FILES])
def test_missing_files_name_the_folder_and_the_remedy(tmp_path, name, monkeypatch):
    monkeypatch.setattr(fashion, "DEBIAN", tmp_path)
    folders = rf"{name} is neither in {tmp_path}/{name} nor in {tmp_path}: "
    with pytest.raises(RepperError, match=rf"{folders}.*--download.*--data-dir or REPPER_DATA"):
        load(name, tmp_path)


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png")
    return file.getvalue()


def write_hub(path, images, labels, image="img", label="label"):
    """A parquet file as the hub has it; an image may be given as bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"bytes": i if isinstance(i, bytes | str) else png(i), "path": None} for i in images]
    parquet.write_table(pyarrow.table({image: rows, label: labels}), path)


def photos(count, channels=3, size=32):
    shape = (count, size, size, channels) if channels > 1 else (count, size, size)
    return np.random.default_rng(count).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize(
    ("name", "place", "columns", "shape"),
    [
        ("cifar10", "cifar10/plain_text", ("img", "label"), (3, 32)),
        ("cifar10", "plain_text", ("img", "label"), (3, 32)),
        ("cifar100", "cifar100/cifar100", ("img", "fine_label"), (3, 32)),
        ("cinic10", "cinic10/data", ("image", "label"), (3, 32)),
        ("fashion-mnist", "fashion-mnist/fashion_mnist", ("image", "label"), (1, 28)),
        ("fashion-mnist", ".", ("image", "label"), (1, 28)),
    ],
)
def test_parquet_files_are_read_in_order(tmp_path, name, place, columns, shape):
    images = photos(5, *shape)
    write_hub(tmp_path / place / "train-00000-of-00002.parquet", images[:2], [3, 1], *columns)
    write_hub(tmp_path / place / "train-00001-of-00002.parquet", images[2:4], [0, 2], *columns)
    write_hub(tmp_path / place / "test-00000-of-00001.parquet", images[4:], [9], *columns)
    data = load(name, tmp_path)
    expected = images[:, None] if shape[0] == 1 else images.transpose(0, 3, 1, 2)
    assert (data.train.images == expected[:4]).all()
    assert (data.test.images == expected[4:]).all()
    assert data.train.labels.tolist() == [3, 1, 0, 2]
    assert re.match(r"4 of [569]0000 train and 1 of [19]0000 test images$", data.note)


def test_the_hubs_converted_files_lie_in_folders(tmp_path):
    for part in ("train", "test"):
        write_hub(tmp_path / "cifar10" / "plain_text" / part / "0000.parquet", photos(2), [0, 1])
    assert len(load("cifar10", tmp_path).test) == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("not parquet", r"train-0\.parquet cannot be read as parquet with columns img and label"),
        (([b"no image"], [0]), r"train-0\.parquet: the image in row 0 cannot be read"),
        ((photos(2), [0, 10]), "'cifar10', train: labels must be 0 to 9, got 0 to 10"),
        ((photos(2, size=28), [0, 1]), "another data set: its images are 28 x 28, not 32 x 32"),
        ((photos(2), [0, 1], "image"), "cannot be read as parquet with columns img and label"),
        ((photos(2), ["cat", "dog"]), "label holds string, not whole numbers"),
        ((photos(2), [0.0, 1.7]), "label holds double, not whole numbers"),
        ((["no bytes", "either"], [0, 1]), "img does not hold the bytes of image files"),
    ],
)
def test_bad_parquet_files_are_named(tmp_path, rows, message):
    folder = tmp_path / "cifar10" / "plain_text"
    write_hub(folder / "test-0.parquet", photos(2), [0, 1])
    with pytest.raises(RepperError, match=r"no train-\*\.parquet in"):
        load("cifar10", tmp_path)
    if isinstance(rows, str):
        (folder / "train-0.parquet").write_text(rows)
    else:
        write_hub(folder / "train-0.parquet", *rows)
    with pytest.raises(RepperError, match=message):
        load("cifar10", tmp_path)


def test_unreadable_rows_can_be_left_out(tmp_path):
    images = photos(2)
    folder = tmp_path / "cifar10" / "plain_text"
    write_hub(folder / "train-0.parquet", [images[0], b"no image", images[1]], [4, 5, 6])
    write_hub(folder / "test-0.parquet", images, [0, 1])
    data = load("cifar10", tmp_path, skip_unreadable=True)
    assert data.train.labels.tolist() == [4, 6]
    assert (data.train.images == images.transpose(0, 3, 1, 2)).all()


def write_idx(path, array):
    header = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("pattern", ["{}-idx{}-ubyte.gz", "{}-idx{}-ubyte", "{}.idx{}-ubyte"])
def test_idx_files_are_read(tmp_path, pattern):
    images, labels = photos(7, 1, 28), np.arange(7)
    for part, rows in {"train": slice(0, 4), "t10k": slice(4, 7)}.items():
        write_idx(tmp_path / pattern.format(f"{part}-images", 3), images[rows])
        write_idx(tmp_path / pattern.format(f"{part}-labels", 1), labels[rows])
    data = load("fashion-mnist", tmp_path)
    assert (data.train.images[:, 0] == images[:4]).all()
    assert data.test.labels.tolist() == [4, 5, 6]
    assert (data.classes[0], data.classes[9], data.flip) == ("T-shirt/top", "Ankle boot", True)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: c[:-1], "truncated or damaged: its header says 784 bytes, but 783 follow"),
        (lambda c: c[:9], "is not an idx file"),
        (lambda c: b"", "is not an idx file"),
        (lambda c: b"\0\0\x0d" + c[3:], "is not an idx file of bytes"),
        (lambda c: gzip.compress(c)[:-20], "truncated or damaged"),
        (lambda c: c[:3] + b"\x64" + c[4:], "is not an idx file of bytes"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path, damage, message):
    path = tmp_path / "train-images-idx3-ubyte"
    write_idx(path, photos(1, 1, 28))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RepperError, match=f"{path}.*{message}"):
        fashion.read_idx(path)


def test_idx_files_of_another_data_set_are_refused(tmp_path):
    for part, count in (("train", 4), ("t10k", 3)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", np.zeros((count, 8, 8), np.uint8))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", np.zeros(count, np.uint8))
    with pytest.raises(
        RepperError, match=r"train-images-idx3-ubyte has an array of the wrong shape.*\(4, 8, 8\)"
    ):
        load("fashion-mnist", tmp_path)


def test_fashion_mnist_of_the_debian_package(tmp_path):
    if not fashion.DEBIAN.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    data = load("fashion-mnist", tmp_path)
    assert data.note == "60000 train and 10000 test images"
    assert np.bincount(data.train.labels).tolist() == [6000] * 10
    # The mean and deviation of all pixels that the literature normalizes with.
    assert data.train.images.mean() / 255 == pytest.approx(0.2860, abs=1e-4)
    assert data.train.images.std() / 255 == pytest.approx(0.3530, abs=1e-4)


def test_a_part_of_the_training_images_is_fixed_and_stratified(digits):
    data = load("digits", train_images=500)
    assert data.digest == load("digits", train_images=500).digest
    assert data.note == "500 of 1437 train and 360 test images of scikit-learn's digits"
    counts, all_counts = (np.bincount(d.train.labels) for d in (data, digits))
    assert np.abs(counts - all_counts * 500 / 1437).max() < 1.01
    assert (data.test.images == digits.test.images).all()
    everything = {image.tobytes() for image in digits.train.images}
    assert {image.tobytes() for image in data.train.images} <= everything
    # Not just the first ones of each class.
    first = [np.flatnonzero(digits.train.labels == c)[0] for c in range(10)]
    assert not (data.train.images[:10] == digits.train.images[sorted(first)]).all()


def test_a_part_keeps_one_image_of_a_rare_class():
    data = make_dataset(train=100, classes=2)
    labels = np.zeros(100, int)
    labels[57] = 1
    rare = dataclasses.replace(data, train=Split(data.train.images, labels))
    assert sorted(part_of(rare, 2).train.labels) == [0, 1]


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (1438, "--train-images must be at most 1437, the training images of 'digits', got 1438"),
        (9, "--train-images must be at least 10 for 'digits', one for each class, got 9"),
    ],
)
def test_a_part_that_cannot_be_is_refused(count, message):
    with pytest.raises(RepperError, match=message):
        load("digits", train_images=count)


def test_shaped_brings_images_to_an_encoders_channels_and_size(digits):
    assert shaped(digits, 1, 8) is digits
    colour = shaped(digits, 3, 8)
    assert (colour.test.images == digits.test.images.repeat(3, 1)).all()
    assert (shaped(colour, 1, 8).test.images == digits.test.images).all()
    assert colour.note == digits.note

    red = np.zeros((1, 3, 4, 4), np.uint8)
    red[:, 0] = 200
    split = Split(red, np.array([0]))
    grey = shaped(Dataset("red", ("a",), split, split), 1, 2).train.images
    assert grey.tolist() == [[[[60, 60], [60, 60]]]]  # 0.299 of 200


def test_arrays_are_resized_as_files_are(tmp_path, digits):
    Image.fromarray(digits.train.images[0, 0]).save(tmp_path / "digit.png")
    larger = load("digits", image_size=20)
    assert larger.train.images.shape == (1437, 1, 20, 20)
    assert (larger.train.images[0] == read_image(tmp_path / "digit.png", 1, 20)).all()


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 1, 4, 4)), [0, 1], "must be uint8"),
        (np.zeros((2, 2, 4, 4), np.uint8), [0, 1], "1 or 3 channels, got 2"),
        (np.zeros((2, 1, 4, 5), np.uint8), [0, 1], r"\(n, channels, size, size\)"),
        (np.zeros((2, 1, 4, 4), np.uint8), [0, 3], "labels must be 0 to 1, got 0 to 3"),
        (np.zeros((2, 1, 4, 4), np.uint8), [0], "2 images but labels of shape"),
        (np.zeros((2, 1, 4, 4), np.uint8), [0.0, 1.0], "labels must be integers"),
        (
            np.zeros((0, 1, 4, 4), np.uint8),
            np.zeros(0, int),
            "is empty: it needs at least one image",
        ),
    ],
)
def test_bad_arrays_are_refused(images, labels, message):
    good = make_dataset(size=4, classes=2).test
    with pytest.raises(RepperError, match=message):
        Dataset("mine", ("a", "b"), Split(images, np.asarray(labels)), good)


def test_an_image_file_comes_out_as_an_array(tmp_path):
    array = np.arange(64, dtype=np.uint8).reshape(8, 8) * 3
    Image.fromarray(array).save(tmp_path / "grey.png")
    assert (read_image(tmp_path / "grey.png", 1, 8)[0] == array).all()
    assert (read_image(tmp_path / "grey.png", 3, 8) == array).all()


def test_sixteen_bits_come_out_scaled(tmp_path):
    wide = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    Image.fromarray(wide).save(tmp_path / "wide.png")
    expected = np.round(wide / 257)
    assert np.abs(read_image(tmp_path / "wide.png", 1, 8)[0] - expected).max() <= 1


@pytest.mark.parametrize("mode", ["LA", "RGBA", "P"])
def test_transparent_images_lie_on_white(tmp_path, mode):
    clear = np.zeros((8, 8, 4), np.uint8)
    clear[:4, :, 3] = 255
    image = Image.fromarray(clear)
    if mode == "P":
        image = Image.frombytes("P", (8, 8), bytes([0] * 32 + [1] * 32))
        image.putpalette([0, 0, 0, 9, 9, 9])
        image.save(tmp_path / "clear.png", transparency=1)
    else:
        image.convert(mode).save(tmp_path / "clear.png")
    pixels = read_image(tmp_path / "clear.png", 3, 8)
    assert (pixels[:, :4] == 0).all()
    assert (pixels[:, 4:] == 255).all()


def test_palettes_bits_and_cmyk_come_out_as_their_colours(tmp_path):
    palette = Image.frombytes("P", (8, 8), bytes([0] * 32 + [1] * 32))
    palette.putpalette([255, 128, 0, 0, 0, 255])
    palette.save(tmp_path / "palette.png")
    pixels = read_image(tmp_path / "palette.png", 3, 8)
    assert pixels[:, 0, 0].tolist() == [255, 128, 0]
    assert pixels[:, 7, 0].tolist() == [0, 0, 255]

    Image.frombytes("1", (8, 8), bytes([0] * 4 + [255] * 4)).save(tmp_path / "bits.png")
    assert read_image(tmp_path / "bits.png", 1, 8)[0, :, 0].tolist() == [0] * 4 + [255] * 4

    # Cyan ink takes the red away, black ink everything.
    Image.new("CMYK", (8, 8), (255, 0, 0, 0)).save(tmp_path / "cyan.jpg", quality=100)
    Image.new("CMYK", (8, 8), (0, 0, 0, 255)).save(tmp_path / "black.jpg", quality=100)
    cyan, black = (read_image(tmp_path / f"{n}.jpg", 3, 8)[:, 4, 4] for n in ("cyan", "black"))
    assert np.abs(cyan.astype(int) - [0, 255, 255]).max() <= 2
    assert black.max() <= 2


@pytest.mark.parametrize("mode", ["L", "RGB", "I;16"])
@pytest.mark.parametrize(
    ("orientation", "corner"), [(1, (0, 0)), (3, (7, 7)), (6, (0, 7)), (8, (7, 0))]
)
def test_images_are_turned_as_their_exif_data_says(tmp_path, mode, orientation, corner):
    pixels = np.zeros((8, 8), np.uint16 if mode == "I;16" else np.uint8)
    pixels[0, 0] = 65535 if mode == "I;16" else 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(pixels)
    (image.convert("RGB") if mode == "RGB" else image).save(tmp_path / "turned.png", exif=exif)
    turned = read_image(tmp_path / "turned.png", 1, 8)[0]
    assert np.argwhere(turned).tolist() == [list(corner)]
    assert turned[corner] == 255


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [("text.png", b"hello", "not an image"), ("missing.png", None, "no such file")],
)
def test_an_unreadable_image_is_named(tmp_path, name, content, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RepperError, match=f"{name}.*{reason}"):
        read_image(tmp_path / name, 3, 8)


def test_parquet_is_decoded_once_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cifar10" / "plain_text"
    for part, count in (("train", 20), ("test", 10)):
        path = folder / f"{part}-00000-of-00001.parquet"
        write_hub(path, photos(count), np.arange(count) % 10)
    first = load("cifar10", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(hub, "read_images", lambda *_: pytest.fail("it was decoded again"))
        assert load("cifar10", tmp_path).digest == first.digest
    [cached, other] = sorted((tmp_path / "cache" / "repper" / "decoded").iterdir())
    content = bytearray(cached.read_bytes())
    content[-3] ^= 1
    cached.write_bytes(content)
    other.write_bytes(b"")
    assert load("cifar10", tmp_path).digest == first.digest
    write_hub(folder / "test-00000-of-00001.parquet", photos(10)[::-1], np.arange(10) % 10)
    assert load("cifar10", tmp_path).digest != first.digest


def test_tuples_instead_of_splits_are_refused_with_a_sentence():
    pair = (np.zeros((4, 1, 8, 8), np.uint8), np.zeros(4, np.int64))
    with pytest.raises(RepperError, match=r"^train of a Dataset must be repper.Split\(images, la"):
        Dataset("own", ("a",), pair, pair)
    assert len(Dataset("own", ("a",), Split(*pair), Split(*pair)).train) == 4
