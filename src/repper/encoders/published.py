"""Read published ResNet weights in the formats of torchvision and timm."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repper.basics.errors import RepperError
from repper.basics.params import Params, is_finite, params_of
from repper.basics.tensor_files import read_notes, read_sealed
from repper.encoders import HALF, PIXELS
from repper.encoders.encoder import EncoderSpec
from repper.encoders.resnet import BLOCKS

ORIGIN = "published weights"
PICKLED = (".pth", ".pt", ".bin")
WRAPPERS = ("state_dict", "model", "model_state_dict")
"""Where training scripts put the weights among other things."""
PREFIXES = ("module.", "model.", "backbone.", "encoder.")
STEM = "encoder.body.0.0.weight"
"""The first convolution: 7x7 in published weights, 3x3 in encoders for small images."""
_BLOCK = re.compile(r"layer([1-4])\.(\d+)\.(conv|bn|downsample\.)([0-3])\.(\w+)")
_IN_BLOCK = {
    "conv1": "first.0", "bn1": "first.1", "conv2": "second.0", "bn2": "second.1",
    "downsample.0": "shortcut.0", "downsample.1": "shortcut.1",
}  # fmt: skip


@dataclass(frozen=True)
class Fitting:
    """Weights for an encoder, and the unused names of the file and of the encoder."""

    params: Params
    unused: tuple[str, ...]
    at_random: tuple[str, ...]

    def __str__(self) -> str:
        said = f"{len(self.params)} tensors taken"
        if self.unused:
            said += f"; not used: {', '.join(self.unused)}"
        if self.at_random:
            said += f"; random initial values: {', '.join(self.at_random)}"
        return said


@dataclass(frozen=True)
class Published:
    """A ResNet's weights from a file, by their names in the file."""

    path: Path
    depth: int
    weights: Mapping[str, Tensor]
    pixels: str

    @classmethod
    def read(cls, path: Path) -> Published:
        weights = _without_prefix(_read(path))
        blocks = tuple(
            len({m[2] for m in map(_BLOCK.fullmatch, weights) if m and m[1] == str(layer)})
            for layer in range(1, 5)
        )
        depth = next((depth for depth, count in BLOCKS.items() if count == blocks), None)
        if "conv1.weight" not in weights or depth is None or "layer1.0.conv3.weight" in weights:
            raise RepperError(
                f"--init {path} is neither an encoder of repper nor a ResNet-18 or ResNet-34 with "
                f"the parameter names of torchvision and timm (conv1, layer1 to layer4)"
            )
        return cls(path, depth, weights, pixels_of(path))

    def fitting(self, spec: EncoderSpec) -> Fitting:
        """The weights for this encoder, by our names."""
        names = (f"resnet{self.depth}", f"resnet{self.depth}-7x7")
        if spec.name not in names or spec.width != 1.0 or spec.norm != "batch":
            raise RepperError(
                f"--init {self.path} is a ResNet-{self.depth} with batch norm: it needs --encoder "
                f"{names[1]} (or {names[0]}, whose first layer is for images of about 32 pixels "
                f"and is initialized at random), --width 1 and --norm batch"
            )
        if spec.channels not in (1, 3) or (spec.channels == 1 and PIXELS[spec.pixels] is None):
            raise RepperError(
                f"--init {self.path} is for images of three colours, or grey ones with "
                f"--pixels imagenet, not for {spec.channels} channels"
            )
        expected = params_of(nn.ModuleDict({"encoder": spec.build()}))
        large_stem = spec.name.endswith("-7x7")
        found, unused = {}, []
        for name, value in self.weights.items():
            ours = self._ours(name, 2 if large_stem else 1)
            if ours in expected and (value.shape == expected[ours].shape):
                found[ours] = value.float().clone()
            elif not name.endswith("num_batches_tracked"):
                unused.append(name)
        left = tuple(sorted(expected.keys() - found.keys()))
        if left and left != (STEM,):
            raise RepperError(
                f"--init {self.path} does not fit encoder {spec.name!r}: no weights of the right "
                f"size for {', '.join(left[:3])}"
            )
        for name, value in found.items():
            if not is_finite(value):
                raise RepperError(f"--init {self.path} has NaN or infinity in {name}")
        return Fitting(found, tuple(sorted(unused)), left)

    def _ours(self, name: str, first_block: int) -> str:
        """The name of a published weight in our encoder."""
        if name == "conv1.weight":
            return STEM
        if name.startswith("bn1."):
            return f"encoder.body.0.1.{name.removeprefix('bn1.')}"
        if match := _BLOCK.fullmatch(name):
            layer, block, kind, number, what = match.groups()
            at = first_block + sum(BLOCKS[self.depth][: int(layer) - 1]) + int(block)
            return f"encoder.body.{at}.{_IN_BLOCK.get(kind + number, 'unknown')}.{what}"
        return ""


def is_published(path: Path) -> bool:
    """Whether a file has published weights instead of an encoder of repper."""
    if path.is_dir():
        return False
    return path.suffix in PICKLED or "digest" not in read_notes(path)


def pixels_of(path: Path) -> str:
    """The pixel normalization that an encoder was trained with; a key of `PIXELS`.

    Published weights are taken to know ImageNet's, unless timm's `config.json` lies beside them and
    says otherwise.
    """
    if not is_published(path):
        return read_notes(path / "encoder.safetensors" if path.is_dir() else path).get(
            "pixels", HALF
        )
    try:
        card = json.loads((path.parent / "config.json").read_text(encoding="utf-8"))
        told = card["pretrained_cfg"]
        mean, deviation = (tuple(map(float, told[key])) for key in ("mean", "std"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "imagenet"
    for name, values in PIXELS.items():
        if (mean, deviation) == (values or ((0.5,) * 3, (0.5,) * 3)):
            return name
    raise RepperError(
        f"{path.parent / 'config.json'} has pixel mean {mean} and deviation {deviation}, which "
        f"are neither ImageNet's nor those of pixels from -1 to 1: choose a normalization with "
        f"--pixels"
    )


def _read(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a file. Of a pickle only tensors are unpickled, and nothing is run."""
    if path.suffix not in PICKLED:
        return read_sealed(path, "pt")[0]
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise RepperError(f"there is no file {path}") from error
    except Exception as error:  # PyTorch's reader raises many kinds for bytes that are not its own
        raise RepperError(
            f"{path} is damaged, or contains objects other than tensors, which repper does not "
            f"load: save its state_dict as a safetensors file"
        ) from error
    for name in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    if not isinstance(content, dict):
        raise RepperError(
            f"{path} contains a {type(content).__name__}, not a dictionary of tensors"
        )
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}


def _without_prefix(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The weights without a common prefix of their names."""
    while found := [p for p in PREFIXES if any(name.startswith(p) for name in weights)]:
        weights = {name.removeprefix(found[0]): value for name, value in weights.items()}
    return weights
