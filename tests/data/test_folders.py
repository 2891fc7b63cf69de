"""Folders of one's own images, by class and by client."""

import os
import shutil

import numpy as np
import pytest
from PIL import Image

from conftest import last_json
from repper.basics.errors import RepperError
from repper.data import decoded, load
from repper.data.partition import read_partition, split
from repper.runs.build import load_data
from repper.settings.config import Config


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of decoded images for each test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "repper" / "decoded"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "photos"


def fill(folder, count, value=100, name="{}.png", mode="L"):
    """So many plain images, each a little brighter than the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        image = Image.new("L", (6, 4), value + number).convert(mode)
        image.save(folder / name.format(number))


def values(split_):
    return split_.images[:, 0, 0, 0].tolist()


def test_without_test_each_class_is_split_the_same_way_every_time(root):
    fill(root / "dog", 10, 100)
    fill(root / "cat", 5, 0)
    data = load(root)
    assert (data.name, data.classes) == ("photos", ("cat", "dog"))
    assert data.train.images.shape == (12, 1, 32, 32)
    assert np.bincount(data.train.labels).tolist() == [4, 8]
    assert np.bincount(data.test.labels).tolist() == [1, 2]
    assert sorted(values(data.train) + values(data.test)) == [*range(5), *range(100, 110)]
    assert data.note == "12 train and 3 test images"
    assert data.digest == load(str(root)).digest
    half = load(root, test_share=0.5)
    assert np.bincount(half.test.labels).tolist() == [2, 5]
    assert set(values(data.test)) <= set(values(half.test))
    # More images move no other to the other side, as far as the share allows.
    fill(root / "cat", 1, 50, "new.png")
    assert set(values(load(root).test)) - {50} <= set(values(data.test))


def test_train_and_test_are_taken_as_they_are(root):
    for part, value in {"train": 0, "Test": 50, "val": 100}.items():
        fill(root / part / "a", 3, value)
        fill(root / part / "b", 2, value + 10)
    data = load(root)
    assert values(data.train) == [0, 1, 2, 10, 11]
    assert values(data.test) == [50, 51, 52, 60, 61]


def test_train_alone_is_split_and_a_class_may_be_called_train(root):
    fill(root / "train" / "a", 5)
    fill(root / "train" / "b", 5)
    assert load(root).classes == ("a", "b")
    fill(root / "ship", 5)
    shutil.rmtree(root / "train")
    fill(root / "train", 5)
    assert load(root).classes == ("ship", "train")


def test_all_usual_endings_count_and_other_files_do_not(root):
    for name in ("{}.png", "{}.JPG", "{}.jpeg", "{}.WebP", "{}.bmp"):
        fill(root / "a", 1, name=name)
        fill(root / "b", 1, name=name)
    (root / "a" / "notes.txt").write_text("not an image")
    (root / "a" / ".hidden.png").write_text("not an image")
    (root / ".git").mkdir()
    assert len(load(root, test_share=0.2).train) == 8


def test_one_image_in_colour_makes_three_channels(root):
    fill(root / "a", 3, mode="RGB")  # grey in fact, whatever the file says
    fill(root / "b", 3)
    assert load(root).channels == 1
    Image.new("RGB", (4, 4), (255, 128, 0)).save(root / "b" / "colour.png")
    data = load(root, image_size=5)
    assert data.train.images.shape[1:] == (3, 5, 5)
    images = np.concatenate([data.train.images, data.test.images])
    assert [255, 128, 0] in images[:, :, 0, 0].tolist()


def test_images_are_decoded_once(root, cache, monkeypatch):
    fill(root / "a", 3)
    fill(root / "b", 3)
    first = load(root)
    calls = []
    read = decoded.read_images
    monkeypatch.setattr(decoded, "read_images", lambda *given: calls.append(1) or read(*given))
    monkeypatch.chdir(root)
    assert load(".").digest == load(root).digest == first.digest
    assert not calls
    load(root, image_size=16)
    assert len(calls) == 1
    fill(root / "a", 1, 200)  # another image under an old name
    assert load(root).digest != first.digest
    assert len(calls) == 2
    os.utime(root / "a" / "1.png", ns=(1, 1))
    load(root)
    assert len(calls) == 3


def test_a_copy_elsewhere_with_the_same_names_sizes_and_times_is_not_mistaken(tmp_path, root):
    for folder, value in ((root, 10), (tmp_path / "other", 90)):
        for name in ("a", "b"):
            fill(folder / name, 3, value, "{}.bmp")
            for file in (folder / name).iterdir():
                os.utime(file, ns=(1, 1))
    assert min(values(load(root).train)) < 20
    assert min(values(load(tmp_path / "other").train)) > 80


@pytest.mark.parametrize("damage", [b"", b"nonsense", None, "bit"])
def test_a_damaged_or_unwritable_cache_is_not_used(root, cache, damage):
    fill(root / "a", 3)
    fill(root / "b", 3)
    if damage is None:
        cache.parent.mkdir(parents=True)
        cache.write_text("a file where the folder should be")
    else:
        load(root)
        [file] = cache.iterdir()
        content = file.read_bytes()
        changed = content[:-1] + bytes([content[-1] ^ 1])
        file.write_bytes(changed if damage == "bit" else damage)
    data = load(root)
    assert sorted(values(data.train) + values(data.test)) == [100, 100, 101, 101, 102, 102]


def test_an_unreadable_image_is_named_or_left_out(root):
    fill(root / "a", 4)
    fill(root / "b", 4)
    (root / "b" / "2.png").write_text("hello")
    for _ in range(2):  # decoded, then from the cache
        with pytest.raises(RepperError, match=r"b/2\.png.*--skip-unreadable"):
            load(root)
    data = load(root, skip_unreadable=True)
    assert len(data.train) + len(data.test) == 7
    assert data.note == "5 train and 2 test images, 1 unreadable left out"
    for number in range(4):
        (root / "b" / f"{number}.png").write_text("hello")
    with pytest.raises(RepperError, match="class 'b' has no readable image"):
        load(root, skip_unreadable=True)


def test_left_out_images_are_the_unreadable_ones(root):
    fill(root / "a", 4)
    fill(root / "b", 4)
    (root / "b" / "2.png").write_text("hello")
    data = load(root, skip_unreadable=True)
    assert 102 not in np.concatenate([s.images[s.labels == 1] for s in (data.train, data.test)])


def one(*folders, count=3):
    return lambda root: [fill(root / folder, count) for folder in folders]


@pytest.mark.parametrize(
    ("make", "by_client", "message"),
    [
        (lambda root: None, False, "photos does not exist"),
        (lambda root: root.write_text(""), False, "photos is a file, not a folder"),
        (lambda root: root.mkdir(), False, "photos has no folders of images"),
        (lambda root: root.mkdir(), True, "there are no images .* in the folders of .*photos"),
        (lambda root: (root / "a").mkdir(parents=True), False, r"class 'a' has no images \(.png, "),
        (one("."), False, "photos has 3 images but no class folders"),
        (one("a"), False, "has only one class, 'a'"),
        (lambda root: [fill(root / "a", 3), fill(root / "b", 1)], False,
         "class 'b' has a single image, .*b/0.png"),
        (one("train/a", "train/b", "test/a"), False, "class 'b' has no test images"),
        (one("train/a", "train/b", "test/a", "test/b", "test/c"), False, "unknown class 'c'"),
        (one("test/a", "test/b"), False, "photos has test but no train"),
        (one("anna/a", "anna/b", "ben/a"), False,
         "photos/anna should contain images.*use --partition folders"),
        (one("a", "b"), True, "photos/a has no class folders.*leave out --partition folders"),
        (one("train/a", "train/b", "test/a", "test/b"), True, "leave out --partition folders"),
        (one("anna/a/x", "ben/a"), True, r"anna/a should contain images, but contains folders$"),
        (one("anna/a", "anna/b", "ben/a", "ben/b", count=1), True,
         "client 'anna' has 2 training images and 0 test images: it needs at least 2 and 1"),
        (one("anna/a", "anna/b", "ben/train/a", "ben/test/a", count=1), True, "client 'anna'"),
        (lambda root: [one("anna/a", "anna/b")(root), fill(root / "ben" / "a", 2)], True,
         "client 'ben' has 1 training images and 1 test images"),
        (one("train/a", "Train/b"), False, "two folders with the same name: Train, train"),
        (lambda root: [one("anna/a", "anna/b")(root), (root / "ben" / "a").mkdir(parents=True)],
         True, "client 'ben' has no images"),
        (lambda root: [one("a", "b")(root), (root / "c\udcff").mkdir()], False,
         r"rename 'c.udcff' in .*photos': its name is not text"),
        (lambda root: [one("a", "b")(root), os.mkfifo(root / "a" / "pipe.png")], False,
         "cannot read image .*pipe.png"),
        (lambda root: [one("a", "b")(root), (root / "a" / "x.png").symlink_to("nowhere")], False,
         "cannot read image .*x.png"),
    ],
)  # fmt: skip
def test_folders_that_cannot_be_used_say_why(root, make, by_client, message):
    make(root)
    with pytest.raises(RepperError, match=message):
        load(root, by_client=by_client)


def test_names_of_all_the_world_are_text(root):
    """As of macOS's screenshots, with their narrow space, and of other scripts."""
    for label in ("\u732b\u3000x", "a\u00a0b"):
        fill(root / label, 3, name="9.41.00\u202fAM {}.png")
    (root / "a\u00a0b" / "notes\n.txt").write_text("no image")
    assert load(root).classes == ("a\u00a0b", "\u732b\u3000x")
    assert Config(data=str(root)).data == str(root)


