"""Methods in which half of the network is shared and the other half is private."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from repper.basics.errors import RepperError
from repper.basics.names import is_encoder, is_head
from repper.basics.options import setting
from repper.methods import losses
from repper.methods.method import Method, Phase, everything


@final
@dataclass(frozen=True)
class LGFedAvg(Method):
    """Liang et al. 2020: own encoder, shared head, trained together.

    Our reading: all encoders start from the same values, and there is no first phase of FedAvg.
    """

    def shared(self, name: str) -> bool:
        return is_head(name)

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, losses.cross_entropy),)


@final
@dataclass(frozen=True)
class FedPer(Method):
    """Arivazhagan et al. 2019: shared encoder, own head, trained together."""

    def shared(self, name: str) -> bool:
        return is_encoder(name)

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, losses.cross_entropy),)


@final
@dataclass(frozen=True)
class FedRep(Method):
    """Collins et al. 2021: shared encoder, own head; each round fits the head, then the encoder.

    Our reading: both phases together have the E epochs of a round, so that every method has the
    same budget; the head gets half of them, rounded down, but at least one. (With E = 1 both get
    one.) While the head is fitted, the encoder is frozen and so are its batch norm statistics.
    """

    fedrep_head_epochs: int | None = setting(
        None, "FedRep: how many of the --epochs train the head (default: half)", least=1
    )

    def shared(self, name: str) -> bool:
        return is_encoder(name)

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        head = self.fedrep_head_epochs or max(1, epochs // 2)
        if self.fedrep_head_epochs and head >= epochs:
            raise RepperError(
                f"fedrep-head-epochs {head} leaves none of {epochs} epochs for the encoder: lower "
                f"fedrep-head-epochs, or raise epochs"
            )
        return (
            Phase(is_head, head, losses.cross_entropy),
            Phase(is_encoder, max(1, epochs - head), losses.cross_entropy),
        )


@final
@dataclass(frozen=True)
class FedBABU(Method):
    """Oh et al. 2022: train and share the encoder under a head that keeps its initial values.

    Our reading: the head is the same for all and need not travel. At the end the head alone is
    fine-tuned, as for every other method here, not the whole network.
    """

    personalize: ClassVar[str] = "finetune"

    def shared(self, name: str) -> bool:
        return is_encoder(name)

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(is_encoder, epochs, losses.cross_entropy),)
