"""Training of a client's network, phase by phase: the loop in which most of the time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from repper.basics.names import is_encoder
from repper.basics.params import Params, clone, copy_params, params_of
from repper.data.augment import Level, augment
from repper.data.batches import batches
from repper.encoders.compiler import compiled, compiling
from repper.encoders.encoder import EncoderSpec
from repper.methods.method import Outputs, Phase, Seen
from repper.methods.network import Network
from repper.methods.stage import Training

LossOf = Callable[[Tensor, Tensor], Tensor]
"""A phase's loss as a function of views, or of features that are known, and their labels."""


def _no_features() -> Tensor:
    raise TypeError("this phase trains on features, but no features were computed")


@dataclass(frozen=True)
class TrainingInputs:
    """The inputs of a client's training.

    `received` is what the server sent and `own` what the client has kept, for losses that look at
    it; `counts` are its images of every class. `features` gives those of its images as they are,
    for phases that need no more.
    """

    images: Tensor
    labels: Tensor
    received: Params
    own: Params
    counts: Tensor
    features: Callable[[], Tensor] = _no_features


MOMENTUM = 0.9
"""Of phases that go down by `sgd`."""


class Trainer:
    """Trains one network, which is every client's in turn."""

    def __init__(
        self,
        network: Network,
        training: Training,
        spec: EncoderSpec,
        flip: bool,
        device: torch.device,
        most: int,
    ) -> None:
        """Clients have at most `most` images."""
        self._network, self._training, self._spec, self._flip = network, training, spec, flip
        self._device, self._most = device, most
        self._optimizers: dict[Phase, torch.optim.Optimizer] = {}
        self._compiled: dict[Phase, LossOf] = {}
        self._around: Params = {}
        """What compiled losses look at besides a batch, in memory that stays where it is."""

    def compile(self, phases: Sequence[Phase], like: TrainingInputs) -> None:
        """Compile the loss of every phase once, on blank images.

        The compiler looks at the first batch it sees. With a client's, the code would depend on who
        came first to this process, and the last digits of a result on the number of workers.
        """
        if self._compiled:
            return
        live = params_of(self._network)
        before, spec = clone(live), self._spec
        with compiling():
            for phase in phases:
                moving = set_moving(self._network, phase)
                count = max(1, phase.views) * min(self._training.batch, self._most)
                if on_features(phase, self._network):
                    blank = torch.zeros(count, self._network.encoder.features)
                    seen = blank.to(self._device)
                else:
                    blank = torch.zeros(count, spec.channels, spec.size, spec.size)
                    seen = blank.to(self._device, memory_format=torch.channels_last)
                labels = torch.zeros(count, dtype=torch.int64, device=self._device)
                self._compiled[phase] = compiled(self._loss_of(phase, moving, self._fixed(like)))
                self._compiled[phase](seen, labels).backward()
        self._network.zero_grad()
        copy_params(before, live)

    def _fixed(self, inputs: TrainingInputs) -> TrainingInputs:
        """The same values in fixed memory, because compiled code remembers addresses."""
        flat = {f"received {n}": t for n, t in inputs.received.items()}
        flat |= {f"own {n}": t for n, t in inputs.own.items()} | {"counts": inputs.counts}
        for name, tensor in flat.items():
            if name not in self._around:
                self._around[name] = tensor.detach().to(self._device, copy=True)
        copy_params(flat, self._around)
        return TrainingInputs(
            inputs.images,
            inputs.labels,
            {name: self._around[f"received {name}"] for name in inputs.received},
            {name: self._around[f"own {name}"] for name in inputs.own},
            self._around["counts"],
            inputs.features,
        )

    def train(
        self, phase: Phase, inputs: TrainingInputs, lr: float, random: torch.Generator
    ) -> tuple[float, Params]:
        """Run one phase; the mean loss over its images and epochs.

        And the mean gradient over its steps of what moved, if the phase asks for it.
        """
        moving = set_moving(self._network, phase)
        if phase in self._compiled:
            self._fixed(inputs)
            loss_of = self._compiled[phase]
        else:
            loss_of = self._loss_of(phase, moving, inputs)
        optimizer = fresh_optimizer(
            self._optimizers, phase, list(moving.values()), lr, self._training.weight_decay
        )
        gradients = {n: torch.zeros_like(p) for n, p in moving.items()} if phase.gradients else {}
        total, steps = torch.zeros((), device=self._device), 0
        for seen, labels, count in self._batches(phase, inputs, random):
            optimizer.zero_grad()
            loss = loss_of(seen, labels)
            loss.backward()
            for name, summed in gradients.items():
                summed += cast(Tensor, moving[name].grad)
            optimizer.step()
            total += loss.detach() * count
            steps += 1
        mean = {name: summed / steps for name, summed in gradients.items()}
        return float(total) / (phase.epochs * len(inputs.labels)), mean

    def _batches(
        self, phase: Phase, inputs: TrainingInputs, random: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Batches of inputs and labels, and the number of images in each batch."""
        # If the encoder stands still and images are shown as they are, one look is enough.
        images = inputs.features() if on_features(phase, self._network) else inputs.images
        level = cast(Level, self._training.augment if phase.views else "none")
        views = max(1, phase.views)
        for _ in range(phase.epochs):
            for rows in batches(len(inputs.labels), self._training.batch, random):
                rows = rows.to(self._device)
                batch = images[rows]
                if images is inputs.images:
                    drawn = [augment(batch, level, self._flip, random) for _ in range(views)]
                    batch = torch.cat(drawn)
                yield batch, inputs.labels[rows].repeat(views), len(rows)

    def _loss_of(
        self, phase: Phase, moving: Mapping[str, Tensor], inputs: TrainingInputs
    ) -> LossOf:
        """The phase's loss as a function of views, or of features, and their labels."""
        network = self._network.copy_named(phase.network)
        known = on_features(phase, self._network)
        beside = {name: self._network.copy_named(name) for name in phase.beside}
        half = self._training.precision == "bfloat16"
        prefix = f"{phase.network}."
        named = {name.removeprefix(prefix): parameter for name, parameter in moving.items()}
        received = {n: t.to(self._device) for n, t in inputs.received.items()}
        own = {n: t.to(self._device) for n, t in inputs.own.items()}
        counts = inputs.counts.to(self._device)

        def outputs_of(looking: Network, views: Tensor) -> dict[str, Tensor]:
            if known:
                return looking.of_features(views)
            # All that follows the encoder is small, and computes in float32.
            with torch.autocast(self._device.type, torch.bfloat16, enabled=half):
                r = looking.encoder(views)
            return looking.of_features(r.float())

        def loss_of(views: Tensor, labels: Tensor) -> Tensor:
            outputs = Outputs(outputs_of(network, views))
            for name, other in beside.items():
                with torch.no_grad():
                    theirs = outputs_of(other, views)
                outputs.update({f"{name}.{part}": t for part, t in theirs.items()})
            return phase.loss(Seen(outputs, labels, named, received, own, counts))

        return loss_of


def on_features(phase: Phase, network: Network) -> bool:
    """Whether a phase sees the same features of an image in every epoch."""
    if phase.views or phase.network or phase.beside:
        return False
    encoder = (name for name, _ in network.named_parameters() if is_encoder(name))
    return not any(map(phase.moves, encoder))


def set_moving(network: Network, phase: Phase) -> dict[str, Tensor]:
    """Unfreeze and return the phase's parameters; freeze the rest, its statistics too."""
    network.train()
    moving: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(phase.moves(name) and not name.startswith(network.frozen))
        if parameter.requires_grad:
            moving[name] = parameter
    for part in network.children():
        if not any(parameter.requires_grad for parameter in part.parameters()):
            part.eval()
    for name in network.frozen:
        network.get_submodule(name.removesuffix(".")).eval()
    return moving


def fresh_optimizer(
    known: dict[Phase, torch.optim.Optimizer],
    phase: Phase,
    parameters: list[Tensor],
    lr: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    """A new optimizer state in the last one's memory: to create one takes a tenth of a step."""
    if phase not in known:
        if phase.optimizer == "adam":
            made: torch.optim.Optimizer = torch.optim.Adam(
                parameters, lr=lr, weight_decay=weight_decay, fused=True
            )
        else:
            made = torch.optim.SGD(
                parameters, lr=lr, weight_decay=weight_decay, momentum=MOMENTUM, fused=True
            )
        known[phase] = made
    optimizer = known[phase]
    optimizer.param_groups[0]["lr"] = lr
    state = [tensor for values in optimizer.state.values() for tensor in values.values()]
    if state:
        torch._foreach_zero_(state)
    return optimizer
