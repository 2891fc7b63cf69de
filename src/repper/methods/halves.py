"""Half the network travels, the other half is each client's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch.nn.functional import cross_entropy

from repper.errors import RepperError
from repper.methods.method import ClassifierMethod, Phase
from repper.params import is_encoder, is_head


def everything(name: str) -> bool:
    return True


@final
@dataclass(frozen=True)
class LGFedAvg(ClassifierMethod):
    """Liang et al. 2020: own encoder, shared head, trained together.

    Our reading: all encoders start from the same values, and there is no first phase of FedAvg.
    """

    epochs: int

    def shared(self, name: str) -> bool:
        return is_head(name)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(everything, self.epochs, cross_entropy),)


@final
@dataclass(frozen=True)
class FedPer(ClassifierMethod):
    """Arivazhagan et al. 2019: shared encoder, own head, trained together."""

    epochs: int

    def shared(self, name: str) -> bool:
        return is_encoder(name)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(everything, self.epochs, cross_entropy),)


@final
@dataclass(frozen=True)
class FedRep(ClassifierMethod):
    """Collins et al. 2021: shared encoder, own head; each round fits the head, then the encoder.

    Our reading: both phases together have the E epochs of a round, so that every method has the
    same budget; the head gets half of them, rounded down, but at least one. (With E = 1 both get
    one.) While the head is fitted, the encoder is frozen and so are its batch norm statistics.
    """

    epochs: int
    fedrep_head_epochs: int | None

    def __post_init__(self) -> None:
        if (self.fedrep_head_epochs or 0) >= self.epochs:
            raise RepperError(
                f"--fedrep-head-epochs {self.fedrep_head_epochs} leaves none of {self.epochs} "
                f"--epochs for the encoder"
            )

    def shared(self, name: str) -> bool:
        return is_encoder(name)

    def phases(self) -> tuple[Phase, ...]:
        head = self.fedrep_head_epochs or max(1, self.epochs // 2)
        return (
            Phase(is_head, head, cross_entropy),
            Phase(is_encoder, max(1, self.epochs - head), cross_entropy),
        )


@final
@dataclass(frozen=True)
class FedBABU(ClassifierMethod):
    """Oh et al. 2022: train and share the encoder under a head that stays as it was drawn.

    Our reading: the head is the same for all and need not travel. At the end the head alone is
    fine-tuned, as for every other method here, not the whole network.
    """

    epochs: int

    personalize: ClassVar[str] = "finetune"

    def shared(self, name: str) -> bool:
        return is_encoder(name)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(is_encoder, self.epochs, cross_entropy),)
