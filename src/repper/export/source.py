"""Load the encoder and head to export, and the images to check them on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from repper.basics.errors import RepperError
from repper.basics.params import Params, digest
from repper.basics.seeds import Purpose, torch_seed
from repper.data.dataset import Dataset, Split
from repper.data.images import read_image
from repper.data.partition import Partition, hold_out, read_partition
from repper.data.shape import shaped
from repper.data.shift import shifted
from repper.edge.saved_head import Array, SavedHead
from repper.encoders.encoder import EncoderSpec, encoder_origin, read_encoder
from repper.heads.personalize import Features, FitHead, HeadInputs, personalize
from repper.runs.build import build_personalizers, load_data
from repper.runs.run import Run
from repper.runs.run_folder import HEADS, PARTITION, check_whole, read_environment, shift_seed
from repper.settings.config import Config

Images = NDArray[np.uint8]
CALIBRATION = 512
"""Number of images to calibrate int8 on."""
MOST_TRAINING = 5000
"""Number of training images to fit heads of many clients on again."""
Fit = Callable[[Array, NDArray[np.int64], str], SavedHead]
"""Fits a head on features (n, d) and labels, for the encoder with this digest."""


@dataclass(frozen=True)
class Subject:
    """An encoder, and the head of a client if one was asked for."""

    spec: EncoderSpec
    params: Params
    origin: str
    run: Run | None = None
    client: int | None = None
    head: SavedHead | None = None

    @property
    def digest(self) -> str:
        return digest(self.params)

    @property
    def made_from(self) -> dict[str, str]:
        """Digests of the run's settings, partition, data and code."""
        found = read_environment(self.run.folder) if self.run else {}
        code = {"code": found["code"]} if "code" in found else {}
        return {**found.get("digests", {}), **code}


@dataclass(frozen=True)
class Judge:
    """A head to check an encoder with: a given head, or one to `fit` on training images.

    `rows` are the images it is judged on, by their labels.
    """

    name: str
    rows: NDArray[np.int64]
    head: SavedHead | None = None
    fit: Fit | None = None
    train: Split | None = None


@dataclass(frozen=True)
class Evidence:
    """Images (NCHW) to check an export on; without labels if these are unknown."""

    source: str
    images: Images
    labels: NDArray[np.int64] | None
    calibration: Images
    judges: tuple[Judge, ...]


def subject_of(path: Path, client: int | None) -> Subject:
    """Load a run folder, or the file of an encoder."""
    if path.is_file():
        if client is not None:
            raise RepperError(f"--client needs a run folder, and {path} is a file")
        spec, params = read_encoder(path)
        return Subject(spec, params, encoder_origin(path))
    if not path.is_dir():
        raise RepperError(f"there is no run {path}")
    run = Run(path)
    _ = run.config  # refuses a folder that is none of a run
    if not run.finished:
        _ = run.result  # refuses one that is not finished
    spec, params = run.encoder
    if client is None:
        return Subject(spec, params, encoder_origin(path), run)
    common = digest(params)
    spec, params, head = run.classifier(client)
    origin = encoder_origin(path) if digest(params) == common else f"client {client}'s own"
    return Subject(spec, params, origin, run, client, head)


def evidence_of(subject: Subject, folder: Path | None, count: int) -> Evidence:
    """Images of the run if they can be loaded, else of `folder`, else random images.

    `folder` holds the images to calibrate on, if it is given.
    """
    spec = subject.spec
    photos = None if folder is None else read_photos(folder, spec.channels, spec.size, count)
    found = None
    why = "there is no run to take images from"
    if subject.run is not None:
        check_whole(subject.run.folder)  # before it is taken for one whose images are elsewhere
        try:
            found = _of_run(subject, subject.run, count)
        except RepperError as error:
            why = str(error)
    if found is None:
        images, said = photos, f"photos of {folder}"
        if images is None:
            images, said = natural(min(count, 1000), spec.channels, spec.size), "drawn images"
        found = Evidence(
            f"{len(images)} {said} without labels ({why})", images, None, images[:CALIBRATION],
            (_prototypes(images),),
        )  # fmt: skip
    return found if photos is None else replace(found, calibration=photos[:CALIBRATION])


def _of_run(subject: Subject, run: Run, count: int) -> Evidence:
    config = run.config
    data = shaped(
        load_data(replace(config, download=False)), subject.spec.channels, subject.spec.size
    )
    partition = read_partition(run.folder / PARTITION, data)
    data = shifted(data, partition, config.shift, shift_seed(config, partition.settings))
    learning = hold_out(partition, config.validation, config.seed)
    random = np.random.default_rng(0)
    tested = np.sort(random.permutation(len(data.test))[:count])
    more = random.permutation(len(data.train))
    extra = np.sort(more[: max(0, count - len(tested))])
    images = np.concatenate([data.test.images[tested], data.train.images[extra]])
    judges = _judges(subject, config, data, learning, partition, tested)
    said = f"{len(tested)} test images of {data.name}"
    if len(extra):
        said += f" and {len(extra)} training images"
    calibration = data.train.images[np.sort(more[:CALIBRATION])]
    return Evidence(said, images, data.test.labels[tested], calibration, judges)


