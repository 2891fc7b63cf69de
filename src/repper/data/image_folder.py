"""A folder of your own images, by class or by client and class."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from repper.basics.errors import RepperError
from repper.basics.files import is_text
from repper.data.dataset import Dataset, Split
from repper.data.decoded import ImageFile, read_files
from repper.data.location import counted

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
CLIENTS_HINT = "; for a folder per client, use --partition folders"
PARTS = {"train", "test", "val", "valid", "validation"}
"""A folder with no others, and with `train`, is divided already; only train and test are used."""


class OtherClassesError(RepperError):
    """A folder has a class that is not among the federation's classes."""


@dataclass(frozen=True)
class Item:
    """An image file with its client, part (train, test, or empty if not divided) and class."""

    file: ImageFile
    client: str
    part: str
    label: str


@dataclass(frozen=True)
class SiteFolder:
    """The folder of one site of a federation: its name, and the classes agreed on."""

    name: str
    classes: tuple[str, ...] | None = None


@dataclass
class Passed:
    """Counts of ignored files, images and folders by kind; hidden files are not counted.

    `empty` if class folders without images are passed over, too.
    """

    empty: bool = False
    over: Counter[str] = field(default_factory=Counter)

    def file(self, name: str) -> None:
        """Count a file whose ending is not that of an image."""
        self.over[f"{Path(name).suffix.lower() or 'other'} file"] += 1

    def beside(self, images: Sequence[ImageFile]) -> None:
        """Count images that are in no class folder."""
        if images:
            self.over["image beside the folders"] += len(images)

    def folder(self, name: str) -> None:
        """Count a folder that is neither train nor test, such as val/."""
        self.over[f"folder {name!r} (neither train nor test)"] += 1

    def __str__(self) -> str:
        def many(kind: str) -> str:
            return re.sub(r"\b(file|image|folder)\b", r"\1s", kind, count=1)

        return "ignored: " + ", ".join(
            f"{count} {kind if count == 1 else many(kind)}"
            for kind, count in sorted(self.over.items())
        )


def read_folder(
    folder: Path,
    *,
    image_size: int = 32,
    by_client: bool = False,
    test_share: float = 0.2,
    skip_unreadable: bool = False,
    name: str | None = None,
    divided: bool = False,
    of: tuple[int, int] | None = None,
    site: SiteFolder | None = None,
) -> Dataset:
    """The images of `<class>/*`, or of `<client>/<class>/*`, with or without train/ and test/.

    Without test/, `test_share` of each class (of each client) is kept for testing: always the same
    images, because their names decide. `divided` says that there are train/ and test/, whatever
    lies beside them; `of` are the numbers of images of the whole data set. With `site`, the folder
    is that of one client: its images are divided as they would be among others'.
    """
    check_is_folder(folder)
    folder = folder.absolute()
    passed = Passed(empty=skip_unreadable)
    try:
        if by_client:
            items = _by_client(folder, passed)
        else:
            items = list(_by_class(folder, passed, site.name if site else "", divided))
    except OSError as error:
        raise RepperError(f"cannot list {error.filename}: {error.strerror}") from error
    if not items:
        raise RepperError(f"there are no images ({', '.join(ENDINGS)}) in the folders of {folder}")
    images, unreadable = read_files(folder, [item.file for item in items], image_size)
    if len(unreadable) and not skip_unreadable:
        raise RepperError(
            f"cannot read image {items[unreadable[0]].file.path}: it is damaged or not an image "
            f"(--skip-unreadable leaves such images out)"
        )
    left_out = set(unreadable.tolist())
    train, test = _divided(items, left_out, test_share, by_client or site is not None)
    if site is None:
        classes = _classes(folder, items, train, test, by_client)
    else:
        classes = _classes_of_site(folder, items, site)
    clients = tuple(sorted({item.client for item in items})) if by_client else ()
    label = {name: number for number, name in enumerate(classes)}
    owner = {name: number for number, name in enumerate(clients)}
    note = counted(len(train), len(test), of)
    if len(unreadable):
        note += f", {len(unreadable)} unreadable left out"
    if passed.over:
        note += f", {passed}"

    def split(rows: list[int]) -> Split:
        return Split(images[rows], np.array([label[items[row].label] for row in rows]))

    def owners(rows: list[int]) -> NDArray[np.int64]:
        return np.array([owner[items[row].client] for row in rows], np.int64)

    return Dataset(
        name or folder.resolve().name,
        classes,
        split(train),
        split(test),
        note=note,
        clients=clients,
        owners=(owners(train), owners(test)) if by_client else None,
    )


