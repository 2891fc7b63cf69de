"""Fair tuning: every row of a comparison chooses its settings from as many tries as the others.

The choice is made on training images that are set apart, with seeds of its own, so that the test
images of the comparison are looked at once, with the settings that were chosen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repper.basics.documents import read_toml
from repper.basics.errors import RepperError, unknown
from repper.basics.options import Settled, setting
from repper.basics.seeds import Purpose, stream
from repper.data.dataset import Dataset, set_apart
from repper.methods import METHODS
from repper.runs.row import Row, check_setting
from repper.settings.config import Config

if TYPE_CHECKING:
    from repper.runs.comparison_table import Comparison

TUNING = "tuning"
EVERY = "every"
TRIES = "tries"
MOST_SEEDS = 1000
"""Maximum number of seeds of a comparison; tuning uses the seeds after them."""
Try = dict[str, Any]


@dataclass(frozen=True)
class Tuning(Settled):
    """What the rows of a comparison may try, by row, by method, or for `every` row.

    `grids` have lists of values by setting, of which all combinations are tried, or a list of
    `tries`. The fields below are those of the file's table `[tuning]`.
    """

    seeds: int = setting(1, "number of seeds per try", least=1, most=MOST_SEEDS)
    share: float = setting(0.2, "share of the training images held out", above=0, most=0.5)
    tries: int | None = setting(
        None, "number of tries per row, drawn from its combinations", least=1
    )
    rounds: int | None = setting(None, "rounds per try (default: those of the comparison)", least=1)
    grids: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def tries_of(self, rows: Sequence[Row], config: Config) -> dict[Row, list[Row]]:
        """Every row with its settings at each try; all rows have the same number of tries."""
        self._check_names(rows)
        found = {}
        for row in rows:
            tries = list(self._tries(row))
            if self.tries is not None:
                tries = self._drawn(row, tries, config.seed)
            for name, _ in row.settings:
                if any(name in one for one in tries):
                    raise RepperError(
                        f"{row.name} has {name.replace('_', '-')} in its brackets, and the tuning "
                        f"file tries values of it: leave out one of them"
                    )
            if self.rounds is not None and any(
                "rounds" in dict(row.having(t).settings) for t in tries
            ):
                raise RepperError(
                    f"{row.name} has rounds of its own, and [tuning] gives all tries "
                    f"{self.rounds}: leave out one of them"
                )
            found[row] = list(dict.fromkeys(row.having(one) for one in tries))
            if len(found[row]) < len(tries):
                raise RepperError(f"the tuning file has a try of {row.name} twice")
        owners: dict[Row, Row] = {}
        for row, tries_of_row in found.items():
            for one in tries_of_row:
                if (other := owners.setdefault(one, row)) != row:
                    raise RepperError(f"{other.name} and {row.name} both try {one.name}")
        counts = {row.name: len(tries) for row, tries in found.items()}
        least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        if counts[least] < counts[most]:
            raise RepperError(
                f"{least} has {counts[least]} tries and {most} has {counts[most]}: every row gets "
                f"the same number; give them equal grids, or draw as many with tries = "
                f"{counts[least]} in [tuning]"
            )
        return found

    def setting_apart(self, config: Config, folder: Path, data: Dataset) -> tuple[Config, Dataset]:
        """The settings and images of the tries, without test images."""
        if config.partition.endswith(".json"):
            raise RepperError(
                "--tune needs a new partition of a part of the training images, and a manifest "
                "fixes the old one: give --partition a kind instead of a manifest"
            )
        settings = self.config_of_tries(config, folder)
        return settings, set_apart(data, self.share, stream(config.seed, Purpose.TUNING))

    def config_of_tries(self, config: Config, folder: Path) -> Config:
        """What all tries of the rows of a comparison have in common."""
        return replace(
            config,
            seed=config.seed + MOST_SEEDS,
            rounds=config.rounds if self.rounds is None else self.rounds,
            evaluate_every=config.evaluate_every if config.validation else 0,
            out=str(folder / TUNING),
        )

    def settings(self) -> dict[str, Any]:
        """What a comparison remembers of its tuning: a resumed one must have the same."""
        return {"seeds": self.seeds, "share": self.share, "rounds": self.rounds}

    def _check_names(self, rows: Sequence[Row]) -> None:
        known = [EVERY, *dict.fromkeys([name for row in rows for name in tables_of(row)[1:]])]
        for name in self.grids:
            if name not in known:
                raise unknown("table in the tuning file", name, known)

    def _tries(self, row: Row) -> Iterator[Try]:
        """The tries of a row: its own table adds to more general ones, and overrides them."""
        merged: dict[str, Any] = {}
        for name in tables_of(row):
            merged |= _named(self.grids.get(name, {}), name)
        listed = merged.pop(TRIES, [{}])
        if not listed or not isinstance(listed, list):
            raise RepperError(f"{row.name}: tries must be a list of tables of settings")
        grid = {}
        for name, values in merged.items():
            if not isinstance(values, list) or not values:
                key = name.replace("_", "-")
                raise RepperError(f"{row.name}: {key} must be a list of values to try")
            grid[name] = [check_setting(row.name, name, value) for value in values]
        for one in listed:
            own = _named(one, TRIES)
            own = {name: check_setting(row.name, name, value) for name, value in own.items()}
            for values in itertools.product(*grid.values()):
                yield dict(zip(grid, values, strict=True)) | own

    def _drawn(self, row: Row, tries: list[Try], seed: int) -> list[Try]:
        """Draw the requested number of tries at random, in their order."""
        if self.tries is None or self.tries > len(tries):
            raise RepperError(f"{row.name} has {len(tries)} combinations, not {self.tries} to try")
        # The draw depends on the row's name, not on its position.
        key = [*row.name.encode()]
        random = stream(seed, Purpose.TUNING, *key)
        return [tries[i] for i in sorted(random.choice(len(tries), self.tries, replace=False))]


def tables_of(row: Row) -> tuple[str, ...]:
    """The tables of a tuning file that apply to a row, the most general first."""
    return EVERY, row.method.rpartition(":")[2], row.name


def _named(table: Any, where: str) -> dict[str, Any]:
    """A table of settings by their names."""
    if not isinstance(table, Mapping) or not all(isinstance(key, str) for key in table):
        raise RepperError(f"{where} must be a table of settings, or a list of such, got {table!r}")
    found = {key.replace("-", "_"): value for key, value in table.items()}
    if len(found) < len(table):
        raise RepperError(f"{where} has a setting twice, once with - and once with _")
    return found


def read_tuning(given: Path | Mapping[str, Any]) -> Tuning:
    """The tries of a TOML file, or of the same tables in Python."""
    where = "tune"
    if isinstance(given, Path):
        where, given = str(given), read_toml(given)
    if not isinstance(given, Mapping):
        raise RepperError(f"{where} takes a file or tables of settings to try, got {given!r}")
    tables = dict(given)
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            one = next(iter(METHODS))
            raise RepperError(
                f"{where} takes tables of settings to try, such as [{EVERY}] or [{one}], but "
                f"{name} is not a table"
            )
    own = dict(tables.pop(TUNING, {}))
    known = ("seeds", "share", TRIES, "rounds")
    for name in own:
        if name not in known:
            raise unknown(f"key in [{TUNING}] of {where}", name, known)
    if not tables:
        raise RepperError(f"{where} has nothing to try: add a table such as [{EVERY}]")
    return Tuning(**own, grids=tables)


def choose(tries: Mapping[Row, Sequence[Row]], found: Comparison) -> list[Row]:
    """Each row with the settings of its best try; of equally good tries the first."""
    accuracy = {line.row: line.accuracy for line in found.lines}
    return [
        replace(
            max(some, key=lambda one: accuracy[one.name] or 0.0), tries=len(some), asked=row.name
        )
        for row, some in tries.items()
    ]
