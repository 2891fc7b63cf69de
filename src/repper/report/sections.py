"""The parts of a report on runs that belong together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from repper.basics.errors import RepperError
from repper.basics.table import Cell, Number, Table, count, figure, heading_of
from repper.figures.embedding import MEANING, PARTING, embedding_of, encoder_label
from repper.figures.palette import looks
from repper.heads.scores import Counts, table_of
from repper.report import charts
from repper.report.content import Subject
from repper.report.html import Html, join, table, tag
from repper.report.opening import opening
from repper.runs.attacked import said_of
from repper.runs.build import load_data
from repper.runs.comparison_table import over_rounds
from repper.runs.run import Run
from repper.settings.config import OPTIONS

MOST_CLIENTS = 60
"""A heat map or a drawing of more clients would not be readable."""


def section(subject: Subject, anchor: str, tsne: bool) -> Html:
    """Everything about a subject, under its title."""
    parts = [
        tag("h2", subject.title, id=anchor),
        tag("p", opening(subject), class_="opening"),
        *_results(subject),
        *_settings(subject),
        *_over_rounds(subject),
        *_over_epochs(subject),
        *_distribution(subject),
        *_classes(subject),
        *_holdings(subject),
        *(_embeddings(subject) if tsne else ()),
        *_costs(subject),
        *_environment(subject),
    ]
    return tag("section", *parts, aria_labelledby=anchor)


def _settings(subject: Subject) -> Iterator[Html]:
    """The command to run it again, and every setting, defaults in grey."""
    yield tag("h3", "Command and settings")
    config, rows = subject.first.config, ", ".join(subject.names)
    if config.rounds:
        how = (
            f"{config.rounds} rounds of {config.epochs} local epochs, {config.participation:.0%} "
            "of the clients in a round"
        )
    elif config.init:
        how = "who fit heads on the encoder of a finished run"
    else:
        how = "who fit heads on an encoder that was not trained"
    yield tag(
        "p",
        f"{rows} on {config.data}: {subject.first.result['clients']} clients, {how}, encoder "
        f"{config.encoder}.",
    )
    if subject.comparison is None and (said := said_of(subject.first.result)):
        yield tag("p", said)
    yield again(subject.command)
    listed, usual = list[tuple[str, str, str]](), list[int]()
    for name, option in OPTIONS.items():
        if values := _values(subject, name):
            if values in ([option.default], [None]):
                usual.append(len(listed))
            here = ", ".join(map(_shown, values))
            listed.append((option.key, here, _shown(option.default)))
    found = Table.of(["setting", "here", "default"], listed, "Settings")
    every = table(found, sortable=False, grey=usual)
    changed = len(listed) - len(usual)
    title = f"All {len(listed)} settings; those at their defaults are grey ({changed} are not)"
    yield tag("details", tag("summary", title), every, open=True)


def again(command: str) -> Html:
    """The command that makes the same again."""
    label = tag("p", "To run it again:", class_="note")
    return join([label, tag("pre", tag("code", command))])


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


def _values(subject: Subject, name: str) -> list[object]:
    """The values that a setting has in the rows that use it."""
    if name in ("out", "data_dir"):
        return []
    configs = [runs[0].config for runs in subject.rows.values()]
    using = [c for c in configs if not OPTIONS[name].owners or name in c.in_use()]
    return list(dict.fromkeys(c.shown(name) for c in using))


def _results(subject: Subject) -> Iterator[Html]:
    yield tag("h3", "Results")
    if subject.comparison is None:
        yield from _one_result(subject.first)
        return
    boxes = [
        tag("label", tag("input", type="checkbox", value=name, checked=True), f" {name}")
        for name in subject.names
    ]
    said = tag("output", class_="unseen")
    if len(boxes) > 1:
        yield tag("fieldset", tag("legend", "Show"), *boxes, said, class_="filter")
    found = replace(subject.comparison.table(costs=False), title="Results")
    yield table(found, labels=subject.names)


def _one_result(run: Run) -> Iterator[Html]:
    accuracy = run.accuracy
    shown = {
        "mean": "mean over clients", "worst_tenth": "worst tenth of clients",
        "balanced": "balanced over classes", "head_classes": heading_of("head_classes"),
        "tail_classes": heading_of("tail_classes"),
    }  # fmt: skip
    cards = [
        tag("li", tag("b", figure(accuracy[name])), tag("span", f"{text}, %"))
        for name, text in shown.items()
    ]
    yield tag("ul", *cards, class_="cards")
    found = table_of(run.scores(), run.client_names(), "Every client")
    every = table(replace(found, caption="Accuracy in %"))
    yield tag("details", tag("summary", found.title), every, open=len(found.rows) <= 30)


def _client_names(run: Run) -> list[str]:
    return run.client_names() or [f"client {n}" for n in range(run.result["clients"])]


def _over_rounds(subject: Subject) -> Iterator[Html]:
    """Curves over rounds: accuracy, k-NN, loss."""
    drawn, of_rows = [], looks(subject.names)
    of_methods = looks(dict.fromkeys(row.label for row in subject.rows))
    for key, title, unit in (
        ("accuracy", "Accuracy over rounds", "accuracy, %"),
        ("knn", "k-NN accuracy of the shared encoder over rounds", "accuracy, %"),
        ("loss", "Training loss over rounds", "loss"),
    ):
        series: list[charts.Series] = []
        for row, runs in subject.rows.items():
            points = over_rounds(runs, key)
            # Rows of one training have the same curve of everything but accuracy.
            label = row.label if key != "accuracy" else row.name
            if len(points) > 1 and label not in {one.name for one in series}:
                y = [float(np.mean(values)) for values in points.values()]
                deviation = [
                    float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in points.values()
                ]
                look = of_rows[label] if key == "accuracy" else of_methods[label]
                series.append(charts.Series(label, look, list(points), y, deviation))
        if series:
            drawn.append(charts.lines(title, "round", unit, series))
    if drawn:
        yield tag("h3", "Over rounds")
        several = len(subject.seeds) > 1
        notes = ["Means over seeds, in a band of their deviation."] if several else []
        if len(subject.rows) > 1:
            notes.append("Losses of different methods are different quantities; compare shapes.")
        if not subject.first.config.evaluate_every and subject.first.config.rounds:
            notes.append("Clients' accuracy on the way is measured with --evaluate-every.")
        if notes:
            yield tag("p", " ".join(notes), class_="note")
        yield tag("div", *drawn, class_="pair")


def _over_epochs(subject: Subject) -> Iterator[Html]:
    """How heads learned, where that was kept."""
    series, of_rows = [], looks(subject.names)
    for row, runs in subject.rows.items():
        means = {e: mean for e, mean in runs[0].mean_curve().items() if mean is not None}
        if len(means) > 1:
            x, y = list(means), list(means.values())
            series.append(charts.Series(row.name, of_rows[row.name], x, y))
    if series:
        yield tag("h3", "Over epochs of the heads")
        title = "Mean accuracy of the clients over epochs of their heads"
        if len(subject.seeds) > 1:
            title += ", first seed"
        yield charts.lines(title, "epoch", "accuracy, %", series)


def _distribution(subject: Subject) -> Iterator[Html]:
    groups = {
        row.name: [s.accuracy for run in runs for s in run.scores() if s.accuracy is not None]
        for row, runs in subject.rows.items()
    }
    groups = {name: values for name, values in groups.items() if values}
    if groups:
        yield tag("h3", "Over clients")
        title = "Accuracy of every client; the line is their mean"
        yield charts.strips(title, "accuracy, %", groups, looks(subject.names))


def _classes(subject: Subject) -> Iterator[Html]:
    """Accuracy per class: of each client for one run, the mean over clients for several."""
    classes = subject.first.classes
    if len(subject.rows) == 1:
        tested = [s for s in subject.first.scores() if s.tested.sum()]
        scores = tested[:MOST_CLIENTS]
        values = np.array([_by_class(s.correct, s.tested) for s in scores])
        names = _client_names(subject.first)
        rows = [names[s.client] for s in scores]
        title = "Accuracy per client and class, %; empty where a client has no test image"
        title += _first_of(tested) + (", first seed" if len(subject.seeds) > 1 else "")
    else:
        rows = subject.names
        values = np.array([_mean_by_class(runs) for runs in subject.rows.values()])
        title = "Accuracy per class over all clients, %"
    if len(values):
        yield tag("h3", "Classes")
        yield charts.heat(title, rows, classes, values, filtered=len(subject.rows) > 1)


def _first_of(clients: Sequence[object]) -> str:
    """What a title says where not all clients are shown."""
    more = len(clients) > MOST_CLIENTS
    return f", the first {MOST_CLIENTS} of {len(clients)} clients" if more else ""


def _by_class(correct: Counts, tested: Counts) -> charts.Numbers:
    return np.where(tested > 0, 100 * correct / np.maximum(tested, 1), np.nan)


def _mean_by_class(runs: Sequence[Run]) -> charts.Numbers:
    scores = [s for run in runs for s in run.scores()]
    correct, tested = (np.sum([getattr(s, n) for s in scores], 0) for n in ("correct", "tested"))
    return _by_class(correct, tested)


def _holdings(subject: Subject) -> Iterator[Html]:
    scores = subject.first.scores()
    counts = np.array([s.train for s in scores])[:MOST_CLIENTS]
    yield tag("h3", "Who holds what")
    yield charts.bubbles(
        f"Training images by client and class{_first_of(scores)}",
        subject.first.classes,
        _client_names(subject.first)[: len(counts)],
        counts,
    )


def _embeddings(subject: Subject) -> Iterator[Html]:
    yield tag("h3", "What the encoders see")
    drawn, seen, notes, labels = list[Html](), set[object](), [MEANING], list[str]()
    rows: list[list[Cell]] = []
    # A page is made without the network, whatever the run was allowed to do.
    load = cache(partial(load_data, replace(subject.first.config, download=False)))
    for row, runs in subject.rows.items():
        if row.training in seen:
            continue
        seen.add(row.training)
        label = encoder_label(row.label, runs[0])
        try:
            found = embedding_of(runs[0], load)
        except RepperError as error:
            yield tag("p", f"{label} is not drawn: {error}", class_="note")
            continue
        classes = subject.first.classes
        drawn.append(charts.scatter(label, found.points, found.labels, classes, row.label))
        labels.append(row.label)
        rows.append([label, *found.parting.cells()])
        if found.clients < runs[0].result["clients"]:
            notes[1:] = [f"{found.clients} clients, drawn at random."]
    if not drawn:
        return
    yield tag(
        "p",
        "Test images by t-SNE of their features"
        + (", of the first seed's encoders" if len(subject.seeds) > 1 else "")
        + ". Such pictures prove little: distances between groups mean nothing.",
        class_="note",
    )
    yield tag("div", *drawn, class_="side")
    title = "How well the features part the classes"
    yield table(Table.of(["encoder", *PARTING], rows, title, " ".join(notes)), labels=labels)


def _costs(subject: Subject) -> Iterator[Html]:
    yield tag("h3", "Cost")
    rows: list[list[Cell]] = []
    for row, runs in subject.rows.items():
        cost = runs[0].result["cost"]
        sent = (Number(cost[name] / 1e6, "{:,.1f}") for name in ("bytes_up", "bytes_down"))
        rows.append([row.name, count(cost["images"]), *sent])
    heading = ["row", "views trained on", "MB up", "MB down"]
    found = Table.of(heading, rows, "Cost", "One seed, all clients together")
    yield table(found, labels=subject.names)


def _environment(subject: Subject) -> Iterator[Html]:
    found, _ = subject.first.environment
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    facts = [
        ("processor", f"{found['processor']}, {found['cores']} cores"),
        ("device", found["device"]),
        ("system", found["system"]),
        ("Python", found["python"]),
        ("packages", packages),
        ("commit", str(found["commit"] or "not from a checkout")),
        ("digests", join(_digests(subject))),
    ]
    listed = [part for name, text in facts for part in (tag("dt", name), tag("dd", text))]
    title = tag("summary", "Environment and digests")
    yield tag("details", title, tag("dl", *listed, class_="facts"))


def _digests(subject: Subject) -> Iterator[Html]:
    for row, runs in subject.rows.items():
        result = runs[0].result
        yield tag("div", f"{row.name}: encoder {result['encoder_digest'][:16]}, ",
                  f"heads {(result['heads_digest'] or 'not known')[:16]}")  # fmt: skip
