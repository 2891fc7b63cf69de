"""Everything except images that clients' work depends on: plain values, made by the plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from repper.data.partition import Partition, Rows
from repper.encoders.encoder import EncoderSpec
from repper.heads.personalize import Personalizers
from repper.methods.network import Network, build_network
from repper.methods.stage import Stage
from repper.updates.attacks import Attack, Hostile
from repper.updates.transforms import Transform


@dataclass(frozen=True)
class Work:
    """The work of all clients of a run, for any engine.

    `partition` says which rows each client learns from, validates and tests on. The images of those
    in `pool` lie in one place, too: they are those of one more client, whose number comes after the
    others'. `sending` changes what clients send, `settling` what the server's rule has made of it.
    `private` is the folder of what never leaves a client, if there is anything; with `keep_rounds`
    it has that of every round. `run` is what its files are tied to. `hostile` says which clients
    attack.
    """

    stages: tuple[Stage, ...]
    spec: EncoderSpec
    partition: Partition
    personalizers: Personalizers
    classes: tuple[str, ...]
    flip: bool = False
    seed: int = 0
    device: str = "cpu"
    pool: tuple[int, ...] = ()
    sending: tuple[Transform, ...] = ()
    settling: tuple[Transform, ...] = ()
    local_norm: bool = False
    knn: int = 0
    head_curve: int = 0
    private: Path | None = None
    run: str = ""
    keep_rounds: bool = False
    hostile: Hostile | None = None

    def attack_of(self, client: int) -> Attack | None:
        """The attack of this client, if it is hostile."""
        hostile = self.hostile
        return hostile.attack if hostile is not None and client in hostile.clients else None

    def members(self, client: int) -> tuple[int, ...]:
        """The clients whose images this client trains on: itself, or all for a pooled client."""
        return self.pool if client == self.partition.clients else (client,)

    def train_rows(self, client: int) -> Rows:
        """The training rows of a client."""
        held = [self.partition.train[one] for one in self.members(client)]
        return held[0] if len(held) == 1 else np.concatenate(held)

    @property
    def most_rows(self) -> int:
        """The largest number of training rows of a client, held-out rows included."""
        sizes = [len(rows) for rows in self.partition.train]
        for client, rows in enumerate(self.partition.held_out):
            sizes[client] += len(rows)
        return sum(sizes) if self.pool else max(sizes)

    def networks(self, seed: int = 0) -> tuple[Network, ...]:
        """The network of every stage, with initial values from a seed."""
        return tuple(
            build_network(
                stage.method, self.spec, len(self.classes), seed, stage.training.freeze_until
            )
            for stage in self.stages
        )
