"""The interface of methods: which parameters are sent, and the phases of a client's round.

Neither this file nor those of the methods import PyTorch before a network is built, because
`repper run --help` reads their settings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from repper.basics.errors import RepperError
from repper.basics.options import Settled
from repper.methods.stage import Stage

if TYPE_CHECKING:
    from torch import Tensor, nn

    from repper.basics.params import Params


class Outputs(dict[str, "Tensor"]):
    """Outputs of a network's parts, by name."""

    def __missing__(self, name: str) -> Tensor:
        raise LookupError(f"the network has no output {name!r}, only {', '.join(self)}")


class Seen(NamedTuple):
    """The inputs of a loss, for one batch of one client.

    `outputs` has the features as `r`, and what every other part of the network makes of them by its
    name: `outputs["head"]` are logits. Rows of outputs and labels are stacked view by view. Frozen
    copies of the network that look at the same views have theirs too, as `outputs["previous.r"]`.
    `moving` are the parameters that are trained, and `received` what the server sent, by the same
    names; `own` is what the client has kept; `counts` are its training images of every class.
    """

    outputs: Mapping[str, Tensor]
    labels: Tensor
    moving: Mapping[str, Tensor]
    received: Mapping[str, Tensor]
    own: Mapping[str, Tensor]
    counts: Tensor


class Trained(NamedTuple):
    """A client after its round: parameters, received and kept values, gradients.

    `gradients` are means over all steps, of phases that ask for them. `features` gives those of its
    images as they are, where the encoder stands still.
    """

    params: Params
    received: Params
    own: Params
    gradients: Params
    features: Callable[[], Tensor]


Loss = Callable[[Seen], "Tensor"]
"""A pure function of what is seen."""


MANY = 10**6
"""Epochs enough for a method to have all its phases."""


def everything(name: str) -> bool:
    return True


@dataclass(frozen=True)
class Phase:
    """Some epochs in which `loss` trains the parameters that `moves` names; the rest is frozen.

    Each image is shown as `views` augmented views at once. With no view it is shown as it is; if
    the encoder is frozen too, its features are then found once and for all epochs. `network` is the
    copy of the network to train instead of the one that travels, and `beside` names copies whose
    outputs the loss looks at, too. `optimizer` is `adam`, or `sgd` with a momentum of 0.9.
    """

    moves: Callable[[str], bool]
    epochs: int
    loss: Loss
    views: int = 1
    network: str = ""
    beside: tuple[str, ...] = ()
    gradients: bool = False
    optimizer: Literal["adam", "sgd"] = "adam"


def phases_of(stage: Stage) -> tuple[Phase, ...]:
    """The phases of a client's round in a stage, in order."""
    found = stage.method.phases(stage.training.epochs)
    if not (isinstance(found, tuple) and found and all(isinstance(p, Phase) for p in found)):
        raise RepperError(
            f"phases of {type(stage.method).__name__} must return a tuple of Phase, got {found!r}"
        )
    return found


@dataclass(frozen=True)
class Method(Settled, ABC):
    """A federated method as data. The fields of a child are its settings."""

    personalize: ClassVar[str] = "keep"
    """What its clients do last unless the user says otherwise."""
    copies: ClassVar[tuple[str, ...]] = ()
    """Further copies of the network at a client, by name. Each begins as the client receives."""
    answers_with: ClassVar[str] = ""
    """The copy of the network that a client answers with, if not with the one that travels."""
    local_norm: ClassVar[bool] = False
    """Whether every client keeps normalization layers of its own, whatever `shared` says."""
    pooled: ClassVar[bool] = False
    """Whether all images lie in one place, as those of one client."""

    def top(self, features: int, classes: int) -> dict[str, nn.Module]:
        """The modules after the encoder, by name: a linear head over all classes."""
        from torch import nn

        return {"head": nn.Linear(features, classes)}

    def outputs(self, parts: Mapping[str, nn.Module], r: Tensor) -> dict[str, Tensor]:
        """The outputs of the modules of `top` for features."""
        return {name: part(r) for name, part in parts.items()}

    def classifier(self, params: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        """Weight and bias of the linear layer on r that predicts, if there is one."""
        if "head.weight" not in params:
            return None
        return params["head.weight"], params["head.bias"]

    @abstractmethod
    def shared(self, name: str) -> bool:
        """Whether the parameter of this name is sent; all others stay with their client."""

    @abstractmethod
    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """The phases of a client's round with so many epochs, in order."""

    def private(self, name: str) -> bool:
        """Whether a client keeps its own value of this parameter from one round to the next."""
        return not self.shared(name) and self.moves(name)

    def moves(self, name: str) -> bool:
        """Whether some phase trains this parameter."""
        return any(phase.moves(name) for phase in self.phases(MANY))

    def stages(self, asked: Stage) -> tuple[Stage, ...]:
        """The federated stages of a run, for settings that ask for `asked`."""
        return (asked,)

    def begin(self, weights: Params) -> tuple[dict[str, Params], Params]:
        """Initial parts that are sent beside the weights, and initial private values.

        Parts have names such as `control`; private values are called `part:name`, as
        `repper.basics.names` has it.
        """
        return {}, {}

    def leave(self, trained: Trained) -> tuple[dict[str, Params], Params]:
        """Parts that a client sends beside its weights, and private values that it keeps.

        What it keeps also stands for the private parameters of the same names.
        """
        return {}, {}

    def absorb(self, part: str, before: Params, mean: Params, share: float) -> Params:
        """A part for the next round, from the mean of those that a `share` of clients has sent."""
        return mean
