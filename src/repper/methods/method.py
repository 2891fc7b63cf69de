"""What a method is: which parameters travel, and the phases of a client's training in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from repper.encoders.encoder import EncoderSpec

Loss = Callable[[Tensor, Tensor], Tensor]
"""A pure function of the network's outputs and the labels, one row per view."""


@dataclass(frozen=True)
class Phase:
    """Some epochs in which the parameters that `moves` names go down `loss`.

    Each image is shown as `views` augmented views at once; outputs and labels are then stacked view
    by view.
    """

    moves: Callable[[str], bool]
    epochs: int
    loss: Loss
    views: int = 1


@dataclass(frozen=True)
class Method(ABC):
    """A federated method as data. Fields of a child are settings of the same name in `Config`."""

    personalize: ClassVar[str]
    """What its clients do last unless the user says otherwise."""

    @abstractmethod
    def top(self, features: int, classes: int) -> dict[str, nn.Module]:
        """What follows the encoder during stage 1, by name (`head`, `projection`), or nothing."""

    @abstractmethod
    def shared(self, name: str) -> bool:
        """Whether the parameter of this name travels; all others stay with their client."""

    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """What a client of the cohort does in a round, in order."""


def build_network(method: Method, spec: EncoderSpec, classes: int, seed: int) -> nn.Sequential:
    """The method's network, `encoder.*` and what follows it, with initial values from `seed`."""
    encoder = spec.build(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        top = method.top(encoder.features, classes)
    return nn.Sequential(OrderedDict[str, nn.Module](encoder=encoder, **top))
