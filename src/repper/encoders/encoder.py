"""The interface of encoders; how to describe, build, save and read them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from repper.basics.errors import RepperError
from repper.basics.params import Params, load_params, params_of, read_params, save_params
from repper.basics.switches import default_switches
from repper.basics.tensor_files import read_notes
from repper.data.augment import normalize
from repper.data.dataset import LARGEST
from repper.encoders import ENCODERS, HALF, NORMS, PIXELS, WIDEST, BuildEncoder

SHARED, AVERAGED = "shared in training", "averaged after training"
"""How a common encoder came about."""


@final
class Encoder(nn.Module):
    """A network that ends in one feature vector r per image; `features` is its length.

    `parts` says with which layer of a `body` that is a sequence each part begins that has a name.
    """

    scale: Tensor | None
    shift: Tensor | None

    def __init__(
        self, body: nn.Module, features: int, parts: Mapping[str, int] | None = None
    ) -> None:
        super().__init__()
        self.body = body
        self.features = features
        self.parts = dict(parts or {})
        self.register_buffer("scale", None, persistent=False)
        self.register_buffer("shift", None, persistent=False)

    def take(self, pixels: str) -> None:
        """Add a pixel normalization: inputs stay from -1 to 1, and the network gets `PIXELS`."""
        if (found := PIXELS[pixels]) is not None:
            mean, deviation = (torch.tensor(values).view(1, -1, 1, 1) for values in found)
            # With p = (x + 1) / 2: (p - mean) / deviation, as one product and one sum.
            self.scale, self.shift = 0.5 / deviation, (0.5 - mean) / deviation

    def forward(self, images: Tensor) -> Tensor:
        if self.scale is not None and self.shift is not None:
            # A grey image has one channel, and becomes three here.
            images = images * self.scale + self.shift
        result: Tensor = self.body(images)
        return result


@torch.no_grad()
def extract(encoder: Encoder, images: Tensor, precision: str = "float32") -> Tensor:
    """The features of images (uint8), without augmentation; large images in smaller batches."""
    pixels = images.shape[-1] * images.shape[-2]
    at_once = max(1, min(512, 512 * 32**2 // pixels))
    half = precision == "bfloat16"
    with torch.autocast(images.device.type, torch.bfloat16, enabled=half):
        parts = [encoder(normalize(part)) for part in images.split(at_once)]
    return torch.cat(parts).float()


def features_of(spec: EncoderSpec, params: Params, images: NDArray[np.uint8]) -> NDArray[Any]:
    """The features of images by an encoder with these parameters."""
    with default_switches():
        network = nn.ModuleDict({"encoder": spec.build()})
        load_params(network, params)
        encoder = cast(Encoder, network.eval()["encoder"])
        return extract(encoder, torch.from_numpy(np.array(images))).numpy()


@dataclass(frozen=True)
class EncoderSpec:
    """Everything that determines the names and shapes of an encoder's parameters."""

    name: str
    channels: int
    size: int
    width: float = 1.0
    norm: str = "batch"
    pixels: str = HALF
    """A key of `PIXELS`; of images with one channel, an encoder then sees three equal ones."""
    builder: BuildEncoder | None = field(default=None, compare=False, repr=False)
    """The user's own function that builds it; `name` says where it is from."""

    def build(self, seed: int = 0) -> Encoder:
        """A new encoder with initial values from `seed`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            build = self.builder or ENCODERS[self.name]
            found = PIXELS[self.pixels]
            channels = self.channels if found is None else len(found[0])
            encoder = build(channels, self.size, self.width, self.norm)
            if not isinstance(encoder, Encoder):
                raise RepperError(
                    f"{self.name} must return an Encoder (from repper.encoders.encoder import "
                    f"Encoder), got {type(encoder).__name__}"
                )
            for module in encoder.modules():
                if isinstance(module, nn.Conv2d):
                    # He et al. 2015, as ResNet and MobileNet are usually started.
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                    # Convolutions on a CPU are up to twice as fast with the channels innermost.
                    module.weight.data = module.weight.data.contiguous(
                        memory_format=torch.channels_last
                    )
        encoder.take(self.pixels)
        return encoder


def save_encoder(path: Path, spec: EncoderSpec, params: Params, origin: str) -> None:
    """Write `encoder.*` with a header from which `read_encoder` builds the same encoder.

    `origin` tells a reader how it came about.
    """
    names = ("name", "channels", "size", "width", "norm")
    header = {key: str(getattr(spec, key)) for key in names}
    if spec.pixels != HALF:
        header["pixels"] = spec.pixels
    save_params(path, params, header | {"origin": origin})


def encoder_origin(path: Path) -> str:
    """How an encoder was made, according to its file or the file in a run folder."""
    return read_notes(_file(path)).get("origin", "unknown")


def _file(path: Path) -> Path:
    return path / "encoder.safetensors" if path.is_dir() else path


def _check_limits(path: Path, spec: EncoderSpec) -> None:
    """Refuse implausible numbers in a header, which could otherwise exhaust the memory."""
    limits = (
        ("channels", spec.channels in (1, 3), "1 or 3"),
        ("size", 1 <= spec.size <= LARGEST, f"1 to {LARGEST}"),
        ("width", 0 < spec.width <= WIDEST, f"above 0 and at most {WIDEST}"),
        ("norm", spec.norm in NORMS, " or ".join(NORMS)),
        ("pixels", spec.pixels in PIXELS, " or ".join(PIXELS)),
    )
    for name, right, known in limits:
        if not right:
            raise RepperError(
                f"{path} is damaged, or not from repper: its {name} is {getattr(spec, name)}, "
                f"but must be {known}"
            )


def read_encoder(path: Path) -> tuple[EncoderSpec, Params]:
    """Read an encoder's file, or the one in a run folder."""
    path = _file(path)
    params, notes = read_params(path)
    try:
        spec = EncoderSpec(
            notes["name"],
            int(notes["channels"]),
            int(notes["size"]),
            float(notes["width"]),
            notes["norm"],
            notes.get("pixels", HALF),
        )
    except (KeyError, ValueError) as error:
        raise RepperError(
            f"{path} contains parameters, but it is not an encoder of repper"
        ) from error
    _check_limits(path, spec)
    try:
        # Ours are built without memory, as a header may name a network of any size.
        with torch.device("meta") if spec.name in ENCODERS else nullcontext():
            expected = params_of(nn.ModuleDict({"encoder": spec.build()}))
    except (ValueError, RuntimeError, MemoryError, OverflowError) as error:
        raise RepperError(f"{path} names an encoder that cannot be built: {spec}") from error
    if {n: t.shape for n, t in params.items()} != {n: t.shape for n, t in expected.items()}:
        raise RepperError(f"{path} does not contain the parameters of its encoder {spec.name!r}")
    return spec, params
