"""The results of a comparison: its rows over all seeds, as a table and as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit  # scipy.stats would take half a second to load

from repper.basics.documents import build, check_kinds, read_json, write_covered
from repper.basics.errors import RepperError
from repper.basics.table import Cell, Column, Number, Table, count, csv_text, gain, places
from repper.heads.scores import mean_of
from repper.runs.build import build_stages
from repper.runs.row import Row
from repper.runs.run import Run
from repper.settings.config import Config

TABLE = "table"
OVER_ROUNDS = "rounds.csv"
CONFIDENCE = 0.95
TABLE_KINDS = {
    "asked_rows": list[str], "seeds": list[int], "reference": str, "asked_seeds": int,
    "comparison": str,
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A row's figures, in percent. `deviation` is over seeds, `spread` over clients.

    `difference` is the mean over clients of what each gains over the reference row, then over
    seeds; `low` to `high` is its 95 % interval, over seeds, or over the clients of a single one.
    Costs are means over seeds; images and bytes of all rounds.
    """

    row: str
    accuracy: float | None
    deviation: float | None
    spread: float | None
    head_classes: float | None
    tail_classes: float | None
    worst_tenth: float | None
    difference: float | None
    low: float | None
    high: float | None
    images: float
    bytes_up: float
    bytes_down: float
    seconds: float
    tries: int | None = None
    """The number of tries among which the row's settings were chosen."""
    asked: str = ""
    """The row's name without the chosen settings."""
    backdoor: float | None = None
    """How often honest clients classify marked test images as the attacker's class."""


