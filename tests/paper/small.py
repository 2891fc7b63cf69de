"""A table and a preset that are run in seconds, and images of one's own."""

import numpy as np
from PIL import Image

from repper.paper.experiment import Experiment, Panel, Preset
from repper.runs.row import Row

TINY = Preset(
    "tiny",
    {"clients": 4, "rounds": 1, "epochs": 1, "participation": 0.5, "width": 0.25, "knn": 0},
    scaled=False,
)


def panel(name, settings, rows, printed=()):
    """A panel of this name; rows are as `--methods` takes them."""
    numbers = {Row.named(row): value for row, value in dict(printed).items()}
    return Panel(tuple(name.split(", ")), settings, tuple(map(Row.named, rows)), numbers)


TWO = Experiment(
    "table2",
    "Two panels",
    (
        panel(
            "digits, alpha 1",
            {"data": "digits", "alpha": 1.0},
            ("repper+linear", "fedavg+keep", "fedavg+finetune"),
            {"repper+linear": 90.0, "fedavg+keep": 80.0},
        ),
        panel("cinic10, alpha 1", {"data": "cinic10"}, ("repper+linear",), {"repper+linear": 5.0}),
    ),
    {},
    ("A note.",),
)


def make_folder(path):
    """Two classes of small pictures, of which one is brighter."""
    random = np.random.default_rng(0)
    for label, low in (("dark", 0), ("light", 128)):
        (path / label).mkdir(parents=True)
        for number in range(40 if low else 20):
            pixels = random.integers(low, low + 128, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / label / f"{number}.png")
