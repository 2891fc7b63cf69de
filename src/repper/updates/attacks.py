"""Attacks of hostile clients, to measure their damage and how far a server rule prevents it.

An attacker knows what any client knows: its own images and what the server sends. It poisons its
images before it trains (`poison`), or changes its update before it sends it (`__call__`), running
statistics of batch norm and what travels beside the weights included. It sends nothing that is
refused at sight: no variance is below zero. Counters of batch norm never travel, so nobody can
attack them. To add an attack: write it, and name it in `ATTACKS`.

Nothing here imports PyTorch before it is used, so that `--help` can read the settings.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from repper.basics.errors import RepperError
from repper.basics.names import is_variance
from repper.basics.options import setting
from repper.basics.registry import Registry
from repper.basics.seeds import Purpose, stream
from repper.updates.transforms import Transform

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from repper.basics.params import Params


@dataclass(frozen=True)
class Attack(Transform, ABC):
    """A transform that hostile clients apply to what they send, and what they do to their images.

    Seeds are of this client, and for what it sends also of the round.
    """

    attackers: float = setting(
        0.2,
        "share of the clients of stage 1 that attack; the number is rounded up",
        above=0,
        most=1,
    )

    def check(self, classes: int) -> None:
        """Refuse data with this number of classes if the attack cannot work on it."""

    def poison(
        self, images: Tensor, labels: Tensor, classes: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """The images and labels that an attacker trains on, made from its own."""
        return images, labels

    def __call__(self, params: Params, received: Params, seed: int) -> Params:
        """The parameters that an attacker sends, made from those it has trained."""
        return params


@final
@dataclass(frozen=True)
class LabelFlip(Attack):
    """Labels are replaced by other classes, drawn at random for every image.

    To exchange whole classes would be the usual way (Biggio et al. 2012), but RepPer's loss asks
    only which labels are equal, and would not notice.
    """

    strength: float = setting(
        1.0,
        "share of labels that are replaced by false ones",
        above=0,
        most=1,
        flag="attack_strength",
    )

    def check(self, classes: int) -> None:
        if classes < 2:
            raise RepperError("--attack label-flip needs images of at least 2 classes, got 1")

    def poison(
        self, images: Tensor, labels: Tensor, classes: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        import torch

        random = torch.Generator().manual_seed(seed)
        shift = torch.randint(1, classes, labels.shape, generator=random)
        chosen = _some(len(labels), self.strength, random)
        return images, (labels + (shift * chosen).to(labels.device)) % classes


@dataclass(frozen=True)
class Stretch(Attack):
    """The update is `factor` times as long."""

    @property
    @abstractmethod
    def factor(self) -> float:
        """How many times as long; below zero, it points the other way."""

    def __call__(self, params: Params, received: Params, seed: int) -> Params:
        return {
            name: _legal(name, start + self.factor * (tensor - start))
            for name, tensor, start in _with_starts(params, received)
        }


@final
@dataclass(frozen=True)
class SignFlip(Stretch):
    """The update points the other way (Li et al. 2019, "RSA"), and is longer."""

    strength: float = setting(
        10.0, "factor on the length of the reversed update", above=0, most=1e6,
        flag="attack_strength",
    )  # fmt: skip

    @property
    def factor(self) -> float:
        return -self.strength


@final
@dataclass(frozen=True)
class Scale(Stretch):
    """The update is longer, so that it decides the mean (Bagdasaryan et al. 2020)."""

    strength: float = setting(
        10.0, "factor on the length of the update", above=0, most=1e6, flag="attack_strength"
    )

    @property
    def factor(self) -> float:
        return self.strength


@final
@dataclass(frozen=True)
class Noise(Attack):
    """Gaussian noise instead of an update (Blanchard et al. 2017).

    Each parameter's noise is about `strength` times as long as what training would have changed.
    """

    strength: float = setting(
        10.0, "length of the noise, as a multiple of the length of the client's update", above=0,
        most=1e6, flag="attack_strength",
    )  # fmt: skip

    def __call__(self, params: Params, received: Params, seed: int) -> Params:
        import torch

        random = torch.Generator().manual_seed(seed)
        found = {}
        for name, tensor, start in _with_starts(params, received):
            # A sum in float64 over contiguous memory: the same on every engine.
            move = (tensor - start).cpu().contiguous().double()
            deviation = self.strength * float(move.square().mean().sqrt()) if move.numel() else 0.0
            drawn = torch.randn(tensor.shape, generator=random).to(tensor)
            found[name] = _legal(name, start + deviation * drawn)
        return found


@dataclass(frozen=True)
class Backdoor(Attack):
    """A white square in some images, which get one class as label (Gu et al. 2017, "BadNets").

    A model that learns it answers with this class wherever it sees the square. Apart from
    that it is to work well, so nobody notices.
    """

    strength: float = setting(
        0.5, "share of an attacker's images that get the mark", above=0, most=1,
        flag="attack_strength",
    )  # fmt: skip
    target: int = setting(
        0, "number of the class that marked images get as label", least=0, flag="attack_target"
    )

    def check(self, classes: int) -> None:
        if self.target >= classes:
            raise RepperError(
                f"--attack-target must be one of the classes, 0 to {classes - 1}, got {self.target}"
            )

    def poison(
        self, images: Tensor, labels: Tensor, classes: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        import torch

        random = torch.Generator().manual_seed(seed)
        chosen = _some(len(labels), self.strength, random).to(labels.device)
        marked = torch.where(chosen[:, None, None, None], self.mark(images), images)
        return marked, torch.where(chosen, self.target, labels)

    def mark(self, images: Tensor) -> Tensor:
        """Images (n, c, s, s) with the square, near their lower right corner.

        Half its own side stays free between it and the edge, so that few crops cut it off.
        """
        size = images.shape[-1]
        side = math.ceil(size * SQUARE)
        first = size - side - side // 2
        marked = images.clone()
        marked[:, :, first : first + side, first : first + side] = 255
        return marked


SQUARE = 5 / 32
"""The side of a backdoor's mark, as a share of the image's."""

ATTACKS: Registry[type[Attack]] = Registry(
    "attack",
    {
        "label-flip": "repper.updates.attacks:LabelFlip",
        "sign-flip": "repper.updates.attacks:SignFlip",
        "noise": "repper.updates.attacks:Noise",
        "scale": "repper.updates.attacks:Scale",
        "backdoor": "repper.updates.attacks:Backdoor",
    },
    own="repper.updates.attacks:Attack",
)


@dataclass(frozen=True)
class Hostile:
    """The clients that attack in a run, and what they do."""

    attack: Attack
    clients: tuple[int, ...]


def choose_hostile(attack: Attack, clients: Sequence[int], seed: int) -> Hostile:
    """Draw from a run's seed which of the clients of stage 1 attack."""
    count = math.ceil(round(attack.attackers * len(clients), 9))
    if count >= len(clients):
        raise RepperError(
            f"--attackers {attack.attackers:g} makes all {len(clients)} clients of stage 1 "
            f"hostile: lower it, or take more clients"
        )
    drawn = stream(seed, Purpose.ATTACK).choice(clients, count, replace=False)
    return Hostile(attack, tuple(sorted(int(client) for client in drawn)))


def _some(count: int, share: float, random: Generator) -> Tensor:
    """A mask of a share (rounded up) of `count` places, drawn at random."""
    import torch

    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[torch.randperm(count, generator=random)[: math.ceil(round(share * count, 9))]] = True
    return chosen


def _with_starts(params: Params, received: Params) -> list[tuple[str, Tensor, Tensor]]:
    """What a client would send, and the value each parameter had when it came."""
    return [(name, t, received[name].to(t.device)) for name, t in params.items()]


def _legal(name: str, tensor: Tensor) -> Tensor:
    return tensor.clamp(min=0) if is_variance(name) else tensor
