"""The work of one client: training in a round, and its head at the end, on any engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from repper.basics.errors import RepperError
from repper.basics.names import is_encoder, is_weight, named_parts
from repper.basics.params import (
    Params,
    clone,
    copy_params,
    digest,
    params_of,
    read_params,
    save_params,
    select,
)
from repper.basics.seeds import Purpose, stream, torch_seed
from repper.data.dataset import Dataset
from repper.data.partition import Partition, Rows
from repper.edge.saved_head import SavedHead
from repper.encoders.encoder import extract
from repper.engines.engine import Personal, Update
from repper.engines.private import PrivateStore
from repper.engines.small_clients import Stack, Stacking
from repper.engines.task import Work
from repper.engines.trainer import Trainer, TrainingInputs
from repper.heads.batched import LinearLayer
from repper.heads.personalize import Features, HeadInputs, Personalizer, personalize
from repper.heads.scores import Score, knn_accuracy, score
from repper.methods.method import Phase, Trained, phases_of
from repper.methods.network import Holds, Network, first_kept, holdings
from repper.methods.stage import Stage, stage_at

MOST_AT_ONCE, MOST_IMAGES = 32, 4096
"""Clients whose heads are fitted at once: more hardly pays, and their features take memory."""

MOST_KNOWN = 2**26
"""Numbers in the features that a process remembers: 256 MB."""

Labelled = tuple[Tensor, Tensor]
"""Images (n, c, s, s) and labels (n,). In a pool they lie in memory that all workers share."""


@dataclass(frozen=True)
class _Bench:
    """The network and tools of a stage, used by one client after the other."""

    stage: Stage
    network: Network
    holds: Holds
    phases: tuple[Phase, ...]
    trainer: Trainer
    live: Params
    """The network's own tensors by name: what is copied in here is in the network."""
    first_kept: Params
    """What clients have of their own where nothing is kept."""
    stacking: Stacking
    stacks: dict[int, Stack]
    """Networks of several clients at once, by the number of clients."""


@dataclass(frozen=True)
class _HeadJob:
    """A client whose head is fitted, and its test images."""

    client: int
    personalizer: Personalizer
    inputs: HeadInputs
    test: Features
    held_out: Features | None


