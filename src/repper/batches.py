"""Mini-batches as rows of an index: shuffling moves numbers, not images."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def batches(count: int, size: int, random: torch.Generator) -> Iterator[Tensor]:
    """The numbers 0 to count - 1 in a random order, in parts of `size`.

    A last part of a single number joins the part before it, because batch norm cannot learn from
    one image.
    """
    order = torch.randperm(count, generator=random)
    ends = list(range(size, count, size))
    if ends and count - ends[-1] == 1:
        ends.pop()
    yield from torch.tensor_split(order, ends)
