"""Named tensors: clients and server exchange nothing else."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from repper.basics.errors import RepperError
from repper.basics.names import is_statistic, is_variance, is_weight
from repper.basics.tensor_files import read_sealed, write_sealed

Params = dict[str, Tensor]


def params_of(module: nn.Module) -> Params:
    """The module's weights and float buffers by name, not copied.

    Batch norm's running statistics are among them; integer counters are not, because a mean of
    counters means nothing and no layer of ours reads them.
    """
    return {name: t for name, t in module.state_dict().items() if t.is_floating_point()}


def load_params(module: nn.Module, params: Mapping[str, Tensor]) -> None:
    """Copy values into the module's tensors of the same names, in place."""
    copy_params(params, params_of(module))


def copy_params(params: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    """Copy values into other tensors of the same names, in place."""
    if params:
        torch._foreach_copy_([into[name] for name in params], list(params.values()))


def select(params: Mapping[str, Tensor], wanted: Callable[[str], bool]) -> Params:
    return {name: tensor for name, tensor in params.items() if wanted(name)}


def clone(params: Mapping[str, Tensor]) -> Params:
    """A contiguous copy in main memory that shares nothing with the original."""
    return {
        name: torch.empty(t.shape, dtype=t.dtype).copy_(t.detach()) for name, t in params.items()
    }


def digest(params: Mapping[str, Tensor]) -> str:
    """A SHA-256 over names, shapes and bytes; equal digests mean equal parameters, to the bit."""
    sha = hashlib.sha256()
    for name in sorted(params):
        tensor = params[name].detach().cpu().contiguous()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


@dataclass
class WeightedMean:
    """The mean of parameters weighted by examples, added up one update at a time.

    Sums are float64 in main memory, so the mean of equal models is that model, exactly, and the
    memory does not grow with the number of updates.
    """

    like: Params

    def __post_init__(self) -> None:
        # In the order of the updates' own memory, which makes adding three times as fast.
        self.sums: Params = {}
        self.examples = 0

    def add(self, params: Mapping[str, Tensor], examples: int) -> None:
        self.examples += examples
        for name in self.like:
            if name not in self.sums:
                self.sums[name] = torch.zeros_like(params[name], dtype=torch.float64, device="cpu")
            self.sums[name].add_(params[name], alpha=examples)

    def value(self) -> Params:
        return {n: (s / self.examples).to(self.like[n].dtype) for n, s in self.sums.items()}


def is_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite.

    A finite sum proves it, in a tenth of the time; another sum may only be too large.
    """
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


def check_update(sent: Mapping[str, Tensor], like: Mapping[str, Tensor], who: str) -> None:
    """Refuse parameters with wrong names or shapes, infinite values, or negative variances."""
    if missing := sorted(set(like) - set(sent)):
        raise RepperError(f"the update of {who} lacks {_some(missing)}")
    if extra := sorted(set(sent) - set(like)):
        raise RepperError(f"the update of {who} has unexpected {_some(extra)}")
    for name, expected in like.items():
        got = sent[name]
        if got.shape != expected.shape or got.dtype != expected.dtype:
            raise RepperError(
                f"the update of {who} has {name} as {tuple(got.shape)} {got.dtype}, "
                f"expected {tuple(expected.shape)} {expected.dtype}"
            )
        if not is_finite(got):
            raise RepperError(
                f"the update of {who} has NaN or infinity in {name}: its training diverged, "
                f"try a lower --lr"
            )
        if is_variance(name) and got.numel() and got.min() < 0:
            raise RepperError(f"the update of {who} has a negative variance in {name}")


WEIGHTS, STATISTICS = "weights", "running statistics"
FIRST = 1e6
"""The largest value in the first round of what travels beside weights."""


def check_growth(
    sent: Mapping[str, Tensor], like: Mapping[str, Tensor], most: float, who: str
) -> None:
    """Refuse parameters with a value more than `most` times as large as the largest in `like`.

    Of the largest weight: in rounds that learn it becomes 1.1 times as large at the default
    learning rate, and 3 times at thirty times that rate. Running statistics multiply from layer to
    layer (3000 times at that rate), and what travels beside weights may be squares: they may grow
    by the cube of `most`, and 1 is the least that they are compared with.
    What travels beside weights is measured anew in the first round, when it is 0 (`FIRST`).
    """
    known = _largest(like)
    for kind, largest in _largest(sent).items():
        before = known[kind]
        if kind == WEIGHTS:
            bound = most * (before or 1.0)
        else:
            bound = most**3 * max(before, 1.0)
            if kind != STATISTICS and not before:
                bound = max(bound, FIRST)
        if largest > bound:
            raise RepperError(
                f"the update of {who} has a value of {largest:.3g} among its {kind}, but the "
                f"largest value sent to it is {before:.3g}: the update is poisoned or diverged "
                f"(--max-growth sets the limit)"
            )


def _largest(params: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest absolute value of each kind of parameters."""
    found: dict[str, float] = {}
    for name, tensor in params.items():
        kind = STATISTICS if is_statistic(name) else WEIGHTS
        if not is_weight(name):
            kind = name.partition(":")[0]
        if tensor.numel():
            low, high = tensor.aminmax()
            found[kind] = max(found.get(kind, 0.0), high.item(), -low.item())
        else:
            found.setdefault(kind, 0.0)
    return found


def save_params(path: Path, params: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    """Write a safetensors file, whole or not at all, with notes and a digest in its header."""
    header = {**notes, "digest": digest(params)}
    tensors = {n: t.detach().cpu().contiguous() for n, t in params.items()}
    write_sealed(path, save(tensors, metadata=header))


def read_params(path: Path) -> tuple[Params, dict[str, str]]:
    """Read a file of `save_params`; a damaged file is refused."""
    params, notes = read_sealed(path, "pt")
    if "digest" not in notes:
        raise RepperError(f"{path} was not written by repper: its header has no digest")
    try:
        whole = notes["digest"] == digest(params)
    except TypeError:  # numbers of a kind that we never write
        whole = False
    if not whole:
        raise RepperError(f"{path} is damaged: its contents do not match its digest")
    return params, notes


def _some(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
