"""Mini-batches as index arrays: shuffling moves indices, not images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def batches(count: int, size: int, random: torch.Generator) -> Iterator[Tensor]:
    """The numbers 0 to count - 1 in a random order, in parts of `size`.

    A last part of a single number joins the part before it, because batch norm cannot learn from
    one image.
    """
    import torch  # not above: heads that are fitted without PyTorch take the sizes

    order = torch.randperm(count, generator=random)
    yield from order.split(batch_sizes(count, size))


def batch_sizes(count: int, size: int) -> list[int]:
    """How many numbers are in each part of `batches`."""
    starts = list(range(0, count, size))
    if len(starts) > 1 and count - starts[-1] == 1:
        starts.pop()
    return [end - start for start, end in zip(starts, [*starts[1:], count], strict=True)]


def even_size(count: int, size: int) -> int:
    """A batch size for batches of nearly equal size, as many as batches of `size` would be.

    279 images in batches of 256 would leave one of 23, whose steps are mostly chance.
    """
    return -(-count // -(-count // size))