@dataclass(frozen=True)
class Comparison:
    """The lines of a comparison, and the reference of the differences (RepPer, if it is there).

    Of one that is not finished, `asked_rows` and `asked_seeds` are more than it has.
    """

    folder: Path
    reference: str
    seeds: tuple[int, ...]
    lines: tuple[Line, ...]
    asked_rows: tuple[str, ...]
    asked_seeds: int

    @property
    def so_far(self) -> str:
        """How much of an unfinished comparison is done."""
        if len(self.lines) < len(self.asked_rows):
            return f"{len(self.lines)} of {len(self.asked_rows)} rows"
        if len(self.seeds) < self.asked_seeds:
            return f"{len(self.seeds)} of {self.asked_seeds} seeds"
        return ""

    @classmethod
    def of(cls, folder: Path, config: Config, rows: Sequence[Row], seeds: int) -> Comparison | None:
        """Read the runs of all seeds that have every row, else the first seed's finished ones."""
        numbers = range(config.seed, config.seed + seeds)
        cells = {row: {seed: Run(row.cell(folder, seed)) for seed in numbers} for row in rows}
        done = [seed for seed in numbers if all(cells[row][seed].finished for row in rows)]
        asked = tuple(row.name for row in rows)
        if not done:
            done = [config.seed]
            rows = [row for row in rows if cells[row][config.seed].finished]
        if not rows:
            return None
        runs = {row: [cells[row][seed] for seed in done] for row in rows}
        reference = next((row for row in rows if row.method == "repper"), rows[0])
        accuracies = {row: _accuracies(of_row) for row, of_row in runs.items()}
        lines = [
            _line(row, of_row, accuracies[row], accuracies[reference], row == reference)
            for row, of_row in runs.items()
        ]
        return cls(folder, reference.name, tuple(done), tuple(lines), asked, seeds)

    @classmethod
    def open(cls, folder: Path) -> Comparison:
        """Read a comparison, finished or not."""
        path = folder / f"{TABLE}.json"
        found = read_json(path, "resume the comparison to have it written again")
        try:
            lines = tuple(build(Line, line, path) for line in found["rows"])
            check_kinds(path, found, TABLE_KINDS)
            rows, seeds = tuple(found["asked_rows"]), tuple(found["seeds"])
            if not (lines and seeds):
                raise KeyError("rows")
            return cls(folder, found["reference"], seeds, lines, rows, found["asked_seeds"])
        except (KeyError, TypeError) as error:
            raise RepperError(f"{path} is not the table of a comparison") from error

    def runs(self) -> dict[str, list[Run]]:
        """The runs of every row, one per seed."""
        return {
            line.row: [Run(Row.named(line.row).cell(self.folder, seed)) for seed in self.seeds]
            for line in self.lines
        }

    def paired(self, row: Row, other: Row) -> tuple[float | None, float | None, float | None]:
        """The paired difference of a row to another, client by client, and its interval."""
        own, theirs = (
            _accuracies([Run(one.cell(self.folder, seed)) for seed in self.seeds])
            for one in (row, other)
        )
        return interval(_gains(own, theirs))

    def as_dict(self) -> dict[str, Any]:
        return {
            "comparison": str(self.folder),
            "reference": self.reference,
            "seeds": list(self.seeds),
            "asked_rows": list(self.asked_rows),
            "asked_seeds": self.asked_seeds,
            "rows": [asdict(line) for line in self.lines],
        }

    def write(self) -> None:
        """Write the table as JSON, CSV, Markdown and LaTeX into the comparison's folder."""
        table = self.table()
        texts = {
            f"{TABLE}.csv": table.csv(),
            f"{TABLE}.md": self.markdown(),
            f"{TABLE}.tex": table.latex(),
        }
        on_the_way = [
            [number, row, seed, accuracy]
            for row, runs in self.runs().items()
            for seed, run in zip(self.seeds, runs, strict=True)
            for number, accuracy in run.after_rounds("accuracy").items()
        ]
        if on_the_way:
            heading = ["round", "row", "seed", "accuracy"]
            texts[OVER_ROUNDS] = csv_text([heading, *on_the_way])
        write_covered(self.folder / f"{TABLE}.json", self.as_dict(), texts)

    def table(self, *, costs: bool = True) -> Table:
        """A line per row: accuracy, the difference to the reference, and what it has cost."""
        ranks = places(line.accuracy for line in self.lines)
        tuned = any(line.tries is not None for line in self.lines)
        attacked = any(line.backdoor is not None for line in self.lines)
        columns: list[str | Column] = [
            "row", "accuracy", "over clients", "frequent classes", "tail classes", "worst tenth",
            Column(f"minus {self.reference}", "difference"),
            *(["images", "MB up", "MB down", "seconds"] if costs else []),
            *(["tries"] if tuned else []), *(["backdoor"] if attacked else []),
        ]  # fmt: skip
        rows: list[list[Cell]] = []
        for line in self.lines:
            row: list[Cell] = [
                line.row,
                Number(line.accuracy, deviation=line.deviation, rank=ranks.get(line.accuracy)),
                Number(line.spread, "± {:.2f}"),
                *map(Number, (line.head_classes, line.tail_classes, line.worst_tenth)),
                gain(line.difference, line.low, line.high),
            ]
            if costs:
                row += [
                    count(line.images), Number(line.bytes_up / 1e6, "{:,.1f}"),
                    Number(line.bytes_down / 1e6, "{:,.1f}"), count(line.seconds),
                ]  # fmt: skip
            row += [count(line.tries)] if tuned else []
            row += [Number(line.backdoor)] if attacked else []
            rows.append(row)
        return Table.of(columns, rows, caption=self.caption(costs=costs))

    def table_over_rounds(self) -> Table | None:
        """Accuracy after rounds, where runs measured it on the way, and the reference's lead."""
        found = {row: over_rounds(runs, "accuracy") for row, runs in self.runs().items()}
        found = {row: values for row, values in found.items() if values}
        rows: list[list[Cell]] = []
        for number in sorted({number for values in found.values() for number in values}):
            line: list[Cell] = [count(number)]
            reference = found.get(self.reference, {}).get(number)
            for row, values in found.items():
                own, gains = values.get(number), list[float]()
                if own and reference and row != self.reference:
                    gains = [a - b for a, b in zip(own, reference, strict=True)]
                line.append(
                    Number(
                        float(np.mean(own)) if own else None,
                        deviation=float(np.std(own, ddof=1)) if own and len(own) > 1 else None,
                        beside=(gain(*interval(gains)),) if gains else (),
                    )
                )
            rows.append(line)
        if not rows:
            return None
        about = (
            f"Accuracy after rounds; in brackets the difference to {self.reference}, with its "
            f"{CONFIDENCE:.0%} interval over seeds where there are several."
        )
        columns = [Column(row, beside=("difference",)) for row in found]
        return Table.of(["round", *columns], rows, caption=about + self._about_rounds())

    def markdown(self) -> str:
        table, over = self.table(), self.table_over_rounds()
        parts = [table.markdown(), table.caption]
        if over:
            parts += [over.caption, over.markdown()]
        return "\n\n".join(parts) + "\n"

    def _about_rounds(self) -> str:
        stages = [build_stages(runs[0].config)[0] for runs in self.runs().values()]
        if all(stage.stands_for == 1 for stage in stages):
            return ""
        return (
            " A round in which all clients take part counts as the number of rounds of other "
            "methods that it stands for."
        )

    def caption(self, *, costs: bool = True) -> str:
        many = len(self.seeds) > 1
        seeds = f"mean ± sample deviation of {len(self.seeds)} seeds" if many else "one seed"
        over = "over seeds" if many else "over clients, not counting seed-to-seed variation"
        unfinished = f"Not finished: {self.so_far} so far. " if self.so_far else ""
        about = (
            f"Accuracy in %, the mean over clients of each one's accuracy on its own test images; "
            f"{seeds}; best bold, second underlined. 'Over clients' is their population deviation; "
            f"frequent and tail classes are those of which a client has more and fewer images than "
            f"of its median class; worst tenth: mean accuracy of the worst 10 % of clients. The "
            f"difference is paired, client by client, with its {CONFIDENCE:.0%} interval {over}."
        )
        about += " Costs are of one seed, images and bytes of stage 1." if costs else ""
        return unfinished + about + self._about_tries() + self._about_attacks()

    def _about_tries(self) -> str:
        if all(line.tries is None for line in self.lines):
            return ""
        return (
            " Tries: the number of settings that a row compared, on held-out training images and "
            "with other seeds, to choose those in its brackets; no test image was used."
        )

    def _about_attacks(self) -> str:
        if not any("attack" in run.result for runs in self.runs().values() for run in runs):
            return ""
        text = " Where clients attack, scores are those of the honest clients."
        if any(line.backdoor is not None for line in self.lines):
            text += (
                " Backdoor: the % of their test images of other classes that are classified as "
                "the attackers' class when they carry the attackers' mark."
            )
        return text


