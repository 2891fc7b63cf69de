"""Check run folders, and folders of several runs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from repper.basics.documents import check_covered
from repper.basics.errors import RepperError
from repper.basics.params import Params, digest, load_params, read_params
from repper.basics.tensor_files import check_ties
from repper.checks.check import Checks, NotChecked, checked
from repper.checks.model import seal_of
from repper.data.dataset import Dataset
from repper.data.partition import Partition, hold_out, read_partition, read_rows
from repper.data.shape import shaped
from repper.data.shift import shifted
from repper.encoders.encoder import extract
from repper.engines.engine import one_thread
from repper.heads.scores import Score, score
from repper.methods.stage import rounds_of, stage_at
from repper.runs import run_folder
from repper.runs.build import load_data
from repper.runs.compare import SETTINGS as COMPARISON
from repper.runs.comparison_table import TABLE, Comparison
from repper.runs.environment import SAME_DIGITS, code_digest, environment
from repper.runs.result import digest_of_all, read_common, read_curves, read_result
from repper.runs.round_log import check_private, read_chosen, read_rounds, read_served
from repper.runs.row import Row
from repper.runs.run import Run
from repper.server.round_loop import Served
from repper.settings.config import Config
from repper.settings.config_file import read_config

MOST_OTHER = 0.01
"""Share of predictions that may differ on another machine, whose features differ by rounding."""


def checks_of_runs(folder: Path, data: Dataset | None) -> Checks:
    """Check a run, a comparison, or a folder of comparisons and their tables."""
    found = (*folder.glob(f"*/{COMPARISON}"), *folder.glob(f"*/*/{COMPARISON}"))
    inside = sorted(path.parent for path in found)
    if (folder / COMPARISON).is_file():
        yield from _comparison(folder, data)
    elif (folder / run_folder.CONFIG).is_file():
        yield from _Run(folder, data).checks()
    elif inside:
        for path in sorted(folder.glob("*.json")):
            yield checked(folder, "tables", partial(_covered, path))
        for one in inside:
            if one.parent not in inside:  # within another, it is checked with that
                yield from _comparison(one, data)
    else:
        raise RepperError(f"{folder} holds no run, comparison or model")


def _comparison(folder: Path, data: Dataset | None) -> Checks:
    def settings() -> str:
        read_config(folder / COMPARISON)
        return seal_of(folder / COMPARISON)

    def table() -> str:
        if not (folder / f"{TABLE}.json").is_file():
            raise NotChecked("no row is finished yet")
        said = Comparison.open(folder)
        _covered(folder / f"{TABLE}.json")
        rows = [
            replace(Row.named(line.row), tries=line.tries, asked=line.asked) for line in said.lines
        ]
        config = replace(Config(**read_config(folder / COMPARISON)), seed=min(said.seeds))
        again = Comparison.of(folder, config, rows, len(said.seeds))
        if again is None or again.lines != said.lines:
            raise RepperError(f"{folder / TABLE}.json does not follow from the runs of its cells")
        return f"follows from {len(rows) * len(said.seeds)} runs"

    yield checked(folder, "settings", settings)
    yield checked(folder, "table", table)
    for path in sorted(folder.rglob(run_folder.CONFIG)):
        yield from _Run(path.parent, data).checks()


def _covered(path: Path) -> str:
    return f"{check_covered(path)} files beside {path.name}"


@dataclass(frozen=True)
class _Run:
    """The checks of one run folder."""

    folder: Path
    data: Dataset | None

    def checks(self) -> Checks:
        looks = {
            "settings": self._settings,
            "code": self._code,
            "partition": self._partition,
            "log": self._log,
            "checkpoint": self._checkpoint,
            "private": self._private,
        }
        results = {
            "encoder": self._encoder,
            "heads": self._heads,
            "result": self._result,
            "scores": self._scores,
        }
        alone = self.folder.parent.name != run_folder.TRAININGS
        if alone or (self.folder / run_folder.RESULT).is_file():
            looks |= results
        for kind, look in looks.items():
            yield checked(self.folder, kind, look)

    @cached_property
    def run(self) -> Run:
        return Run(self.folder)

    @cached_property
    def config(self) -> Config:
        return self.run.config

    @cached_property
    def result(self) -> dict[str, Any]:
        found = read_result(self.folder)
        if found is None:
            raise NotChecked("the run is not finished")
        return found

    @cached_property
    def environment(self) -> dict[str, Any]:
        return run_folder.read_environment(self.folder)

    @property
    def same_code(self) -> bool:
        parts = (self.environment, *self.environment.get("earlier", ()))
        return all(part.get("code") == code_digest() for part in parts)

    def _settings(self) -> str:
        known = self.environment.get("digests", {}).get("settings")
        found = run_folder.training_digest(self.config)
        if known is not None and known != found and self.same_code:
            raise RepperError(
                f"{self.folder / run_folder.CONFIG} is undamaged, but of another run: this run was "
                f"begun with other settings; restore it"
            )
        if self.config.sources and self.config.resolved().sources != self.config.sources:
            raise RepperError("the user's own code has changed since the run")
        return seal_of(self.folder / run_folder.CONFIG) or found[:12]

    def _code(self) -> str:
        if not self.environment:
            raise NotChecked(f"there is no {run_folder.ENVIRONMENT}")
        if (code := self.environment.get("code")) is None:
            raise NotChecked("made by an older version of repper, which kept no digest of its code")
        made = self.environment.get("packages", {}).get("repper")
        if not self.same_code and code == code_digest():
            raise NotChecked("made in part by another version of the code, before it was resumed")
        if not self.same_code:
            raise NotChecked(
                f"made by another version of the code (repper {made}, commit "
                f"{self.environment.get('commit')}, {code[:12]})"
            )
        return f"made by this version of the code, repper {made}, {code[:12]}"

    def _partition(self) -> str:
        path = self.folder / run_folder.PARTITION
        if not path.is_file() and (not self.environment or "sites" in (self.result or {})):
            raise NotChecked("clients are sites, and only they know their images")
        run_folder.read_manifest(self.folder)
        partition, _ = read_rows(path)
        return f"{partition.clients} clients, {partition.hash[:12]}"

    def _log(self) -> str:
        return f"{len(read_rounds(self.folder))} rounds"

    def _checkpoint(self) -> str:
        path = run_folder.training_of(self.folder) / run_folder.CHECKPOINT
        files = sorted(path.parent.glob("*.safetensors"))
        for file in files:
            _, notes = read_params(file)
            check_ties(file, notes, run=run_folder.name_of(self.folder))
        if not files:
            raise NotChecked("there is none")
        number, _ = read_served(self.folder)
        if number > len(read_rounds(self.folder)):
            raise RepperError(f"{path} is of round {number}, but the log has fewer rounds")
        return f"round {number}"

    def _private(self) -> str:
        store = self.run.private
        if not store.begun:
            raise NotChecked("clients keep no private parameters")
        store.check_initial()
        files = 0
        for client, number in store.files():
            store.check(client, number)
            files += 1
        if self.run.finished:
            stages, holds = self.run.stages_and_holds
            check_private(self.folder, stages, holds, self.result["chosen_round"])
        return f"{files} files"

    def _encoder(self) -> str:
        if "sites" in self.result and not (self.folder / run_folder.ENCODER).is_file():
            raise NotChecked("every site has its own encoder")
        _, params = self.run.encoder
        if (self.folder / run_folder.COMMON).is_file():
            read_common(self.folder)
        return digest(params)[:12]

    def _heads(self) -> str:
        if "sites" in self.result:
            raise NotChecked("they are at the sites")
        digests = {client: self.run.head(client).digest() for client in self._clients()}
        whole = hashlib.sha256("".join(digests.values()).encode()).hexdigest()
        known = self.result.get("heads_digest")
        if known not in (None, whole):
            raise RepperError(f"some heads are not those that {run_folder.RESULT} was written with")
        return f"{len(digests)} heads, {whole[:12]}"

    def _clients(self) -> list[int]:
        """The clients that have fitted heads, in order."""
        known = self.result.get("digests", {})
        names = [name for name in known if name.startswith(f"{run_folder.HEADS}/")]
        names = names or [path.name for path in (self.folder / run_folder.HEADS).iterdir()]
        return sorted(int(Path(name).stem) for name in names if Path(name).stem.isdecimal())

    def _result(self) -> str:
        read_curves(self.folder, self.result)
        said = seal_of(self.folder / run_folder.RESULT)
        known = self.result.get("encoder_digest")
        if known is None or (found := self._trained()) is None:
            return said or "the digest of the trained parameters cannot be recomputed"
        if found != known:
            raise RepperError(
                f"{self.folder / run_folder.RESULT} belongs to another training: the checkpoint "
                f"beside it has another encoder_digest; restore both"
            )
        return said or f"trained parameters {known[:12]}"

    def _trained(self) -> str | None:
        """The digest of all trained parameters, as a run computes it; None if they are not kept."""
        stages, holds = self.run.stages_and_holds
        number = self.result["chosen_round"]
        if not number or "sites" in self.result:
            return None
        shared: Params
        if self.config.validation:
            shared = read_chosen(self.folder, number)
        else:
            last, served = read_served(self.folder)
            if last != rounds_of(stages):
                return None
            shared = Served.used(served, self.config.build_rule())
        private: list[str] = []
        whole = self.result.get("digest_covers") == "all that was trained"
        if whole and any(one.keeps_private for one in holds):
            found = {c: self.run.private.digest(c, number) for c in range(self.config.clients)}
            private = [f"{client} {digest}" for client, digest in found.items() if digest]
        return digest_of_all(shared, private)

    def _scores(self) -> str:
        if "sites" in self.result:
            raise NotChecked("they are at the sites")
        known = {one.client: one for one in self.run.scores()}
        data, partition = self._images()
        again = self._scored(data, partition)
        images = sum(int(one.tested.sum()) for one in known.values())
        other = 0
        for client, one in again.items():
            said = known.get(client)
            if said is None or not np.array_equal(said.tested, one.tested):
                raise RepperError(
                    f"{self.folder / run_folder.SCORES} has other test images of client {client} "
                    f"than the partition"
                )
            other += int(np.abs(said.correct - one.correct).sum())
        now = environment(self.config.device)
        same = all(self.environment.get(key) == now[key] for key in SAME_DIGITS)
        if other > (0 if same else MOST_OTHER * images):
            raise RepperError(
                f"{self.folder / run_folder.SCORES} does not follow from the heads: at least "
                f"{other} of {images} predictions differ"
            )
        said_other = f", {other} predictions differ on this machine" if other else ""
        return f"{len(again)} heads reproduce them on {images} test images{said_other}"

    def _images(self) -> tuple[Dataset, Partition]:
        """The images as the clients saw them, and their partition."""
        path = self.folder / run_folder.PARTITION
        if not path.is_file():
            raise NotChecked("the partition is not known here")
        spec, _ = self.run.encoder
        try:
            data = self.data or load_data(replace(self.config, download=False))
            data = shaped(data, spec.channels, spec.size)
        except RepperError as error:
            raise NotChecked(f"the images are not here ({error})") from error
        if data.digest != read_rows(path)[1]:
            raise NotChecked(f"these images of {data.name} are not those of the run")
        partition = read_partition(path, data)
        seed = run_folder.shift_seed(self.config, partition.settings)
        return shifted(data, partition, self.config.shift, seed), partition

    def _scored(self, data: Dataset, partition: Partition) -> dict[int, Score]:
        """The scores of the clients' heads, computed again."""
        stages, holds = self.run.stages_and_holds
        number = self.result["chosen_round"]
        index = stage_at(stages, number)[0] if number else len(stages) - 1
        precision = stages[index].training.precision
        learning = hold_out(partition, self.config.validation, self.config.seed)
        spec, params = self.run.encoder
        encoder = spec.build().eval()
        network = nn.ModuleDict({"encoder": encoder})
        own_encoders = any(one.own_encoders for one in holds)
        common, found = digest(params), dict[int, Score]()
        with one_thread():
            for client in self._clients():
                own = self.run.private.encoder_of(client, number) if own_encoders else {}
                load_params(network, params | own)
                head = self.run.head(client).for_encoder(digest(params | own) if own else common)
                rows = partition.test[client]
                labels = data.test.labels[rows]
                counts = np.bincount(
                    data.train.labels[learning.train[client]], minlength=len(data.classes)
                )
                images = torch.from_numpy(np.array(data.test.images[rows]))
                r = extract(encoder, images, precision).cpu().numpy()
                found[client] = score(client, head.kind, counts, labels, head.predict(r))
        return found
