"""What can be set of each head.

It is not beside the fitting, because `--help` reads it, and needs neither PyTorch nor scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass

from repper.options import setting

LEAST_STEPS = 100
LEAST_EPOCHS = 10


@dataclass(eq=False, repr=False)
class HeadSettings:
    scale: bool = setting(
        False,
        "centre features for new heads, and divide them by their spread (else they take them as "
        "they are)",
        flag="head_scale",
    )


@dataclass(eq=False, repr=False)
class DescentSettings(HeadSettings):
    epochs: int | None = setting(
        None,
        "epochs of a trained head: linear, mlp, finetune (default: at least 10, and 100 steps)",
        flag="head_epochs",
        least=1,
    )
    lr: float = setting(0.01, "learning rate of a trained head", flag="head_lr", above=0, most=1e6)
    batch: int = setting(256, "images in a batch of a trained head", flag="head_batch", least=1)
    optimizer: str = setting(
        "adam", "optimizer of a trained head", flag="head_optimizer", choices=("adam", "sgd")
    )
    weight_decay: float = setting(
        1e-4, "L2 weight decay of a trained head", flag="head_weight_decay", least=0, most=1e6
    )

    def epochs_of(self, steps: int) -> int:
        """How many epochs of so many steps; ten on 70 images would be ten steps: too few."""
        if self.epochs is not None:
            return self.epochs
        return max(LEAST_EPOCHS, -(-LEAST_STEPS // steps))


@dataclass(eq=False, repr=False)
class LinearSettings(DescentSettings):
    pass


@dataclass(eq=False, repr=False)
class MLPSettings(DescentSettings):
    hidden: int = setting(
        128, "hidden units of an mlp head", flag="head_hidden", least=1, most=65536
    )


@dataclass(eq=False, repr=False)
class CommonSettings:
    """Of the head that all clients train together."""

    rounds: int = setting(
        15, "rounds in which clients train the common head", flag="common_rounds", least=0
    )
    epochs: int = setting(
        4, "epochs of a client in each of them", flag="common_epochs", least=1, most=10**6
    )
    participation: float = setting(
        1.0, "share of clients in each of them", flag="common_participation", above=0, most=1
    )
    lr: float = setting(
        0.1, "learning rate of the first of them", flag="common_lr", above=0, most=1e6
    )
    weight_decay: float = setting(
        3e-3, "L2 weight decay of the common head", flag="common_weight_decay", least=0, most=1e6
    )
    smoothing: float = setting(
        0.5,
        "images of every class that a client adds to its own when it predicts with the common head",
        flag="common_smoothing",
        above=0,
        most=1e6,
    )


@dataclass(eq=False, repr=False)
class SolvedSettings(HeadSettings):
    c: float = setting(
        1.0,
        "inverse regularization of an svm or logistic head",
        flag="head_c",
        least=1e-6,
        most=1e6,
    )
    choose_c: bool = setting(
        False,
        "svm and logistic heads choose --head-c, or a tenth, hundredth or thousandth of it, on "
        "parts of the client's own training images that are held out in turn",
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
