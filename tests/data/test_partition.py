import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import make_dataset
from repper.basics.documents import read_json
from repper.basics.errors import RepperError
from repper.basics.seeds import Purpose, stream, torch_seed
from repper.data import Dataset, Split
from repper.data.partition import KINDS, Partition, read_partition, split
from repper.server.round_loop import choose_cohort


@given(
    kind=st.sampled_from(KINDS),
    clients=st.integers(1, 12),
    alpha=st.floats(0.05, 100),
    seed=st.integers(0, 1000),
    classes=st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_every_image_goes_to_exactly_one_client(kind, clients, alpha, seed, classes):
    data = make_dataset(train=120, test=60, classes=classes)
    per_client = min(classes, 3)
    if kind == "shards" and clients * per_client < classes:
        return
    partition = split(
        data, kind, clients=clients, alpha=alpha, classes_per_client=per_client,
        min_train=0, min_test=0, seed=seed,
    )  # fmt: skip
    assert partition.clients == clients
    assert sorted(np.concatenate(partition.train)) == list(range(120))
    assert sorted(np.concatenate(partition.test)) == list(range(60))


@pytest.mark.parametrize("kind", ["dirichlet", "shards"])
def test_nobody_is_tested_on_a_class_it_has_no_image_of(kind):
    # Many more images to test on than to learn from: dividing both by the same shares would fail.
    data = make_dataset(train=100, test=1000, classes=10, size=1)
    for seed in range(10):
        partition = split(data, kind, clients=10, alpha=0.5, min_train=0, min_test=0, seed=seed)
        train, test = partition.counts(data)
        assert not test[train == 0].any()


def test_dirichlet_divides_train_and_test_alike(digits):
    train, test = split(digits, clients=5, alpha=1).counts(digits)
    share = train / train.sum(0)
    # Largest remainders are less than one image away from the exact share.
    assert np.abs(test - share * test.sum(0)).max() < 1


def test_smaller_alpha_is_more_skewed_and_large_alpha_is_even(digits):
    def largest_share(alpha):
        counts, _ = split(digits, clients=10, alpha=alpha, min_train=1, seed=1).counts(digits)
        return (counts.max(1) / counts.sum(1)).mean()

    assert largest_share(100) < 0.2 < largest_share(1) < largest_share(0.1)


def test_dirichlet_shares_have_the_variance_of_their_distribution(digits):
    alpha, clients = 0.7, 8
    shares = []
    for seed in range(60):
        counts, _ = split(
            digits, clients=clients, alpha=alpha, min_train=0, min_test=0, seed=seed
        ).counts(digits)
        shares.append(counts / counts.sum(0))
    mean = 1 / clients
    expected = mean * (1 - mean) / (alpha * clients + 1)
    assert np.var(shares) == pytest.approx(expected, rel=0.1)


def test_iid_clients_have_equal_sizes(digits):
    partition = split(digits, "iid", clients=20)
    assert {len(rows) for rows in partition.train} == {71, 72}
    assert {len(rows) for rows in partition.test} == {18}


@pytest.mark.parametrize(("clients", "k"), [(5, 2), (20, 2), (7, 3), (13, 10)])
def test_shards_give_each_client_k_classes_in_equal_parts(clients, k, digits):
    counts, _ = split(digits, "shards", clients=clients, classes_per_client=k).counts(digits)
    assert set((counts > 0).sum(1)) == {k}
    holders = (counts > 0).sum(0)
    assert holders.max() - holders.min() <= 1
    for column in counts.T:
        assert column[column > 0].max() - column[column > 0].min() <= 1


def test_same_seed_same_partition_other_seed_another(digits):
    hashes = [split(digits, seed=seed).hash for seed in (0, 0, 1)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_least_sizes_hold(digits):
    partition = split(digits, clients=20, alpha=0.3, min_train=15, min_test=3)
    assert min(map(len, partition.train)) >= 15
    assert min(map(len, partition.test)) >= 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 0.0}, "alpha must be above 0, got 0"),
        ({"alpha": float("nan")}, "alpha must be a finite number, got nan"),
        ({"clients": 2000}, "2000 clients with at least 10 train images each need 20000"),
        ({"kind": "dirichlett"}, "did you mean 'dirichlet'"),
        ({"kind": "shards", "classes_per_client": 11}, "must be 1 to 10"),
        ({"kind": "shards", "clients": 3}, "cannot cover all 10 classes"),
        ({"clients": 100, "alpha": 0.01}, "none of 1000 dirichlet draws gave each of 100 clients"),
    ],
)
def test_impossible_partitions_are_refused(digits, arguments, message):
    with pytest.raises(RepperError, match=message):
        split(digits, **arguments)


def test_tiny_alpha_does_not_break_the_draw(digits):
    partition = split(digits, clients=3, alpha=1e-300, min_train=0, min_test=0)
    assert sum(map(len, partition.train)) == len(digits.train)


def test_manifest_repeats_a_partition(tmp_path, digits):
    partition = split(digits, clients=4)
    partition.save(tmp_path / "p.json", digits)
    again = read_partition(tmp_path / "p.json", digits)
    assert again.hash == partition.hash
    assert again.settings == partition.settings


