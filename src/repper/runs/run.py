"""Read a run folder: the results of a run, and its classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repper.basics.errors import RepperError, unknown
from repper.basics.options import check_kind, checked, checked_path
from repper.basics.params import Params, digest
from repper.basics.tensor_files import read_notes
from repper.data.images import read_image
from repper.data.partition import read_partition
from repper.data.shape import shaped
from repper.edge.saved_head import SavedHead, read_head
from repper.edge.unknown import Unknown
from repper.encoders.encoder import EncoderSpec, features_of, read_encoder
from repper.engines.private import PrivateStore
from repper.heads.scores import Score, mean_of
from repper.methods.network import Holds, build_network, holdings
from repper.methods.stage import Stage
from repper.personal.fit import fit_unknown
from repper.runs.build import build_stages, load_data
from repper.runs.result import read_curves, read_result, read_scores, refuse_sites
from repper.runs.round_log import check_private, read_rounds
from repper.runs.run_folder import (
    ENCODER,
    HEADS,
    PARTITION,
    PRIVATE,
    RESULT,
    name_of,
    read_environment,
    read_manifest,
    read_run_config,
    training_of,
)
from repper.settings.config import Config


def encoder_at(path: Path) -> tuple[EncoderSpec, Params]:
    """The encoder in a file, or the one of a run folder."""
    return Run(path).encoder if (path / RESULT).is_file() else read_encoder(path)


@dataclass(frozen=True)
class Run:
    """A run folder: the results of a finished run, and its classifiers."""

    folder: Path

    @property
    def config(self) -> Config:
        return read_run_config(self.folder)

    @property
    def finished(self) -> bool:
        return (self.folder / RESULT).is_file()

    @property
    def result(self) -> dict[str, Any]:
        """Everything that `repper run --json` prints, and more."""
        read_run_config(self.folder)
        result = read_result(self.folder)
        if result is None:
            raise RepperError(
                f"the run in {self.folder} is not finished: run its command again with --resume"
            )
        refuse_sites(self.folder, result)
        # A folder may have been moved since.
        return result | {"run": str(self.folder)}

    @property
    def accuracy(self) -> dict[str, float | None]:
        """The summary over all clients, in percent."""
        accuracy: dict[str, float | None] = self.result["accuracy"]
        return accuracy

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.result["classes"])

    def scores(self) -> list[Score]:
        """Every client's test result, class by class."""
        columns = read_scores(self.folder, self.result)
        classes = len(self.classes)
        heads = {}
        counts: dict[str, NDArray[np.int64]] = {
            name: np.zeros((max(columns["client"]) + 1, classes), np.int64)
            for name in ("n_train", "n", "correct")
        }
        if max(columns["class"]) >= classes:
            raise RepperError(f"{self.folder} is damaged: its scores name more classes than it has")
        for row, client in enumerate(columns["client"]):
            heads[client] = columns["head"][row]
            for name, table in counts.items():
                table[client, columns["class"][row]] = columns[name][row]
        return [
            Score(c, heads[c], *(counts[name][c] for name in ("n_train", "n", "correct")))
            for c in sorted(heads)
        ]

    def curves(self) -> dict[int, list[tuple[int, float | None]]]:
        """Accuracy of each client after epochs of its head, where `head_curve` asked for it."""
        columns = read_curves(self.folder, self.result)
        found: dict[int, list[tuple[int, float | None]]] = {}
        for client, *point in zip(*columns.values(), strict=True):
            found.setdefault(client, []).append((point[0], point[1]))
        return found

    def mean_curve(self) -> dict[int, float | None]:
        """The mean over clients after every epoch in `curves`.

        A head that is finished earlier, as with a single class, stays as it is.
        """
        curves = list(self.curves().values())
        means: dict[int, float | None] = {}
        for epoch in sorted({epoch for curve in curves for epoch, _ in curve}):
            means[epoch] = mean_of([a for e, a in curve if e <= epoch][-1] for curve in curves)
        return means

    @property
    def environment(self) -> tuple[dict[str, Any], bool]:
        """Where its encoder was trained, and whether another command did that."""
        found = read_environment(self.folder)
        return found.get("training", found), bool(found.get("reused"))

    def client_names(self) -> list[str]:
        """The names of the clients, if they have names: those of their folders."""
        names: list[str] = read_manifest(self.folder)["settings"].get("names", [])
        return names

    @property
    def encoder(self) -> tuple[EncoderSpec, Params]:
        """The common encoder, or the one for newcomers; that of another run is refused."""
        path = self.folder / ENCODER
        if path.is_file():
            self.check_written(ENCODER, read_notes(path).get("digest"))
        return read_encoder(self.folder)

    @property
    def private(self) -> PrivateStore:
        """The private parameters of clients, if they have any."""
        return PrivateStore(training_of(self.folder) / PRIVATE, name_of(self.folder))

    def check_written(self, name: str, digest: str | None) -> None:
        """Refuse a file whose digest is not the one in the result."""
        known = self.result.get("digests", {}).get(name)
        if known not in (None, digest):
            raise RepperError(
                f"{self.folder / name} is undamaged, but not the file that this run has written: "
                f"its digest differs from that in {RESULT}; restore it, or delete {RESULT} and "
                f"resume the run"
            )

    def head(self, client: int) -> SavedHead:
        """The head of a client; that of another client or run is refused."""
        name = f"{HEADS}/{client}.safetensors"
        head = read_head(self.folder / name)
        self.check_written(name, head.digest())
        return head

    @property
    def stages_and_holds(self) -> tuple[tuple[Stage, ...], tuple[Holds, ...]]:
        """The stages of the run, and which parameters were shared and private in each."""
        config, (spec, _) = self.config, self.encoder
        stages = build_stages(config)
        networks = [
            build_network(s.method, spec, len(self.classes), 0, s.training.freeze_until)
            for s in stages
        ]
        return stages, holdings(stages, networks, config.bn == "local")

    def rounds(self) -> list[dict[str, Any]]:
        """The log of every finished round."""
        return read_rounds(self.folder)

    def after_rounds(self, key: str) -> dict[int, float]:
        """Measurements after rounds, by round: `accuracy` (of clients), `knn` or `loss`.

        A round in which all take part, as of `local`, counts as the rounds it stands for.
        """
        if key not in (known := ("accuracy", "knn", "loss")):
            raise unknown("measure", key, known)
        stages = build_stages(self.config)
        one = stages[0].stands_for
        found = {round(record["round"] * one): record.get(key) for record in self.rounds()}
        if key == "accuracy":
            found = {number: summary and summary["mean"] for number, summary in found.items()}
        return {number: value for number, value in found.items() if value is not None}

    def _own_encoder(self, client: int) -> Params:
        """The client's own encoder; empty where all clients use the common encoder."""
        number = self.result["chosen_round"]
        stages, holds = self.stages_and_holds
        if not any(one.own_encoders for one in holds):
            return {}
        check_private(self.folder, stages, holds, number)
        return self.private.encoder_of(client, number)

    def classifier(self, client: int) -> tuple[EncoderSpec, Params, SavedHead]:
        """A client's own classifier: its encoder, or the common one, and its head."""
        clients = self.result["clients"]
        client = checked("client", client, int)
        if not 0 <= client < clients:
            raise RepperError(f"there is no client {client}: this run has 0 to {clients - 1}")
        if not (self.folder / HEADS / f"{client}.safetensors").is_file():
            if client in self.result.get("attack", {}).get("clients", ()):
                raise RepperError(f"client {client} has no head: it attacks in this run")
            fitted = self.config.personalize_clients
            if fitted is not None and fitted < clients:
                raise RepperError(
                    f"client {client} has no head: --personalize-clients {fitted} fitted heads of "
                    f"{fitted} of {clients} clients, which are in {self.folder / HEADS}"
                )
        spec, params = self.encoder
        params = params | self._own_encoder(client)
        return spec, params, self.head(client).for_encoder(digest(params))

    def predict(
        self, client: int, images: NDArray[np.uint8] | Sequence[Path | str] | Path | str
    ) -> list[str]:
        """The class of each image by a client's own classifier.

        `images` are uint8 of shape (n, channels, size, size), or paths of image files.
        """
        return [name for name, _ in self.predict_with_scores(client, images)]

    def rule_for_unknown(self, client: int) -> Unknown | None:
        """What tells images unlike all that a client trained on, from its images' features.

        None where it cannot be made: the images are not here, too few, or moved for each client.
        """
        config = self.config
        if config.shift != "none":
            return None
        spec, params, head = self.classifier(client)
        if not read_environment(self.folder).get("digests", {}).get("partition"):
            return None  # a site's folder, or one of an older version
        read_manifest(self.folder)  # a damaged manifest is no lack of images
        try:
            data = load_data(replace(config, download=False))
            data = shaped(data, spec.channels, spec.size)
            rows = read_partition(self.folder / PARTITION, data).train[client]
        except RepperError:
            return None
        own = data.train.labels[rows]
        return fit_unknown(features_of(spec, params, data.train.images[rows]), own, head.encoder)

    def is_unknown(
        self, rule: Unknown, client: int, images: Sequence[Path | str]
    ) -> NDArray[np.bool_]:
        """Which of some image files are unlike all that a client trained on."""
        spec, params, _ = self.classifier(client)
        read = np.stack([read_image(Path(p), spec.channels, spec.size) for p in images])
        return rule.is_unknown(features_of(spec, params, read))

    def predict_with_scores(
        self, client: int, images: NDArray[np.uint8] | Sequence[Path | str] | Path | str
    ) -> list[tuple[str, dict[str, float]]]:
        """The class of each image, and the score of every class the client's head knows."""
        if isinstance(images, str | Path):
            images = [images]
        check_kind("images", images, np.ndarray | Sequence, "an array or paths of image files")
        if not isinstance(images, np.ndarray):
            images = [checked_path("an image", image) for image in images]
        if len(images) == 0:
            return []
        spec, params, head = self.classifier(client)
        if not isinstance(images, np.ndarray):
            images = np.stack([read_image(Path(p), spec.channels, spec.size) for p in images])
        expected = (spec.channels, spec.size, spec.size)
        if images.dtype != np.uint8 or images.shape[1:] != expected:
            raise RepperError(
                f"images must be uint8 of shape (n, {', '.join(map(str, expected))}), "
                f"got {images.dtype} {images.shape}"
            )
        scores = head.scores(features_of(spec, params, images))
        return [
            (head.names[row.argmax()], dict(zip(head.names, map(float, row), strict=True)))
            for row in scores
        ]
