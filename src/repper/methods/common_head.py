"""The common head: a last stage in which all clients train one head on the shared encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, final

from repper.heads.settings import CommonSettings
from repper.methods import losses
from repper.methods.method import Method, Phase, Seen, Trained
from repper.methods.stage import Stage, cohort_size

if TYPE_CHECKING:
    from torch import Tensor, nn

    from repper.basics.params import Params

BATCH = 32
FALL = 0.1
"""The learning rate of the last round, as a share of the first one's."""
MOMENTS = "moments"


@final
@dataclass(frozen=True)
class CommonHead(Method):
    """A linear head corrected for clients' class mixes (balanced softmax, Ren et al. 2020).

    The encoder stands still, and its features of images as they are are found once. Each client
    adds the log of its own class frequencies to the logits in its loss, so that the head learns
    what clients have in common; it adds them again when it predicts. In the first round clients
    only tell the mean and mean square of their features. Centred and scaled by these, a few rounds
    come close to the head that all images in one place would give; without, many do not. Where
    updates are hidden in noise, nobody tells them: features are taken as they are (`scaled`).
    """

    scaled: bool = True

    def top(self, features: int, classes: int) -> dict[str, nn.Module]:
        from torch import nn

        layer = nn.Linear(features, classes)
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)  # the problem is convex
        return {"common": layer}

    def begin(self, weights: Params) -> tuple[dict[str, Params], Params]:
        if not self.scaled:
            return {}, {}
        unknown = 0 * weights["common.weight"][0]
        return {MOMENTS: {"mean": unknown, "square": unknown.clone()}}, {}

    def classifier(self, params: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The head for features as they are."""
        weight, bias = params["common.weight"], params["common.bias"]
        if (known := _scaling(params)) is None:
            return weight, bias
        mean, scale = known
        # Not a matrix product, whose last digits depend on where the tensors lie.
        shift = (weight.double() * mean.double()).sum(1) / scale.double()
        return weight / scale, (bias.double() - shift).to(bias.dtype)

    def shared(self, name: str) -> bool:
        return is_common(name)

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        # Not Adam: it makes every step about as long as the learning rate, also where a client has
        # no images of a class and only weight decay is left, which then wears that class away.
        return (Phase(is_common, epochs, self.loss, views=0, optimizer="sgd"),)

    def loss(self, seen: Seen) -> Tensor:
        from torch.nn import functional

        weight, bias = seen.moving["common.weight"], seen.moving["common.bias"]
        r = seen.outputs["r"]
        if self.scaled:
            if (known := _scaling(seen.received)) is None:
                return 0 * (weight.sum() + bias.sum())
            mean, scale = known
            r = (r - mean) / scale
        logits = functional.linear(r, weight, bias)
        return losses.prior_corrected_cross_entropy(logits, seen.labels, seen.counts)

    def leave(self, trained: Trained) -> tuple[dict[str, Params], Params]:
        if not self.scaled:
            return {}, {}
        r = trained.features().cpu()
        return {MOMENTS: {"mean": r.mean(0), "square": r.square().mean(0)}}, {}

    def absorb(self, part: str, before: Params, mean: Params, share: float) -> Params:
        """Keep the moments of the first round: a head's meaning must not change during training."""
        return before if bool(before["square"].any()) else mean


def _scaling(params: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
    """The mean of features, and one common scale; None before they are measured."""
    mean, square = params.get(f"{MOMENTS}:mean"), params.get(f"{MOMENTS}:square")
    if mean is None or square is None or not bool(square.any()):
        return None
    return mean, (square - mean.square()).mean().clamp(min=1e-12).sqrt()


def is_common(name: str) -> bool:
    return name.startswith("common.")


def common_stages(stages: Sequence[Stage]) -> list[int]:
    """The indices of the stages that train a common head."""
    return [place for place, stage in enumerate(stages) if isinstance(stage.method, CommonHead)]


def common_stage(
    asked: Stage, clients: tuple[int, ...], settings: CommonSettings, *, scaled: bool = True
) -> Stage:
    """The stage in which `clients` train the common head."""
    training = replace(
        asked.training,
        epochs=settings.epochs,
        batch=BATCH,
        lr=settings.lr,
        lr_decay=FALL ** (1 / max(1, settings.rounds)),
        lr_decay_every=1,
        weight_decay=settings.weight_decay,
        augment="none",
        compile=False,
    )
    share = Fraction(cohort_size(len(clients), settings.participation), len(clients))
    # One more, in which features are only measured.
    rounds = settings.rounds + 1 if settings.rounds and scaled else settings.rounds
    return Stage(CommonHead(scaled), rounds, share, training, clients)