def check_is_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise RepperError(f"the folder of images {folder} {what}")


def class_files(folder: Path) -> list[tuple[str, str, str]]:
    """Path, class and part (train, test, or nothing) of the images of a folder of classes."""
    check_is_folder(folder)
    try:
        found = list(_by_class(folder, Passed(), hint=""))
        return [(item.file.path, item.label, item.part) for item in found]
    except OSError as error:
        raise RepperError(f"cannot list {error.filename}: {error.strerror}") from error


def passed_over(folder: Path) -> str:
    """A sentence about the ignored files of a folder of classes; empty if there are none."""
    passed = Passed(empty=True)
    _ = list(_by_class(folder, passed, hint=""))
    return str(passed) if passed.over else ""


def _by_client(folder: Path, passed: Passed) -> list[Item]:
    clients, beside = _listed(folder, passed)
    passed.beside(beside)
    items: list[Item] = []
    for client in clients:
        classes, images = _listed(folder / client, Passed())
        if divides(clients) or (images and not classes):
            raise RepperError(
                f"{folder / client} has no class folders: if {folder} has one folder per class "
                f"and not per client, leave out --partition folders"
            )
        theirs = list(_by_class(folder / client, passed, client))
        if not theirs:
            raise RepperError(f"client {client!r} has no images in {folder / client}")
        items += theirs
    return items


def _by_class(
    folder: Path,
    passed: Passed,
    client: str = "",
    divided: bool = False,
    hint: str = CLIENTS_HINT,
) -> Iterator[Item]:
    names, images = _listed(folder, passed)
    if not names:
        found = f"{len(images)} images but no class folders" if images else "no folders of images"
        raise RepperError(
            f"{folder} has {found}: put the images of each class into a folder of their own"
        )
    passed.beside(images)
    if not divided and not divides(names):
        yield from _classes_in(folder, passed, "", client, hint)
        return
    by_part = {name.lower(): name for name in names}
    if len(by_part) < len(names):
        raise RepperError(f"{folder} has two folders with the same name: {', '.join(names)}")
    if "train" not in by_part:
        raise RepperError(
            f"{folder} has {names[0]} but no train: add train, or put class folders into {folder}"
        )
    for part, name in by_part.items():
        if part not in ("train", "test") and not divided:
            passed.folder(name)
    for part in ("train", "test"):
        if part in by_part:
            yield from _classes_in(folder / by_part[part], passed, part, client, hint)


def divides(names: Sequence[str]) -> bool:
    return bool(names) and {name.lower() for name in names} <= PARTS