@pytest.fixture
def federation(root):
    """Two clients with classes in common, one of them with its own test folder."""
    fill(root / "anna" / "cat", 5, 0)
    fill(root / "anna" / "dog", 1, 10)
    fill(root / "ben" / "train" / "dog", 3, 20)
    fill(root / "ben" / "test" / "dog", 2, 30)
    fill(root / "ben" / "train" / "owl", 2, 40)
    fill(root / "ben" / "test" / "owl", 1, 50)
    return root


def test_folders_of_clients_become_their_partition(federation, tmp_path):
    data = load(federation, by_client=True)
    assert (data.classes, data.clients) == (("cat", "dog", "owl"), ("anna", "ben"))
    partition = split(data, "folders", clients=99, alpha=3)
    assert partition.settings == {"kind": "folders", "names": ["anna", "ben"]}
    train, test = partition.counts(data)
    assert train.tolist() == [[4, 1, 0], [0, 3, 2]]
    assert test.tolist() == [[1, 0, 0], [0, 2, 1]]
    assert [values(data.train)[row] for row in partition.train[1]] == [20, 21, 22, 40, 41]
    assert [values(data.test)[row] for row in partition.test[1]] == [30, 31, 50]
    partition.save(tmp_path / "p.json", data)
    config = Config(data=str(federation), partition=str(tmp_path / "p.json"))
    assert read_partition(tmp_path / "p.json", load_data(config)).hash == partition.hash


