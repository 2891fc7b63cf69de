"""A fleet of clients as every run has it, and what each of them sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
import torch

from repper.basics.names import is_encoder, is_variance
from repper.basics.params import Params, load_params, select
from repper.data.dataset import Dataset
from repper.data.partition import Partition, Rows
from repper.encoders.encoder import EncoderSpec
from repper.engines.engine import Update
from repper.engines.serial import SerialEngine
from repper.engines.task import Work
from repper.heads import HEADS
from repper.heads.personalize import FitHead, Personalizers
from repper.heads.settings import CommonSettings
from repper.methods import METHODS, Stage, Training
from repper.methods.common_head import common_stage
from repper.methods.network import holdings
from repper.server import Mean
from repper.server.round_loop import Served, begin, begin_anew, federate
from repper.updates.transforms import Transform

SECRET = 0x5EC4E7
"""Of a client alone. Noise from the run's seed, which every server knows, could be subtracted."""

WIDTH = 0.5
"""Of encoders, for the time that attacks take."""


@final
@dataclass(frozen=True)
class ClipAndNoise(Transform):
    """Shorten an update to the norm `clip`, and add noise of `multiplier` times that deviation.

    Batch norm's statistics are part of the update, and get noise like the rest.
    """

    clip: float
    multiplier: float

    def __call__(self, params: Params, received: Params, seed: int) -> Params:
        change = {name: value - received[name] for name, value in params.items()}
        scale = min(1.0, self.clip / max(length(change), 1e-12))
        random = torch.Generator().manual_seed(seed ^ SECRET)
        sent = {
            name: received[name]
            + scale * value
            + self.clip * self.multiplier * torch.randn(value.shape, generator=random)
            for name, value in change.items()
        }
        return {n: t.clamp(min=0) if is_variance(n) else t for n, t in sent.items()}


def length(change: Params) -> float:
    return float(torch.stack([value.square().sum() for value in change.values()]).sum().sqrt())


def difference(sent: Params, received: Params) -> Params:
    return {name: value - received[name] for name, value in sent.items()}


@dataclass(frozen=True)
class Fleet:
    """Clients with their images, and the work they do."""

    data: Dataset
    work: Work

    def engine(self) -> SerialEngine:
        return SerialEngine(self.work, self.data, workers=1)

    def begin(self, seed: int) -> Served:
        return begin_anew(self.work, Mean(), seed)

    def update(self, served: Served, client: int, number: int = 1, stage: int = 0) -> Update:
        """What the server gets of one client in a round."""
        with self.engine() as engine:
            [update] = engine.fit(served.received, [client], number, stage)
        return update

    def second(self, encoder: Params) -> Served:
        """What the server begins the stage of a common head with, on this encoder."""
        work = self.work
        networks = work.networks()
        load_params(networks[1], select(encoder, is_encoder))
        holds = holdings(work.stages, networks, work.local_norm)
        return begin(networks[1], work.stages[1].method, holds[1], Mean())

    def train(self, seed: int) -> Served:
        """What the server has after all rounds of the first stage."""
        served, stage = self.begin(seed), self.work.stages[0]
        with self.engine() as engine:
            for done in federate(engine, served, stage, seed=seed):
                served = done.served
        return served


def fleet(
    data: Dataset,
    rows: Sequence[Rows],
    method: str,
    training: Training,
    *,
    seed: int,
    rounds: int = 1,
    sending: tuple[Transform, ...] = (),
    encoder: str = "small",
    norm: str = "batch",
    common: bool = False,
) -> Fleet:
    """Clients that hold these rows of the training images; every one takes part in every round."""
    clients = tuple(range(len(rows)))
    asked = Stage(METHODS[method](), rounds, Fraction(1), training, clients=clients)
    stages = (asked, common_stage(asked, clients, CommonSettings())) if common else (asked,)
    nobody = np.zeros(0, np.int64)
    work = Work(
        stages=stages,
        spec=EncoderSpec(encoder, data.channels, data.size, WIDTH, norm),
        partition=Partition(tuple(rows), (nobody,) * len(rows)),
        personalizers=Personalizers(FitHead(HEADS["linear"])),
        classes=data.classes,
        flip=data.flip,
        seed=seed,
        sending=sending,
    )
    return Fleet(data, work)
