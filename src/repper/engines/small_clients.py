"""Train several small clients at once in one process: their grouping and their training.

A client that is small is always trained by this arithmetic, on every engine, also when it is alone;
how many are beside it changes no bit of its result (`repper.encoders.stacked` says why).
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from repper.basics.params import Params, params_of
from repper.data.augment import Level, augment
from repper.data.batches import batch_sizes, batches
from repper.encoders.stacked import Frame, is_stackable, row_of, shaped, stacked
from repper.engines.task import Work
from repper.engines.trainer import TrainingInputs, fresh_optimizer, on_features, set_moving
from repper.methods.method import Method, Outputs, Phase, Seen, phases_of
from repper.methods.network import Network
from repper.methods.stage import Training, cohort_size

MOST = 16
"""Clients in a stack: more gain nothing (docs/performance.md)."""
MOST_WEIGHTS = 2**22
"""Weights of all clients of a stack; their gradients and Adam's moments are three times as many."""
MOST_PIXELS = 2**12
"""Pixels of a step's views up to which a client counts as small: 64 images of 8 x 8. With more,
convolutions take as long as matrix products as PyTorch's own with all their overhead."""
LEAST_COHORT = 16
"""Clients in a round that make it worth while. Alone, a client takes longer in a stack."""
ROWS = 8
"""What a client's rows in a batch are padded to a multiple of."""


