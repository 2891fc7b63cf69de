"""The opening sentence of a report: what was compared, and which row is the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repper.basics.documents import read_json
from repper.basics.table import figure
from repper.data.partition import FOLDERS
from repper.report.content import Subject
from repper.runs.comparison_table import CONFIDENCE
from repper.runs.row import Row
from repper.runs.run_folder import PARTITION

Gain = tuple[float | None, float | None, float | None]
"""The best row's mean lead over another row, and the two ends of its interval."""
MOST_NAMES = 4


def opening(subject: Subject) -> str:
    """The split, the clients and the seeds, and which rows can be told from the best."""
    config, seeds = subject.first.config, len(subject.seeds)
    many = f"{seeds} seeds" if seeds > 1 else "one seed"
    clients = f"{config.clients} clients" if config.clients > 1 else "one client"
    dealt = read_json(subject.first.folder / PARTITION)["settings"]
    where = f"{config.shown('data')}, {split_in_words(dealt)}, {clients}, {many}"
    comparison = subject.comparison
    lines = comparison.lines if comparison else ()
    known = {line.row: line.accuracy for line in lines if line.accuracy is not None}
    if comparison is None or len(known) < 2:
        [name] = known or subject.names[:1]
        mean, worst = (subject.first.accuracy[key] for key in ("mean", "worst_tenth"))
        return (
            f"{where}: {name} has {figure(mean)} % in the mean over clients, and {figure(worst)} % "
            f"in that over the worst tenth of them."
        )
    best = max(known, key=lambda row: known[row])
    gains = {
        row: comparison.paired(Row.named(best), Row.named(row)) for row in known if row != best
    }
    over = "over seeds" if seeds > 1 else "over the clients of this seed"
    return f"{where}: {verdict(best, gains, over)}."


def verdict(best: str, gains: Mapping[str, Gain], over: str) -> str:
    """Which rows cannot be told from the best, and which are worse, by their intervals."""
    worse = [row for row, (_, low, _) in gains.items() if low is not None and low > 0]
    equal = [row for row in gains if row not in worse]
    if all(low is None for _, low, _ in gains.values()):
        return f"{best} has the highest mean; no difference to another row has an interval"
    by = f"by the {CONFIDENCE:.0%} interval of the paired difference {over}"
    if not worse:
        return f"no row can be told from the best, {best}, {by}"
    if not equal:
        return f"{best} is better than all other rows, {by}"
    are = "is" if len(worse) == 1 else "are"
    if len(equal) >= len(worse):
        return (
            f"no row can be told from the best, {best}, {by}, except {listed(worse)}, "
            f"which {are} worse"
        )
    return f"{best} is better than all other rows but {listed(equal)}, {by}"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`; of very many, how many."""
    if len(names) > MOST_NAMES:
        return f"{len(names)} rows"
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def split_in_words(dealt: Mapping[str, Any]) -> str:
    """How images are divided among clients, from the settings in a partition's manifest."""
    kind = dealt.get("kind")
    if kind == "dirichlet":
        return f"Dirichlet {dealt['alpha']:g}"
    if kind == "shards":
        return f"{dealt['classes_per_client']} classes a client"
    words = {"iid": "images dealt at random (iid)", FOLDERS: "the folders of the clients"}
    return words.get(str(kind), "a partition of your own")
