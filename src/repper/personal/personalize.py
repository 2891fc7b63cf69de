"""Create a model from an encoder and photos, and add or remove photos."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from repper.basics.errors import RepperError
from repper.basics.files import alone_in, write_atomically
from repper.edge.model_folder import (
    ENCODER,
    FILES,
    HEAD,
    MODEL,
    PHOTOS,
    UNKNOWN,
    EncoderNotes,
    HeadNotes,
    InputNotes,
    ModelNotes,
    PhotosNotes,
    UnknownNotes,
    read_model,
)
from repper.edge.onnx_encoder import OnnxEncoder
from repper.edge.onnx_file import verified
from repper.edge.saved_head import SavedHead
from repper.edge.unknown import Unknown
from repper.personal.album import Added, Album, empty_album, read_album
from repper.personal.evaluation import Evaluation, tested_on
from repper.personal.fit import (
    HeldOut,
    check_classes,
    cooled,
    fit_head,
    fit_unknown,
    held_out,
    make_head,
)
from repper.personal.model import Model
from repper.personal.photos import digest_of, files_of, photos_in


@dataclass(frozen=True)
class Personalized:
    """The result of fitting a model: accuracies, and warnings."""

    folder: Path
    head: str
    added: Added | None
    counts: dict[str, int]
    held_out: HeldOut | None
    tested: Evaluation | None
    warnings: tuple[str, ...]


def personalize(
    encoder: Path,
    images: Path,
    out: Path,
    *,
    head: str = "linear",
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    unknown: bool = True,
    skip_unreadable: bool = False,
    overwrite: bool = False,
) -> Personalized:
    """Fit a classifier for the photos in `images`, a folder per class, into the folder `out`.

    `encoder` is an exported file or a model folder. With train/ and test/ in `images`, the model is
    tested on test/; else on its own photos, held out in turn. An `out` that `overwrite` replaces
    still gives the features of photos it knows.
    """
    data = _encoder_bytes(encoder)
    network = OnnxEncoder(data, str(encoder))
    make_head(head, settings, seed)  # a wrong setting is an error before anything is read
    photos = photos_in(images)
    learned = [photo for photo in photos if photo.part != "test"]
    tests, tested = [photo for photo in photos if photo.part == "test"], None
    with alone_in(out) if out.is_dir() else nullcontext():
        album = _known(out, network, overwrite) if out.exists() else empty_album(network)
        album, added = album.with_photos(
            learned, network, only=True, skip_unreadable=skip_unreadable
        )
        fitted = _Fitted.of(album, network, head, settings or {}, seed, unknown)
        if tests:
            tested = tested_on(network, fitted.head, fitted.unknown, tests, skip_unreadable)
        _write(out, fitted, network, data)
    return replace(fitted.told(out, added), tested=tested)


def add(model: Path, images: Path, *, skip_unreadable: bool = False) -> Personalized:
    """Add photos, one folder per class, also new classes; computes features of new photos only."""
    photos = [photo for photo in photos_in(images) if photo.part != "test"]
    _ = read_model(model)  # what is no model cannot be kept for oneself
    with alone_in(model):
        opened, album = _open(model)
        album, added = album.with_photos(photos, opened.encoder, skip_unreadable=skip_unreadable)
        return _refit(opened, album, added)


def remove(model: Path, photos: Sequence[Path] = (), classes: Collection[str] = ()) -> Personalized:
    """Remove photos, given as the same files, and whole classes."""
    _ = read_model(model)
    with alone_in(model):
        opened, album = _open(model)
        digests = {digest_of(path): path for path in files_of(photos)}
        for digest, path in digests.items():
            if digest not in album.digests:
                raise RepperError(f"{path} is not among the photos of {model}")
        return _refit(opened, album.without(digests, classes), None)


@dataclass(frozen=True)
class _Fitted:
    """Everything that is fitted on an album."""

    album: Album
    head: SavedHead
    unknown: Unknown | None
    held_out: HeldOut | None
    settings: Mapping[str, Any]
    seed: int
    warnings: tuple[str, ...]

    @classmethod
    def of(
        cls,
        album: Album,
        encoder: OnnxEncoder,
        kind: str,
        settings: Mapping[str, Any],
        seed: int,
        unknown: bool,
    ) -> _Fitted:
        counts = album.counts()
        warnings = check_classes(counts)
        names = tuple(counts)
        labels = np.array([names.index(label) for label in album.labels], np.int64)
        x = album.features
        with threadpool_limits(1):  # matrices are small: more threads wait for one another
            tested, temperature = held_out(make_head(kind, settings, seed), x, labels)
            head = fit_head(make_head(kind, settings, seed), x, labels, names, encoder.digest)
            rule = fit_unknown(x, labels, encoder.digest) if unknown else None
        return cls(album, cooled(head, temperature), rule, tested, settings, seed, tuple(warnings))

    def notes(self, encoder: OnnxEncoder, sha256: str, files: Mapping[str, str]) -> ModelNotes:
        """The description of the model, whose files have these names."""
        tested = self.held_out
        scores = {
            "head_settings": dict(self.settings),
            "seed": self.seed,
            "photos": self.album.counts(),
            "held_out": None
            if tested is None
            else {"accuracy": tested.accuracy, "photos": tested.photos, "folds": tested.folds},
        }
        return ModelNotes(
            EncoderNotes(
                sha256,
                encoder.digest,
                encoder.precision,
                encoder.architecture,
                encoder.features,
                encoder.origin,
                files[ENCODER],
            ),
            InputNotes(encoder.size, encoder.channels),
            self.head.names,
            HeadNotes(self.head.kind, self.head.digest(), files[HEAD]),
            UnknownNotes(self.unknown.threshold, files[UNKNOWN]) if self.unknown else None,
            PhotosNotes(len(self.album), files[PHOTOS]),
            scores,
            {name: metadata.version(name) for name in ("repper", "onnxruntime")},
        )

    def save(self, folder: Path, encoder: OnnxEncoder, data: bytes) -> None:
        """Write the model into a folder that exists, the description last.

        Its files take names that are free: a crash leaves the old model whole, or the new one.
        """
        parts: dict[str, SavedHead | Album | Unknown] = {HEAD: self.head, PHOTOS: self.album}
        if self.unknown is not None:
            parts[UNKNOWN] = self.unknown
        sha256 = hashlib.sha256(data).hexdigest()
        files = {name: _free(folder, name, part.digest()) for name, part in parts.items()}
        files[ENCODER] = _free(folder, ENCODER, sha256)
        has_encoder = (folder / ENCODER).is_file() and (folder / ENCODER).read_bytes() == data
        if has_encoder:
            files[ENCODER] = ENCODER
        new = [folder / name for name in files.values() if not (folder / name).exists()]
        try:
            if not has_encoder:
                write_atomically(folder / files[ENCODER], data)
            for name, part in parts.items():
                part.save(folder / files[name])
            self.notes(encoder, sha256, files).write(folder)
        except RepperError:  # such as a full disk: the old model stays as it was
            for path in new:
                path.unlink(missing_ok=True)
            raise
        for path in folder.iterdir():
            if path.name not in (MODEL, *files.values()) and _is_ours(path.name):
                path.unlink(missing_ok=True)

    def told(self, folder: Path, added: Added | None) -> Personalized:
        """The result to report."""
        return Personalized(
            folder, self.head.kind, added, self.album.counts(), self.held_out, None, self.warnings
        )


def _encoder_bytes(path: Path) -> bytes:
    """The bytes of an exported encoder file, or of a model folder's encoder."""
    if path.is_dir():
        return read_model(path).encoder_bytes(path)
    return verified(path)


