"""Layers that compute several clients' networks at once, each with its own weights.

With 20 small images, a layer's arithmetic takes microseconds and each call of PyTorch ten times as
long. Here one call serves many clients: convolutions and linear layers are batched matrix products,
of which client i has matrix i. Images of all clients lie in one batch, client after client, so that
layers without weights work as they are.

What comes out for a client is the same to the bit, whoever is beside it and however many: every
matrix has a shape that depends on its client alone, every client's weights begin at the boundary of
a vector register, and sums run over a client's own rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from repper.encoders.blocks import MeanOverPositions
from repper.encoders.encoder import Encoder
from repper.encoders.resnet import BasicBlock

VECTOR = 64
"""Numbers that every client's part of a weight is a multiple of: vectors of any CPU divide it."""
ROWWISE = (nn.ReLU, nn.Identity, nn.Flatten, nn.MaxPool2d, MeanOverPositions)
"""Layers without weights that do to each image the same, whoever it belongs to."""
CONTAINERS = (nn.Sequential, BasicBlock, Encoder)


@dataclass
class Frame:
    """The layout of a batch for stacked layers: the clients, and which rows are images.

    `counts` are the images of each client. Where some have fewer than there are rows, `mask`
    (clients, rows) is 1 for an image and 0 for the rest.
    """

    clients: int
    counts: Tensor
    mask: Tensor | None = None

    def rows(self, x: Tensor) -> Tensor:
        """A tensor (clients * rows, ...) as (clients, rows, ...)."""
        return x.view(self.clients, -1, *x.shape[1:])


def is_stackable(module: nn.Module) -> bool:
    """Whether all layers have a stacked version; the user's own layers have none."""
    kind = type(module)
    if isinstance(module, nn.Conv2d):
        plain = (module.groups, module.dilation, module.padding_mode) == (1, (1, 1), "zeros")
        sides = (module.kernel_size, module.stride, module.padding)
        square = all(not isinstance(pair, str) and pair[0] == pair[1] for pair in sides)
        return kind is nn.Conv2d and plain and square and module.bias is None
    if isinstance(module, nn.BatchNorm2d):
        kept = module.affine and module.track_running_stats and module.momentum is not None
        return kind is nn.BatchNorm2d and kept
    if isinstance(module, nn.GroupNorm):
        return kind is nn.GroupNorm and bool(module.affine)
    if isinstance(module, nn.Flatten):
        return kind is nn.Flatten and module.start_dim == 1
    if kind in (nn.Linear, *ROWWISE):
        return True
    return kind in CONTAINERS and all(map(is_stackable, module.children()))


def stacked(module: nn.Module, frame: Frame) -> nn.Module:
    """A stacked copy of a module for the clients of the frame; its weights are filled in later."""
    kinds: dict[type[nn.Module], Callable[[Any, Frame], nn.Module]] = {
        nn.Conv2d: StackedConv, nn.BatchNorm2d: StackedBatchNorm, nn.GroupNorm: StackedGroupNorm,
        nn.Linear: StackedLinear,
    }  # fmt: skip
    if type(module) in kinds:
        return kinds[type(module)](module, frame)
    if isinstance(module, nn.ReLU):
        return nn.ReLU()  # a view cannot be changed in place without another copy of its gradient
    result = copy.copy(module)
    result._modules = {
        name: stacked(child, frame) for name, child in module._modules.items() if child is not None
    }
    return result


def row_of(storage: Tensor, client: int, like: Tensor) -> Tensor:
    """A client's part of a stacked weight, in the shape of the weight."""
    return shaped(storage[client, : like.numel()], like.shape)


