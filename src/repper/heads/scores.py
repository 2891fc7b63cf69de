"""Scores per client and class, and their summary over clients. Accuracies are in percent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repper.basics.table import Number, Table, count, heading_of
from repper.edge.saved_head import unit_rows

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Score:
    """One client's result per class: training images, test images, and correct predictions."""

    client: int
    personalize: str
    train: Counts
    tested: Counts
    correct: Counts

    @property
    def accuracy(self) -> float | None:
        """Accuracy on all test images of the client; None without test images."""
        return self._on(self.tested > 0)

    @property
    def balanced(self) -> float | None:
        """The mean over classes of the accuracy on each."""
        return mean_of(self._on(np.arange(len(self.tested)) == n) for n in range(len(self.tested)))

    @property
    def head_classes(self) -> float | None:
        """Accuracy on classes with more training images than the client's median class."""
        return self._on(head_classes(self.train))

    @property
    def tail_classes(self) -> float | None:
        """Accuracy on classes with fewer training images than the client's median class."""
        return self._on(tail_classes(self.train))

    def _on(self, classes: NDArray[np.bool_]) -> float | None:
        tested = self.tested[classes].sum()
        return _percent(self.correct[classes].sum(), tested) if tested else None


def head_classes(train: Counts) -> NDArray[np.bool_]:
    """Which classes have more training images than a client's median class."""
    return train > np.median(train[train > 0])


def tail_classes(train: Counts) -> NDArray[np.bool_]:
    """Which classes have some training images, but fewer than the client's median class."""
    return (train < np.median(train[train > 0])) & (train > 0)


def score(client: int, personalize: str, train: Counts, labels: Counts, predicted: Counts) -> Score:
    """Count a client's correct predictions; `train` is its number of training images per class."""
    tested = np.bincount(labels, minlength=len(train))
    correct = np.bincount(labels[labels == predicted], minlength=len(train))
    return Score(client, personalize, train, tested, correct)


def table_of(scores: Sequence[Score], names: Sequence[str], title: str) -> Table:
    """What every client holds and scores; without `names`, clients have their numbers."""
    figures = ("accuracy", "balanced", "head_classes", "tail_classes")
    columns = ["client", "head", "train", "classes", "test", *map(heading_of, figures)]
    rows = [
        [
            names[one.client] if names else count(one.client),
            one.personalize,
            *map(count, (one.train.sum(), np.count_nonzero(one.train), one.tested.sum())),
            *(Number(getattr(one, name)) for name in figures),
        ]
        for one in scores
    ]
    return Table.of(columns, rows, title)


def summarize(scores: Sequence[Score]) -> dict[str, float | None]:
    """Means and spreads over the scores of all clients.

    `mean` is the paper's score, the unweighted mean over clients. `worst_tenth` is the mean of the
    worst tenth of the clients (at least one). Clients without test images do not count, and a
    figure is None where no client has what it is about.
    """
    accuracies = sorted(s.accuracy for s in scores if s.accuracy is not None)
    tested = sum(int(s.tested.sum()) for s in scores)
    correct = sum(int(s.correct.sum()) for s in scores)
    return {
        "mean": mean_of(accuracies),
        "std": float(np.std(accuracies)) if accuracies else None,
        "worst": min(accuracies, default=None),
        "worst_tenth": mean_of(accuracies[: max(1, round(len(accuracies) / 10))]),
        "weighted": _percent(correct, tested) if tested else None,
        "balanced": mean_of(s.balanced for s in scores),
        "head_classes": mean_of(s.head_classes for s in scores),
        "tail_classes": mean_of(s.tail_classes for s in scores),
    }


def knn_accuracy(
    memory: NDArray[Any], memory_labels: Counts, queries: NDArray[Any], labels: Counts, k: int = 10
) -> float:
    """How often the vote of the nearest memory rows is a query's label.

    It judges features without fitting anything.
    """
    voted = knn_votes(memory, memory_labels, queries, k)
    return _percent((voted == labels).sum(), len(labels))


AT_ONCE = 1024
"""Queries that are compared with all of the memory at once."""


def knn_votes(
    memory: NDArray[Any], memory_labels: Counts, queries: NDArray[Any], k: int = 10
) -> Counts:
    """The label that the k nearest memory rows, by cosine, vote for (ties: the nearest)."""
    near, far = unit_rows(memory), unit_rows(queries)
    nearest = [
        np.argsort(-(far[first : first + AT_ONCE] @ near.T), axis=1, kind="stable")[:, :k]
        for first in range(0, max(1, len(queries)), AT_ONCE)
    ]
    votes = memory_labels[np.concatenate(nearest)]
    # A vote of 1 each, and a little more for each than for all farther ones together, so that the
    # nearest decides a tie.
    weights = 1 + 0.1 * 0.5 ** np.arange(1, votes.shape[1] + 1)
    table = np.zeros((len(queries), int(memory_labels.max()) + 1))
    np.add.at(table, (np.arange(len(queries))[:, None], votes), weights)
    voted: Counts = table.argmax(1)
    return voted


def _percent(part: Any, whole: Any) -> float:
    return float(100 * part / whole)


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
