"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) from the parquet files of their hub copies."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
from numpy.typing import NDArray
from PIL import Image

from repper.datasets.dataset import Dataset, Split
from repper.errors import RepperError

CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR100 = tuple(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
    crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
    lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm""".split()
)


def cifar10(data_dir: Path) -> Dataset:
    return _cifar("cifar10", data_dir, "plain_text", "label", CIFAR10)


def cifar100(data_dir: Path) -> Dataset:
    return _cifar("cifar100", data_dir, "cifar100", "fine_label", CIFAR100)


def _cifar(name: str, data_dir: Path, part: str, label: str, classes: tuple[str, ...]) -> Dataset:
    folder = data_dir / name / part
    train, test = (_read(folder, split, label) for split in ("train", "test"))
    note = f"{len(train)} of 50000 train and {len(test)} of 10000 test images"
    return Dataset(name, classes, train, test, flip=True, note=note)


def _read(folder: Path, split: str, label: str) -> Split:
    paths = sorted(folder.glob(f"{split}-*.parquet"))
    if not paths:
        raise RepperError(
            f"no {split}-*.parquet in {folder}: put the data set's parquet files there, "
            f"or name another folder with --data-dir or REPPER_DATA"
        )
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    for path in paths:
        try:
            table = parquet.read_table(path, columns=["img", label])
            for image in table["img"].to_pylist():
                with Image.open(io.BytesIO(image["bytes"])) as png:
                    images.append(np.asarray(png.convert("RGB")))
            labels += table[label].to_pylist()
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise RepperError(f"{path} cannot be read as CIFAR parquet: {reason}") from error
    stacked = np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2))
    return Split(stacked, np.asarray(labels, dtype=np.int64))
