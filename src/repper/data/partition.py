"""Divide images among clients: iid, Dirichlet, shards, real clients; and save the result."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repper.basics.documents import read_json, write_json
from repper.basics.errors import RepperError, unknown
from repper.basics.options import check_kind, checked
from repper.basics.seeds import Purpose, stream
from repper.data.dataset import Dataset

Rows = NDArray[np.int64]
KINDS = ("dirichlet", "iid", "shards")
FOLDERS = "folders"
TRIES = 1000


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """For each client the rows of its training images and of its test images.

    `split` makes one, and so do your own lists: `Partition(train=(rows, ..), test=(rows, ..))`, an
    array of row numbers for every client.
    """

    train: tuple[Rows, ...]
    test: tuple[Rows, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    held_out: tuple[Rows, ...] = ()
    """Training rows that each client does not learn from, to choose a round by; none, or all."""

    def __repr__(self) -> str:
        sizes = [len(rows) for rows in self.train]
        chosen = ("kind", "alpha", "classes_per_client", "seed")
        how = [f"{name} {self.settings[name]}" for name in chosen if name in self.settings]
        held = f"{min(sizes, default=0)} to {max(sizes, default=0)} training images each"
        return f"<{', '.join([f'Partition: {self.clients} clients, {held}', *how])}>"

    def __post_init__(self) -> None:
        check_kind("settings", self.settings, dict, "a dictionary")
        for name in ("train", "test", "held_out"):
            rows = getattr(self, name)
            check_kind(f"a partition's {name}", rows, tuple, "a tuple of one array per client")
            for each in rows:
                check_kind(f"a partition's {name} rows", each, np.ndarray, "a numpy array")

    @property
    def clients(self) -> int:
        return len(self.train)

    @property
    def hash(self) -> str:
        """A SHA-256 over all rows in client order."""
        sha = hashlib.sha256()
        for rows in (*self.train, *self.test):
            sha.update(len(rows).to_bytes(8, "little"))
            sha.update(np.ascontiguousarray(rows, dtype="<i8").data)
        return sha.hexdigest()

    def counts(self, data: Dataset) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Train and test images per client and class, each of shape (clients, classes)."""
        train, test = (
            np.stack([np.bincount(split.labels[r], minlength=len(data.classes)) for r in rows])
            for rows, split in ((self.train, data.train), (self.test, data.test))
        )
        return train, test

    def check(self, data: Dataset) -> None:
        """Refuse rows that are not in the data set, or that two clients have."""
        parts = (("train", self.train, data.train), ("test", self.test, data.test))
        for part, held, split in parts:
            if any(r.ndim != 1 or not np.issubdtype(r.dtype, np.integer) for r in held):
                raise RepperError(f"a partition's {part} rows must be lists of whole numbers")
            rows = np.concatenate([np.zeros(0, np.int64), *held])
            if len(rows) and not 0 <= rows.min() <= rows.max() < len(split):
                raise RepperError(
                    f"a partition's {part} rows must be 0 to {len(split) - 1} for {data.name!r}, "
                    f"got {rows.min()} to {rows.max()}"
                )
            if len(np.unique(rows)) < len(rows):
                raise RepperError(f"a partition gives the same {part} image to a client twice")
        if len(self.train) != len(self.test) or min(map(len, self.train), default=0) < 2:
            raise RepperError("a partition must give every client at least 2 training images")

    def save(self, path: Path, data: Dataset) -> None:
        """Write the manifest: the settings, the data's digest, every client's rows, a hash."""
        manifest = {
            "settings": self.settings,
            "data": {"name": data.name, "digest": data.digest, "note": data.note},
            "hash": self.hash,
            "clients": [
                {"train": train.tolist(), "test": test.tolist()}
                for train, test in zip(self.train, self.test, strict=True)
            ],
        }
        write_json(path, manifest, indent=None)


def hold_out(partition: Partition, share: float, seed: int) -> Partition:
    """The same clients, each with a share of its training rows held out for validation.

    Rows to learn from come sorted, because their order means nothing.
    """
    if not share:
        return replace(partition, train=tuple(map(np.sort, partition.train)))
    train, held = [], []
    for client, rows in enumerate(partition.train):
        kept = min(max(round(share * len(rows)), 1), len(rows) - 2)
        order = stream(seed, Purpose.VALIDATION, client).permutation(rows)
        train.append(np.sort(order[kept:]))
        held.append(np.sort(order[:kept]))
    return replace(partition, train=tuple(train), held_out=tuple(held))


