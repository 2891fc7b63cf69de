"""The results of a reproduction: our numbers beside the paper's, and which claims hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from repper.basics.documents import build, read_json, write_covered
from repper.basics.errors import RepperError
from repper.basics.table import Table, csv_text
from repper.paper import EXPERIMENTS
from repper.paper.experiment import PRESETS, READINGS, SETTINGS, Experiment, Panel, Preset
from repper.paper.panels import NOT_RUN, PanelResult, result_in
from repper.paper.side_by_side import claim_table, number_table, order_table
from repper.runs.comparison_table import TABLE
from repper.runs.row import Row
from repper.runs.run import Run

FOUND = "found.json"
FIGURES = "figures"
CAPTIONS = {
    "tsne-methods": "One client's training images by the encoder of every method (t-SNE)",
    "tsne-clients": "Seven clients from even to skewed, each its training images by its own local "
    "encoder, which is the common one after one more round there; test images of all classes by "
    "the server's (t-SNE)",
    "accuracy-per-class": "Accuracy per class of two clients drawn at random, classes by falling "
    "count; bars of few test images mean little",
    "new-clients": "New clients: over epochs of their heads, and each one at the end",
}
UNSET = {"train_images": "all", "head_epochs": "at least 10, and 100 steps"}
"""The meaning of a setting without a value."""


@dataclass(frozen=True)
class Extra:
    """A table of what was measured on a panel's runs, or drawn; "" if it is of no single panel."""

    panel: str
    table: Table


@dataclass(frozen=True)
class Found:
    """Results that cannot be read from the panels' folders."""

    extras: tuple[Extra, ...]
    missing: dict[str, str]
    """Why a panel was not run, by its name."""
    images: tuple[str, ...]


