"""One client's work: training in stage 1, its head in stage 2. Runs wherever an engine puts it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from repper.augment import Level, augment, normalize
from repper.batches import batches
from repper.config import Config
from repper.encoders.encoder import Encoder, EncoderSpec
from repper.engines.engine import Personal, Update
from repper.errors import RepperError
from repper.evaluate import Score, knn_accuracy, score
from repper.methods.method import Phase, build_network
from repper.params import Params, clone, digest, is_encoder, load_params, params_of, select
from repper.partition import Partition, Rows
from repper.personalize import Features, LinearLayer
from repper.seeds import Purpose, stream, torch_seed

EXTRACT_BATCH = 512


@dataclass(frozen=True)
class Task:
    """Everything but the images that a client's work depends on: plain values, easy to send."""

    config: Config
    spec: EncoderSpec
    partition: Partition
    classes: tuple[str, ...]
    flip: bool
    device: str


Labelled = tuple[Tensor, Tensor]
"""Images (n, c, s, s) and labels (n,). In a pool they lie in memory that all workers share."""


class Clients:
    """Does the work of any client, one at a time, with one network for all of them."""

    def __init__(self, task: Task, train: Labelled, test: Labelled) -> None:
        self._task = task
        self._train_split, self._test_split = train, test
        self._device = torch.device(task.device)
        self._method = task.config.build_method()
        network = build_network(self._method, task.spec, len(task.classes), seed=0)
        self._network = network.to(self._device)
        self._shared: Params = {}
        self._encoder_digest = ""

    def receive(self, shared: Params) -> None:
        """Take the round's shared parameters, from which every client starts."""
        self._shared = shared
        self._encoder_digest = ""

    def fit(self, client: int, number: int) -> Update:
        """Train as client `client` in round `number` (Algorithm 1, Client Update)."""
        config = self._task.config
        load_params(self._network, self._shared)
        random = torch.Generator().manual_seed(
            torch_seed(config.seed, Purpose.TRAIN, number, client)
        )
        rows, _ = self._train_rows(client)
        images, labels = self._pick(self._train_split, rows)
        lr = config.lr * config.lr_decay ** ((number - 1) // config.lr_decay_every)
        loss = 0.0
        for phase in self._method.phases():
            loss = self._train(phase, images, labels, lr, random)
        shared = clone(select(params_of(self._network), self._method.shared))
        return Update(client, shared, len(rows), loss)

    def _train(
        self, phase: Phase, images: Tensor, labels: Tensor, lr: float, random: torch.Generator
    ) -> float:
        """Run one phase and return the mean loss over its images and epochs."""
        config, network = self._task.config, self._network
        network.train()
        moving = []
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(phase.moves(name))
            if parameter.requires_grad:
                moving.append(parameter)
        optimizer = torch.optim.Adam(moving, lr=lr, weight_decay=config.weight_decay, fused=True)
        total = torch.zeros((), device=self._device)
        for _ in range(phase.epochs):
            for rows in batches(len(labels), config.batch, random):
                rows = rows.to(self._device)
                batch = images[rows]
                views = torch.cat([self._view(batch, random) for _ in range(phase.views)])
                optimizer.zero_grad()
                loss = phase.loss(network(views), labels[rows].repeat(phase.views))
                loss.backward()
                optimizer.step()
                total += loss.detach() * len(rows)
        return float(total) / (phase.epochs * len(labels))

    def _view(self, images: Tensor, random: torch.Generator) -> Tensor:
        return augment(images, cast(Level, self._task.config.augment), self._task.flip, random)

    def personalize(self, client: int, save_to: Path | None) -> Personal:
        """Fit, keep and test the client's own head (Algorithm 1, stage 2)."""
        config = self._task.config
        self._load_for_features()
        train_rows, validation_rows = self._train_rows(client)
        train = self._features(self._train_split, train_rows)
        head = config.build_personalizer(client).personal_head(
            train,
            self._task.classes,
            self._method_head(),
            torch_seed(config.seed, Purpose.HEAD, client) % 2**32,
        )
        if not all(np.isfinite(array).all() for array in head.arrays.values()):
            raise RepperError(f"the head of client {client} diverged: try a lower --head-lr")
        if save_to is not None:
            head.save(save_to / f"{client}.safetensors")
        counts = np.bincount(train.labels, minlength=len(self._task.classes))

        def tested(split: Labelled, rows: Rows) -> Score:
            features = self._features(split, rows)
            return score(client, head.kind, counts, features.labels, head.predict(features.r))

        test = tested(self._test_split, self._task.partition.test[client])
        held_out = tested(self._train_split, validation_rows) if len(validation_rows) else None
        return Personal(client, test, held_out, head.digest())

    def probe(self) -> float | None:
        """k-NN accuracy: `knn` training images at most, and half as many test images."""
        config = self._task.config
        if not config.knn:
            return None
        self._load_for_features()
        random = stream(config.seed, Purpose.PROBE)
        memory, queries = (
            self._features(split, np.sort(random.permutation(len(split[1]))[:count]))
            for split, count in (
                (self._train_split, config.knn),
                (self._test_split, max(1, config.knn // 2)),
            )
        )
        return knn_accuracy(memory.r, memory.labels, queries.r, queries.labels)

    def _load_for_features(self) -> None:
        load_params(self._network, self._shared)
        self._network.eval()
        if not self._encoder_digest:
            self._encoder_digest = digest(select(params_of(self._network), is_encoder))

    @torch.no_grad()
    def _features(self, split: Labelled, rows: Rows) -> Features:
        images, labels = self._pick(split, rows)
        encoder = cast(Encoder, self._network.encoder)
        r = torch.cat([encoder(normalize(part)) for part in images.split(EXTRACT_BATCH)])
        if not bool(torch.isfinite(r).all()):
            raise RepperError(
                "the encoder's features are not finite: its training diverged, try a lower --lr"
            )
        return Features(r.cpu().numpy(), labels.cpu().numpy(), self._encoder_digest)

    def _method_head(self) -> LinearLayer | None:
        head = getattr(self._network, "head", None)
        if not isinstance(head, nn.Linear):
            return None
        return (
            head.weight.detach().cpu().numpy().copy(),
            head.bias.detach().cpu().numpy().copy(),
        )

    def _train_rows(self, client: int) -> tuple[Rows, Rows]:
        """The rows a client learns from, and those it keeps for validation."""
        rows = self._task.partition.train[client]
        config = self._task.config
        kept = round(config.validation * len(rows)) if config.validation else 0
        kept = min(max(kept, 1), len(rows) - 2) if config.validation else 0
        order = stream(config.seed, Purpose.VALIDATION, client).permutation(rows)
        return np.sort(order[kept:]), np.sort(order[:kept])

    def _pick(self, split: Labelled, rows: Rows) -> Labelled:
        images, labels = (tensor[torch.from_numpy(rows)].to(self._device) for tensor in split)
        return images, labels
