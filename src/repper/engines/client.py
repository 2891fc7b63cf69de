"""One client's work: training in stage 1, its head in stage 2. Runs wherever an engine puts it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from repper.augment import Level, augment, normalize
from repper.batches import batches
from repper.compiler import compiled, compiling
from repper.config import Config
from repper.edge.saved_head import SavedHead
from repper.encoders.encoder import EncoderSpec
from repper.engines.engine import Personal, Update
from repper.errors import RepperError
from repper.evaluate import Score, knn_accuracy, score
from repper.heads.together import LinearLayer
from repper.losses import proximal
from repper.methods.method import Loss, Network, Phase, build_network
from repper.params import Params, clone, digest, is_encoder, load_params, params_of, select
from repper.partition import Partition, Rows
from repper.personalize import Features, Learner, Personalizer
from repper.private import PrivateStore
from repper.seeds import Purpose, stream, torch_seed

EXTRACT_BATCH = 512
MOST_AT_ONCE, MOST_IMAGES = 32, 4096
"""Clients whose heads are fitted at once: more hardly pays, and their features take memory."""


@dataclass(frozen=True)
class Task:
    """Everything but the images that a client's work depends on: plain values, easy to send.

    `private` is the folder of what never leaves a client, for methods that have such parameters.
    """

    config: Config
    spec: EncoderSpec
    partition: Partition
    classes: tuple[str, ...]
    flip: bool
    device: str
    private: Path | None = None


Labelled = tuple[Tensor, Tensor]
"""Images (n, c, s, s) and labels (n,). In a pool they lie in memory that all workers share."""


@dataclass(frozen=True)
class _Pupil:
    """A client that comes to its head, and the images it is tested on."""

    client: int
    personalizer: Personalizer
    learner: Learner
    test: Features
    held_out: Features | None


class Clients:
    """Does the work of any client, one at a time, with one network for all of them."""

    def __init__(self, task: Task, train: Labelled, test: Labelled) -> None:
        self._task = task
        self._train_split, self._test_split = train, test
        self._device = torch.device(task.device)
        self._method = task.config.build_method()
        self._phases = self._method.phases()
        network = build_network(self._method, task.spec, len(task.classes), seed=0)
        self._network = network.to(self._device)
        self._losses = [self._loss_of(phase) for phase in self._phases]
        self._compiled = not task.config.compile
        self._store = PrivateStore(task.private) if task.private else None
        self._shared: Params = {}
        self._encoder_digest = ""

    def receive(self, shared: Params) -> None:
        """Take the round's shared parameters, from which every client starts."""
        self._shared = shared
        self._encoder_digest = ""

    def fit(self, client: int, number: int) -> Update:
        """Train as client `client` in round `number` (Algorithm 1, Client Update)."""
        config = self._task.config
        self._compile()
        self._load(client, number - 1)
        random = torch.Generator().manual_seed(
            torch_seed(config.seed, Purpose.TRAIN, number, client)
        )
        rows, _ = self._train_rows(client)
        images, labels = self._pick(self._train_split, rows)
        passed = int((number - 1) * config.build_schedule().stands_for)
        lr = config.lr * config.lr_decay ** (passed // config.lr_decay_every)
        losses = [
            self._train(phase, loss_of, images, labels, lr, random)
            for phase, loss_of in zip(self._phases, self._losses, strict=True)
        ]
        epochs = [phase.epochs for phase in self._phases]
        trained = params_of(self._network)
        own = select(trained, self._method.private)
        if self._store and own:
            self._store.write(client, number, clone(own), keep_all=config.validation > 0)
        shared = clone(select(trained, self._method.shared))
        return Update(client, shared, len(rows), float(np.average(losses, weights=epochs)))

    def _load(self, client: int, number: int) -> None:
        """Make the network the client's: what all share, and its own as of round `number`."""
        load_params(self._network, self._shared)
        if self._store:
            if self._network.own is not self._network:
                # A personal model begins as the model that its client first receives.
                load_params(self._network.own, self._shared)
            own = self._store.read(client, number)
            _check_private(own, params_of(self._network), client)
            load_params(self._network, own)
            if self._method.own_encoders:
                self._encoder_digest = ""

    def _loss_of(self, phase: Phase) -> Loss:
        """The phase's loss as a function of views and their labels."""
        network = self._network.own if phase.personal else self._network
        half = self._task.config.precision == "bfloat16"

        def loss_of(views: Tensor, labels: Tensor) -> Tensor:
            with torch.autocast(self._device.type, torch.bfloat16, enabled=half):
                outputs = network(views)
            return phase.loss(outputs.float(), labels)

        return compiled(loss_of) if self._task.config.compile else loss_of

    def _compile(self) -> None:
        """Compile every phase's loss, once, on images of no client.

        The compiler looks at the first batch it sees. With a client's, the code would depend on who
        came first to this process, and the last digits of a result on the number of workers.
        """
        if self._compiled:
            return
        task, before = self._task, clone(params_of(self._network))
        with compiling():
            for phase, loss_of in zip(self._phases, self._losses, strict=True):
                self._set_moving(phase)
                count = phase.views * task.config.batch
                blank = torch.zeros(count, task.spec.channels, task.spec.size, task.spec.size)
                views = blank.to(self._device, memory_format=torch.channels_last)
                labels = torch.zeros(count, dtype=torch.int64, device=self._device)
                loss_of(views, labels).backward()
        self._network.zero_grad()
        load_params(self._network, before)
        self._compiled = True

    def _train(
        self,
        phase: Phase,
        loss_of: Loss,
        images: Tensor,
        labels: Tensor,
        lr: float,
        random: torch.Generator,
    ) -> float:
        """Run one phase and return the mean loss over its images and epochs."""
        config = self._task.config
        moving = self._set_moving(phase)
        anchors = [
            self._shared[name.removeprefix("personal.")].to(self._device)
            for name in (moving if phase.pull else ())
        ]
        parameters = list(moving.values())
        optimizer = torch.optim.Adam(
            parameters, lr=lr, weight_decay=config.weight_decay, fused=True
        )
        total = torch.zeros((), device=self._device)
        for _ in range(phase.epochs):
            for rows in batches(len(labels), config.batch, random):
                rows = rows.to(self._device)
                batch = images[rows]
                views = torch.cat([self._view(batch, random) for _ in range(phase.views)])
                optimizer.zero_grad()
                loss = loss_of(views, labels[rows].repeat(phase.views))
                if phase.pull:
                    loss = loss + phase.pull * proximal(parameters, anchors)
                loss.backward()
                optimizer.step()
                total += loss.detach() * len(rows)
        return float(total) / (phase.epochs * len(labels))

    def _set_moving(self, phase: Phase) -> dict[str, Tensor]:
        """Let what the phase names move, and return it; freeze the rest, its statistics too."""
        self._network.train()
        moving: dict[str, Tensor] = {}
        for name, parameter in self._network.named_parameters():
            parameter.requires_grad_(phase.moves(name))
            if parameter.requires_grad:
                moving[name] = parameter
        for part in self._network.children():
            if not any(parameter.requires_grad for parameter in part.parameters()):
                part.eval()
        return moving

    def _view(self, images: Tensor, random: torch.Generator) -> Tensor:
        return augment(images, cast(Level, self._task.config.augment), self._task.flip, random)

    def personalize(
        self, clients: Sequence[int], number: int, save_to: Path | None
    ) -> list[Personal]:
        """Fit, keep and test the clients' own heads (Algorithm 1, stage 2) after round `number`.

        Those whose heads are alike are fitted at once, which changes no bit of any head.
        """
        groups: dict[Hashable, list[_Pupil]] = {}
        for client in clients:
            pupil = self._pupil(client, number)
            alike = pupil.personalizer.alike(pupil.learner)
            key = ("alone", client) if alike is None else (pupil.personalizer, alike)
            groups.setdefault(key, []).append(pupil)
        return [one for group in groups.values() for one in self._teach(group, number, save_to)]

    def _pupil(self, client: int, number: int) -> _Pupil:
        """A client with the features of its images, ready to fit its head."""
        config = self._task.config
        self._load(client, number)
        own = self._network.own
        self._network.eval()
        train_rows, validation_rows = self._train_rows(client)
        learner = Learner(
            self._features(own, self._train_split, train_rows),
            self._method_head(),
            torch_seed(config.seed, Purpose.HEAD, client) % 2**32,
        )
        test = self._features(own, self._test_split, self._task.partition.test[client])
        held_out = None
        if len(validation_rows):
            held_out = self._features(own, self._train_split, validation_rows)
        return _Pupil(client, config.build_personalizer(client), learner, test, held_out)

    def _teach(
        self, group: Sequence[_Pupil], number: int, save_to: Path | None
    ) -> Iterator[Personal]:
        every, names = self._task.config.head_curve, self._task.classes
        curves: list[list[tuple[int, float | None]]] = [[] for _ in group]
        learners = [pupil.learner for pupil in group]
        for epoch, heads in group[0].personalizer.heads(learners, names, every):
            if every and epoch % every == 0:
                for pupil, head, curve in zip(group, heads, curves, strict=True):
                    curve.append((epoch, self._tested(pupil, head, pupil.test).accuracy))
        for pupil, head, curve in zip(group, heads, curves, strict=True):
            if not all(np.isfinite(array).all() for array in head.arrays.values()):
                raise RepperError(
                    f"the head of client {pupil.client} diverged: try a lower --head-lr"
                )
            if save_to is not None:
                head.save(save_to / f"{pupil.client}.safetensors")
            yield Personal(
                pupil.client,
                self._tested(pupil, head, pupil.test),
                self._tested(pupil, head, pupil.held_out) if pupil.held_out else None,
                head.digest(),
                self._store.digest(pupil.client, number) if self._store else "",
                tuple(curve),
            )

    def _tested(self, pupil: _Pupil, head: SavedHead, features: Features) -> Score:
        counts = np.bincount(pupil.learner.train.labels, minlength=len(self._task.classes))
        return score(pupil.client, head.kind, counts, features.labels, head.predict(features.r))

    def probe(self) -> float | None:
        """k-NN accuracy: `knn` training images at most, and half as many test images.

        There is none without a common encoder.
        """
        config = self._task.config
        own = [name for name in params_of(self._network) if not self._method.shared(name)]
        if not config.knn or any(map(is_encoder, own)):
            return None
        load_params(self._network, self._shared)
        self._network.eval()
        random = stream(config.seed, Purpose.PROBE)
        memory, queries = (
            self._features(self._network, split, np.sort(random.permutation(len(split[1]))[:count]))
            for split, count in (
                (self._train_split, config.knn),
                (self._test_split, max(1, config.knn // 2)),
            )
        )
        return knn_accuracy(memory.r, memory.labels, queries.r, queries.labels)

    @torch.no_grad()
    def _features(self, network: Network, split: Labelled, rows: Rows) -> Features:
        images, labels = self._pick(split, rows)
        parts = [network.encoder(normalize(part)) for part in images.split(EXTRACT_BATCH)]
        r = torch.cat(parts)
        if not bool(torch.isfinite(r).all()):
            raise RepperError(
                "the encoder's features are not finite: its training diverged, try a lower --lr"
            )
        return Features(r.cpu().numpy(), labels.cpu().numpy(), self._digest_of(network))

    def _digest_of(self, network: Network) -> str:
        """The digest of the network's encoder, found once for all clients that share it."""
        if not self._encoder_digest:
            self._encoder_digest = digest(select(params_of(network), is_encoder))
        return self._encoder_digest

    def _method_head(self) -> LinearLayer | None:
        if (head := self._network.own.linear_head) is None:
            return None
        return (
            head.weight.detach().cpu().numpy().copy(),
            head.bias.detach().cpu().numpy().copy(),
        )

    def _train_rows(self, client: int) -> tuple[Rows, Rows]:
        """The rows a client learns from, and those it keeps for validation.

        The number after the last client's is that of one who holds the images of all in stage 1.
        """
        config, held = self._task.config, self._task.partition.train
        if client == len(held):
            each = [self._train_rows(one) for one in config.stage1()]
            return np.concatenate([t for t, _ in each]), np.concatenate([v for _, v in each])
        rows = held[client]
        kept = round(config.validation * len(rows)) if config.validation else 0
        kept = min(max(kept, 1), len(rows) - 2) if config.validation else 0
        order = stream(config.seed, Purpose.VALIDATION, client).permutation(rows)
        return np.sort(order[kept:]), np.sort(order[:kept])

    def _pick(self, split: Labelled, rows: Rows) -> Labelled:
        images, labels = (tensor[torch.from_numpy(rows)].to(self._device) for tensor in split)
        return images, labels


def groups(partition: Partition, clients: Sequence[int], workers: int) -> Iterator[list[int]]:
    """The clients in parts to personalize at once: not too few for the workers, nor too large."""
    most = min(MOST_AT_ONCE, -(-len(clients) // (4 * workers)))
    part: list[int] = []
    images = 0
    for client in clients:
        size = len(partition.train[client])
        if part and (len(part) == most or images + size > MOST_IMAGES):
            yield part
            part, images = [], 0
        part.append(client)
        images += size
    if part:
        yield part


def _check_private(own: Params, network: Params, client: int) -> None:
    """Refuse private parameters that do not fit; copying them might go well all the same."""
    for name, value in own.items():
        if name not in network or network[name].shape != value.shape:
            raise RepperError(
                f"the private parameters of client {client} do not belong to this run: {name}"
            )
