"""Every public function and class of `repper` answers a wrong argument with a sentence, at once."""

import numpy as np
import pytest

import repper as api
from conftest import make_dataset

NAN, INFINITE = float("nan"), float("inf")
DATA = make_dataset()
IMAGES, LABELS = DATA.train.images, DATA.train.labels
OWNERS = (LABELS % 2, DATA.test.labels % 2)

LOAD = {
    "name": [None, 5, b"x", "", "nope", ["digits"], NAN],
    "image_size": [0, -1, 2.5, "8", NAN, True, 10**9],
    "test_share": [0, 1, 2.0, -1, NAN, "x", None],
    "train_images": [0, -5, 2.5, "10", True],
    "data_dir": [5, b"x", ""],
    "by_client": ["yes", 2],
    "download": ["yes"],
    "skip_unreadable": [1],
}
SPLIT = {
    "data": [None, "digits", 5],
    "kind": [None, 5, "", "x"],
    "clients": [0, -1, 2.5, "4", NAN, None, True, 10**9],
    "alpha": [0, -1, NAN, INFINITE, "x", None],
    "classes_per_client": [0, -1, 99, 1.5, "x", None],
    "min_train": [-5, 2.5, "x", None, NAN, 10**9],
    "min_test": [-1, 0.5, "x", None],
    "seed": [-1, 1.5, "x", None, NAN],
}
DATASET = {
    "name": [None, 5],
    "classes": [
        None, (), ("a", "a", "b"), ("a", "b"), "abc", (1, 2, 3), ("a", None, "c"), ("", "b", "c"),
    ],
    "train": [None, 5, (IMAGES, LABELS)],
    "test": [None],
    "flip": ["yes", None, 2],
    "note": [None, 5],
    "clients": [("a",), 5, "a"],
    "owners": [OWNERS, 5],
}  # fmt: skip
SPLITS = [
    (None, None),
    ([[1]], [0]),
    (IMAGES.astype(float), LABELS),
    (IMAGES, LABELS.astype(float)),
    (IMAGES, np.full(60, NAN)),
    (IMAGES[:, 0], LABELS),
    (IMAGES[:, :, :4], LABELS),
    (np.repeat(IMAGES, 2, 1), LABELS),
    (IMAGES, LABELS[:5]),
    (IMAGES[:0], LABELS[:0]),
    (IMAGES, LABELS + 1),
    (IMAGES, np.array(["a"] * 60)),
    (np.array([None, "x"], object), LABELS),
]
WRONG_OWNERS = [
    ([0] * 60, [0] * 30),
    (np.zeros(60), np.zeros(30)),
    (np.zeros(60, int),),
    (np.full(60, 2), np.zeros(30, int)),
]
PARTITIONS = [
    (None, None),
    ([], []),
    ((), ()),
    (5, 5),
    (([0, 1],), ([0],)),
    ((np.array([0.5, 1]),), (np.array([0]),)),
    ((np.array([0, 1]),), ()),
    ((np.array([0, 10**9]),), (np.array([0]),)),
    ((np.array([0, 0]),), (np.array([0]),)),
]
RUN = {
    "data": [None, 5, b"x", ["x"], "nope"],
    "partition": [5, ["iid"], b"x", "nope"],
    "resume": ["yes", 2, None],
    "overwrite": ["x"],
    "watch": [5, "x"],
    "out": [5, b"x", "", ["x"], "a\0b"],
    "rounds": [-1, 1.5, "3", NAN],
    "clients": [0, -3],
    "image_size": [0, -8],
    "test_share": [2.0, NAN],
    "min_train": [-5],
    "lr": [0, -1, NAN, INFINITE, "x", True],
    "batch": [1],
    "temperature": [-1, NAN, "x"],
    "head_lr": [-1],
    "method": [5, "x", ["fedavg"], object()],
    "server": [5, object()],
    "personalize": [5, object(), "x"],
    "encoder": [5, object()],
    "overrides": [
        5, [1], {0: 5}, {"a": {"personalize": "svm"}}, {-1: {"personalize": "svm"}}, {0: {"x": 1}},
        {0: {"personalize": 5}}, {9: {"personalize": "svm"}},
    ],
    "own": [5, {"x": 1}],
    "sources": [5],
    "values": [5],
    "stage1_clients": [5, "", "x,y"],
    "seed": [-1],
    "validation": [0.5],
    "init": [5, "nowhere"],
    "nope": [1],
}  # fmt: skip
COMPARE = {
    "methods": [
        None, 5, "", [], [5], [None], [("fedavg",)], [("fedavg", 5)], "x", ["fedavg", "fedavg"],
    ],
    "seeds": [0, -1, 1.5, "2", None, True, NAN, 10**9],
    "resume": ["x"],
    "overwrite": ["x"],
    "reuse": [5],
    "tune": [5, "nowhere", {}, {"x": 1}, [1]],
    "watch": [5],
    "method": ["fedavg"],
}  # fmt: skip
JOIN = {
    "run": [None, 5, "", "nowhere", b"x", ["x"]],
    "data": [5, b"x", ["x"]],
    "same_clients": ["x", 2],
    "resume": ["x"],
    "watch": [5],
    "clients": [0, -1, "x"],
    "personalize": ["keep", 5],
    "out": [5],
    "nope": [1],
}
FOLDERS = [None, 5, "", "nowhere", b"x", ["x"], "a\0b"]
CLIENTS = [None, -1, 99, 1.5, "0", True, NAN]
PREDICT = [
    None, 5, "nowhere.png", IMAGES[0], IMAGES.astype(float), [5], [None],
    np.zeros((2, 3, 8, 8), np.uint8), IMAGES.tolist(),
]  # fmt: skip


