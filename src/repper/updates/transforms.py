"""Transforms of parameters between training and sending, and after the mean."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

from repper.basics.options import Settled

if TYPE_CHECKING:
    from repper.basics.params import Params


@dataclass(frozen=True)
class Transform(Settled, ABC):
    """A frozen value that changes parameters before they are sent or used.

    At a client it gets what the client is about to send and what it received; at the server the
    mean, and the model the round began with. `seed` is of this client and round, or of the round,
    for those that draw random numbers.
    """

    wire: ClassVar[str] = "float32"
    """The number format that holds the changed parameters without loss."""
    silent: ClassVar[bool] = False
    """Whether clients that use this transform also keep their mean loss back."""

    @abstractmethod
    def __call__(self, params: Params, received: Params, seed: int) -> Params:
        """Return the changed parameters."""


@final
@dataclass(frozen=True)
class Float16(Transform):
    """Round to half precision, so that half as many bytes travel."""

    wire: ClassVar[str] = "float16"

    def __call__(self, params: Params, received: Params, seed: int) -> Params:
        return {name: tensor.half().float() for name, tensor in params.items()}


@final
@dataclass(frozen=True)
class HideUpdate(Transform):
    """Clip a client's change to the L2 norm `clip`, and add Gaussian noise to it.

    Its standard deviation on every value is `noise * clip`. The seed of client and round is no
    secret, the key may be one.
    """

    silent: ClassVar[bool] = True

    clip: float
    noise: float
    key: bytes = field(repr=False)

    def __call__(self, params: Params, received: Params, seed: int) -> Params:
        from repper.privacy.gaussian import gaussian
        from repper.privacy.vectors import params_from, shortened, vector_of

        names = sorted(params)
        start = vector_of(received, names)
        move = shortened(vector_of(params, names) - start, self.clip)
        if self.noise:
            about = hashlib.sha256(start.tobytes() + move.tobytes() + f"{seed}".encode()).digest()
            move = move + self.noise * self.clip * gaussian(self.key, about, len(move))
        return params_from(start + move, params, names)