class Clients:
    """Does the work of any client, one at a time."""

    def __init__(
        self, work: Work, train: Labelled, test: Labelled, *, features: Path | None = None
    ) -> None:
        """`features` is a file for those of one client, which outlives this process."""
        self._work, self._features_file = work, features
        self._train_split, self._test_split = train, test
        self._device = torch.device(work.device)
        networks = work.networks()
        self._benches = [
            self._bench(index, network.to(self._device), holds)
            for index, (network, holds) in enumerate(
                zip(networks, holdings(work.stages, networks, work.local_norm), strict=True)
            )
        ]
        self._at = self._benches[0]
        self._shapes = {n: t.shape for bench in self._benches for n, t in bench.live.items()}
        self._store = PrivateStore(work.private, work.run) if work.private else None
        self._received: Params = {}
        self._encoder_digest = ""
        self._known: dict[int, tuple[str, Tensor]] = {}

    def _bench(self, index: int, network: Network, holds: Holds) -> _Bench:
        work, stage = self._work, self._work.stages[index]
        trainer = Trainer(
            network, stage.training, work.spec, work.flip, self._device, work.most_rows
        )
        phases = phases_of(stage)
        kept = {} if work.private else clone(first_kept(stage.method, network, holds))
        stacking = Stacking.of(work, index, network)
        live = params_of(network)
        return _Bench(stage, network, holds, phases, trainer, live, kept, stacking, {})

    @classmethod
    def of(cls, work: Work, data: Dataset, features: Path | None = None) -> Clients:
        """The clients of a data set in this process's own memory."""
        train, test = (
            (torch.from_numpy(split.images), torch.from_numpy(split.labels))
            for split in (data.train, data.test)
        )
        return cls(work, train, test, features=features)

    @property
    def wire(self) -> str:
        """The number format of updates."""
        return self._work.sending[-1].wire if self._work.sending else "float32"

    def receive(self, received: Params, stage: int = 0) -> None:
        """Take the server's parameters, from which every client starts."""
        self._at = self._benches[stage]
        # In one order of memory on every engine: the last digits of a sum depend on it.
        self._received = {
            name: t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t
            for name, t in received.items()
        }
        self._encoder_digest = ""

    def fit(self, client: int, number: int) -> Update:
        """Train as client `client` in round `number` (Algorithm 1, Client Update).

        The update holds the network's own tensors: copy them before the next client comes.
        """
        [update] = self.fit_together([client], number)
        return update

    def groups(self, cohort: Sequence[int]) -> Iterator[list[int]]:
        """The cohort in parts for `fit_together`."""
        return self._at.stacking.groups(cohort)

    def fit_together(self, clients: Sequence[int], number: int) -> list[Update]:
        """`fit` of clients whose keys in `Stacking` are equal."""
        if self._at.stacking.key(clients[0]) is None:
            [client] = clients
            return [self._fit_alone(client, number)]
        return self._fit_stack(clients, number)

    def _fit_alone(self, client: int, number: int) -> Update:
        at = self._at
        own = self._load(client, number - 1)
        inputs = self._training_inputs(client, own)
        if at.stage.training.compile:
            at.trainer.compile(at.phases, inputs)
        lr, random = self._lr(number), self._random(client, number)
        results = [at.trainer.train(phase, inputs, lr, random) for phase in at.phases]
        return self._update(client, number, at.live, inputs, results)

    def _fit_stack(self, clients: Sequence[int], number: int) -> list[Update]:
        at = self._at
        if len(clients) not in at.stacks:
            at.stacks[len(clients)] = Stack(
                at.network, at.stage.training, self._work.flip, len(clients)
            )
        stack = at.stacks[len(clients)]
        stack.receive(select(self._received, is_weight))
        owns = [self._own(client, number - 1) for client in clients]
        lives = [stack.live(place) for place in range(len(clients))]
        for live, own in zip(lives, owns, strict=True):
            copy_params(select(own, live.__contains__), live)
        several = [
            self._training_inputs(client, own) for client, own in zip(clients, owns, strict=True)
        ]
        lr, randoms = self._lr(number), [self._random(client, number) for client in clients]
        results = [stack.train(phase, several, lr, randoms) for phase in at.phases]
        return [
            self._update(client, number, lives[i], several[i], [found[i] for found in results])
            for i, client in enumerate(clients)
        ]

    def _training_inputs(self, client: int, own: Params) -> TrainingInputs:
        """The inputs of a client's training."""
        work = self._work
        images, labels = self._pick(self._train_split, work.train_rows(client))
        if attack := work.attack_of(client):
            seed = torch_seed(work.seed, Purpose.ATTACK, client)
            images, labels = attack.poison(images, labels, len(work.classes), seed)
        counts = torch.bincount(labels, minlength=len(work.classes)).to(torch.float32)
        look = partial(self._looked_at, client, images)
        return TrainingInputs(images, labels, self._received, own, counts, look)

    def _random(self, client: int, number: int) -> torch.Generator:
        seed = torch_seed(self._work.seed, Purpose.TRAIN, number, client)
        return torch.Generator().manual_seed(seed)

    def _lr(self, number: int) -> float:
        return self._at.stage.lr(stage_at(self._work.stages, number)[1])

    def _update(
        self,
        client: int,
        number: int,
        live: Params,
        inputs: TrainingInputs,
        results: Sequence[tuple[float, Params]],
    ) -> Update:
        """Make a client's update after its phases, and save its private parameters."""
        work, at = self._work, self._at
        gradients = {name: mean for _, found in results for name, mean in found.items()}
        trained = Trained(live, self._received, inputs.own, gradients, inputs.features)
        beside, kept = at.stage.method.leave(trained)
        if self._store and at.holds.keeps_private:
            private = select(live, lambda n: n in at.holds.private) | kept
            self._store.write(client, number, clone(private), keep_all=work.keep_rounds)
        sent = select(live, lambda n: n in at.holds.shared) | named_parts(beside)
        if attack := work.attack_of(client):
            seed = torch_seed(work.seed, Purpose.ATTACK, number, client)
            sent = attack(sent, self._received, seed)
        for transform in work.sending:
            seed = torch_seed(work.seed, Purpose.SEND, number, client)
            sent = transform(sent, self._received, seed)
        losses, epochs = [loss for loss, _ in results], [phase.epochs for phase in at.phases]
        loss = float(np.average(losses, weights=epochs))
        if any(transform.silent for transform in work.sending):
            loss = 0.0
        return Update(client, sent, len(work.train_rows(client)), loss)

    @property
    def _precision(self) -> str:
        return self._at.stage.training.precision

    def _looked_at(self, client: int, images: Tensor) -> Tensor:
        """The features of a client's training images, cached while the encoder is frozen."""
        network = self._at.network
        encoder, known = self._digest_of(network), self._known.get(client)
        if known is None or known[0] != encoder:
            known = encoder, self._found(network, encoder, images)
            if sum(r.numel() for _, r in self._known.values()) > MOST_KNOWN:
                self._known.clear()
            self._known[client] = known
        return known[1]

    def _found(self, network: Network, encoder: str, images: Tensor) -> Tensor:
        """The features of images, from this client's file if they are in there."""
        path = self._features_file
        of = f"{encoder} {self._precision} {digest({'images': images})}" if path else ""
        if path:
            with suppress(RepperError):
                kept, notes = read_params(path)
                if notes.get("of") == of:
                    return kept["features"].to(self._device)
        before = network.encoder.training
        found = extract(network.encoder.eval(), images, self._precision)
        network.encoder.train(before)
        if path:
            with suppress(RepperError, OSError):  # without the file, it only takes longer
                path.parent.mkdir(parents=True, exist_ok=True)
                save_params(path, {"features": found}, {"of": of})
        return found

    def _load(self, client: int, number: int) -> Params:
        """Load a client's parameters: the shared ones, and its own as of round `number`.

        What it has kept that is no parameter of the network is in the answer only.
        """
        at = self._at
        copy_params(select(self._received, is_weight), at.live)
        own = self._own(client, number)
        here = select(own, at.live.__contains__)
        copy_params(select(here, lambda n: not n.startswith(at.holds.copies)), at.live)
        for name in at.stage.method.copies:
            # A copy begins as the model that its client first receives.
            copied = params_of(at.network.copy_named(name))
            copy_params({n: at.live[n] for n in copied}, copied)
        copy_params(select(here, lambda n: n.startswith(at.holds.copies)), at.live)
        if at.holds.own_encoders:
            self._encoder_digest = ""
        return own

    def _own(self, client: int, number: int) -> Params:
        """A client's private parameters after round `number`."""
        own = self._store.read(client, number) if self._store else self._at.first_kept
        _check_private(own, self._shapes, client)
        return own

    def personalize(
        self, clients: Sequence[int], number: int, save_to: Path | None
    ) -> list[Personal]:
        """Fit, keep and test the clients' own heads (Algorithm 1, stage 2) after round `number`."""
        every, names = self._work.head_curve, self._work.classes
        jobs = [self._head_job(client, number) for client in clients]
        curves: list[list[tuple[int, float | None]]] = [[] for _ in jobs]
        heads: dict[int, SavedHead] = {}
        fitted = [(job.personalizer, job.inputs) for job in jobs]
        for place, epoch, head in personalize(fitted, names, every):
            heads[place] = head
            if every and epoch % every == 0:
                accuracy = self._tested(jobs[place], head, jobs[place].test).accuracy
                curves[place].append((epoch, accuracy))
        return [
            self._personal(job, heads[place], number, save_to, curves[place])
            for place, job in enumerate(jobs)
        ]

    def _head_job(self, client: int, number: int) -> _HeadJob:
        """A client with the features of its images, ready to fit its head."""
        partition = self._work.partition
        self._load(client, number)
        own = self._at.network.own
        self._at.network.eval()
        inputs = HeadInputs(
            self._features(own, self._train_split, partition.train[client]),
            self._method_head(),
            torch_seed(self._work.seed, Purpose.HEAD, client) % 2**32,
        )
        test = self._features(own, self._test_split, partition.test[client])
        held_out = None
        if partition.held_out and len(partition.held_out[client]):
            held_out = self._features(own, self._train_split, partition.held_out[client])
        return _HeadJob(client, self._work.personalizers.of(client), inputs, test, held_out)

    def _personal(
        self,
        job: _HeadJob,
        head: SavedHead,
        number: int,
        save_to: Path | None,
        curve: list[tuple[int, float | None]],
    ) -> Personal:
        if self._work.head_curve and not curve:  # done before the first epoch to look at
            accuracy = self._tested(job, head, job.test).accuracy
            curve = [(self._work.head_curve, accuracy)]
        if not all(np.isfinite(array).all() for array in head.arrays.values()):
            raise RepperError(
                f"the head of client {job.client} diverged: try a lower --head-lr, with "
                f"--resume to keep the encoder"
            )
        if save_to is not None:
            head.save(save_to / f"{job.client}.safetensors")
        return Personal(
            job.client,
            self._tested(job, head, job.test),
            self._tested(job, head, job.held_out) if job.held_out else None,
            head.digest(),
            self._store.digest(job.client, number) if self._store else "",
            tuple(curve),
        )

    def _tested(self, job: _HeadJob, head: SavedHead, features: Features) -> Score:
        counts = np.bincount(job.inputs.train.labels, minlength=len(self._work.classes))
        return score(job.client, head.kind, counts, features.labels, head.predict(features.r))

    def probe(self) -> float | None:
        """k-NN accuracy: `knn` training images at most, and half as many test images.

        There is none without a common encoder.
        """
        knn, at = self._work.knn, self._at
        own = [name for name in at.live if is_encoder(name) and name not in self._received]
        if not knn or own:
            return None
        copy_params(select(self._received, is_weight), at.live)
        at.network.eval()
        random = stream(self._work.seed, Purpose.PROBE)
        memory, queries = (
            self._features(at.network, split, np.sort(random.permutation(len(split[1]))[:count]))
            for split, count in (
                (self._train_split, knn),
                (self._test_split, max(1, knn // 2)),
            )
        )
        return knn_accuracy(memory.r, memory.labels, queries.r, queries.labels)

    @torch.no_grad()
    def _features(self, network: Network, split: Labelled, rows: Rows) -> Features:
        images, labels = self._pick(split, rows)
        r = extract(network.encoder, images, self._precision)
        if not bool(torch.isfinite(r).all()):
            raise RepperError(
                "the encoder's features are not finite: its training diverged, try a lower --lr"
            )
        return Features(r.cpu().numpy(), labels.cpu().numpy(), self._digest_of(network))

    def _digest_of(self, network: Network) -> str:
        """The digest of the network's encoder, computed once for all clients that share it."""
        if not self._encoder_digest:
            self._encoder_digest = digest(select(params_of(network), is_encoder))
        return self._encoder_digest

    def _method_head(self) -> LinearLayer | None:
        """The linear layer that the method has trained for a client, if there is one."""
        beside = select(self._received, lambda name: not is_weight(name))
        method, own = self._at.stage.method, self._at.network.own
        if (layer := method.classifier(params_of(own) | beside)) is None:
            return None
        weight, bias = (tensor.detach().cpu().numpy().copy() for tensor in layer)
        return weight, bias

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


def _check_private(own: Params, known: Mapping[str, torch.Size], client: int) -> None:
    """Refuse private parameters of wrong names or shapes, which copying might not notice."""
    for name, value in own.items():
        if known.get(name.partition(":")[2] or name) != value.shape:
            raise RepperError(
                f"the private parameters of client {client} do not belong to this run: {name}"
            )
