"""The album of a model: features and classes of its photos, but not the photos.

It is kept in the model folder, so that ten more photos cost ten, and a head can be fitted again
after photos or classes have left. It may be deleted; then the next fit needs all photos again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from repper.basics.errors import RepperError
from repper.basics.tensor_files import read_sealed, write_sealed
from repper.edge.onnx_encoder import OnnxEncoder
from repper.edge.saved_head import Array
from repper.personal.photos import Photo, digest_of, features_of

FORMAT = "repper-photos-1"


@dataclass(frozen=True)
class Album:
    """Features (n, d), and for each photo the SHA-256 of its file, its class and its name."""

    encoder: str
    features: Array
    digests: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.digests)

    def counts(self) -> dict[str, int]:
        """How many photos each class has."""
        return {label: self.labels.count(label) for label in sorted(set(self.labels))}

    def of(self, rows: Sequence[int]) -> Album:
        """A part of the photos."""
        digests, labels, names = (
            tuple(column[row] for row in rows) for column in (self.digests, self.labels, self.names)
        )
        return Album(self.encoder, self.features[list(rows)], digests, labels, names)

    def without(self, photos: Collection[str] = (), classes: Collection[str] = ()) -> Album:
        """The album without some photos (by their SHA-256) and classes."""
        for name in classes:
            if name not in self.labels:
                known = ", ".join(self.counts()) or "none"
                raise RepperError(f"the model has no class {name!r} (its classes: {known})")
        return self.of(
            [
                row
                for row, (digest, label) in enumerate(zip(self.digests, self.labels, strict=True))
                if digest not in photos and label not in classes
            ]
        )

    def with_photos(
        self,
        photos: Sequence[Photo],
        encoder: OnnxEncoder,
        *,
        only: bool = False,
        skip_unreadable: bool = False,
    ) -> tuple[Album, Added]:
        """The album with more photos; computes features of new photos only.

        A photo that is there already takes the class it has now. With `only`, photos that are not
        among the given ones leave.
        """
        label_of: dict[str, Photo] = {}
        unreadable: list[Path] = []
        twice = 0
        for photo in photos:
            try:
                digest = digest_of(photo.path)
            except RepperError:
                if not skip_unreadable:
                    raise
                unreadable.append(photo.path)
                continue
            if (other := label_of.get(digest)) is not None:
                twice += 1
                if other.label != photo.label:
                    raise RepperError(
                        f"{photo.path} and {other.path} are the same photo in two classes: "
                        f"remove one of them"
                    )
                continue
            label_of[digest] = photo
        known = {digest: row for row, digest in enumerate(self.digests)}
        new = [digest for digest in label_of if digest not in known]
        found, bad = features_of(
            [label_of[digest].path for digest in new], encoder, skip_unreadable=skip_unreadable
        )
        unreadable += [label_of[new[row]].path for row in bad]
        read = [row for row in range(len(new)) if row not in set(bad)]
        labels = list(self.labels)
        for digest, row in known.items():
            if digest in label_of:
                labels[row] = label_of[digest].label
        joined = Album(
            self.encoder,
            np.concatenate([self.features, found[read]]).astype(np.float32),
            (*self.digests, *(new[row] for row in read)),
            (*labels, *(label_of[new[row]].label for row in read)),
            (*self.names, *(label_of[new[row]].path.name for row in read)),
        )
        if only:
            kept = [row for row, digest in enumerate(joined.digests) if digest in label_of]
            joined = joined.of(kept)
        return joined, Added(len(read), len(label_of) - len(new), twice, tuple(unreadable))

    def digest(self) -> str:
        sha = hashlib.sha256(json.dumps([self.encoder, *self._columns()]).encode())
        sha.update(np.ascontiguousarray(self.features, np.float32).tobytes())
        return sha.hexdigest()

    def save(self, path: Path) -> None:
        digests, labels, names = (json.dumps(column) for column in self._columns())
        header = {
            "format": FORMAT,
            "encoder": self.encoder,
            "digests": digests,
            "labels": labels,
            "names": names,
            "digest": self.digest(),
        }
        features = {"features": np.ascontiguousarray(self.features, np.float32)}
        write_sealed(path, save(features, metadata=header))

    def _fits_together(self, width: int) -> bool:
        """Whether every photo has features, a digest, a class and a name."""
        columns = self._columns()
        texts = all(isinstance(text, str) for column in columns for text in column)
        lengths = {len(column) for column in columns} == {len(self.features)}
        return texts and lengths and self.features.shape[1:] == (width,)

    def _columns(self) -> list[list[str]]:
        return [list(self.digests), list(self.labels), list(self.names)]


@dataclass(frozen=True)
class Added:
    """Counts of new, known and duplicate photos, and the unreadable ones."""

    new: int
    known: int
    twice: int
    unreadable: tuple[Path, ...]


def empty_album(encoder: OnnxEncoder) -> Album:
    return Album(encoder.digest, np.zeros((0, encoder.features), np.float32))


def read_album(path: Path, encoder: OnnxEncoder) -> Album:
    """Read the album of a model folder."""
    try:
        tensors, header = read_sealed(path, "np")
        features = tensors["features"]
        columns = [tuple(json.loads(header[name])) for name in ("digests", "labels", "names")]
        album = Album(header["encoder"], features, *columns)
        whole = header["format"] == FORMAT and album.digest() == header["digest"]
        whole = whole and album._fits_together(encoder.features)
    except (RepperError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise RepperError(f"{path} is missing or damaged: fit the model again") from error
    if not whole or album.encoder != encoder.digest:
        raise RepperError(f"{path} is damaged, or of another encoder: fit the model again")
    return album