def test_a_changed_or_foreign_manifest_is_refused(tmp_path, digits):
    path = tmp_path / "p.json"
    split(digits, clients=4).save(path, digits)
    with pytest.raises(RepperError, match="was made for another data set"):
        read_partition(path, make_dataset())
    manifest = read_json(path)
    manifest["clients"][0]["train"][0] += 1
    path.write_text(json.dumps(manifest))
    with pytest.raises(RepperError, match="do not match its hash"):
        read_partition(path, digits)
    for damage in ({}, {"clients": [{"train": ["a", "b"], "test": []}]}, {"settings": None}):
        path.write_text(json.dumps(manifest | damage if damage else {}))
        with pytest.raises(RepperError, match="not a partition manifest"):
            read_partition(path, digits)
    path.write_text("no json")
    with pytest.raises(RepperError, match="damaged or not JSON"):
        read_partition(path, digits)


def test_ten_thousand_clients_are_divided_quickly_and_completely():
    data = make_dataset(train=30_000, test=10_000, classes=10, size=1)
    partition = split(data, "iid", clients=10_000, min_train=3)
    assert {len(rows) for rows in partition.train} == {3}


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([[0, 1, 60], [2, 3]], "train rows must be 0 to 59 for 'toy', got 0 to 60"),
        ([[0, 1, -1], [2, 3]], "got -1 to 3"),
        ([[0, 1], [1, 2]], "gives the same train image to a client twice"),
        ([[0, 1], [2]], "at least 2 training images"),
        ([[0, 1], []], "at least 2 training images"),
        ([[0, 1.5], [2, 3]], "must be lists of whole numbers"),
        ([[[0, 1]], [[2, 3]]], "must be lists of whole numbers"),
    ],
)
def test_rows_that_make_no_sense_are_refused(train, message):
    rows = tuple(np.asarray(r) if r else np.zeros(0, int) for r in train)
    partition = Partition(rows, (np.arange(2), np.arange(2, 4)))
    with pytest.raises(RepperError, match=message):
        partition.check(make_dataset())


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ([[0, 30], [1]], "test rows must be 0 to 29"),
        ([[0], [0]], "same test image"),
        ([[0]], "every client"),
    ],
)
def test_test_rows_that_make_no_sense_are_refused(test, message):
    train = (np.arange(2), np.arange(2, 4))
    with pytest.raises(RepperError, match=message):
        Partition(train, tuple(np.asarray(rows) for rows in test)).check(make_dataset())


def test_draws_are_those_of_earlier_versions(digits):
    """Numbers of purposes are a part of every result: a run of before must be found again."""
    seeds = {purpose.name: torch_seed(0, purpose) % 10_000 for purpose in Purpose}
    assert seeds == {
        "PARTITION": 4359, "INIT": 948, "COHORT": 9951, "TRAIN": 5900, "HEAD": 2047,
        "VALIDATION": 5868, "PROBE": 9428, "SEND": 1219, "SETTLE": 8036, "PERSONALIZE": 6516,
        "TUNING": 235, "SHIFT": 4551, "DATA_PART": 4522, "ATTACK": 7234,
    }  # fmt: skip
    assert split(digits, "iid", clients=20).hash.startswith("6831631e4508d153")
    assert choose_cohort(range(20), 0.2, stream(0, Purpose.COHORT, 1)) == (1, 2, 13, 17)


@pytest.mark.parametrize("kind", ["dirichlet", "shards"])
def test_a_clients_images_come_from_all_over_a_class(kind):
    """Rows of a class are shuffled before they are dealt: a data set may be sorted by origin."""
    labels = np.repeat(np.arange(2), 400)
    images = np.zeros((800, 1, 8, 8), np.uint8)
    data = Dataset("sorted", ("a", "b"), Split(images, labels), Split(images, labels))
    found = split(data, kind, clients=4, alpha=1e6, classes_per_client=2)
    for rows in (*found.train, *found.test):
        for label in range(2):
            places = rows[labels[rows] == label] - 400 * label
            assert places.min() < 80
            assert places.max() >= 320


def test_the_manifest_says_how_many_draws_it_took(digits, tmp_path):
    easy = split(digits, "dirichlet", clients=4, alpha=100)
    hard = split(digits, "dirichlet", clients=20, alpha=0.1)
    assert easy.settings["tries"] == 1 < hard.settings["tries"]
    hard.save(tmp_path / "p.json", digits)
    assert read_partition(tmp_path / "p.json", digits).settings["tries"] == hard.settings["tries"]


def test_a_partition_is_one_line_in_a_notebook(digits):
    partition = split(digits, "dirichlet", clients=4, alpha=0.5, seed=3)
    sizes = [len(rows) for rows in partition.train]
    assert repr(partition) == (
        f"<Partition: 4 clients, {min(sizes)} to {max(sizes)} training images each, "
        f"kind dirichlet, alpha 0.5, seed 3>"
    )
    own = Partition((np.arange(5),), (np.arange(2),))
    assert repr(own) == "<Partition: 1 clients, 5 to 5 training images each>"
