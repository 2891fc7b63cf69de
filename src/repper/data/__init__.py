"""Data sets by name, and folders of images."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from repper.basics.errors import RepperError, unknown
from repper.basics.options import check_kind, checked, checked_path
from repper.basics.registry import Registry, is_reference
from repper.data.dataset import LARGEST, Dataset, Split
from repper.data.location import Request, data_folder

DATASETS: Registry[Callable[[Request], Dataset]] = Registry(
    "data set",
    {
        "digits": "repper.data.digits:digits",
        "cifar10": "repper.data.cifar:cifar10",
        "cifar100": "repper.data.cifar:cifar100",
        "cinic10": "repper.data.cinic:cinic10",
        "fashion-mnist": "repper.data.fashion:fashion_mnist",
    },
)

__all__ = ["DATASETS", "Dataset", "Request", "Split", "load"]


def load(
    name: str | Path,
    data_dir: Path | str | None = None,
    *,
    image_size: int | None = None,
    by_client: bool = False,
    download: bool = False,
    skip_unreadable: bool = False,
    test_share: float = 0.2,
    train_images: int | None = None,
) -> Dataset:
    """Load a data set by its name, a folder of images, or `file.py:function` of your own.

    Such a function takes a `repper.data.Request` and gives a `Dataset`.

    `data_dir` holds the named sets; without it, the folder is the one in the environment variable
    REPPER_DATA, or else `~/.cache/repper`. With `download`, a set that is not there is fetched.
    `image_size` resizes the images (else a named set keeps its own size, and a folder's become 32
    x 32), and `train_images` takes a fixed part of them. For a folder, `by_client` says that it
    holds a folder per client, and `test_share` how much to test on where there is no test/.
    """
    from repper.data.shape import part_of, shaped

    check_kind("name", name, str | Path, "a data set, a folder or file.py:function")
    if data_dir is not None:
        data_dir = checked_path("data_dir", data_dir)
    if image_size is not None:
        image_size = checked("image_size", image_size, int, least=1, most=LARGEST)
    if train_images is not None:
        train_images = checked("train_images", train_images, int, least=1)
    test_share = checked("test_share", test_share, float, above=0, most=0.9)
    switches = {"by_client": by_client, "download": download, "skip_unreadable": skip_unreadable}
    for argument, value in switches.items():
        checked(argument, value, bool)
    if name in DATASETS or is_reference(name):
        if by_client:
            raise RepperError(
                f"--partition folders needs a folder of images as --data, got {name!r}"
            )
        request = Request(data_folder(data_dir), image_size, download, skip_unreadable)
        data = DATASETS[str(name)](request)
        if not isinstance(data, Dataset):
            raise RepperError(f"{name} must return a repper.Dataset, got {type(data).__name__}")
        data = shaped(data, data.channels, image_size or data.size)
    else:
        data = _own(name, image_size or 32, by_client, download, skip_unreadable, test_share)
    return data if train_images is None else part_of(data, train_images)


def _own(
    name: str | Path,
    image_size: int,
    by_client: bool,
    download: bool,
    skip_unreadable: bool,
    test_share: float,
) -> Dataset:
    folder = Path(name).expanduser()
    looks_like_path = os.sep in str(name) or str(name).startswith((".", "~"))
    if not (looks_like_path or isinstance(name, Path) or folder.is_dir()):
        error = unknown("data set", name, DATASETS)
        raise RepperError(f"{str(error).removesuffix(')')}, or a folder of images)")
    if download:
        raise RepperError(f"--download needs a data set by name, but {name} is a folder of images")
    from repper.data.image_folder import read_folder

    return read_folder(
        folder,
        image_size=image_size,
        by_client=by_client,
        test_share=test_share,
        skip_unreadable=skip_unreadable,
    )
