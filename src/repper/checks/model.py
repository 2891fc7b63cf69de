"""Check model folders and exported files, without PyTorch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from repper.basics.documents import is_sealed
from repper.basics.errors import RepperError, needs
from repper.basics.tensor_files import read_notes as read_sealed_notes
from repper.checks.check import Checks, NotChecked, checked
from repper.edge.model_folder import MODEL, ModelNotes, read_model
from repper.edge.onnx_file import (
    CLASSIFIER_FORMAT,
    ENCODER_FORMAT,
    HUB_FORMAT,
    read_notes,
    verified,
)
from repper.edge.saved_head import read_head
from repper.edge.unknown import read_unknown


def checks_of_model(folder: Path) -> Checks:
    """Check a model folder: its description, and whether its files match the description."""

    def description() -> str:
        notes = read_model(folder)
        made = ", ".join(f"{name} {digest[:12]}" for name, digest in notes.made_from.items())
        return "; ".join(filter(None, [seal_of(folder / MODEL), made and f"made from {made}"]))

    def encoder() -> str:
        notes = read_model(folder)
        said = read_notes(notes.encoder_bytes(folder)).get("repper.encoder", "")
        if said != notes.encoder.digest:
            raise RepperError(
                f"{folder / MODEL} describes another encoder than the one in the folder"
            )
        return said[:12]

    def head() -> str:
        if (found := read_model(folder).read_head(folder)) is None:
            raise NotChecked("there is none")
        return found.digest()[:12]

    def unknown() -> str:
        notes = read_model(folder)
        if notes.unknown is None:
            raise NotChecked("there is none")
        rule = read_unknown(folder / notes.unknown.file, notes.encoder.digest)
        if rule.threshold != notes.unknown.threshold:
            raise RepperError(f"{folder / MODEL} describes another {notes.unknown.file}")
        return ""

    yield checked(folder, "description", description)
    yield checked(folder, "encoder", encoder)
    yield checked(folder, "head", head)
    yield checked(folder, "unknown", unknown)
    yield checked(folder, "photos", lambda: _photos(folder, read_model(folder)))


def _photos(folder: Path, notes: ModelNotes) -> str:
    if notes.photos is None:
        raise NotChecked("there are none")
    if any(importlib.util.find_spec(name) is None for name in ("onnxruntime", "sklearn")):
        raise NotChecked(
            "checking photos needs onnxruntime and scikit-learn: pip install 'repper[edge]'"
        )
    from repper.edge.onnx_encoder import OnnxEncoder
    from repper.personal.album import read_album

    encoder = OnnxEncoder(notes.encoder_bytes(folder), str(folder / notes.encoder.file))
    album = read_album(folder / notes.photos.file, encoder)
    if len(album) != notes.photos.count:
        raise RepperError(
            f"{folder / MODEL} describes {notes.photos.count} photos, not {len(album)}"
        )
    return f"{len(album)} photos"


def checks_of_hub(folder: Path) -> Checks:
    """Check the models of a Hugging Face repository; its texts have no digests."""
    for path in sorted((folder / "onnx").glob("*.onnx")):

        def model(path: Path = path) -> str:
            return _told(path, HUB_FORMAT)

        yield checked(folder, path.name, model)


def checks_of_file(path: Path) -> Checks:
    """Check an exported file, or the file of a head or of parameters."""

    def file() -> str:
        if path.suffix == ".onnx":
            try:
                notes = read_notes(path.read_bytes())
            except ValueError:
                notes = {}
            known = (ENCODER_FORMAT, CLASSIFIER_FORMAT, HUB_FORMAT)
            said = notes.get("repper.format", "")
            return _told(path, said if said in known else ENCODER_FORMAT)
        if path.suffix == ".safetensors":
            return _tensors(path)
        raise RepperError(f"{path} cannot be verified alone: give its folder")

    yield checked(path, path.name, file)


def _tensors(path: Path) -> str:
    """Check a file of weights, and say what it holds."""
    notes = read_sealed_notes(path)
    if notes.get("format", "").startswith("repper-head"):
        return f"a head, {read_head(path).digest()[:12]}"
    if "format" in notes:
        raise NotChecked("it belongs to a model folder: verify the folder")
    with needs("train", "verifying parameters"):
        from repper.basics.params import read_params
    _, notes = read_params(path)
    return f"parameters, {notes['digest'][:12]}"


def _told(path: Path, format: str) -> str:
    return f"encoder {read_notes(verified(path, format)).get('repper.encoder', '')[:12]}"


def seal_of(path: Path) -> str:
    """A remark on a JSON or TOML file without a seal; empty for a file with a seal."""
    return "" if is_sealed(path) else "without a seal: written by an older version, or by hand"
