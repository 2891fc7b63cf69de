"""Find the files of data sets on this machine."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from repper.basics.errors import RepperError


@dataclass(frozen=True)
class Request:
    """A request for a named data set; `repper.data.load` documents the fields."""

    data_dir: Path
    image_size: int | None = None
    download: bool = False
    skip_unreadable: bool = False

    def folders(self, *names: str) -> list[Path]:
        """The folders in which a data set of these names may be."""
        return [*(self.data_dir / name for name in names), self.data_dir]


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "repper"


def data_folder(given: Path | str | None) -> Path:
    """The folder of data sets: the given one, else REPPER_DATA, else the user's cache."""
    if named := given or os.environ.get("REPPER_DATA"):
        folder = Path(named).expanduser()
        if folder.exists() and not folder.is_dir():
            flag = "--data-dir" if given else "REPPER_DATA"
            raise RepperError(f"{flag} {folder} is a file: give a folder of data sets")
        return folder
    return cache_folder()


def not_found(name: str, request: Request) -> RepperError:
    """The error for a named data set whose files were not found."""
    return RepperError(
        f"{name} is neither in {request.data_dir / name} nor in {request.data_dir}: fetch it with "
        f"--download, put its files there (docs/data.md shows the layouts), or name another folder "
        f"with --data-dir or REPPER_DATA"
    )


def md5(path: Path) -> str:
    """The checksum that data sets are published with; it finds damage, not attacks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def check_md5(path: Path, expected: str) -> None:
    if (found := md5(path)) != expected:
        raise RepperError(
            f"{path} is damaged or not the official file: its md5 is {found}, not {expected}; "
            f"remove it and fetch it again"
        )


def counted(train: int, test: int, of: tuple[int, int] | None = None) -> str:
    """A note that begins with the number of training images, and says if some are missing."""
    if of is None or of == (train, test):
        return f"{train} train and {test} test images"
    return f"{train} of {of[0]} train and {test} of {of[1]} test images"