def _known(out: Path, encoder: OnnxEncoder, overwrite: bool) -> Album:
    """Known features of photos from a model that is to be replaced."""
    if not overwrite:
        raise RepperError(f"{out} exists: choose another --out, or replace it with --overwrite")
    strange = [] if not out.is_dir() else [p.name for p in out.iterdir() if not _is_ours(p.name)]
    if not out.is_dir() or strange:
        what = f"it holds {strange[0]}" if strange else "it is a file"
        raise RepperError(
            f"--overwrite replaces only model folders, and {out} is not a model folder: {what}"
        )
    try:
        notes = read_model(out)
        return (
            read_album(out / notes.photos.file, encoder) if notes.photos else empty_album(encoder)
        )
    except RepperError:
        return empty_album(encoder)  # damaged, or of another encoder: it is replaced all the same


def _is_ours(name: str) -> bool:
    """Whether a file has a name that repper uses: no other file may be deleted."""
    parts = [re.escape(file).replace(r"\.", r"(-[0-9a-f]{12})?\.") for file in FILES]
    one = f"({'|'.join(parts)})"
    return re.fullmatch(rf"{one}|\.{one}\.[0-9]+\.tmp", name) is not None


def _open(folder: Path) -> tuple[Model, Album]:
    model = Model.open(folder)
    if model.notes.photos is None:
        raise RepperError(
            f"{folder} was not fitted on photos: fit a model with repper personalize --encoder "
            f"{folder} --images FOLDER --out MODEL"
        )
    return model, read_album(folder / model.notes.photos.file, model.encoder)


def _refit(model: Model, album: Album, added: Added | None) -> Personalized:
    scores = model.notes.scores or {}
    kind, settings = model.classifier.kind, scores.get("head_settings", {})
    seed = scores.get("seed", 0)
    try:
        make_head(kind, settings, seed)
        np.random.default_rng(seed)
    except (RepperError, TypeError, ValueError) as error:
        raise RepperError(
            f"{model.folder / MODEL} is damaged: its scores.head_settings or scores.seed do not "
            f"suit a {kind} head; fit the model again"
        ) from error
    fitted = _Fitted.of(album, model.encoder, kind, settings, seed, model.notes.unknown is not None)
    _write(model.folder, fitted, model.encoder, model.notes.encoder_bytes(model.folder))
    return fitted.told(model.folder, added)


def _write(folder: Path, fitted: _Fitted, encoder: OnnxEncoder, data: bytes) -> None:
    """Write a model into its folder, which appears only when it is complete."""
    if folder.exists():
        fitted.save(folder, encoder, data)
        return
    made = folder.with_name(f".{folder.name}.tmp")
    try:
        made.mkdir(parents=True, exist_ok=True)
        with alone_in(made):  # what is in it is what a killed command has left
            try:
                fitted.save(made, encoder, data)
                made.replace(folder)
            finally:
                shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise RepperError(f"cannot write {folder}: {error.strerror}") from error


def _free(folder: Path, name: str, digest: str) -> str:
    """An unused file name, because overwriting would break the model for a moment."""
    path = Path(name)
    return name if not (folder / name).exists() else f"{path.stem}-{digest[:12]}{path.suffix}"
