"""CINIC-10 (Darlow and others 2018): folders of images, or the parquet files of a hub copy."""

from __future__ import annotations

from pathlib import Path

from repper.basics.errors import RepperError
from repper.data.cifar import CIFAR10
from repper.data.dataset import Dataset
from repper.data.fetch import Remote, fetch, unpack
from repper.data.hub import HubCopy
from repper.data.image_folder import read_folder
from repper.data.location import Request, check_md5, counted, not_found
from repper.data.shape import shaped

SITE = "https://datashare.ed.ac.uk/"
ARCHIVE = Remote(
    "CINIC-10.tar.gz",
    "6ee4d0c996905fe93221de577967a372",
    (
        f"{SITE}bitstream/handle/10283/3192/CINIC-10.tar.gz",
        f"{SITE}bitstreams/e8e186cc-2688-48f1-aa5a-3fda1a43f8b6/download",
    ),
)
SIZES = (90_000, 90_000)


def cinic10(request: Request) -> Dataset:
    """Train and test, with the classes of CIFAR-10; the third part, valid, is left alone."""
    folders = request.folders("cinic10", "CINIC-10", "CINIC10", "cinic-10")
    parts = HubCopy("default", "image", "label", 3, 32).read(folders, request)
    if parts is not None:
        note = counted(len(parts[0]), len(parts[1]), of=SIZES)
        return Dataset("cinic10", CIFAR10, *parts, flip=True, note=note)
    folder = _find(folders)
    if folder is None and request.download:
        fetch(ARCHIVE, folders[0])
        folder = _find(folders)
    if folder is None:
        raise not_found("cinic10", request)
    data = read_folder(
        folder,
        name="cinic10",
        image_size=request.image_size or 32,
        skip_unreadable=request.skip_unreadable,
        divided=True,
        of=SIZES,
    )
    if data.classes != CIFAR10:
        raise RepperError(
            f"{folder} is not CINIC-10: its classes are {', '.join(data.classes[:10])}, "
            f"not those of CIFAR-10"
        )
    return shaped(data, 3, data.size)


def _find(folders: list[Path]) -> Path | None:
    """The folder of train/ and test/, unpacked from its archive if only that is there."""
    for folder in folders:
        for place in (folder, folder / "CINIC-10"):
            if all((place / part / CIFAR10[0]).is_dir() for part in ("train", "test")):
                return place
        archive = folder / ARCHIVE.name
        if archive.is_file():
            check_md5(archive, ARCHIVE.md5)
            unpack(archive, ".", folder / "CINIC-10")
            return folder / "CINIC-10"
    return None
