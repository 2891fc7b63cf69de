"""Events while an experiment of the paper runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repper.paper.experiment import Panel
from repper.runs.compare import Compared
from repper.runs.execute import Event
from repper.runs.time_left import CellStarted, WorkLeft

if TYPE_CHECKING:
    from repper.paper.findings import Reproduction


@dataclass(frozen=True)
class Estimate:
    """The estimated time of a panel on this machine, from timed steps of its methods."""

    panel: Panel
    seconds: float | None
    missing: str = ""


@dataclass(frozen=True)
class PanelStarted:
    """Panel `number` of `panels` is next."""

    panel: Panel
    number: int
    panels: int


@dataclass(frozen=True)
class PanelMissing:
    """A panel cannot be run, and why: most often its data set is not here."""

    panel: Panel
    reason: str


@dataclass(frozen=True)
class Reproduced:
    reproduction: Reproduction


ReproduceEvent = (
    PanelStarted | PanelMissing | WorkLeft | CellStarted | Event | Compared | Reproduced
)
