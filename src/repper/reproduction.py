"""What a reproduction found: our numbers beside the paper's, and which of its claims hold."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from repper.comparison import CELLS, TABLE, Comparison, figure
from repper.errors import RepperError
from repper.experiments import EXPERIMENTS
from repper.experiments.claims import claims_of
from repper.experiments.experiment import PRESETS, Experiment, Panel, Preset
from repper.files import read_json, write_atomically
from repper.run_folder import ENVIRONMENT
from repper.runs import Run

SETTINGS = "reproduction.json"
PANELS = "panels"
FOUND = "found.json"
FIGURES = "figures"
NOT_RUN = "not run"
"""Why a panel is missing that was not reached yet."""
CAPTIONS = {
    "tsne-methods": "One client's images by the encoder of every method (t-SNE)",
    "tsne-clients": "Clients' images by their own local encoders, and all classes by the server's",
    "accuracy-per-class": "Accuracy per class of two clients, classes by falling count",
    "new-clients": "New clients: over epochs of their heads, and each one at the end",
}


@dataclass(frozen=True)
class PanelResult:
    """A panel's comparison, or why there is none."""

    panel: Panel
    comparison: Comparison | None
    missing: str = ""

    def ours(self) -> dict[str, float]:
        """Accuracy by row."""
        lines = self.comparison.lines if self.comparison else ()
        return {line.row: line.accuracy for line in lines if line.accuracy is not None}


@dataclass(frozen=True)
class Extra:
    """A table that an experiment has besides the comparison of its rows; heading first."""

    title: str
    note: str
    cells: list[list[str]]


