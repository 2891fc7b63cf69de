"""t-SNE pictures of an encoder's features, and measures of how well they separate classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_samples
from threadpoolctl import threadpool_limits

from repper.basics.documents import check_kinds, read_json, write_json
from repper.basics.errors import RepperError
from repper.basics.params import digest
from repper.basics.table import Number
from repper.data.dataset import Dataset, Split
from repper.data.partition import Partition, read_partition
from repper.data.shape import shaped
from repper.data.shift import shifted
from repper.edge.saved_head import unit_rows
from repper.encoders.encoder import SHARED, features_of
from repper.heads.scores import (
    head_classes,
    knn_votes,
    mean_of,
    score,
    tail_classes,
)
from repper.runs.run import Run
from repper.runs.run_folder import EMBEDDING, PARTITION, read_manifest, shift_seed

MOST_IMAGES = 20_000
"""How many images of clients a report looks at: minutes for a large encoder."""
MOST_POINTS = 600
"""How many test images a picture shows."""
METRIC = "cosine"
"""By which features are near: the one that heads and losses look at, too."""
Groups = tuple[float | None, ...]
"""A figure for all images, for those of frequent classes and for those of tail classes."""
GROUPS = ("all", "frequent classes", "tail classes")
PARTING = tuple(f"{what}, {group}" for what in ("silhouette", "nearest image") for group in GROUPS)
"""The columns of a table with the cells of a `Parting`."""
MEANING = (
    "The common encoder on every client's own test images, mean over clients; one seed. "
    "Silhouette, by cosine, goes from -1 to 1; nearest image is the accuracy in % when a test "
    "image gets the class of the client's nearest training image. Frequent and tail classes are "
    "those of which a client has more and fewer images than of its median class."
)


@dataclass(frozen=True)
class Parting:
    """How well features separate all classes, frequent classes and tail classes.

    A class is head or tail by what the client holds. Each figure is a mean over clients, None
    where no client has such images. `MEANING` says the rest.
    """

    silhouette: Groups
    nearest: Groups

    def cells(self) -> list[Number]:
        return [
            *(Number(value, "{:+.3f}") for value in self.silhouette), *map(Number, self.nearest)
        ]  # fmt: skip


@dataclass(frozen=True)
class Embedding:
    """Test images in the plane (t-SNE), and how well their features separate the classes."""

    points: NDArray[np.float64]
    labels: NDArray[np.int64]
    parting: Parting
    clients: int
    """How many clients the parting is of: of large runs, some that were drawn."""


def embedding_of(run: Run, load: Callable[[], Dataset]) -> Embedding:
    """The embedding of a run's common encoder, computed once and cached in the run's folder.

    Images are loaded only if it was not drawn before.
    """
    spec, params = run.encoder
    dealt = read_manifest(run.folder)["hash"]
    key = {"encoder": digest(params), "partition": dealt, "count": MOST_POINTS, "metric": METRIC}
    path = run.folder / EMBEDDING
    kept = _read(path) if path.is_file() else None
    if kept is None or kept["key"] != key:
        data = shaped(load(), spec.channels, spec.size)
        partition = read_partition(run.folder / PARTITION, data)
        clients = _some_clients(partition)
        tested = _sample(_as_seen(run, data, partition).test, MOST_POINTS)
        points = embed(features_of(spec, params, tested.images))
        kept = {
            "key": key,
            "points": np.round(points, 2).tolist(),
            "labels": tested.labels.tolist(),
            **asdict(parting_of(run, data, clients)),
            "clients": len(clients),
        }
        with suppress(RepperError):  # a folder that may only be read is drawn again each time
            write_json(path, kept, indent=None)
    parting = Parting(tuple(kept["silhouette"]), tuple(kept["nearest"]))
    points, labels = np.array(kept["points"]), np.array(kept["labels"])
    return Embedding(points, labels, parting, kept["clients"])


def encoder_label(method: str, run: Run) -> str:
    """The label of an encoder: its method, and its origin unless it is the shared encoder."""
    origin = run.result["encoder_origin"]
    return method if origin == SHARED else f"{method} ({origin})"


def _some_clients(partition: Partition) -> list[int]:
    """All clients, or a subset with a limited number of images."""
    order = np.random.default_rng(0).permutation(partition.clients)
    sizes = [len(partition.train[client]) + len(partition.test[client]) for client in order]
    count = max(1, int(np.searchsorted(np.cumsum(sizes), MOST_IMAGES, side="right")))
    return sorted(int(client) for client in order[:count])


def _as_seen(run: Run, data: Dataset, partition: Partition) -> Dataset:
    """The images after the clients' feature shift."""
    return shifted(data, partition, run.config.shift, shift_seed(run.config, partition.settings))


