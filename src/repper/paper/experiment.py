"""Experiments of the paper: their cells, settings and printed numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from repper.runs.row import Row
from repper.runs.row import Settings as OfRow

Settings = Mapping[str, Any]

SETTINGS = "reproduction.json"
"""The file of a reproduction's folder that says what it is."""
AS_PRINTED: OfRow = (("augment", "strong"), ("loss", "paper"))
"""Settings of RepPer with its loss as the paper prints it, and the views that suit that form.

The paper's row of RepPer has two of ours: this, and `repper` with the loss as its source has it.
"""
WORDS = {"participation": "C {}", "epochs": "E {}", "alpha": "alpha {}"}
"""Names of settings in a panel's name; other settings show their values alone."""


def paper_row(row: Row) -> Row:
    """The row of the paper that one of ours stands for."""
    return replace(row, settings=()) if row.settings == AS_PRINTED else row


def added(row: Row) -> bool:
    """Whether a row is one that the paper does not have: its heads are each client's own."""
    return row.personalize == "common"


@dataclass(frozen=True, eq=False)
class Panel:
    """A comparison within an experiment: its settings, its rows and the paper's numbers.

    It is called by the settings that are `shown`, or by words of its own there. `printed` has what
    the paper printed, in percent, by its rows; a row may have no number there.
    """

    shown: tuple[str, ...]
    settings: Settings
    rows: tuple[Row, ...]
    printed: Mapping[Row, float] = field(default_factory=dict)

    def words(self, **instead: str) -> tuple[str, ...]:
        """The words of the panel's name, setting by setting; `instead` replaces values."""
        values = {
            name: value if isinstance(value, str) else f"{value:g}"
            for name, value in self.settings.items()
        }
        found = values | instead
        return tuple(WORDS.get(one, "{}").format(found.get(one, one)) for one in self.shown)

    @property
    def name(self) -> str:
        return ", ".join(self.words())

    @property
    def folder(self) -> str:
        return self.name.replace(" ", "-").replace(",", "")

    def paper(self, row: Row) -> float | None:
        """The paper's number beside one of our rows."""
        return self.printed.get(paper_row(row))


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    `small` are the settings that the small preset puts in place of the paper's; each panel keeps
    its own data, alpha and participation. `newcomers` are those of clients that join every run when
    it is finished. `heads_apart` compares rows head by head. `measure` names what is measured, or
    drawn, on the finished runs; "averaged" are heads on the mean of encoders that clients have of
    their own.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    small: Settings
    notes: tuple[str, ...] = ()
    newcomers: Settings | None = None
    heads_apart: bool = False
    measure: Literal["gradients", "figures", "averaged"] | None = None


@dataclass(frozen=True)
class Preset:
    """A size at which to run the experiments."""

    name: str
    common: Settings
    scaled: bool

    def settings(self, experiment: Experiment, panel: Panel) -> dict[str, Any]:
        """The settings of a panel's runs at this size."""
        chosen = {**self.common, **panel.settings}
        if self.scaled:
            chosen |= experiment.small
            chosen |= {n: v for n, v in panel.settings.items() if n == "rounds"}
            chosen["epochs"] = SMALL_EPOCHS[panel.settings.get("epochs", 10)]
            chosen["batch"] = round(chosen["batch"] * chosen["train_images"] / IMAGES)
            if encoder := panel.settings.get("encoder"):
                chosen |= SMALL_ENCODERS[encoder]
        return chosen

    def departures(self, experiment: Experiment, panel: Panel) -> dict[str, tuple[Any, Any]]:
        """Where a panel's settings are not the paper's: the paper's value and ours."""
        theirs = PAPER.settings(experiment, panel)
        ours = self.settings(experiment, panel)
        return {
            name: (theirs.get(name), value)
            for name, value in ours.items()
            if theirs.get(name) != value
        }


IMAGES = 50_000
"""Of the paper's CIFAR. Fewer take smaller batches, so that an epoch has as many steps."""
SMALL_EPOCHS = {10: 2, 20: 4}
"""The small preset's E for the paper's."""
SMALL_ENCODERS = {
    "resnet34": {"encoder": "resnet34", "width": 0.125},
    "mobilenet": {"encoder": "mobilenet", "width": 0.25},
}
"""Where a table is about the encoder, its width in the small preset."""

PAPER = Preset(
    "paper",
    {
        "encoder": "resnet34", "width": 1.0, "clients": 20, "rounds": 100, "epochs": 10,
        "participation": 0.2, "batch": 256, "lr": 1e-3, "weight_decay": 1e-4, "temperature": 0.1,
        "loss": "usual", "views": 2, "augment": "weak",
        "head_epochs": 10, "head_lr": 1e-3, "head_scale": False, "train_images": None,
        "precision": "float32",
    },
    scaled=False,
)  # fmt: skip
SMALL = Preset(
    "small",
    {
        **PAPER.common, "encoder": "small", "head_epochs": None, "head_lr": 0.01,
        "precision": "auto",
    },
    scaled=True,
)  # fmt: skip
READINGS = (
    "RepPer's loss in its usual form, with the log inside the mean, and as printed, in rows of "
    "their own; weak augmentation for all, and strong for the loss as printed, as images set apart "
    "chose; no decay of the learning rate (the paper says 0.1, but not when); FedProx's mu 0.01; "
    "FedRep gives half of E to its head; at least 10 training images a client; heads take features "
    "as they are, and are trained by Adam (the paper says both Adam and SGD)"
)
"""Our choices in every experiment where the paper is not specific."""
PRESETS = {preset.name: preset for preset in (PAPER, SMALL)}