@dataclass(frozen=True)
class Reproduction:
    """All panels of an experiment."""

    folder: Path
    experiment: Experiment
    preset: Preset
    seeds: int
    panels: tuple[PanelResult, ...]
    extras: tuple[Extra, ...] = ()
    images: tuple[str, ...] = ()
    """A note on the images of each data set."""

    @classmethod
    def open(cls, folder: Path) -> Reproduction:
        """Read what is finished of one of the paper's experiments."""
        found = read_identity(folder)
        try:
            experiment, preset = EXPERIMENTS[found["experiment"]](), PRESETS[found["preset"]]
        except KeyError as error:
            raise RepperError(f"{folder / SETTINGS} names no experiment of the paper") from error
        return cls.read(folder, experiment, preset, found["seeds"])

    @classmethod
    def read(cls, folder: Path, experiment: Experiment, preset: Preset, seeds: int) -> Reproduction:
        """What is finished of this experiment in its folder."""
        path, kept = folder / FOUND, Found((), {}, ())
        if path.is_file():
            remedy = "delete it and give the command again with --resume"
            kept = build(Found, read_json(path), path, remedy)
        results = [
            result_in(folder, panel, kept.missing.get(panel.name, NOT_RUN))
            for panel in experiment.panels
        ]
        return cls(folder, experiment, preset, seeds, tuple(results), kept.extras, kept.images)

    def write(self) -> None:
        """Write the tables as Markdown, CSV and LaTeX into the folder."""
        heading = ["panel", "row", "ours", "deviation", "paper", "difference", "missing"]
        lines = [[record[name] for name in heading] for record in self.records()]
        texts = {
            f"{TABLE}.md": self.markdown(),
            f"{TABLE}.csv": csv_text([heading, *lines]),
            f"{TABLE}.tex": "\n".join(table.latex() for table in self.tables()),
        }
        for extra in self.extras:
            name = re.sub("[^a-z0-9.]+", "-", extra.table.title.lower())
            texts[f"{name}.csv"] = extra.table.csv()
        if self.printed:
            texts["order.csv"] = order_table(self.experiment, self.panels).csv()
        if (claims := self.claims(shown=10**6)).rows:
            texts["claims.csv"] = claims.csv()
        missing = {result.panel.name: result.missing for result in self.panels if result.missing}
        found = Found(self.extras, missing, self.images)
        write_covered(self.folder / FOUND, asdict(found), texts)

    def figures(self) -> Iterator[tuple[str, Path]]:
        """The pictures that were drawn, each with its caption."""
        for path in sorted((self.folder / FIGURES).glob("*.png")):
            words = path.stem.replace("bubbles-", "Who holds what: ").replace("-", " ")
            words = words.replace("gradients ", "Gradients by the size of a class, ")
            yield CAPTIONS.get(path.stem, words), path

    def records(self) -> Iterator[dict[str, Any]]:
        """One line per panel and row."""
        for result in self.panels:
            ours, lines = result.ours(), result.lines
            for row in result.panel.rows:
                paper = result.panel.paper(row)
                known = paper is not None and row in ours
                yield {
                    "panel": result.panel.name,
                    "row": row.name,
                    "ours": ours.get(row),
                    "deviation": lines[row].deviation if row in lines else None,
                    "paper": paper,
                    "difference": ours[row] - paper if known and paper is not None else None,
                    "missing": result.missing,
                }

    def tables(self) -> list[Table]:
        """All tables, what the experiment is about first."""
        measured = self.experiment.newcomers or self.experiment.measure in ("gradients", "figures")
        title, theirs, place = "Ours and the paper's", "", ""
        if self.printed:
            theirs = " In brackets are the paper's, and ours minus the paper's."
            place = ", in brackets in the paper"
        else:
            title = "The trainings behind it" if measured else "Accuracy"
        numbers = replace(
            number_table(self.experiment, self.panels),
            title=title,
            caption="Accuracy in %: the mean over clients of each one's accuracy on its own test "
            f"images; best bold, second underlined.{theirs}",
        )
        order = replace(
            order_table(self.experiment, self.panels),
            title="Order of the methods",
            caption=f"The place of each in ours{place}; 1 is best. The interval is that of 95 %, "
            "over clients where there is one seed.",
        )
        claims, extras = self.claims(), [extra.table for extra in self.extras]
        found = [numbers, *([order] if self.printed else [])]
        found = [*extras, *found] if measured else [*found, *extras]
        return [*found, *([claims] if claims.rows else [])]

    def claims(self, shown: int = 3) -> Table:
        """Every claim of the paper, computed from its numbers and from ours."""
        return replace(
            claim_table(self.experiment, self.panels, shown, self.unfinished),
            title="What the paper claims of this table",
            caption="Computed from the paper's numbers and from ours.",
        )

    def markdown(self) -> str:
        parts = [f"# {self.experiment.title}", _bullets(self.settings_text())]
        for each in self.tables():
            parts += [f"## {each.title}", each.caption, each.markdown()]
        if pictures := list(self.figures()):
            shown = [
                f"![{caption}]({FIGURES}/{path.name})\n\n*{caption}.*" for caption, path in pictures
            ]
            parts += ["## Figures", *shown]
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

    def keeping(self, before: Reproduction) -> Reproduction:
        """Add what an earlier call had measured, and this call has not."""
        both = (*before.extras, *self.extras)
        found = {(extra.panel, extra.table.title): extra for extra in both}
        # Parts may have been run in any order; what is of no single panel comes last.
        names = [*(panel.name for panel in self.experiment.panels), ""]
        extras = sorted(found.values(), key=lambda extra: names.index(extra.panel))
        images = dict.fromkeys((*self.images, *before.images))
        return replace(self, extras=tuple(extras), images=tuple(images))

    @property
    def unfinished(self) -> bool:
        """Whether there is more to run, where there are images."""
        return any(result.unfinished(self.seeds) for result in self.panels)

    @property
    def printed(self) -> bool:
        """Whether the paper has numbers for this experiment."""
        return any(result.panel.printed for result in self.panels)

    @property
    def command(self) -> str:
        """The command that runs it again."""
        command = f"repper reproduce {self.experiment.name} --preset {self.preset.name}"
        return f"{command} --seeds {self.seeds}" if self.seeds > 1 else command

    def settings_text(self) -> list[str]:
        """The command, and how this was run."""
        return [f"Run again with `{self.command}`; {self.chance}.", *self.notes()]

    @property
    def chance(self) -> str:
        """Over how many seeds numbers are means."""
        run = {len(r.comparison.seeds) for r in self.panels if r.comparison} or {self.seeds}
        so_far = " so far" if self.unfinished else ""
        chance = " or ".join("one seed" if n == 1 else f"mean of {n} seeds" for n in sorted(run))
        return chance + so_far

    def notes(self) -> list[str]:
        """Notes on the machine, and on every difference to the paper's settings."""
        notes = [*self._effort(), *self.experiment.notes]
        notes.append(f"Where the paper leaves room: {READINGS}.")
        if self.images:
            notes.append(f"Images: {'; '.join(self.images)}.")
        notes += self._departures()
        for result in self.panels:
            if result.missing:
                notes.append(f"{result.panel.name}: {result.missing}.")
        return notes

    def _departures(self) -> Iterator[str]:
        departures: dict[str, list[Panel]] = {}
        for result in self.panels:
            found = self.preset.departures(self.experiment, result.panel)
            for name, (theirs, ours) in found.items():
                if name in (self.experiment.newcomers or ()):
                    continue  # whose heads are those that count
                text = f"{_said(name, theirs)}, here {_said(name, ours)}"
                where = departures.setdefault(f"{name.replace('_', ' ')} {text}", [])
                where.append(result.panel)
        if departures:
            every = len(self.panels)
            listed = [
                text if len(panels) == every else f"{text} ({_in_short(panels)})"
                for text, panels in departures.items()
            ]
            yield f"Not the paper's setting: {'; '.join(listed)}."

    def _effort(self) -> Iterator[str]:
        """The machine, and the time of the trainings on it; rows may share a training."""
        trained: dict[tuple[str, Any, int], float] = {}
        machines: list[str] = []
        reused = set()
        for result in self.panels:
            for row, seed, run in _runs(result):
                training = result.panel.name, row.training, seed
                trained[training] = run.result["seconds"]["crl"]
                found, elsewhere = run.environment
                if elsewhere:
                    reused.add(training)
                machines.append(
                    f"{found['processor']}, {found['cores']} cores ({found['device']}, "
                    f"{run.config.precision})"
                )
        if trained:
            minutes = round(sum(trained.values()) / 60)
            took = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
            where = "; ".join(dict.fromkeys(machines))
            taken = f"; {len(reused)} of them were made by another command" if reused else ""
            yield f"{len(trained)} trainings, {took} in all on {where}{taken}."


def _runs(result: PanelResult) -> Iterator[tuple[Row, int, Run]]:
    """The finished runs of a panel: an earlier comparison in its folder may have had others."""
    if result.comparison:
        for row in result.panel.rows:
            for seed in result.comparison.seeds:
                run = Run(row.cell(result.comparison.folder, seed))
                if run.finished:
                    yield row, seed, run


def read_identity(folder: Path) -> dict[str, Any]:
    """Which experiment a folder holds, of which preset, with how many seeds."""
    found = read_json(folder / SETTINGS)
    try:
        return {
            "experiment": str(found["experiment"]),
            "preset": str(found["preset"]),
            "seeds": int(found["seeds"]),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise RepperError(f"{folder / SETTINGS} names no experiment of the paper") from error


def _in_short(panels: Sequence[Panel]) -> str:
    """The words that some panels have in common, or else their names."""
    common = set.intersection(*(set(panel.words()) for panel in panels))
    if len(panels) > 1 and common:
        return ", ".join(sorted(common))
    return "; ".join(panel.name for panel in panels)


def _said(name: str, value: object) -> str:
    if value is None:
        return UNSET.get(name, "none")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