def _classes_in(folder: Path, passed: Passed, part: str, client: str, hint: str) -> Iterator[Item]:
    names, beside = _listed(folder, passed)
    if part:
        passed.beside(beside)
    for name in names:
        deeper, images = _listed(folder / name, passed)
        if deeper and images:
            raise RepperError(
                f"{folder / name} has {len(images)} images and also the folder {deeper[0]!r}: "
                f"move the folder out of the class (repper check lists all such faults)"
            )
        if deeper:
            hint = "" if client else hint
            raise RepperError(f"{folder / name} should contain images, but contains folders{hint}")
        if not images and passed.empty:
            passed.over["empty class folder"] += 1
        elif not images and not client:
            raise RepperError(f"class {name!r} has no images ({', '.join(ENDINGS)}) in {folder}")
        yield from (Item(image, client, part, name) for image in images)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _listed(folder: Path, passed: Passed) -> tuple[list[str], list[ImageFile]]:
    """The names of the folders and the image files in a folder, in order, none of them hidden."""
    names, images = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            image, is_folder = entry.name.lower().endswith(ENDINGS), _is_folder(entry)
            if (image or is_folder) and not is_text(entry.name):
                raise RepperError(f"rename {entry.name!r} in {str(folder)!r}: its name is not text")
            if is_folder:
                names.append(entry.name)
            elif not image:
                passed.file(entry.name)
            else:
                # A link to nowhere is an image that cannot be read.
                dangling = entry.is_symlink() and not Path(entry.path).exists()
                state = entry.stat(follow_symlinks=not dangling)
                images.append(ImageFile(entry.path, state.st_size, state.st_mtime_ns))
    return sorted(names), sorted(images, key=lambda image: image.path)


def _divided(
    items: Sequence[Item], left_out: set[int], test_share: float, by_client: bool
) -> tuple[list[int], list[int]]:
    """The rows of training and of test images, by their folders or else by their names."""
    train, test = [], []
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, item in enumerate(items):
        if row not in left_out:
            groups[item.client, item.label].append(row)
    divided = {item.client for item in items if item.part == "test"}
    for (client, label), rows in groups.items():
        if client in divided:
            test += [row for row in rows if items[row].part == "test"]
            train += [row for row in rows if items[row].part == "train"]
            continue
        if len(rows) == 1 and not by_client:
            raise RepperError(
                f"class {label!r} has a single image, {items[rows[0]].file.path}: it needs at "
                f"least one training image and one test image"
            )
        # In an order that has nothing to do with the files, and that other files do not change.
        rows.sort(key=lambda row: _place(items[row].file.path))
        count = min(max(1, round(len(rows) * test_share)), len(rows) - 1)
        test += rows[:count]
        train += rows[count:]
    _check_clients(items, train, test)
    return sorted(train), sorted(test)


def _place(path: str) -> bytes:
    name = path.rpartition(os.sep)[2]
    return hashlib.sha256(os.fsencode(name)).digest()


def _check_clients(items: Sequence[Item], train: list[int], test: list[int]) -> None:
    learns, tests = (Counter(items[row].client for row in rows) for rows in (train, test))
    for client in sorted({item.client for item in items} - {""}):
        if learns[client] < 2 or not tests[client]:
            raise RepperError(
                f"client {client!r} has {learns[client]} training images and {tests[client]} test "
                f"images: it needs at least 2 and 1"
            )


def _classes_of_site(folder: Path, items: Sequence[Item], site: SiteFolder) -> tuple[str, ...]:
    """The classes agreed on, or else the site's own classes, even a single one."""
    own = sorted({item.label for item in items})
    if site.classes is None:
        return tuple(own)
    if strange := [name for name in own if name not in site.classes]:
        raise OtherClassesError(
            f"{folder} holds class {strange[0]!r}, which this federation does not have: its "
            f"classes are {', '.join(site.classes)}"
        )
    return site.classes


def _classes(
    folder: Path, items: Sequence[Item], train: list[int], test: list[int], by_client: bool
) -> tuple[str, ...]:
    """The class names; with client folders, classes without test images are kept, too."""
    known, tested = ({items[row].label for row in rows} for rows in (train, test))
    if lost := sorted({item.label for item in items} - known - tested):
        raise RepperError(f"class {lost[0]!r} has no readable image in {folder}")
    if unknown := sorted(tested - known):
        raise RepperError(
            f"unknown class {unknown[0]!r}: {folder} has test images of it but no training images"
        )
    if (untested := sorted(known - tested)) and not by_client:
        raise RepperError(f"class {untested[0]!r} has no test images in {folder}")
    if len(known) < 2:
        raise RepperError(
            f"{folder} has only one class, {min(known)!r}: a classifier needs at least two"
        )
    return tuple(sorted(known))
