"""What a method is: which parameters travel, and the phases of a client's training in a round."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast, final

import torch
from torch import Tensor, nn

from repper.encoders.encoder import Encoder, EncoderSpec
from repper.methods.schedule import Schedule
from repper.params import Params, is_personal, params_of, select

Loss = Callable[[Tensor, Tensor], Tensor]
"""A pure function of the network's outputs and the labels, one row per view."""


@dataclass(frozen=True)
class Phase:
    """Some epochs in which the parameters that `moves` names go down `loss`; the rest is frozen.

    Each image is shown as `views` augmented views at once; outputs and labels are then stacked view
    by view. `pull` is the weight of a proximal term towards the parameters that the server sent.
    With `personal`, the client's own copy of the network is trained instead of the shared one.
    """

    moves: Callable[[str], bool]
    epochs: int
    loss: Loss
    views: int = 1
    pull: float = 0.0
    personal: bool = False


@dataclass(frozen=True)
class Method(ABC):
    """A federated method as data. Fields of a child are settings of the same name in `Config`."""

    personalize: ClassVar[str]
    """What its clients do last unless the user says otherwise."""
    personal_copy: ClassVar[bool] = False
    """Whether a client has a network of its own, `personal.*`, beside the one that travels."""
    pooled: ClassVar[bool] = False
    """Whether all images lie in one place, and nothing has to travel."""

    @abstractmethod
    def top(self, features: int, classes: int) -> dict[str, nn.Module]:
        """What follows the encoder during stage 1, by name (`head`, `projection`), or nothing."""

    @abstractmethod
    def shared(self, name: str) -> bool:
        """Whether the parameter of this name travels; all others stay with their client."""

    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """What a client of the cohort does in a round, in order."""

    def schedule(self, asked: Schedule) -> Schedule:
        """Who trains when, for settings that ask for `asked`."""
        return asked

    def private(self, name: str) -> bool:
        """Whether a client keeps its own value of this parameter from one round to the next."""
        return not self.shared(name) and any(phase.moves(name) for phase in self.phases())

    @property
    def own_encoders(self) -> bool:
        """Whether clients have encoders of their own."""
        return self.private("encoder.") or self.personal_copy

    @property
    def keeps_private(self) -> bool:
        """Whether a client keeps anything for itself."""
        return self.own_encoders or self.private("head.")


@dataclass(frozen=True)
class ClassifierMethod(Method):
    """A method whose network ends in a linear head over all classes."""

    personalize: ClassVar[str] = "keep"

    def top(self, features: int, classes: int) -> dict[str, nn.Module]:
        return {"head": nn.Linear(features, classes)}


@final
class Network(nn.Module):
    """`encoder.*` and what follows it; with `personal.*`, a client's own copy of both."""

    def __init__(self, encoder: Encoder, top: dict[str, nn.Module], personal_copy: bool) -> None:
        super().__init__()
        self.encoder = encoder
        for name, layer in top.items():
            self.add_module(name, layer)
        self._top = tuple(top)
        if personal_copy:
            self.personal = Network(copy.deepcopy(encoder), copy.deepcopy(top), False)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.encoder(images)
        for name in self._top:
            outputs = self.get_submodule(name)(outputs)
        return outputs

    @property
    def own(self) -> Network:
        """The network that a client answers with: its own copy where it has one."""
        return cast(Network, getattr(self, "personal", self))

    @property
    def linear_head(self) -> nn.Linear | None:
        """The method's linear head, if it has one."""
        return cast(nn.Linear | None, self._modules.get("head"))


def build_network(method: Method, spec: EncoderSpec, classes: int, seed: int) -> Network:
    """The method's network with initial values from `seed`."""
    encoder = spec.build(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        top = method.top(encoder.features, classes)
    return Network(encoder, top, method.personal_copy)


def keeps_own(method: Method, network: Network) -> bool:
    """Whether some parameters never travel: private ones, or those that are never trained."""
    return not all(map(method.shared, params_of(network)))


def initial_own(method: Method, network: Network) -> Params:
    """What a client begins with that does not travel; its personal copy begins as it receives."""
    return select(params_of(network), lambda n: not (method.shared(n) or is_personal(n)))
