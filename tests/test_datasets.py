import numpy as np
import pytest
from PIL import Image

from conftest import make_dataset
from repper.datasets import DATASETS, Dataset, Split, load
from repper.datasets.images import read_image
from repper.errors import RepperError


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


@pytest.mark.parametrize("name", [n for n in DATASETS if n != "digits"])
def test_missing_files_name_the_folder_and_the_remedy(tmp_path, name):
    with pytest.raises(RepperError, match=rf"{tmp_path}.*--data-dir or REPPER_DATA"):
        load(name, tmp_path)


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    folder = tmp_path / "cifar10" / "plain_text"
    folder.mkdir(parents=True)
    (folder / "train-00000-of-00001.parquet").write_text("not parquet")
    with pytest.raises(RepperError, match=r"train-00000-of-00001\.parquet cannot be read"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 1, 4, 4)), [0, 1], "must be uint8"),
        (np.zeros((2, 2, 4, 4), np.uint8), [0, 1], "1 or 3 channels, got 2"),
        (np.zeros((2, 1, 4, 5), np.uint8), [0, 1], r"\(n, channels, size, size\)"),
        (np.zeros((2, 1, 4, 4), np.uint8), [0, 3], "labels must be 0 to 1, got 0 to 3"),
        (np.zeros((2, 1, 4, 4), np.uint8), [0], "2 images but labels of shape"),
        (np.zeros((2, 1, 4, 4), np.uint8), [0.0, 1.0], "labels must be integers"),
        (np.zeros((0, 1, 4, 4), np.uint8), np.zeros(0, int), "there are no images"),
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


def test_sixteen_bits_alpha_and_rotation_come_out_right(tmp_path):
    wide = (np.arange(64, dtype=np.uint16).reshape(8, 8)) * 1000
    Image.fromarray(wide).save(tmp_path / "wide.png")
    expected = np.round(wide / 257)
    assert np.abs(read_image(tmp_path / "wide.png", 1, 8)[0] - expected).max() <= 1

    clear = np.zeros((8, 8, 4), np.uint8)
    clear[:4, :, 3] = 255
    Image.fromarray(clear).save(tmp_path / "clear.png")
    pixels = read_image(tmp_path / "clear.png", 1, 8)[0]
    assert (pixels[:4] == 0).all()
    assert (pixels[4:] == 255).all()

    turned = Image.fromarray(np.repeat(np.arange(8, dtype=np.uint8)[:, None] * 30, 8, 1))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    turned.save(tmp_path / "turned.png", exif=exif)
    assert read_image(tmp_path / "turned.png", 1, 8)[0, :, 0].tolist() == [
        210, 180, 150, 120, 90, 60, 30, 0,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [("text.png", b"hello", "not an image"), ("missing.png", None, "no such file")],
)
def test_an_unreadable_image_is_named(tmp_path, name, content, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RepperError, match=f"{name}.*{reason}"):
        read_image(tmp_path / name, 3, 8)
