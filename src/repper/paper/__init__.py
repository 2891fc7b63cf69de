"""The paper's experiments by name. To add an experiment, write it as data, and name it here."""

from __future__ import annotations

from collections.abc import Callable

from repper.paper import printed
from repper.paper.experiment import Experiment

EXPERIMENTS: dict[str, Callable[[], Experiment]] = {
    "table1": printed.table1,
    "table2": printed.table2,
    "table3": printed.table3,
    "table4": printed.table4,
    "new-clients": printed.new_clients,
    "gradients": printed.gradients,
    "figures": printed.figures,
}