def each(table):
    """Every wrong value with the argument's name, as a test of its own."""
    cases = [(name, value) for name, values in table.items() for value in values]
    return pytest.mark.parametrize(("name", "value"), cases, ids=lambda v: str(v)[:20])


def refused(call, *arguments, **named):
    """The sentence that a call ends with."""
    with pytest.raises(api.RepperError) as error:
        call(*arguments, **named)
    sentence = str(error.value)
    assert 0 < len(sentence) < 1500  # all settings are listed for an unknown one
    assert "\n" not in sentence
    return sentence


@each(LOAD)
def test_load(name, value):
    refused(api.load, **({"name": "digits"} | {name: value}))


@each(SPLIT)
def test_split(name, value):
    kind = "shards" if name == "classes_per_client" else "dirichlet"
    refused(api.split, **({"data": DATA, "kind": kind, "clients": 2} | {name: value}))


def a_dataset(**other):
    given = {"name": "t", "classes": DATA.classes, "train": DATA.train, "test": DATA.test}
    return api.Dataset(**(given | other))


@each(DATASET)
def test_dataset(name, value):
    refused(a_dataset, **{name: value})


@pytest.mark.parametrize("arrays", SPLITS, ids=range(len(SPLITS)))
def test_images_and_labels(arrays):
    refused(lambda: a_dataset(train=api.Split(*arrays)))


@pytest.mark.parametrize("owners", WRONG_OWNERS, ids=range(len(WRONG_OWNERS)))
def test_owners(owners):
    assert "owners" in refused(a_dataset, clients=("a", "b"), owners=owners)


def test_clients_of_the_same_name():
    assert "twice" in refused(a_dataset, clients=("a", "a"), owners=OWNERS)


@pytest.mark.parametrize("rows", PARTITIONS, ids=range(len(PARTITIONS)))
def test_partition(rows):
    assert "partition" in refused(lambda: api.Partition(*rows).check(DATA))


@each(RUN)
def test_run(tmp_path, monkeypatch, name, value):
    monkeypatch.chdir(tmp_path)
    refused(api.run, **({"data": DATA, "out": "run", "rounds": 0, "clients": 2} | {name: value}))
    assert not list(tmp_path.iterdir())


@each(COMPARE)
def test_compare(tmp_path, monkeypatch, name, value):
    monkeypatch.chdir(tmp_path)
    given = {"methods": "fedavg", "data": DATA, "out": "both", "rounds": 0, "clients": 2}
    refused(api.compare, **(given | {name: value}))
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return api.run(
        DATA, out=tmp_path_factory.mktemp("wrong") / "run", rounds=0, clients=2, width=0.25,
        engine="serial",
    )  # fmt: skip


@each(JOIN)
def test_join(tmp_path, monkeypatch, finished, name, value):
    monkeypatch.chdir(tmp_path)
    given = {"run": finished, "data": DATA, "clients": 2, "out": "joined"}
    refused(api.join, **(given | {name: value}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_folders(folder):
    refused(api.open_run, folder)
    refused(api.open_comparison, folder)


@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_a_client_to_predict_with(finished, client):
    assert "client" in refused(finished.predict, client, IMAGES[:2])


@pytest.mark.parametrize("images", PREDICT, ids=range(len(PREDICT)))
def test_images_to_predict(finished, images):
    assert "image" in refused(finished.predict, 0, images)


def test_what_was_measured_after_rounds(finished):
    assert "unknown measure 'x'" in refused(finished.after_rounds, "x")


def test_numbers_of_numpy_and_lists_of_names_are_right_arguments():
    data = a_dataset(classes=list(DATA.classes))
    assert data.classes == DATA.classes
    partition = api.split(data, clients=np.int64(2), alpha=np.float32(100), seed=np.uint8(3))
    assert (partition.clients, partition.settings["seed"]) == (2, 3)
