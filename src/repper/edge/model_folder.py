"""A model folder: an exported encoder, optionally a head, and their description.

| file                  | what it holds                                      |
|-----------------------|----------------------------------------------------|
| `encoder.onnx`        | images (uint8, NHWC) to features                   |
| `head.safetensors`    | features to scores: `repper.edge.saved_head`       |
| `unknown.safetensors` | which images are of no class that the head knows   |
| `photos.safetensors`  | features and classes of the photos it was fitted on |
| `model.json`          | the description of the folder: `ModelNotes`        |
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repper.basics.documents import build, read_json, write_json
from repper.basics.errors import RepperError
from repper.basics.files import is_text
from repper.edge.onnx_file import verified
from repper.edge.saved_head import SavedHead, read_head

MODEL = "model.json"
ENCODER = "encoder.onnx"
HEAD = "head.safetensors"
UNKNOWN = "unknown.safetensors"
PHOTOS = "photos.safetensors"
FILES = (MODEL, ENCODER, HEAD, UNKNOWN, PHOTOS)
"""All that a model folder may hold."""
FORMAT = "repper-model-1"
LICENCE = (
    "The weights are yours: they come from your own training, and repper claims no rights in them. "
    "The rights of others in the images they were learned from are not changed."
)
COPY = "copy the whole folder again"
"""What to do with a damaged model folder."""


@dataclass(frozen=True)
class EncoderNotes:
    """Description of the encoder: its file, its checksum, and the digest that heads refer to."""

    sha256: str
    digest: str
    precision: str
    architecture: str
    features: int
    origin: str
    file: str = ENCODER


@dataclass(frozen=True)
class InputNotes:
    """Description of the encoder's input images, and of the preparation of photos."""

    size: int
    channels: int
    layout: str = "NHWC"
    type: str = "uint8"
    crop: str = "central square"
    resize: str = "bilinear, antialiased (Pillow)"
    transparency: str = "white"


@dataclass(frozen=True)
class HeadNotes:
    kind: str
    digest: str
    file: str = HEAD


@dataclass(frozen=True)
class UnknownNotes:
    threshold: float
    file: str = UNKNOWN


@dataclass(frozen=True)
class PhotosNotes:
    """Description of the file with the features of the photos that a model was fitted on."""

    count: int
    file: str = PHOTOS


@dataclass(frozen=True)
class ModelNotes:
    """The content of `model.json`; `classes` are in the order of the head's scores.

    `scores` are what was measured on held-out images, for people to read.
    """

    encoder: EncoderNotes
    input: InputNotes
    classes: tuple[str, ...] | None = None
    head: HeadNotes | None = None
    unknown: UnknownNotes | None = None
    photos: PhotosNotes | None = None
    scores: dict[str, Any] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    made_from: dict[str, str] = field(default_factory=dict)
    """Digests of the run that an encoder was exported from: settings, partition, data, code."""
    licence: str = LICENCE

    def as_dict(self) -> dict[str, Any]:
        """The content of `model.json`."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    def write(self, folder: Path) -> None:
        """Write `model.json`, whole or not at all."""
        write_json(folder / MODEL, self.as_dict(), escaped=False)

    def encoder_bytes(self, folder: Path) -> bytes:
        """The bytes of the encoder, after a check that they are the ones described here."""
        path = folder / self.encoder.file
        data = verified(path)
        if hashlib.sha256(data).hexdigest() != self.encoder.sha256:
            raise RepperError(
                f"{path} is not the encoder that {MODEL} in the same folder describes: copy the "
                f"whole folder again"
            )
        return data

    def read_head(self, folder: Path) -> SavedHead | None:
        """The head, after a check that it belongs to this encoder; None if there is none."""
        if self.head is None:
            return None
        head = read_head(folder / self.head.file).for_encoder(self.encoder.digest)
        if head.digest() != self.head.digest:
            raise RepperError(
                f"{folder / self.head.file} is not the head that {MODEL} in the same folder "
                f"describes: copy the whole folder again"
            )
        if self.classes is not None and self.classes != head.names:
            raise RepperError(
                f"{folder / MODEL} is damaged: its classes differ from its head's classes; copy "
                f"the whole folder again"
            )
        return head


def read_model(folder: Path) -> ModelNotes:
    """Read `model.json` of a model folder; unknown keys in it are ignored."""
    path = folder / MODEL
    if not folder.is_dir():
        raise RepperError(f"there is no model folder {folder}")
    if not path.is_file():
        raise RepperError(f"{folder} is not a model folder: it has no {MODEL}")
    found = read_json(path, COPY)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise RepperError(f"{path} does not describe a model of this version of repper ({FORMAT})")
    notes = build(ModelNotes, found, path, COPY)
    for part in (notes.encoder, notes.head, notes.unknown, notes.photos):
        if part is None:
            continue
        outside = Path(part.file).name != part.file or part.file in ("", ".", "..")
        if outside or not is_text(part.file):
            raise RepperError(f"{path} names a file outside of its folder: {part.file!r}")
    return notes
