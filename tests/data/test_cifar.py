"""CIFAR's own files: python and binary batches, and their archives."""

import builtins
import dataclasses
import hashlib
import io
import os
import pickle
import struct
import tarfile
from typing import ClassVar

import numpy as np
import pytest

from repper.basics.errors import RepperError
from repper.data import cifar, load
from repper.data.unpickle import read_arrays


class Python2Pickler(pickle._Pickler):
    """Writes strings, truths and the names of numpy's parts as Python 2 wrote the official files."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        data = value.encode() if isinstance(value, str) else value
        self.write(b"T" + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    def save_truth(self, value):
        self.write(b"K" + bytes([value]))

    def save_name(self, value):
        module = value.__module__.replace("numpy._core", "numpy.core")
        self.write(f"c{module}\n{value.__name__}\n".encode())
        self.memoize(value)

    dispatch |= {bytes: save_string, str: save_string, bool: save_truth}
    dispatch |= {type: save_name, type(np.dtype): save_name, type(len): save_name}


def write_pickle(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        Python2Pickler(file, protocol=2).dump(content)
    return hashlib.md5(path.read_bytes()).hexdigest()


def pixels(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)


def test_a_pickle_as_python_2_wrote_it_is_read(tmp_path):
    data = pixels(3)
    write_pickle(tmp_path / "batch", {"data": data, "labels": [1, 2, 3], "batch_label": "one of 5"})
    assert b"numpy.core.multiarray" in (tmp_path / "batch").read_bytes()
    content = read_arrays(tmp_path / "batch")
    assert (content["data"] == data).all()
    assert (content["labels"], content["batch_label"]) == ([1, 2, 3], "one of 5")


def test_a_pickle_of_today_is_read(tmp_path):
    (tmp_path / "batch").write_bytes(pickle.dumps({"data": pixels(3)}, protocol=4))
    assert (read_arrays(tmp_path / "batch")["data"] == pixels(3)).all()


class Call:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "attack",
    [
        lambda mark: Call(os.system, f"touch {mark}"),
        lambda mark: Call(builtins.eval, f"open({str(mark)!r}, 'w')"),
        lambda mark: Call(builtins.getattr, os, "system"),
        lambda mark: Call(io.open, str(mark), "w"),
        lambda mark: Call(np.fromfile, str(mark)),
        lambda mark: Call(np.memmap, str(mark), "u1", "w+", 0, (1,)),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_is_refused_before_anything_runs(tmp_path, attack, protocol):
    mark = tmp_path / "mark"
    try:
        content = pickle.dumps({"data": pixels(1), "labels": attack(mark)}, protocol)
    except TypeError:  # a module, as getattr's argument, has no pickle: name it by hand
        content = b"cbuiltins\ngetattr\n(cos\npath\nVsystem\ntR."
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(RepperError, match=r"batch is not a pickle of arrays: it uses \w+\.\w+"):
        read_arrays(tmp_path / "batch")
    assert not mark.exists()


@pytest.mark.parametrize(
    "content", [b"", b"no pickle", pickle.dumps([1, 2])[:-3], pickle.dumps([1])]
)
def test_what_is_no_pickle_of_a_dictionary_is_named(tmp_path, content):
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(RepperError, match="batch is not a pickle of arrays"):
        read_arrays(tmp_path / "batch")


def write_batches(folder, kind, count=2):
    """Small python batches, and the kind with their checksums instead of the official ones."""
    sums = {}
    for seed, name in enumerate(kind.train + kind.test):
        content = {"data": pixels(count, seed), kind.labels: [seed] * count}
        sums[name] = write_pickle(folder / kind.folder / name, content)
    return dataclasses.replace(kind, md5=sums)


@pytest.mark.parametrize("place", ["", "cifar10", "CIFAR-10"])
def test_python_batches_are_read_in_order(tmp_path, monkeypatch, place):
    kind = write_batches(tmp_path / place, cifar.CIFAR10_BATCHES[0])
    monkeypatch.setattr(cifar, "CIFAR10_BATCHES", (kind,))
    data = load("cifar10", tmp_path)
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert (data.train.images[2:4] == pixels(2, 1).reshape(2, 3, 32, 32)).all()
    assert (data.test.images == pixels(2, 5).reshape(2, 3, 32, 32)).all()
    assert data.note == "10 of 50000 train and 2 of 10000 test images"


def test_cifar100_takes_its_fine_labels(tmp_path, monkeypatch):
    kind = write_batches(tmp_path, cifar.CIFAR100_BATCHES[0])
    monkeypatch.setattr(cifar, "CIFAR100_BATCHES", (kind,))
    data = load("cifar100", tmp_path)
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 0], [1, 1])


def test_a_batch_that_differs_is_refused_unread(tmp_path):
    write_batches(tmp_path, cifar.CIFAR10_BATCHES[0])
    with pytest.raises(RepperError, match=r"data_batch_1 is damaged.*not c99cafc152244af753f735de"):
        load("cifar10", tmp_path)


def test_a_missing_batch_is_named(tmp_path, monkeypatch):
    kind = write_batches(tmp_path, cifar.CIFAR10_BATCHES[0])
    monkeypatch.setattr(cifar, "CIFAR10_BATCHES", (kind,))
    (tmp_path / kind.folder / "data_batch_3").unlink()
    with pytest.raises(RepperError, match=r"data_batch_3 is missing"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "kind", "labels"),
    [
        ("cifar10", cifar.CIFAR10_BATCHES[1], [[7], [8]]),
        ("cifar100", cifar.CIFAR100_BATCHES[1], [[19, 7], [19, 8]]),
    ],
)
def test_binary_batches_are_read(tmp_path, name, kind, labels):
    (tmp_path / kind.folder).mkdir()
    records = np.hstack([np.array(labels, np.uint8), pixels(2)])
    for file in kind.train + kind.test:
        records.tofile(tmp_path / kind.folder / file)
    data = load(name, tmp_path)
    assert data.test.labels.tolist() == [7, 8]
    assert len(data.train) == 2 * len(kind.train)
    assert (data.test.images == pixels(2).reshape(2, 3, 32, 32)).all()

    records[1, len(labels[0]) - 1] = 100
    records.tofile(tmp_path / kind.folder / kind.test[0])
    with pytest.raises(
        RepperError, match=rf"{kind.test[0]}: record 1 has label 100, but labels are"
    ):
        load(name, tmp_path)
    (tmp_path / kind.folder / kind.test[0]).write_bytes(records.tobytes()[:-1])
    with pytest.raises(RepperError, match=rf"{kind.test[0]} is truncated or not a CIFAR file"):
        load(name, tmp_path)


def pack(archive, source, kind):
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(source / kind.folder, kind.folder)
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    return dataclasses.replace(kind, archive=dataclasses.replace(kind.archive, md5=md5))


def test_an_archive_is_unpacked_beside_itself(tmp_path, monkeypatch):
    kind = write_batches(tmp_path / "source", cifar.CIFAR10_BATCHES[0])
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    archive = data_dir / "cifar-10-python.tar.gz"
    monkeypatch.setattr(cifar, "CIFAR10_BATCHES", (pack(archive, tmp_path / "source", kind),))
    assert len(load("cifar10", data_dir).train) == 10
    assert sorted(os.listdir(data_dir)) == ["cifar-10-batches-py", "cifar-10-python.tar.gz"]
    assert len(load("cifar10", data_dir).train) == 10


def test_an_archive_that_differs_is_refused(tmp_path):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"half an archive")
    with pytest.raises(RepperError, match=r"tar.gz is damaged.*remove it and fetch it again"):
        load("cifar10", tmp_path)


def test_an_archive_cannot_write_elsewhere(tmp_path, monkeypatch):
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../../outside"), io.BytesIO())
    kind = cifar.CIFAR10_BATCHES[0]
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    kind = dataclasses.replace(kind, archive=dataclasses.replace(kind.archive, md5=md5))
    monkeypatch.setattr(cifar, "CIFAR10_BATCHES", (kind,))
    with pytest.raises(RepperError, match="cannot unpack .*outside"):
        load("cifar10", tmp_path)
    assert os.listdir(tmp_path) == [archive.name]
