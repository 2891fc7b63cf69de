"""One client's work: training in stage 1, its head in stage 2. Runs wherever an engine puts it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from repper.config import Config
from repper.datasets.dataset import Dataset
from repper.edge.saved_head import SavedHead
from repper.encoders.encoder import EncoderSpec, extract
from repper.engines.engine import Personal, Update
from repper.engines.trainer import Trainer
from repper.errors import RepperError
from repper.evaluate import Score, knn_accuracy, score
from repper.heads.together import LinearLayer
from repper.methods.method import Network, build_network
from repper.params import (
    Params,
    clone,
    copy_params,
    digest,
    is_encoder,
    load_params,
    params_of,
    select,
)
from repper.partition import Partition, Rows
from repper.personalize import Features, Learner, Personalizer
from repper.private import PrivateStore
from repper.seeds import Purpose, stream, torch_seed

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
        self._device = torch.device(task.config.device)
        self._method = task.config.build_method()
        self._phases = self._method.phases()
        network = build_network(self._method, task.spec, len(task.classes), seed=0)
        self._network = network.to(self._device)
        self._live = params_of(self._network)  # what is copied in here is in the network
        sizes = [len(rows) for rows in task.partition.train]
        most = sum(sizes) if self._method.pooled else max(sizes)
        self._trainer = Trainer(
            self._network, task.config, task.spec, task.flip, self._device, most
        )
        self._store = PrivateStore(task.private) if task.private else None
        self._shared: Params = {}
        self._encoder_digest = ""

    @classmethod
    def of(cls, task: Task, data: Dataset) -> Clients:
        """The clients of a data set in this process's own memory."""
        train, test = (
            (torch.from_numpy(split.images), torch.from_numpy(split.labels))
            for split in (data.train, data.test)
        )
        return cls(task, train, test)

    @property
    def upload(self) -> str:
        """The kind of numbers in which updates travel."""
        return self._task.config.upload

    def receive(self, shared: Params) -> None:
        """Take the round's shared parameters, from which every client starts."""
        self._shared = shared
        self._encoder_digest = ""

    def fit(self, client: int, number: int) -> Update:
        """Train as client `client` in round `number` (Algorithm 1, Client Update).

        The update holds the network's own tensors: copy them before the next client comes.
        """
        config = self._task.config
        if config.compile:
            self._trainer.compile(self._phases)
        self._load(client, number - 1)
        random = torch.Generator().manual_seed(
            torch_seed(config.seed, Purpose.TRAIN, number, client)
        )
        rows, _ = self._train_rows(client)
        images, labels = self._pick(self._train_split, rows)
        passed = int((number - 1) * config.build_schedule().stands_for)
        lr = config.lr * config.lr_decay ** (passed // config.lr_decay_every)
        losses = [
            self._trainer.train(phase, images, labels, self._shared, lr, random)
            for phase in self._phases
        ]
        epochs = [phase.epochs for phase in self._phases]
        own = select(self._live, self._method.private)
        if self._store and own:
            self._store.write(client, number, clone(own), keep_all=config.validation > 0)
        shared = select(self._live, self._method.shared)
        if config.upload == "float16":
            shared = {name: tensor.half().float() for name, tensor in shared.items()}
        return Update(client, shared, len(rows), float(np.average(losses, weights=epochs)))

    def _load(self, client: int, number: int) -> None:
        """Make the network the client's: what all share, and its own as of round `number`."""
        copy_params(self._shared, self._live)
        if self._store:
            if self._network.own is not self._network:
                # A personal model begins as the model that its client first receives.
                load_params(self._network.own, self._shared)
            own = self._store.read(client, number)
            _check_private(own, self._live, client)
            copy_params(own, self._live)
            if self._method.own_encoders:
                self._encoder_digest = ""

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
            if every and not curve:  # done before the first epoch to look at
                curve.append((every, self._tested(pupil, head, pupil.test).accuracy))
            if not all(np.isfinite(array).all() for array in head.arrays.values()):
                raise RepperError(
                    f"the head of client {pupil.client} diverged: try a lower --head-lr, with "
                    f"--resume to keep the encoder"
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
        own = [name for name in self._live if not self._method.shared(name)]
        if not config.knn or any(map(is_encoder, own)):
            return None
        copy_params(self._shared, self._live)
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
        r = extract(network.encoder, images)
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
