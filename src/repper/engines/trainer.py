"""Training of a client's network, phase by phase: the loop in which most of the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from repper.augment import Level, augment
from repper.batches import batches
from repper.compiler import compiled, compiling
from repper.config import Config
from repper.encoders.encoder import EncoderSpec
from repper.losses import proximal
from repper.methods.method import Loss, Network, Phase
from repper.params import Params, clone, copy_params, params_of


class Trainer:
    """Trains one network, which is every client's in turn."""

    def __init__(
        self,
        network: Network,
        config: Config,
        spec: EncoderSpec,
        flip: bool,
        device: torch.device,
        most: int,
    ) -> None:
        """Clients have at most `most` images."""
        self._network, self._config, self._spec, self._flip = network, config, spec, flip
        self._device, self._most = device, most
        self._optimizers: dict[Phase, torch.optim.Adam] = {}
        self._compiled: dict[Phase, Loss] = {}

    def compile(self, phases: Sequence[Phase]) -> None:
        """Compile every phase's loss, once, on images of no client.

        The compiler looks at the first batch it sees. With a client's, the code would depend on who
        came first to this process, and the last digits of a result on the number of workers.
        """
        if self._compiled:
            return
        live = params_of(self._network)
        before, spec = clone(live), self._spec
        with compiling():
            for phase in phases:
                self._set_moving(phase)
                count = phase.views * min(self._config.batch, self._most)
                blank = torch.zeros(count, spec.channels, spec.size, spec.size)
                views = blank.to(self._device, memory_format=torch.channels_last)
                labels = torch.zeros(count, dtype=torch.int64, device=self._device)
                self._compiled[phase] = compiled(self._loss_of(phase))
                self._compiled[phase](views, labels).backward()
        self._network.zero_grad()
        copy_params(before, live)

    def train(
        self,
        phase: Phase,
        images: Tensor,
        labels: Tensor,
        anchors: Params,
        lr: float,
        random: torch.Generator,
    ) -> float:
        """Run one phase and return the mean loss over its images and epochs.

        `anchors` are the parameters that the server sent, for a phase that pulls towards them.
        """
        moving = self._set_moving(phase)
        loss_of = self._compiled.get(phase) or self._loss_of(phase)
        parameters = list(moving.values())
        towards = [
            anchors[name.removeprefix("personal.")].to(self._device)
            for name in (moving if phase.pull else ())
        ]
        optimizer = self._optimizer(phase, parameters, lr)
        total = torch.zeros((), device=self._device)
        for _ in range(phase.epochs):
            for rows in batches(len(labels), self._config.batch, random):
                rows = rows.to(self._device)
                batch = images[rows]
                views = torch.cat([self._view(batch, random) for _ in range(phase.views)])
                optimizer.zero_grad()
                loss = loss_of(views, labels[rows].repeat(phase.views))
                if phase.pull:
                    loss = loss + phase.pull * proximal(parameters, towards)
                loss.backward()
                optimizer.step()
                total += loss.detach() * len(rows)
        return float(total) / (phase.epochs * len(labels))

    def _loss_of(self, phase: Phase) -> Loss:
        """The phase's loss as a function of views and their labels."""
        network = self._network.own if phase.personal else self._network
        half = self._config.precision == "bfloat16"

        def loss_of(views: Tensor, labels: Tensor) -> Tensor:
            with torch.autocast(self._device.type, torch.bfloat16, enabled=half):
                outputs = network(views)
            return phase.loss(outputs.float(), labels)

        return loss_of

    def _view(self, images: Tensor, random: torch.Generator) -> Tensor:
        return augment(images, cast(Level, self._config.augment), self._flip, random)

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

    def _optimizer(self, phase: Phase, parameters: list[Tensor], lr: float) -> torch.optim.Adam:
        """A new optimizer, in the memory of the last: for small clients, making one is a tenth."""
        known = self._optimizers.get(phase)
        if known is None:
            known = self._optimizers[phase] = torch.optim.Adam(
                parameters, lr=lr, weight_decay=self._config.weight_decay, fused=True
            )
        known.param_groups[0]["lr"] = lr
        state = [tensor for values in known.state.values() for tensor in values.values()]
        if state:
            torch._foreach_zero_(state)
        return known