def test_a_class_that_nobody_can_test_is_learned_all_the_same(federation):
    fill(federation / "ben" / "train" / "fox", 1)
    data = load(federation, by_client=True)
    fox = data.classes.index("fox")
    assert (data.train.labels == fox).sum() == 1
    assert (data.test.labels == fox).sum() == 0


def test_a_part_of_a_federation_keeps_every_client(federation):
    data = load(federation, by_client=True, train_images=6)
    train, _ = split(data, "folders").counts(data)
    assert train.sum() == 6
    assert (train > 0).tolist() == [[True, True, False], [False, True, True]]


def test_data_without_clients_has_no_folders(digits):
    with pytest.raises(RepperError, match="'digits' has none: load a folder of client folders"):
        split(digits, "folders")


def test_a_run_shows_the_names_of_the_clients(repper, federation, tmp_path):
    process = repper(
        "run", "--data", "photos", "--partition", "folders", "--image-size", 8, "--rounds", 1,
        "--epochs", 1, "--engine", "serial", "--participation", 1, "--json",
    )  # fmt: skip
    result = last_json(process)
    assert result["run"].startswith("runs/photos-repper-linear-")
    assert "photos: 10 train and 4 test images; 2 clients with 5 to 5" in process.stderr
    rows = [line.split()[1] for line in process.stderr.splitlines() if " linear " in line]
    assert rows == ["anna", "ben"]


@pytest.mark.parametrize("name", ["cinic10", "CINIC-10", "."])
def test_cinic10_is_its_train_and_test_folders(tmp_path, name):
    from repper.data.cifar import CIFAR10

    for part, value in {"train": 0, "valid": 100, "test": 200}.items():
        for number, label in enumerate(CIFAR10):
            fill(tmp_path / name / part / label, 2, value + number)
    data = load("cinic10", tmp_path)
    assert data.classes == CIFAR10
    assert data.train.images.shape == (20, 3, 32, 32)
    assert values(data.test) == [200 + n + i for n in range(10) for i in range(2)]
    assert data.note == "20 of 90000 train and 20 of 90000 test images"
    (tmp_path / name / "train" / "ship").rename(tmp_path / name / "train" / "boat")
    (tmp_path / name / "test" / "ship").rename(tmp_path / name / "test" / "boat")
    with pytest.raises(RepperError, match="is not CINIC-10: its classes are airplane"):
        load("cinic10", tmp_path)


