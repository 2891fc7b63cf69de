"""The paper's experiments by name. To add an experiment, write it as data, and name it here."""

from __future__ import annotations

from collections.abc import Callable

from repper.paper import tables
from repper.paper.experiment import Experiment

EXPERIMENTS: dict[str, Callable[[], Experiment]] = {
    "table1": tables.table1,
    "table2": tables.table2,
    "table3": tables.table3,
    "table4": tables.table4,
    "new-clients": tables.new_clients,
    "gradients": tables.gradients,
    "figures": tables.figures,
}