def read_partition(path: Path, data: Dataset) -> Partition:
    """Read a manifest; a damaged one, or one of another data set, is refused."""
    partition, made_for = read_rows(path)
    if made_for != data.digest:
        raise RepperError(f"{path} was made for another data set, not for this {data.name!r}")
    partition.check(data)
    return partition


def read_rows(path: Path) -> tuple[Partition, str]:
    """The rows of a manifest, and the digest of its data set."""
    manifest = read_json(path)
    try:
        train, test = (
            tuple(_as_rows(client[part]) for client in manifest["clients"])
            for part in ("train", "test")
        )
        partition = Partition(train, test, dict(manifest["settings"]))
        made_for, expected = manifest["data"]["digest"], manifest["hash"]
        found = partition.hash
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RepperError(f"{path} is not a partition manifest ({error!r})") from error
    names = partition.settings.get("names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RepperError(
            f"{path} is not a partition manifest: its names are not a list of strings"
        )
    if names and len(names) != partition.clients:
        raise RepperError(
            f"{path} is damaged: it names {len(names)} of {partition.clients} clients"
        )
    if found != expected:
        raise RepperError(f"{path} is damaged: its rows do not match its hash")
    return partition, str(made_for)


def by_folders(name: str) -> bool:
    """Whether a partition (a kind or a manifest) has the clients of client folders."""
    if not name.endswith(".json"):
        return name == FOLDERS
    try:
        return bool(read_json(Path(name))["settings"]["kind"] == FOLDERS)
    except (RepperError, KeyError, TypeError):
        return False  # `read_partition` will say what is wrong


def _as_rows(listed: list[int]) -> Rows:
    return np.asarray(listed) if listed else np.zeros(0, np.int64)


def split(
    data: Dataset,
    kind: str = "dirichlet",
    *,
    clients: int = 20,
    alpha: float = 0.5,
    classes_per_client: int = 2,
    min_train: int = 10,
    min_test: int = 1,
    seed: int = 0,
) -> Partition:
    """Divide a data set among clients, every image to exactly one.

    - `dirichlet`: for each class, the shares of the clients are one draw from Dirichlet(alpha); the
      same draw divides train and test, so that each client is tested on its own class mix.
    - `iid`: at random, in equal parts.
    - `shards`: each client holds `classes_per_client` classes, each class in equal parts.
    - `folders`: as the data set's own clients hold them; nothing is drawn.

    A draw that leaves a client with fewer than `min_train` or `min_test` images is drawn again, a
    bounded number of times, and then refused.
    """
    check_kind("data", data, Dataset, "a repper.Dataset")
    if kind == FOLDERS:
        return _by_owner(data)
    if kind not in KINDS:
        raise unknown("partition", kind, (*KINDS, FOLDERS))
    clients = checked("clients", clients, int, least=1)
    alpha = checked("alpha", alpha, float, above=0)
    classes_per_client = checked("classes_per_client", classes_per_client, int, least=1)
    min_train = checked("min_train", min_train, int, least=0)
    min_test = checked("min_test", min_test, int, least=0)
    seed = checked("seed", seed, int, least=0)
    for part, held, least in (("train", data.train, min_train), ("test", data.test, min_test)):
        if clients * least > len(held):
            raise RepperError(
                f"{clients} clients with at least {least} {part} images each need "
                f"{clients * least}, but {data.name!r} has {len(held)}: use fewer clients "
                f"or, if you can, a lower --min-{part}"
            )
    classes = len(data.classes)
    if kind == "shards" and not (1 <= classes_per_client <= classes):
        raise RepperError(
            f"classes per client must be 1 to {classes} for {data.name!r}, got {classes_per_client}"
        )
    if kind == "shards" and clients * classes_per_client < classes:
        raise RepperError(
            f"{clients} clients with {classes_per_client} classes each cannot cover all {classes} "
            f"classes: raise --clients or --classes-per-client"
        )
    rng = stream(seed, Purpose.PARTITION)
    settings: dict[str, Any] = {"kind": kind, "clients": int(clients), "seed": int(seed)}
    settings |= {"min_train": min_train, "min_test": min_test}
    settings |= {"alpha": alpha} if kind == "dirichlet" else {}
    settings |= {"classes_per_client": classes_per_client} if kind == "shards" else {}
    if kind == "iid":
        train, test = (
            tuple(map(np.sort, np.array_split(rng.permutation(len(held)), clients)))
            for held in (data.train, data.test)
        )
        return Partition(train, test, settings)
    for tries in range(1, TRIES + 1):
        shares = (
            rng.dirichlet([alpha] * clients, classes)
            if kind == "dirichlet"
            else _shard_shares(clients, classes, classes_per_client, rng)
        )
        train_counts, test_counts = _counts_by_share(data, shares)
        if train_counts.sum(0).min() >= min_train and test_counts.sum(0).min() >= min_test:
            # Least sizes that reject many draws make the clients' sizes more alike than alpha says.
            dealt = _deal(data, train_counts, test_counts, rng)
            return Partition(*dealt, settings | {"tries": tries})
    raise RepperError(
        f"none of {TRIES} {kind} draws gave each of {clients} clients {min_train} train and "
        f"{min_test} test images: use fewer clients, a lower --min-train"
        + (f", or an --alpha above {alpha:g}" if kind == "dirichlet" else "")
    )