def over_rounds(runs: Sequence[Run], key: str) -> dict[int, list[float]]:
    """The values after rounds that all of some runs measured, by round."""
    found = [run.after_rounds(key) for run in runs]
    return {
        number: [one[number] for one in found]
        for number in found[0]
        if all(number in one for one in found)
    }


def _accuracies(runs: Sequence[Run]) -> list[dict[int, float]]:
    """For every seed, the accuracy of each client that has test images."""
    return [
        {score.client: score.accuracy for score in run.scores() if score.accuracy is not None}
        for run in runs
    ]


def _line(
    row: Row,
    runs: Sequence[Run],
    own: Sequence[dict[int, float]],
    reference: Sequence[dict[int, float]],
    is_reference: bool,
) -> Line:
    results = [run.result for run in runs]

    def mean(key: str) -> float | None:
        return mean_of(result["accuracy"][key] for result in results)

    means = [r["accuracy"]["mean"] for r in results if r["accuracy"]["mean"] is not None]
    gains = _gains(own, reference)
    difference, low, high = (None, None, None) if is_reference else interval(gains)
    costs = {
        key: float(np.mean([result["cost"][key] for result in results]))
        for key in ("images", "bytes_up", "bytes_down")
    }
    return Line(
        row=row.name,
        accuracy=mean("mean"),
        deviation=float(np.std(means, ddof=1)) if len(means) > 1 else None,
        spread=mean("std"),
        head_classes=mean("head_classes"),
        tail_classes=mean("tail_classes"),
        worst_tenth=mean("worst_tenth"),
        difference=difference,
        low=low,
        high=high,
        **costs,
        seconds=float(np.mean([sum(result["seconds"].values()) for result in results])),
        tries=row.tries,
        asked=row.asked or row.name,
        backdoor=mean_of(result.get("attack", {}).get("success") for result in results),
    )


def _gains(own: Sequence[dict[int, float]], reference: Sequence[dict[int, float]]) -> list[float]:
    """The clients' gains over a reference: the mean of every seed, or of one seed all clients.

    Clients of one seed share an encoder and its luck: only seeds are independent of each other.
    """
    gains = [
        [a[client] - b[client] for client in sorted(a.keys() & b.keys())]
        for a, b in zip(own, reference, strict=True)
    ]
    return [float(np.mean(g)) for g in gains if g] if len(gains) > 1 else gains[0]


def interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """The mean, and the two ends of its Student's t interval where there are enough values."""
    if not values:
        return None, None, None
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, None, None
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    reach = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * error
    return mean, mean - reach, mean + reach
