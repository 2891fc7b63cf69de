"""Two federated stages: RepPer's encoder, then one linear head for all on the frozen encoder.

    repper run --method examples/two_stages.py:EncoderThenHead --head-rounds 10

In the second stage only the head comes back from clients. Images are shown as they are and the
encoder stands still, so each client finds its features once a round: rounds take a moment.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

from torch import Tensor

from repper.basics.names import is_head
from repper.basics.options import setting
from repper.methods import Method, Phase, Seen, Stage, losses
from repper.methods.repper import RepPer


@dataclass(frozen=True)
class CommonHead(Method):
    """A head for all, trained as if every client had each class equally often."""

    def shared(self, name: str) -> bool:
        return is_head(name)

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(is_head, epochs, self.loss, views=0),)

    def loss(self, seen: Seen) -> Tensor:
        logits = seen.outputs["head"]
        return losses.prior_corrected_cross_entropy(logits, seen.labels, seen.counts)


@dataclass(frozen=True)
class EncoderThenHead(Method):
    """The stages of a run, in order; clients keep the head that the last one has trained."""

    head_rounds: int = setting(10, "rounds of the second stage", least=1)

    def shared(self, name: str) -> bool:
        return True

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return RepPer(loss="usual").phases(epochs)

    def stages(self, asked: Stage) -> tuple[Stage, ...]:
        quick = replace(asked.training, epochs=2, lr=0.01, lr_decay=1.0)
        encoder = replace(asked, method=RepPer(loss="usual"))
        head = replace(
            asked, method=CommonHead(), rounds=self.head_rounds, participation=Fraction(1),
            training=quick,
        )  # fmt: skip
        return encoder, head
