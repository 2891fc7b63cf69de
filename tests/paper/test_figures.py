"""The paper's figures, drawn from a small run on digits."""

import re

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

import repper as api
from repper.basics.params import digest
from repper.data.partition import read_partition
from repper.encoders.encoder import read_encoder
from repper.figures.embedding import embed, embedding_of, nearest_other, parting_of, silhouettes
from repper.figures.palette import looks
from repper.heads.scores import head_classes, tail_classes
from repper.paper import figures


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    settings = {"clients": 4, "rounds": 1, "epochs": 1, "width": 0.25, "engine": "serial", "knn": 0}
    return {
        method: api.run("digits", method=method, out=folder / method, **settings)
        for method in ("repper", "fedavg")
    }


def texts(path):
    """What is written in an SVG whose letters are drawn: matplotlib keeps them as comments."""
    return re.findall(r"<!-- (.*?) -->", path.with_suffix(".svg").read_text())


def test_methods_and_clients_are_drawn_as_svg_and_png(runs, digits, tmp_path):
    figures.tsne_of_methods(tmp_path / "a" / "methods", runs, digits, client=0)
    figures.tsne_of_clients(tmp_path / "a" / "clients", runs["repper"], digits)
    for name, expected in (("methods", ["repper", "fedavg"]), ("clients", ["client 0", "server"])):
        assert (tmp_path / "a" / f"{name}.png").stat().st_size > 10_000
        for text in expected:
            assert text in texts(tmp_path / "a" / name)


def test_a_local_encoder_is_the_common_one_after_its_clients_training(runs, digits):
    run = runs["repper"]
    partition = read_partition(run.folder / "partition.json", digits)
    one, again, other = (
        digest(figures.local_encoder(run, digits, partition, client)) for client in (0, 0, 1)
    )
    assert one == again != other
    assert digest(read_encoder(run.folder)[1]) not in (one, other)


def test_a_local_encoder_is_what_its_client_would_send_in_the_next_round(tmp_path, digits):
    settings = {"clients": 1, "epochs": 1, "width": 0.25, "engine": "serial", "knn": 0}
    one, two = (api.run(digits, rounds=n, out=tmp_path / str(n), **settings) for n in (1, 2))
    partition = read_partition(one.folder / "partition.json", digits)
    local = figures.local_encoder(one, digits, partition, 0)
    assert digest(local) == digest(read_encoder(two.folder)[1])


def test_who_holds_what_is_drawn_for_every_alpha(tmp_path, digits):
    drawn = figures.holdings(tmp_path, digits, [100.0, 0.5], 4, 0)
    assert drawn[0.5] == "bubbles-digits-alpha-0.5"
    files = {f"{name}.{kind}" for name in drawn.values() for kind in ("svg", "png")}
    assert {path.name for path in tmp_path.iterdir()} == files


def test_accuracy_per_class_shows_counts_by_falling_size(runs, tmp_path):
    figures.accuracy_per_class(tmp_path / "classes", runs, [1])
    [score] = [s for s in runs["repper"].scores() if s.client == 1]
    written = [t for t in texts(tmp_path / "classes") if " images" in t]
    counts = [int(re.search(r"(\d+) images", t)[1]) for t in written]
    assert counts == sorted((int(n) for n in score.train[score.tested > 0]), reverse=True)


def test_newcomers_are_drawn(runs, tmp_path):
    joined = {
        name: api.join(run, clients=3, head_epochs=5, out=tmp_path / f"joined-{name}")
        for name, run in runs.items()
    }
    figures.newcomers(tmp_path / "new", joined)
    written = texts(tmp_path / "new")
    assert "epochs of the heads" in written
    assert written[-2:] == ["repper", "fedavg"]
    # Each method has a panel with three clients, in one order in all of them.
    drawn = (tmp_path / "new.svg").read_text()
    for place, (name, look) in enumerate(looks(joined).items(), start=2):
        panel = drawn.split('id="axes_')[place].split('id="legend_')[0]
        mark = rf'<use xlink:href="#m\w+" x="([\d.]+)" y="([\d.]+)" style="fill: {look.light}'
        x, y = np.array(re.findall(mark, panel), float).T
        assert (np.diff(y) > 0).all()
        accuracies = [s.accuracy for s in joined[name].scores()]
        shares = (x - x.min()) / max(1e-9, np.ptp(x))
        expected = (np.array(accuracies) - min(accuracies)) / max(1e-9, np.ptp(accuracies))
        assert sorted(shares) == pytest.approx(sorted(expected), abs=0.01)