def embed(r: NDArray[Any]) -> NDArray[np.float64]:
    """Project features to the plane; equal features give equal pictures."""
    if len(r) < 2:
        return np.zeros((len(r), 2))
    perplexity = min(30.0, (len(r) - 1) / 3)
    # On one thread: for so few images it takes no longer, and threads of several processes that
    # wait for each other on the same cores take three to four times as long.
    with threadpool_limits(1):
        points = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(r)
    return np.asarray(points, np.float64)


def parting_of(run: Run, data: Dataset, clients: Iterable[int] | None = None) -> Parting:
    """How well a run's common encoder separates the classes of all or some clients' images.

    A test image is given the class of the client's nearest training image: more votes would let
    a class of few images win hardly ever, whatever the encoder.
    """
    spec, params = run.encoder
    partition = read_partition(run.folder / PARTITION, data)
    counts, _ = partition.counts(data)
    data = _as_seen(run, data, partition)
    parted, votes = list[Groups](), []
    for client in range(partition.clients) if clients is None else clients:
        own, tested = partition.train[client], partition.test[client]
        if not len(tested):
            continue
        r = features_of(spec, params, data.test.images[tested])
        memory = features_of(spec, params, data.train.images[own])
        labels, held = data.test.labels[tested], counts[client]
        voted = knn_votes(memory, data.train.labels[own], r, k=1)
        votes.append(score(client, "nearest", held, labels, voted))
        parted.append(silhouettes(r, labels, head_classes(held), tail_classes(held)))
    return Parting(
        tuple(mean_of(column) for column in zip(*parted, strict=True)) or (None,) * len(GROUPS),
        (
            mean_of(s.accuracy for s in votes),
            mean_of(s.head_classes for s in votes),
            mean_of(s.tail_classes for s in votes),
        ),
    )


def silhouettes(r: NDArray[Any], labels: NDArray[np.int64], *groups: NDArray[np.bool_]) -> Groups:
    """The mean silhouette of all images, and of those whose class is in a group.

    A class of a single image has none.
    """
    of_class = np.bincount(labels)[labels]
    if not 1 < len(np.unique(labels)) < len(labels):
        return (None,) * (1 + len(groups))
    each, several = silhouette_samples(r, labels, metric=METRIC), of_class > 1
    chosen = [each[several], *(each[several & group[labels]] for group in groups)]
    return tuple(float(part.mean()) if len(part) else None for part in chosen)


def nearest_other(r: NDArray[Any], labels: NDArray[np.int64]) -> float:
    """How many images, in percent, have the class of the nearest other one."""
    unit = unit_rows(r)
    likeness = unit @ unit.T
    np.fill_diagonal(likeness, -np.inf)
    return float(100 * (labels[likeness.argmax(1)] == labels).mean())


KEPT_KINDS = {
    "key": dict[str, Any], "points": list[list[float]], "labels": list[int],
    "silhouette": list[float | None], "nearest": list[float | None], "clients": int,
}  # fmt: skip


def _read(path: Path) -> dict[str, Any] | None:
    """Read the cached embedding; None if it is damaged."""
    try:
        kept: dict[str, Any] = read_json(path)
        check_kinds(path, kept, KEPT_KINDS)
    except RepperError:
        return None
    wanted = {"key", "points", "labels", "silhouette", "nearest", "clients"}
    return kept if kept.keys() == wanted else None


def _sample(split: Split, count: int) -> Split:
    rows = np.sort(np.random.default_rng(0).permutation(len(split))[:count])
    return Split(split.images[rows], split.labels[rows])