def _judges(
    subject: Subject,
    config: Config,
    data: Dataset,
    learning: Partition,
    partition: Partition,
    tested: NDArray[np.int64],
) -> tuple[Judge, ...]:
    """Heads to check with: the client's, or all clients' on their own images, or nearest means."""
    place = {int(row): at for at, row in enumerate(tested)}

    def own(client: int) -> NDArray[np.int64]:
        return np.array(
            [place[r] for r in map(int, partition.test[client]) if r in place], np.int64
        )

    def judge(client: int, head: SavedHead, rows: NDArray[np.int64]) -> Judge:
        of = learning.train[client]
        train = Split(data.train.images[of], data.train.labels[of])
        fit = _refit(config, client, data.classes)
        return Judge(f"the head of client {client}", rows, head, fit, train)

    if subject.client is not None and subject.head is not None:
        rows = own(subject.client)
        if config.shift == "none":
            # Of all clients, because one client's own are too few to see a difference of a point.
            rows = np.flatnonzero(np.isin(data.test.labels[tested], subject.head.classes))
        return (judge(subject.client, subject.head, rows),)
    judges, images = list[Judge](), 0
    wanted = subject.digest
    for client in range(partition.clients):
        path = subject.run.folder / HEADS / f"{client}.safetensors" if subject.run else None
        if path is None or subject.run is None or not path.is_file() or images > MOST_TRAINING:
            continue
        head, rows = subject.run.head(client), own(client)
        if head.encoder == wanted and len(rows):
            judges.append(judge(client, head, rows))
            images += len(learning.train[client])
    if judges:
        return tuple(judges)
    some = np.sort(np.random.default_rng(1).permutation(len(data.train))[:MOST_TRAINING])
    train = Split(data.train.images[some], data.train.labels[some])
    rows = np.arange(len(tested))
    return (Judge("the nearest class mean", rows, None, nearest_mean(data.classes), train),)


def _refit(config: Config, client: int, classes: tuple[str, ...]) -> Fit | None:
    """Fit the client's head as the run did; None if it started from a head of the method."""
    personalizer = build_personalizers(config).of(client)
    if not isinstance(personalizer, FitHead):
        return None

    def fit(features: Array, labels: NDArray[np.int64], encoder: str) -> SavedHead:
        seed = torch_seed(config.seed, Purpose.HEAD, client) % 2**32
        inputs = HeadInputs(Features(features, labels, encoder), None, seed)
        *_, (_, _, head) = personalize([(personalizer, inputs)], classes)
        return head

    return fit


def nearest_mean(classes: tuple[str, ...]) -> Fit:
    """Fit a linear head that predicts the class with the nearest mean."""

    def fit(features: Array, labels: NDArray[np.int64], encoder: str) -> SavedHead:
        known = np.unique(labels)
        means = np.stack([features[labels == label].mean(0) for label in known])
        arrays = {
            "mean": np.zeros(features.shape[1], np.float32),
            "scale": np.ones(1, np.float32),
            "weight": 2 * means,
            "bias": -(means**2).sum(1),
        }
        names = tuple(classes[label] for label in known)
        return SavedHead("nearest mean", "linear", arrays, tuple(map(int, known)), names, encoder)

    return fit


def _prototypes(images: Images) -> Judge:
    """A head without classes, for agreement only: predicts the nearest of ten images."""
    few = images[:10]
    labels = np.arange(len(few))
    fit = nearest_mean(tuple(map(str, labels)))
    rows = np.arange(len(images))
    return Judge("the nearest of ten images", rows, None, fit, Split(few, labels))


def read_photos(folder: Path, channels: int, size: int, most: int) -> Images:
    """Read the image files in a folder and its subfolders."""
    if not folder.is_dir():
        raise RepperError(f"there is no folder {folder} to calibrate on")
    endings = set(Image.registered_extensions())
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in endings)
    if not files:
        raise RepperError(f"there are no images in {folder} to calibrate on")
    chosen = np.sort(np.random.default_rng(0).permutation(len(files))[:most])
    return np.stack([read_image(files[at], channels, size) for at in chosen])


def natural(count: int, channels: int, size: int) -> Images:
    """Random images with the spectrum of photographs: finer details are fainter."""
    random = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None])
    frequency[0, 0] = 1 / size
    noise = np.fft.rfft2(random.normal(size=(count, channels, size, size))) / frequency
    # Channels of a photograph are much alike.
    noise = noise.mean(1, keepdims=True) + 0.3 * noise
    images = np.fft.irfft2(noise, (size, size))
    images -= images.mean((1, 2, 3), keepdims=True)
    images *= 55 / images.std((1, 2, 3), keepdims=True)
    centre = random.uniform(70, 185, (count, 1, 1, 1))
    return np.clip(np.rint(images + centre), 0, 255).astype(np.uint8)