def test_the_nearest_other_image_is_never_the_image_itself():
    labels = np.arange(120) % 4
    assert nearest_other(np.eye(4)[labels], labels) == 100.0
    # Of two near each other and a third of the first's direction, only these two are right.
    r = np.array([[1.0, 0.0], [0.99, 0.1], [0.0, 1.0]])
    assert nearest_other(r, np.array([0, 0, 1])) == pytest.approx(200 / 3)
    assert nearest_other(r, np.arange(3)) == 0.0


def lit(count, told):
    """Images of four classes: each with its own quarter lit, or with nothing that tells."""
    random = np.random.default_rng(count)
    labels = np.arange(count) % 4
    images = random.integers(0, 40, (count, 1, 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels if told else random.permutation(labels), strict=True):
        image[0, 2 * label : 2 * label + 2] += 200
    return api.Split(images, labels)


@pytest.mark.parametrize("told", [True, False])
def test_features_part_classes_that_images_show_and_no_others(told, tmp_path):
    data = api.Dataset("lit", tuple("abcd"), lit(400, told), lit(200, told))
    settings = {"encoder": "pixels", "rounds": 0, "clients": 4, "alpha": 1.0, "engine": "serial"}
    run = api.run(data, personalize="logistic", out=tmp_path / "run", **settings)
    found = parting_of(run, data)
    assert len(found.nearest) == len(found.silhouette) == 3
    if told:
        assert found.nearest == (100.0, 100.0, 100.0)
        assert min(found.silhouette) > 0.5
    else:
        assert found.nearest[0] < 60
        assert max(found.silhouette) < 0.1


def test_head_and_tail_classes_are_not_taken_for_each_other(tmp_path):
    """Images tell the two large classes, which are heads, from all others; the small two not."""
    labels = np.repeat(np.arange(4), [40, 40, 5, 5])
    random = np.random.default_rng(0)

    def half():
        images = random.integers(0, 9, (90, 1, 8, 8), dtype=np.uint8)
        images[np.arange(90), 0, 2 * np.minimum(labels, 2)] += 200
        return api.Split(images, labels)

    data = api.Dataset("x", tuple("abcd"), half(), half())
    settings = {"partition": "iid", "clients": 1, "encoder": "pixels", "rounds": 0}
    run = api.run(data, personalize="logistic", engine="serial", out=tmp_path / "r", **settings)
    found = parting_of(run, data)
    assert found.nearest[1] == 100 > found.nearest[2]
    assert found.silhouette[1] > 0.5 > found.silhouette[2]
    assert found.nearest[0] == pytest.approx((80 * 100 + 10 * found.nearest[2]) / 90)


def test_a_picture_is_of_the_encoder_that_is_there(tmp_path, digits):
    settings = {"clients": 3, "epochs": 1, "width": 0.25, "engine": "serial", "knn": 0}
    seen = []
    for rounds in (0, 1, 1):
        run = api.run(digits, rounds=rounds, resume=True, out=tmp_path / "run", **settings)
        seen.append(embedding_of(run, lambda: digits).points)
    assert not np.array_equal(seen[0], seen[1])
    assert np.array_equal(seen[1], seen[2])
    assert np.array_equal(embed(np.ones((1, 4))), [[0, 0]])  # a single image has no neighbours


def test_head_and_tail_are_above_and_below_a_clients_median_class(runs, digits):
    counts, _ = read_partition(runs["repper"].folder / "partition.json", digits).counts(digits)
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
    assert with_one == pytest.approx((everyone,))
    assert silhouettes(np.eye(3), np.arange(3)) == (None,)
    assert silhouettes(r[:2], labels[:2], np.array([True])) == (None, None)
