"""What stands between training and sending, and between the mean and its use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from repper.options import Settled

if TYPE_CHECKING:
    from repper.params import Params


@dataclass(frozen=True)
class Transform(Settled, ABC):
    """A frozen value that changes parameters on their way, wherever they are sent from.

    At a client it gets what the client is about to send and what it received; at the server the
    mean, and the model the round began with. `seed` is of this client and round, or of the round,
    for those that draw random numbers.
    """

    wire: ClassVar[str] = "float32"
    """The kind of numbers that hold what it gives without loss."""

    @abstractmethod
    def __call__(self, params: Params, received: Params, seed: int) -> Params:
        """The parameters, changed."""


@final
@dataclass(frozen=True)
class Float16(Transform):
    """Round to half precision, so that half as many bytes travel."""

    wire: ClassVar[str] = "float16"

    def __call__(self, params: Params, received: Params, seed: int) -> Params:
        return {name: tensor.half().float() for name, tensor in params.items()}
