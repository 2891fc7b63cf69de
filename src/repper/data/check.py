"""Find all faults of a folder of images; `read_folder` stops at the first fault."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from repper.basics.errors import RepperError
from repper.basics.files import is_text
from repper.data.decoded import ImageFile
from repper.data.image_folder import (
    CLIENTS_HINT,
    ENDINGS,
    Passed,
    check_is_folder,
    divides,
    read_folder,
)
from repper.data.images import read_images

Parts = dict[str, dict[str, list[Path]]]
"""Image files by class, then by part: train, test, or nothing."""


@dataclass
class Checked:
    """The content of a folder of images, and its faults."""

    images: int = 0
    classes: tuple[str, ...] = ()
    clients: int = 0
    faults: list[str] = field(default_factory=list)
    passed: Passed = field(default_factory=Passed)


def check_images(folder: Path, *, by_client: bool = False) -> Checked:
    """Look at every file of `<class>/*`, or of `<client>/<class>/*`, and decode every image."""
    check_is_folder(folder)
    found = Checked()
    roots = {"": folder}
    if by_client:
        clients, beside = _entries(folder, found)
        _beside(beside, found)
        roots = {client.name: client for client in clients}
        if divides(list(roots)):
            found.faults.append(f"{folder} has {', '.join(roots)} instead of client folders")
    every: set[str] = set()
    for root in roots.values():
        classes = _classes(root, found, by_client)
        unreadable = _unreadable(classes, found)
        readable = {
            label: {part: len(set(files) - unreadable) for part, files in parts.items()}
            for label, parts in classes.items()
        }
        every |= {label for label, parts in readable.items() if sum(parts.values())}
        found.images += sum(sum(parts.values()) for parts in readable.values())
        if not by_client:
            _check_counts(folder, readable, found)
    found.classes, found.clients = tuple(sorted(every)), len(roots) if by_client else 0
    if not found.faults:
        try:
            read_folder(folder, by_client=by_client, skip_unreadable=True)
        except RepperError as error:
            found.faults.append(str(error))
    return found


def _entries(folder: Path, found: Checked) -> tuple[list[Path], list[Path]]:
    """The subfolders and images of a folder; other files are ignored or a fault."""
    folders, images = [], []
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        found.faults.append(f"cannot list {folder}: {error.strerror}")
        return [], []
    for name in names:
        path = folder / name
        if name.startswith("."):
            continue
        is_image = name.lower().endswith(ENDINGS)
        if path.is_symlink() and (fault := _fault_of_link(path)):
            found.faults.append(f"{path} {fault}")
        elif (path.is_dir() or is_image) and not is_text(name):
            found.faults.append(f"rename {name!r} in {str(folder)!r}: its name is not text")
        elif path.is_dir():
            folders.append(path)
        elif is_image:
            images.append(path)
        else:
            found.passed.file(name)
    return folders, images


def _fault_of_link(path: Path) -> str:
    try:
        target = path.resolve(strict=True)
    except FileNotFoundError:
        return "is a broken link"
    except (OSError, RuntimeError):  # which of them depends on the version of Python
        return "is a link to itself"
    above = path.parent.resolve()
    return "is a link to a folder above it" if target in (above, *above.parents) else ""


def _beside(images: list[Path], found: Checked) -> None:
    found.passed.beside([ImageFile(str(path), 0, 0) for path in images])


def _classes(root: Path, found: Checked, by_client: bool) -> Parts:
    folders, images = _entries(root, found)
    if not folders:
        what = f"{len(images)} images but no class folders" if images else "no folders of images"
        found.faults.append(
            f"{root} has {what}: put the images of each class into a folder of their own"
        )
        return {}
    _beside(images, found)
    places = {"": root}
    if divides([path.name for path in folders]):
        places = {path.name.lower(): path for path in folders}
        if "train" not in places:
            found.faults.append(f"{root} has {folders[0].name} but no train: add train")
        for name in sorted(places.keys() - {"train", "test"}):
            found.passed.folder(name)
        places = {part: places[part] for part in ("train", "test") if part in places}
    classes: Parts = defaultdict(lambda: defaultdict(list))
    for part, place in places.items():
        inside = folders
        if part:
            inside, beside = _entries(place, found)
            _beside(beside, found)
        for label in inside:
            deeper, files = _entries(label, found)
            if deeper and files:
                found.faults.append(
                    f"{label} has {len(files)} images and also folders, "
                    f"{', '.join(repr(path.name) for path in deeper)}: move the folders out of "
                    f"the class"
                )
            elif deeper:
                hint = "" if by_client else CLIENTS_HINT
                found.faults.append(f"{label} should contain images, but contains folders{hint}")
            elif not files and not by_client:
                found.faults.append(f"class folder {label} has no images ({', '.join(ENDINGS)})")
            classes[label.name][part] += files
    return classes


def _unreadable(classes: Parts, found: Checked) -> set[Path]:
    files = [path for parts in classes.values() for some in parts.values() for path in some]
    if not files:
        return set()
    _, bad = read_images([str(path) for path in files], 8)
    unreadable = [files[row] for row in bad]
    found.faults += [f"{path} cannot be read as an image" for path in unreadable]
    return set(unreadable)


def _check_counts(folder: Path, classes: dict[str, dict[str, int]], found: Checked) -> None:
    """Check that every class has enough training and test images."""
    divided = any("test" in parts for parts in classes.values())
    for label, parts in classes.items():
        test = parts.get("test", 0)
        learn = sum(parts.values()) - test
        if divided and test and not learn:
            found.faults.append(f"class {label!r} has test images but no training images")
        elif divided and learn and not test:
            found.faults.append(f"class {label!r} has no test images")
        elif not divided and learn == 1:
            found.faults.append(
                f"class {label!r} has a single image: it needs at least one training image and "
                f"one test image"
            )
    if len(known := [label for label, parts in classes.items() if sum(parts.values())]) == 1:
        found.faults.append(
            f"{folder} has only one class, {known[0]!r}: a classifier needs at least two"
        )