def shaped(flat: Tensor, shape: torch.Size) -> Tensor:
    """A vector as a tensor; a convolution's, as networks have it, with the channels innermost."""
    if len(shape) != 4:
        return flat.view(shape)
    outputs, inputs, height, width = shape
    return flat.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def _storage(weight: Tensor, frame: Frame) -> Tensor:
    return torch.zeros(frame.clients, -(-weight.numel() // VECTOR) * VECTOR)


class Stacked(nn.Module):
    """A layer whose weights are (clients, numbers), each client's padded with zeros."""

    def __init__(self, layer: nn.Module, frame: Frame) -> None:
        super().__init__()
        self._frame = frame
        self._sizes = {name: tensor.numel() for name, tensor in layer.state_dict().items()}
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, nn.Parameter(_storage(parameter, frame)))
        for name, buffer in layer.named_buffers():
            if buffer.is_floating_point():
                self.register_buffer(name, _storage(buffer, frame))

    def numbers(self, name: str) -> Tensor:
        """A stacked weight without its padding: (clients, numbers)."""
        storage = cast(Tensor, getattr(self, name))
        size = self._sizes[name]
        return storage if storage.shape[1] == size else storage[:, :size]


@final
class StackedConv(Stacked):
    def __init__(self, layer: nn.Conv2d, frame: Frame) -> None:
        super().__init__(layer, frame)
        self._outputs = layer.out_channels
        self._kernel, self._stride = layer.kernel_size[0], layer.stride[0]
        self._padding = cast(tuple[int, int], layer.padding)[0]

    def forward(self, images: Tensor) -> Tensor:
        shape = self._frame.clients, self._outputs, self._kernel, self._kernel, -1
        maps = _Convolution.apply(  # type: ignore[no-untyped-call]  # PyTorch has no types for it
            images.permute(0, 2, 3, 1), self.numbers("weight").view(shape),
            self._stride, self._padding,
        )  # fmt: skip
        return cast(Tensor, maps.permute(0, 3, 1, 2))


@dataclass(frozen=True)
class _Taps:
    """The positions of a kernel's rows (or columns) that meet an image of `size`.

    `used` are those that meet it at all: of a kernel of 3 on a single pixel, the middle one.
    """

    size: int
    kernel: int
    stride: int
    padding: int

    @property
    def windows(self) -> int:
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def used(self) -> slice:
        met = [tap for tap in range(self.kernel) if self.met(tap)[0]]
        return slice(met[0], met[-1] + 1)

    def met(self, tap: int) -> tuple[int, slice, slice]:
        """How many windows have this tap inside the image; which ones, and where it lies there."""
        offset = tap - self.padding
        first = max(0, -(offset // self.stride))
        last = max(first, min(self.windows, (self.size - 1 - offset) // self.stride + 1))
        start = first * self.stride + offset
        pixels = slice(start, start + (last - first - 1) * self.stride + 1, self.stride)
        return last - first, slice(first, last), pixels


def _pairs(high: _Taps, wide: _Taps) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """For every tap: its place in columns (n, h, w, taps, taps, channels), and that in images."""
    every = slice(None)
    for i in range(high.used.start, high.used.stop):
        _, own_rows, rows = high.met(i)
        for j in range(wide.used.start, wide.used.stop):
            _, own_columns, columns = wide.met(j)
            tap = i - high.used.start, j - wide.used.start
            yield (every, own_rows, own_columns, *tap), (every, rows, columns)


class _Convolution(torch.autograd.Function):
    """Images (n, h, w, channels) of all clients, with a kernel (outputs, k, k, channels) of each.

    As one product of matrices a client. Taps that meet only padding are left out.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        clients, outputs, kernel, _, channels = weight.shape
        high, wide = (_Taps(size, kernel, stride, padding) for size in images.shape[1:3])
        rows, columns = high.used, wide.used
        taps = rows.stop - rows.start, columns.stop - columns.start
        seen = images.new_zeros(len(images), high.windows, wide.windows, *taps, channels)
        for place, pixels in _pairs(high, wide):
            seen[place] = images[pixels]
        seen = seen.view(clients, -1, taps[0] * taps[1] * channels)
        used = weight[:, :, rows, columns].reshape(clients, outputs, -1)
        ctx.save_for_backward(seen, used)
        ctx.settings = images.shape, weight.shape, high, wide, taps
        maps = torch.bmm(seen, used.transpose(1, 2))
        return maps.view(len(images), high.windows, wide.windows, outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        seen, used = ctx.saved_tensors
        shape, weight_shape, high, wide, taps = ctx.settings
        gradient = gradients[0].reshape(*seen.shape[:2], -1)
        of_images = of_weight = None
        if ctx.needs_input_grad[0]:
            columns = torch.bmm(gradient, used)
            columns = columns.view(shape[0], high.windows, wide.windows, *taps, shape[3])
            of_images = columns.new_zeros(shape)
            for place, pixels in _pairs(high, wide):
                of_images[pixels] += columns[place]
        if ctx.needs_input_grad[1]:
            # This way round: PyTorch's own gradient would come out transposed, and slowly.
            product = torch.bmm(gradient.transpose(1, 2), seen)
            product = product.view(*weight_shape[:2], *taps, weight_shape[4])
            of_weight = product
            if product.shape != weight_shape:
                of_weight = product.new_zeros(weight_shape)
                of_weight[:, :, high.used, wide.used] = product
        return of_images, of_weight, None, None


@final
class StackedLinear(Stacked):
    def __init__(self, layer: nn.Linear, frame: Frame) -> None:
        super().__init__(layer, frame)
        self._outputs = layer.out_features

    def forward(self, x: Tensor) -> Tensor:
        weight = self.numbers("weight").unflatten(1, (self._outputs, -1))
        rows = self._frame.rows(x)
        if "bias" not in self._parameters:
            return torch.bmm(rows, weight.transpose(1, 2)).flatten(0, 1)
        bias = self.numbers("bias")[:, None]
        return torch.baddbmm(bias, rows, weight.transpose(1, 2)).flatten(0, 1)


@final
class StackedBatchNorm(Stacked):
    def __init__(self, layer: nn.BatchNorm2d, frame: Frame) -> None:
        super().__init__(layer, frame)
        self._eps, self._momentum = layer.eps, cast(float, layer.momentum)

    def forward(self, maps: Tensor) -> Tensor:
        frame, shape = self._frame, maps.permute(0, 2, 3, 1).shape
        positions = shape[1] * shape[2]
        x = frame.rows(maps.permute(0, 2, 3, 1).reshape(shape)).flatten(1, 3)
        mask = None
        if frame.mask is not None:
            mask = frame.mask.repeat_interleave(positions, 1)[:, :, None]
        weight, bias = self.numbers("weight")[:, None], self.numbers("bias")[:, None]
        means, variances = self.numbers("running_mean"), self.numbers("running_var")
        if not self.training:
            scale = weight / (variances[:, None] + self._eps).sqrt()
            y = (x - means[:, None]) * scale + bias
            y = y if mask is None else y * mask
        else:
            count = (frame.counts * positions)[:, None, None]
            y, mean, variance = _Norm.apply(  # type: ignore[no-untyped-call]
                x, weight, bias, mask, count, self._eps
            )
            unbiased = variance * (count / (count - 1).clamp(min=1))
            means.lerp_(mean[:, 0], self._momentum)
            variances.lerp_(unbiased[:, 0], self._momentum)
        return y.view(shape).permute(0, 3, 1, 2)


class _Norm(torch.autograd.Function):
    """Rows (clients, n, channels) with mean 0 and variance 1 over the real ones, then scaled."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mask: Tensor | None,
        count: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean = x.sum(1, keepdim=True) / count
        centred = x - mean
        if mask is not None:
            centred *= mask
        variance = centred.square().sum(1, keepdim=True) / count
        inverse = (variance + eps).rsqrt()
        unit = centred.mul_(inverse)
        y = torch.addcmul(bias, unit, weight)
        if mask is not None:
            y *= mask
        ctx.save_for_backward(unit, weight, inverse, mask, count)
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        unit, weight, inverse, mask, count = ctx.saved_tensors
        gradient = gradients[0] if mask is None else gradients[0] * mask
        of_bias = gradient.sum(1, keepdim=True)
        of_weight = (gradient * unit).sum(1, keepdim=True)
        x = torch.addcmul(of_bias / count, unit, of_weight / count)
        x = torch.sub(gradient, x).mul_(weight * inverse)
        if mask is not None:
            x *= mask
        return x, of_weight, of_bias, None, None, None


@final
class StackedGroupNorm(Stacked):
    def __init__(self, layer: nn.GroupNorm, frame: Frame) -> None:
        super().__init__(layer, frame)
        self._groups, self._eps = layer.num_groups, layer.eps

    def forward(self, maps: Tensor) -> Tensor:
        frame = self._frame
        unit = nn.functional.group_norm(maps, self._groups, eps=self._eps)
        shape = unit.permute(0, 2, 3, 1).shape
        x = frame.rows(unit.permute(0, 2, 3, 1).reshape(shape)).flatten(1, 3)
        y = torch.addcmul(self.numbers("bias")[:, None], x, self.numbers("weight")[:, None])
        return y.view(shape).permute(0, 3, 1, 2)