def picture(path, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(path)


def test_check_lists_all_faults_of_a_folder_at_once(repper, tmp_path):
    root = tmp_path / "photos"
    for label in ("cat", "dog", "owl"):
        for number in range(3):
            picture(root / label / f"{number}.png", number)
    done = repper("check", "photos")
    assert (done.returncode, done.stdout) == (0, "9 readable images of 3 classes\n")
    (root / "empty").mkdir()
    (root / "cat" / "self.png").symlink_to("self.png")
    (root / "cat" / "gone.png").symlink_to("nothing.png")
    (root / "dog" / "up").symlink_to("..")
    picture(root / "owl" / "more" / "x.png")
    picture(root / "one" / "x.png")
    (root / "cat" / "bad.jpg").write_text("no image")
    for name in ("a.gif", "b.GIF", "notes.txt", ".hidden"):
        (root / "cat" / name).touch()
    picture(root / "beside.png")
    done = repper("check", "photos")
    assert done.returncode == 2
    assert done.stderr == "repper: photos has 7 faults\n"
    first, passed, *faults = done.stdout.splitlines()
    assert first == "10 readable images of 4 classes"
    assert passed == "ignored: 2 .gif files, 1 .txt file, 1 image beside the folders"
    endings = "(.png, .jpg, .jpeg, .webp, .bmp)"
    assert faults == [
        "fault: photos/cat/gone.png is a broken link",
        "fault: photos/cat/self.png is a link to itself",
        "fault: photos/dog/up is a link to a folder above it",
        f"fault: class folder photos/empty has no images {endings}",
        "fault: photos/owl has 3 images and also folders, 'more': move the folders out of the class",
        "fault: photos/cat/bad.jpg cannot be read as an image",
        "fault: class 'one' has a single image: it needs at least one training image and one test image",
    ]


def test_check_of_clients_and_of_parts(repper, tmp_path):
    for client in ("north", "south"):
        for label in ("cat", "dog"):
            for number in range(3):
                picture(tmp_path / "clients" / client / label / f"{number}.png", number)
    done = repper("check", "clients", "--by-client")
    assert done.stdout == "12 readable images of 2 classes of 2 clients\n"
    (tmp_path / "clients" / "west").mkdir()
    done = repper("check", "clients", "--by-client")
    assert "fault: clients/west has no folders of images" in done.stdout
    picture(tmp_path / "parts" / "train" / "cat" / "0.png")
    picture(tmp_path / "parts" / "test" / "dog" / "0.png")
    (tmp_path / "parts" / "val").mkdir()
    done = repper("check", "parts")
    assert sorted(done.stdout.splitlines()[1:]) == [
        "fault: class 'cat' has no test images",
        "fault: class 'dog' has test images but no training images",
        "ignored: 1 folder 'val' (neither train nor test)",
    ]
    assert "does not exist" in repper("check", "nowhere").stderr


def test_what_is_passed_over_is_counted_when_a_folder_is_loaded(tmp_path):
    root = tmp_path / "photos"
    for label in ("cat", "dog"):
        for number in range(3):
            picture(root / label / f"{number}.png", number)
    (root / "cat" / "a.gif").touch()
    picture(root / "beside.png")
    picture(root / "beside2.png")
    assert load(root).note.endswith(", ignored: 1 .gif file, 2 images beside the folders")
    (root / "cat" / "self.png").symlink_to("self.png")
    (root / "loop").symlink_to("loop")
    (root / "empty").mkdir()
    with pytest.raises(RepperError, match="class 'empty' has no images"):
        load(root)
    data = load(root, skip_unreadable=True)
    assert (data.classes, len(data.train) + len(data.test)) == (("cat", "dog"), 6)
    assert "1 unreadable left out" in data.note
    assert "1 empty class folder" in data.note
    picture(root / "cat" / "deep" / "x.png")
    with pytest.raises(RepperError, match="has 4 images and also the folder 'deep'"):
        load(root)
