"""A method of one's own: FedAvg whose clients also make their features short.

    repper run --method examples/my_method.py:ShortFeatures --weight-of-length 0.01
    repper compare --methods examples/my_method.py:ShortFeatures,fedavg --seeds 3

The fields are settings: flags, TOML keys and arguments in Python are made from them.
"""

from dataclasses import dataclass

from torch import Tensor

from repper.basics.options import setting
from repper.methods import Method, Phase, Seen, everything, losses


@dataclass(frozen=True)
class ShortFeatures(Method):
    """Share encoder and head; cross-entropy, and a penalty on the squared length of features."""

    weight_of_length: float = setting(0.01, "weight of the penalty on features", least=0, most=100)

    def shared(self, name: str) -> bool:
        return True

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(everything, epochs, self.loss),)

    def loss(self, seen: Seen) -> Tensor:
        length = seen.outputs["r"].square().sum(1).mean()
        return losses.cross_entropy(seen) + self.weight_of_length * length