def _by_owner(data: Dataset) -> Partition:
    if data.owners is None:
        raise RepperError(
            f"partition 'folders' needs images that belong to clients, but {data.name!r} has none: "
            f"load a folder of client folders with by_client=True"
        )
    train, test = (
        tuple(np.flatnonzero(owners == client) for client in range(len(data.clients)))
        for owners in data.owners
    )
    partition = Partition(train, test, {"kind": FOLDERS, "names": list(data.clients)})
    partition.check(data)
    return partition


def _counts_by_share(
    data: Dataset, shares: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Train and test images per class and client, for `shares` of shape (classes, clients).

    Test is divided by what each client got of train, not by the shares again: so rounding never
    tests a client on a class it holds no image of (unless nobody trains on that class).
    """
    totals = [np.bincount(s.labels, minlength=len(shares)) for s in (data.train, data.test)]
    train = np.stack([_apportion(n, share) for n, share in zip(totals[0], shares, strict=True)])
    test = np.stack(
        [
            _apportion(n, counts if counts.any() else share)
            for n, counts, share in zip(totals[1], train, shares, strict=True)
        ]
    )
    return train, test


def _deal(
    data: Dataset,
    train_counts: NDArray[np.int64],
    test_counts: NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[tuple[Rows, ...], tuple[Rows, ...]]:
    """Divide the rows of each class in random order, with given numbers per client."""
    hands: list[list[list[Rows]]] = [[[] for _ in range(train_counts.shape[1])] for _ in range(2)]
    for label in range(len(train_counts)):
        for split, counts, hand in zip(
            (data.train, data.test), (train_counts, test_counts), hands, strict=True
        ):
            rows = rng.permutation(np.flatnonzero(split.labels == label))
            for client, part in enumerate(np.split(rows, np.cumsum(counts[label])[:-1])):
                hand[client].append(part)
    # Sorted, because the order of a client's rows means nothing.
    train, test = (tuple(np.sort(np.concatenate(parts)) for parts in hand) for hand in hands)
    return train, test


def _apportion(total: np.int64, shares: NDArray[Any]) -> NDArray[np.int64]:
    """Whole numbers that add up to `total`, in proportion to `shares` (largest remainder)."""
    weight = shares.sum()
    if not weight > 0:
        # Every share of a very small alpha can underflow to 0; the class then goes to one client.
        shares, weight = np.eye(len(shares))[0], 1.0
    quotas = shares / weight * total
    counts: NDArray[np.int64] = np.floor(quotas).astype(np.int64)
    most_owed = np.argsort(-(quotas - counts), kind="stable")
    counts[most_owed[: total - counts.sum()]] += 1
    return counts


def _shard_shares(
    clients: int, classes: int, per_client: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """1 where a client (column) has a class (row); every class has about equally many clients."""
    held = np.zeros((classes, clients))
    for client in range(clients):
        # The classes dealt least often so far, ties at random: none is ever more than one ahead.
        order = np.lexsort((rng.random(classes), held.sum(1)))
        held[order[:per_client], client] = 1
    return held