@dataclass(frozen=True)
class Reproduction:
    """All panels of an experiment."""

    folder: Path
    experiment: Experiment
    preset: Preset
    seeds: int
    panels: tuple[PanelResult, ...]
    extras: tuple[Extra, ...] = ()

    @classmethod
    def open(cls, folder: Path) -> Reproduction:
        """Read what is finished of one of the paper's experiments."""
        found = read_json(folder / SETTINGS)
        try:
            experiment = EXPERIMENTS[found["experiment"]]()
            preset, seeds = PRESETS[found["preset"]], int(found["seeds"])
        except (KeyError, TypeError, ValueError) as error:
            raise RepperError(f"{folder / SETTINGS} names no experiment of the paper") from error
        path = folder / FOUND
        kept = read_json(path) if path.is_file() else {"extras": [], "missing": {}}
        results = []
        for panel in experiment.panels:
            cells = folder / PANELS / panel.folder
            if (cells / f"{TABLE}.json").is_file():
                results.append(PanelResult(panel, Comparison.open(cells)))
            else:
                results.append(PanelResult(panel, None, kept["missing"].get(panel.name, NOT_RUN)))
        extras = tuple(Extra(**extra) for extra in kept["extras"])
        return cls(folder, experiment, preset, seeds, tuple(results), extras)

    def write(self) -> None:
        """Write the tables as Markdown and CSV into the folder."""
        content = {
            "extras": [asdict(extra) for extra in self.extras],
            "missing": {r.panel.name: r.missing for r in self.panels if r.missing},
        }
        write_atomically(self.folder / FOUND, json.dumps(content, indent=2))
        write_atomically(self.folder / f"{TABLE}.md", self.markdown())
        text = io.StringIO()
        writer = csv.DictWriter(
            text, ["panel", "row", "ours", "deviation", "paper", "difference", "missing"]
        )
        writer.writeheader()
        writer.writerows(self.records())
        write_atomically(self.folder / f"{TABLE}.csv", text.getvalue())

    def figures(self) -> Iterator[tuple[str, Path]]:
        """The pictures that were drawn, each with its caption."""
        for path in sorted((self.folder / FIGURES).glob("*.png")):
            words = path.stem.replace("bubbles-", "Who holds what: ").replace("-", " ")
            yield CAPTIONS.get(path.stem, words), path

    def records(self) -> Iterator[dict[str, Any]]:
        """One line per panel and row."""
        for result in self.panels:
            ours = result.ours()
            lines = {line.row: line for line in (result.comparison or _NONE).lines}
            for row in result.panel.rows:
                paper = result.panel.printed.get(row)
                known = paper is not None and row in ours
                yield {
                    "panel": result.panel.name,
                    "row": row,
                    "ours": ours.get(row),
                    "deviation": lines[row].deviation if row in lines else None,
                    "paper": paper,
                    "difference": ours[row] - paper if known and paper is not None else None,
                    "missing": result.missing,
                }

    def markdown(self) -> str:
        parts = [
            f"# {self.experiment.title}",
            _bullets(self.settings_text()),
            "Accuracy in %, ours and in brackets the paper's; in a column of a method, the mean "
            "over clients of each one's accuracy on its own test images. Best of ours bold.",
            _table(self.cells()),
            "## Order of the methods",
            _table(self.order_cells()),
        ]
        for extra in self.extras:
            parts += [f"## {extra.title}", extra.note, _table(extra.cells)]
        if pictures := list(self.figures()):
            shown = [f"![{caption}]({FIGURES}/{path.name})" for caption, path in pictures]
            parts += ["## Figures", *shown]
        if claims := self.claim_cells():
            parts += ["## What the paper claims of this table", _table(claims)]
        parts += [
            "## Every comparison",
            *(
                f"### {result.panel.name}\n\n{result.comparison.markdown()}"
                if result.comparison
                else f"### {result.panel.name}\n\n{result.missing.capitalize()}."
                for result in self.panels
            ),
        ]
        return "\n\n".join(parts) + "\n"

    def settings_text(self) -> list[str]:
        """How this was run, and every way in which it is not the paper's setting."""
        chance = "one seed" if self.seeds == 1 else f"mean of {self.seeds} seeds"
        command = f"repper reproduce {self.experiment.name} --preset {self.preset.name}"
        if self.seeds > 1:
            command += f" --seeds {self.seeds}"
        notes = [f"Run again with `{command}`; {chance}.", *self._effort(), *self.experiment.notes]
        departures: dict[str, list[str]] = {}
        for result in self.panels:
            found = self.preset.departures(self.experiment, result.panel)
            for name, (theirs, ours) in found.items():
                text = f"{_said(theirs)} -> {_said(ours)}"
                departures.setdefault(f"{name.replace('_', ' ')} {text}", []).append(
                    result.panel.name
                )
        if departures:
            every = len(self.panels)
            listed = [
                text if len(panels) == every else f"{text} ({len(panels)} of {every} columns)"
                for text, panels in departures.items()
            ]
            notes.append(f"Not the paper's setting: {'; '.join(listed)}.")
        for result in self.panels:
            if result.missing:
                notes.append(f"{result.panel.name}: {result.missing}.")
        return notes

    def _effort(self) -> Iterator[str]:
        """The machine, and what the trainings took there; rows of one training share it."""
        trained: dict[tuple[str, str, int], float] = {}
        machines: list[str] = []
        for result in self.panels:
            folder = result.comparison.folder / CELLS if result.comparison else None
            for cell in sorted(folder.iterdir()) if folder and folder.is_dir() else ():
                run = Run(cell)
                config, seconds = run.config, run.result["seconds"]
                trained[result.panel.name, config.method, config.seed] = seconds["crl"]
                found = read_json(cell / ENVIRONMENT)
                machines.append(f"{found['processor']}, {found['cores']} cores ({found['device']})")
        if trained:
            minutes = round(sum(trained.values()) / 60)
            took = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
            where = "; ".join(dict.fromkeys(machines))
            yield f"{len(trained)} trainings, {took} in all on {where}."

    def cells(self) -> list[list[str]]:
        """The table as text: a line per panel, a column per row of it."""
        rows = list(dict.fromkeys(row for result in self.panels for row in result.panel.rows))
        table = [["", *rows]]
        for result in self.panels:
            ours = result.ours()
            best = max(ours.values(), default=None)
            none = NOT_RUN if result.missing == NOT_RUN else "no data"
            line = [result.panel.name]
            for row in rows:
                value = none if result.missing else figure(ours.get(row))
                if row in ours and ours[row] == best:
                    value = f"**{value}**"
                paper = result.panel.printed.get(row)
                line.append(value + (f" ({paper:.2f})" if paper is not None else ""))
            table.append(line)
        return table

    def order_cells(self) -> list[list[str]]:
        """The methods from best to worst, in ours and in the paper, and how far they agree."""
        table = [["", "ours", "the paper's", "agreement (Kendall)"]]
        for result in self.panels:
            ours, printed = result.ours(), result.panel.printed
            both = [row for row in result.panel.rows if row in ours and row in printed]
            agreement = "-"
            if len(both) > 1:
                tau = stats.kendalltau([ours[r] for r in both], [printed[r] for r in both])
                agreement = f"{tau.statistic:+.2f}"
            table.append([result.panel.name, _ranked(ours), _ranked(printed), agreement])
        return table

    def claim_cells(self) -> list[list[str]]:
        """Every claim, computed from the paper's numbers and from ours."""
        printed = {
            (result.panel.name, row): value
            for result in self.panels
            for row, value in result.panel.printed.items()
        }
        ours = {
            (result.panel.name, row): value
            for result in self.panels
            for row, value in result.ours().items()
        }
        table = [["claim", "in the paper's numbers", "in ours", "against it, or for it, in ours"]]
        printed_any = any(result.panel.printed for result in self.panels)
        for claim in claims_of(self.experiment.name) if printed_any else ():
            paper, own = claim.find(printed), claim.find(ours)
            table.append(
                [
                    claim.text,
                    f"{paper.verdict} ({paper.holds} of {paper.cases})",
                    f"{own.verdict} ({own.holds} of {own.cases})",
                    own.evidence or "-",
                ]
            )
        return table if len(table) > 1 else []


_NONE = Comparison(Path(), "", (), ())


def _ranked(numbers: Mapping[str, float]) -> str:
    return " > ".join(sorted(numbers, key=numbers.__getitem__, reverse=True)) or "-"


def _said(value: object) -> str:
    return "all" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(cells: list[list[str]]) -> str:
    heading, *rows = cells
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
