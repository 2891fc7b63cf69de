"""The settings of each head.

It is not beside the fitting, because `--help` reads it, and needs neither PyTorch nor scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass

from repper.basics.options import setting

LEAST_STEPS = 100
LEAST_EPOCHS = 10


@dataclass(eq=False, repr=False)
class HeadSettings:
    scale: bool = setting(
        False,
        "centre the features for new heads, and divide them by one number, their spread",
        flag="head_scale",
    )


@dataclass(eq=False, repr=False)
class DescentSettings(HeadSettings):
    epochs: int | None = setting(
        None,
        "epochs of a head trained by gradient descent: linear, mlp, finetune (default: at least "
        "10 epochs and 100 steps)",
        flag="head_epochs",
        least=1,
    )
    lr: float = setting(
        0.01, "learning rate of a linear, mlp or finetune head", flag="head_lr", above=0, most=1e6
    )
    batch: int = setting(
        256, "batch size of a linear, mlp or finetune head", flag="head_batch", least=1
    )
    optimizer: str = setting(
        "adam",
        "optimizer of a linear, mlp or finetune head",
        flag="head_optimizer",
        choices=("adam", "sgd"),
    )
    weight_decay: float = setting(
        1e-4,
        "L2 weight decay of a linear, mlp or finetune head",
        flag="head_weight_decay",
        least=0,
        most=1e6,
    )

    def epochs_of(self, steps: int) -> int:
        """The number of epochs; by default at least 10, and enough for 100 steps."""
        if self.epochs is not None:
            return self.epochs
        return max(LEAST_EPOCHS, -(-LEAST_STEPS // steps))


@dataclass(eq=False, repr=False)
class LinearSettings(DescentSettings):
    pass


@dataclass(eq=False, repr=False)
class MLPSettings(DescentSettings):
    hidden: int = setting(
        128, "number of hidden units of an mlp head", flag="head_hidden", least=1, most=65536
    )


@dataclass(eq=False, repr=False)
class CommonSettings:
    """Settings of the head that all clients train together."""

    rounds: int = setting(15, "number of rounds for the common head", flag="common_rounds", least=0)
    epochs: int = setting(
        4, "local epochs in a round of the common head", flag="common_epochs", least=1, most=10**6
    )
    participation: float = setting(
        1.0,
        "share of the clients in a round of the common head",
        flag="common_participation",
        above=0,
        most=1,
    )
    lr: float = setting(
        0.1,
        "initial learning rate of the common head; it decays to a tenth",
        flag="common_lr",
        above=0,
        most=1e6,
    )
    weight_decay: float = setting(
        3e-3, "L2 weight decay of the common head", flag="common_weight_decay", least=0, most=1e6
    )
    smoothing: float = setting(
        0.5,
        "additive smoothing of a client's class counts when it predicts with the common head",
        flag="common_smoothing",
        above=0,
        most=1e6,
    )


@dataclass(eq=False, repr=False)
class SolvedSettings(HeadSettings):
    c: float = setting(
        1.0,
        "inverse regularization strength C of an svm or logistic head",
        flag="head_c",
        least=1e-6,
        most=1e6,
    )
    choose_c: bool = setting(
        False,
        "choose C of svm and logistic heads by cross-validation on the client's training images: "
        "--head-c, or a tenth, hundredth or thousandth of it",
        flag="head_choose_c",
    )


@dataclass(eq=False, repr=False)
class LogisticSettings(SolvedSettings):
    pass


@dataclass(eq=False, repr=False)
class SVMSettings(SolvedSettings):
    kernel: str = setting(
        "linear", "kernel of an svm head", flag="svm_kernel", choices=("linear", "rbf")
    )