def _up(count: int) -> int:
    return -(-count // ROWS) * ROWS


@dataclass(frozen=True)
class Stacking:
    """Which clients of a stage can be trained at once."""

    work: Work
    training: Training
    phases: tuple[Phase, ...]
    most: int
    """Clients in a stack; 0: none of this stage is trained so."""

    @classmethod
    def of(cls, work: Work, index: int, network: Network) -> Stacking:
        stage = work.stages[index]
        phases, training = phases_of(stage), stage.training
        cohort = cohort_size(len(stage.clients), stage.participation)
        weights = sum(tensor.numel() for tensor in params_of(network).values())
        most = min(MOST, MOST_WEIGHTS // max(1, weights))
        possible = (
            work.device == "cpu"
            and training.precision == "float32"
            and not training.compile
            and not stage.method.copies
            and not network.frozen
            and type(stage.method).outputs is Method.outputs
            and all(phase.views and not on_features(phase, network) for phase in phases)
            and all(map(is_stackable, network.children()))
            and cohort >= LEAST_COHORT
            and most > 2
        )
        return cls(work, training, phases, most if possible else 0)

    def key(self, client: int) -> Hashable | None:
        """Clients with equal keys can be trained at once; None: the client is trained alone."""
        if not self.most:
            return None
        sizes = batch_sizes(len(self.work.train_rows(client)), self.training.batch)
        rows = tuple(_up(phase.views * size) for phase in self.phases for size in sizes)
        return rows if max(rows) * self.work.spec.size**2 <= MOST_PIXELS else None

    def groups(self, cohort: Sequence[int], workers: int = 1) -> Iterator[list[int]]:
        """The cohort in parts to train at once, nearly in its order.

        Sizes are powers of two, so that few stacks of other sizes are needed; every worker gets
        some.
        """
        most = max(1, min(self.most, len(cohort) // workers))
        window = 4 * most
        for start in range(0, len(cohort), window):
            alike: dict[Hashable, list[int]] = {}
            for client in cohort[start : start + window]:
                key = self.key(client)
                alike.setdefault(("alone", client) if key is None else key, []).append(client)
            for clients in alike.values():
                while clients:
                    count = min(1 << (len(clients).bit_length() - 1), 1 << (most.bit_length() - 1))
                    yield clients[:count]
                    clients = clients[count:]


class Stack:
    """The networks of several clients as one, and their training."""

    def __init__(self, network: Network, training: Training, flip: bool, clients: int) -> None:
        self._frame = Frame(clients, torch.ones(clients))
        self._training, self._flip = training, flip
        self._like = params_of(network)
        self._network = copy.copy(network)
        self._network._modules = {
            name: stacked(child, self._frame)
            for name, child in network._modules.items()
            if child is not None
        }
        self._storages = params_of(self._network)
        self._optimizers: dict[Phase, torch.optim.Optimizer] = {}

    def receive(self, params: Mapping[str, Tensor]) -> None:
        """Give every client the same values."""
        for name, value in params.items():
            if name in self._storages:
                flat = value.permute(0, 2, 3, 1) if value.ndim == 4 else value
                self._storages[name][:, : value.numel()] = flat.reshape(-1)

    def live(self, client: int) -> Params:
        """A client's views of the stacked weights, by name; copying into them sets the weights."""
        return {
            name: row_of(storage, client, self._like[name])
            for name, storage in self._storages.items()
        }

    def train(
        self,
        phase: Phase,
        several: Sequence[TrainingInputs],
        lr: float,
        randoms: Sequence[torch.Generator],
    ) -> list[tuple[float, Params]]:
        """Run one phase for every client; what `Trainer.train` returns, of each."""
        moving = set_moving(self._network, phase)
        optimizer = fresh_optimizer(
            self._optimizers, phase, list(moving.values()), lr, self._training.weight_decay
        )
        gradients = {n: torch.zeros_like(p) for n, p in moving.items()} if phase.gradients else {}
        totals, steps = torch.zeros(len(several)), 0
        views = phase.views
        for _ in range(phase.epochs):
            orders = [
                batches(len(inputs.labels), self._training.batch, random)
                for inputs, random in zip(several, randoms, strict=True)
            ]
            for rows in zip(*orders, strict=True):
                shown = [
                    self._views(inputs.images[own], views, random)
                    for inputs, own, random in zip(several, rows, randoms, strict=True)
                ]
                labels = [
                    inputs.labels[own].repeat(views)
                    for inputs, own in zip(several, rows, strict=True)
                ]
                optimizer.zero_grad()
                losses = self._losses(phase, moving, several, shown, labels)
                torch.autograd.backward(losses, [torch.ones(())] * len(losses))
                for name, summed in gradients.items():
                    summed += cast(Tensor, moving[name].grad)
                optimizer.step()
                counts = torch.tensor([len(own) for own in rows], dtype=torch.float32)
                totals += torch.stack(losses).detach() * counts
                steps += 1
        mean = {name: summed / steps for name, summed in gradients.items()}
        return [
            (
                float(totals[i]) / (phase.epochs * len(inputs.labels)),
                {name: row_of(found, i, self._like[name]) for name, found in mean.items()},
            )
            for i, inputs in enumerate(several)
        ]

    def _views(self, images: Tensor, count: int, random: torch.Generator) -> Tensor:
        level = cast(Level, self._training.augment)
        return torch.cat([augment(images, level, self._flip, random) for _ in range(count)])

    def _losses(
        self,
        phase: Phase,
        moving: Mapping[str, Tensor],
        several: Sequence[TrainingInputs],
        shown: Sequence[Tensor],
        labels: Sequence[Tensor],
    ) -> list[Tensor]:
        """Every client's loss on its own views."""
        rows, frame = _up(len(shown[0])), self._frame
        batch = torch.zeros(len(several) * rows, *shown[0].shape[1:]).contiguous(
            memory_format=torch.channels_last
        )
        frame.counts = torch.tensor([len(views) for views in shown], dtype=torch.float32)
        frame.mask = None
        for i, views in enumerate(shown):
            batch[i * rows : i * rows + len(views)] = views
            if len(views) < rows:
                if frame.mask is None:
                    frame.mask = torch.ones(len(several), rows)
                frame.mask[i, len(views) :] = 0
        outputs = {name: frame.rows(t).unbind(0) for name, t in self._network(batch).items()}
        slices = _Slices(moving, self._like)

        def seen(i: int, inputs: TrainingInputs) -> Seen:
            own = {name: t[i][: len(labels[i])] for name, t in outputs.items()}
            fixed = inputs.received, inputs.own, inputs.counts
            return Seen(Outputs(own), labels[i], slices.of(i), *fixed)

        return [phase.loss(seen(i, inputs)) for i, inputs in enumerate(several)]


class _Slices:
    """Every client's trained parameters, created only for losses that use them.

    Parts are taken all at once: the gradient of one alone would be as large as that of all.
    """

    def __init__(self, moving: Mapping[str, Tensor], like: Params) -> None:
        self._moving, self._like = moving, like
        self._parts: dict[str, tuple[Tensor, ...]] = {}

    def of(self, client: int) -> Mapping[str, Tensor]:
        return _Slice(self, client)

    def part(self, name: str, client: int) -> Tensor:
        if name not in self._parts:
            self._parts[name] = self._moving[name].unbind(0)
        like = self._like[name]
        return shaped(self._parts[name][client][: like.numel()], like.shape)

    @property
    def names(self) -> Iterable[str]:
        return self._moving


class _Slice(Mapping[str, Tensor]):
    def __init__(self, slices: _Slices, client: int) -> None:
        self._slices, self._client = slices, client

    def __getitem__(self, name: str) -> Tensor:
        return self._slices.part(name, self._client)

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices.names)

    def __len__(self) -> int:
        return len(list(self._slices.names))
