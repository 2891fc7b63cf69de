"""The paper's figures, drawn from a small run on digits."""

import re

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

import repper as api
from repper import figures
from repper.embedding import nearest_other, parting_of, silhouettes
from repper.encoders.encoder import read_encoder
from repper.evaluate import head_classes, tail_classes
from repper.params import digest
from repper.partition import read_partition


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    settings = {"clients": 4, "rounds": 1, "epochs": 1, "width": 0.25, "engine": "serial", "knn": 0}
    return {
        method: api.run("digits", method=method, out=folder / method, **settings)
        for method in ("repper", "fedavg")
    }


@pytest.fixture(scope="module")
def digits_data():
    return api.load("digits")


def texts(path):
    """What is written in an SVG whose letters are drawn: matplotlib keeps them as comments."""
    return re.findall(r"<!-- (.*?) -->", path.with_suffix(".svg").read_text())


def test_methods_and_clients_are_drawn_as_svg_and_png(runs, digits_data, tmp_path):
    figures.tsne_of_methods(tmp_path / "a" / "methods", runs, digits_data, client=0)
    figures.tsne_of_clients(tmp_path / "a" / "clients", runs["repper"], digits_data)
    for name, expected in (("methods", ["repper", "fedavg"]), ("clients", ["client 0", "server"])):
        assert (tmp_path / "a" / f"{name}.png").stat().st_size > 10_000
        for text in expected:
            assert text in texts(tmp_path / "a" / name)


def test_a_local_encoder_is_the_common_one_after_its_clients_training(runs, digits_data):
    run = runs["repper"]
    partition = read_partition(run.folder / "partition.json", digits_data)
    one, again, other = (
        digest(figures.local_encoder(run, digits_data, partition, client)) for client in (0, 0, 1)
    )
    assert one == again != other
    assert digest(read_encoder(run.folder)[1]) not in (one, other)


def test_accuracy_per_class_shows_counts_by_falling_size(runs, tmp_path):
    figures.accuracy_per_class(tmp_path / "classes", runs, [1])
    [score] = [s for s in runs["repper"].scores() if s.client == 1]
    written = [t for t in texts(tmp_path / "classes") if " images" in t]
    counts = [int(re.search(r"(\d+) images", t)[1]) for t in written]
    assert counts == sorted((int(n) for n in score.train[score.tested > 0]), reverse=True)


def test_newcomers_are_drawn(runs, tmp_path):
    joined = api.join(runs["repper"], clients=3, head_epochs=5, out=tmp_path / "joined")
    figures.newcomers(tmp_path / "new", {"repper": joined})
    assert "epochs of the heads" in texts(tmp_path / "new")


def test_the_nearest_other_image_is_never_the_image_itself():
    labels = np.arange(120) % 4
    assert nearest_other(np.eye(4)[labels], labels) == 100.0
    # Of two near each other and a third of the first's direction, only these two are right.
    r = np.array([[1.0, 0.0], [0.99, 0.1], [0.0, 1.0]])
    assert nearest_other(r, np.array([0, 0, 1])) == pytest.approx(200 / 3)
    assert nearest_other(r, np.arange(3)) == 0.0


def test_features_of_a_good_encoder_part_classes_and_others_do_not(runs, digits_data):
    found = {name: parting_of(run, digits_data) for name, run in runs.items()}
    for parting in found.values():
        assert all(-1 <= value <= 1 for value in parting.silhouette)
        assert all(0 <= value <= 100 for value in parting.nearest)
    counts, _ = read_partition(runs["repper"].folder / "partition.json", digits_data).counts(
        digits_data
    )
    scores = {s.client: s for s in runs["repper"].scores()}
    for client, held in enumerate(counts):
        heads, tails = head_classes(held), tail_classes(held)
        assert not (heads & tails).any()
        assert held[heads].min() > np.median(held[held > 0]) > held[tails].max()
        assert (scores[client].train == held).all()


def test_silhouettes_of_groups_are_means_over_their_images():
    r = np.array([[1.0, 9], [0, 1], [10, 0], [10, 1], [5, 5], [5, 6]])
    labels = np.array([0, 0, 1, 1, 2, 2])
    everyone, first, rest = silhouettes(
        r, labels, np.array([True, False, False]), np.array([False, True, True])
    )
    assert everyone == pytest.approx((first + 2 * rest) / 3)
    assert everyone == pytest.approx(silhouette_score(r, labels, metric="cosine"))
    # A class of a single image has no silhouette, and takes no part in the mean.
    with_one = silhouettes(np.vstack([r, [[-9.0, 1.0]]]), np.append(labels, 3))
    assert with_one == pytest.approx((everyone,), abs=0.2)
    assert silhouettes(np.eye(3), np.arange(3)) == (None,)
    assert silhouettes(r[:2], labels[:2], np.array([True])) == (None, None)
