"""Downloads, from a real server on this machine that can break off, refuse and ignore ranges."""

import dataclasses
import hashlib
import io
import os
import socket
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from data.test_cifar import pack, write_batches
from data.test_datasets import photos, write_idx
from repper.basics.errors import RepperError
from repper.data import cifar, cinic, fashion, fetch, load
from repper.data.cifar import CIFAR10
from repper.data.fetch import Remote

CONTENT = np.random.default_rng(0).bytes(700_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server:
    """Serves `files`; `cut` ends the next answer early, `ranges` says whether it can go on."""

    def __init__(self):
        self.files, self.asked, self.cut, self.ranges = {"/file": CONTENT}, [], None, True
        self.shift = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()

    def answer(self, handler):
        wanted = handler.headers.get("Range")
        self.asked.append((handler.path, wanted))
        content = self.files.get(handler.path)
        if content is None:
            return handler.send_error(404)
        start = (
            int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        )
        if start >= len(content):
            return handler.send_error(416)
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(content) - start))
        if start:
            start -= self.shift
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.end_headers()
        end, self.cut = self.cut, None
        handler.wfile.write(content[start:end])

    def address(self, path="/file"):
        return f"http://127.0.0.1:{self.http.server_port}{path}"

    def remote(self, path="/file", md5=MD5):
        return Remote(path[1:], md5, (self.address(path),))

    def close(self):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    found = Server()
    yield found
    found.close()


def test_a_file_is_fetched_once_and_progress_is_told_on_stderr(tmp_path, server, capsys):
    path = fetch.fetch(server.remote(), tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    assert os.listdir(path.parent) == ["file"]
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "file: 0.7 of 0.7 MB\n")
    fetch.fetch(server.remote(), path.parent)
    assert server.asked == [("/file", None)]


def test_two_who_fetch_the_same_file_do_not_mix_their_parts(tmp_path, server):
    with ThreadPoolExecutor(2) as both:
        paths = list(both.map(lambda _: fetch.fetch(server.remote(), tmp_path), range(2)))
    assert [path.read_bytes() for path in paths] == [CONTENT] * 2
    assert server.asked == [("/file", None)]


def test_on_a_terminal_progress_is_a_bar(tmp_path, server, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    fetch.fetch(server.remote(), tmp_path)
    assert "700.0/700.0 kB" in shown.getvalue()
    assert "━" in shown.getvalue()


def test_a_broken_download_is_kept_and_goes_on(tmp_path, server):
    server.cut = 300_000
    with pytest.raises(RepperError, match=r"ended with 400000 bytes to go \(300000 bytes are kept"):
        fetch.fetch(server.remote(), tmp_path)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:300_000]
    assert not (tmp_path / "file").exists()
    assert fetch.fetch(server.remote(), tmp_path).read_bytes() == CONTENT
    assert server.asked[1] == ("/file", "bytes=300000-")
    assert os.listdir(tmp_path) == ["file"]


def test_a_server_that_ignores_ranges_sends_all_again(tmp_path, server, capsys):
    server.ranges = False
    (tmp_path / "file.part").write_bytes(CONTENT[:300_000])
    assert fetch.fetch(server.remote(), tmp_path).read_bytes() == CONTENT
    assert server.asked == [("/file", "bytes=300000-")]
    assert capsys.readouterr().err == "file: 0.7 of 0.7 MB\n"


def test_a_part_of_another_place_is_not_appended(tmp_path, server):
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    server.shift = 7
    assert fetch.fetch(server.remote(), tmp_path).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == ["bytes=1000-", None]


def test_a_part_that_is_whole_is_taken(tmp_path, server):
    (tmp_path / "file.part").write_bytes(CONTENT)
    assert fetch.fetch(server.remote(), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("part", [b"", b"wrong beginning", CONTENT + b"too long"])
def test_a_checksum_that_differs_is_refused_and_the_file_removed(tmp_path, server, part):
    (tmp_path / "file.part").write_bytes(part)
    remote = server.remote() if part else server.remote(md5="0" * 32)
    with pytest.raises(
        RepperError, match=rf"file was downloaded with md5 \w+ instead of {remote.md5}, and was"
    ):
        fetch.fetch(remote, tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_damaged_is_fetched_again(tmp_path, server):
    (tmp_path / "file").write_bytes(b"damaged")
    assert fetch.fetch(server.remote(), tmp_path).read_bytes() == CONTENT


def test_addresses_are_tried_in_turn(tmp_path, server):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
    remote = dataclasses.replace(
        server.remote(), addresses=(server.address("/gone"), closed, server.address())
    )
    assert fetch.fetch(remote, tmp_path).read_bytes() == CONTENT
    (tmp_path / "file").unlink()
    remote = dataclasses.replace(remote, addresses=remote.addresses[:2])
    with pytest.raises(RepperError) as caught:
        fetch.fetch(remote, tmp_path)
    assert str(caught.value) == (
        f"cannot download file from {server.address('/gone')}: the server answers 404 Not Found; "
        f"nor from {closed}: no connection (Connection refused)"
    )


def test_a_server_that_falls_silent_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetch, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with pytest.raises(RepperError, match=r"cannot download file from .*timed out"):
            fetch.fetch(Remote("file", MD5, (address,)), tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, server):
    (tmp_path / "file").write_text("")
    with pytest.raises(RepperError, match=r"cannot write .*file/x/file.part: "):
        fetch.fetch(server.remote(), tmp_path / "file" / "x")


def test_cifar10_is_fetched_only_when_told_to(tmp_path, server, monkeypatch):
    kind = write_batches(tmp_path / "source", cifar.CIFAR10_BATCHES[0])
    kind = pack(tmp_path / "archive", tmp_path / "source", kind)
    server.files["/cifar"] = (tmp_path / "archive").read_bytes()
    remote = dataclasses.replace(kind.archive, addresses=(server.address("/cifar"),))
    monkeypatch.setattr(cifar, "CIFAR10_BATCHES", (dataclasses.replace(kind, archive=remote),))
    data_dir = tmp_path / "data"
    with pytest.raises(RepperError, match="fetch it with --download"):
        load("cifar10", data_dir)
    assert server.asked == []
    assert len(load("cifar10", data_dir, download=True).train) == 10
    assert len(load("cifar10", data_dir, download=True).train) == 10
    assert len(server.asked) == 1
    assert sorted(os.listdir(data_dir / "cifar10")) == [kind.folder, kind.archive.name]


def test_cinic10_is_fetched_and_unpacked(tmp_path, server, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for part in ("train", "valid", "test"):
            for label in CIFAR10:
                picture = io.BytesIO()
                Image.new("RGB", (32, 32), (1, 2, 3)).save(picture, "png")
                member = tarfile.TarInfo(f"./{part}/{label}/0.png")
                member.size = picture.tell()
                tar.addfile(member, io.BytesIO(picture.getvalue()))
    server.files["/cinic"] = packed.getvalue()
    md5 = hashlib.md5(packed.getvalue()).hexdigest()
    remote = dataclasses.replace(cinic.ARCHIVE, md5=md5, addresses=(server.address("/cinic"),))
    monkeypatch.setattr(cinic, "ARCHIVE", remote)
    data = load("cinic10", tmp_path / "data", download=True)
    assert (len(data.train), data.classes) == (10, CIFAR10)
    folder = tmp_path / "data" / "cinic10" / "CINIC-10"
    assert sorted(os.listdir(folder)) == ["test", "train", "valid"]
    assert load("cinic10", tmp_path / "data").digest == data.digest


def test_a_cinic10_archive_with_another_checksum_is_refused(tmp_path):
    archive = tmp_path / "cinic10" / "CINIC-10.tar.gz"
    archive.parent.mkdir()
    archive.write_bytes(b"something else")
    with pytest.raises(RepperError, match="is damaged or not the official file"):
        load("cinic10", tmp_path)
    assert [p.name for p in archive.parent.iterdir()] == [archive.name]


def test_fashion_mnist_is_fetched_file_by_file(tmp_path, server, monkeypatch):
    monkeypatch.setattr(fashion, "DEBIAN", tmp_path / "nowhere")
    remotes = []
    for name in fashion.MD5:
        write_idx(tmp_path / name, photos(3, 1, 28) if "images" in name else np.arange(3))
        server.files[f"/{name}"] = content = (tmp_path / name).read_bytes()
        remotes.append(server.remote(f"/{name}", hashlib.md5(content).hexdigest()))
    monkeypatch.setattr(fashion, "REMOTES", tuple(remotes))
    data = load("fashion-mnist", tmp_path / "data", download=True)
    assert data.train.labels.tolist() == [0, 1, 2]
    assert len(server.asked) == 4


def test_digits_need_no_download(digits):
    assert load("digits", download=True).digest == digits.digest


def test_official_addresses_and_checksums_are_well_formed():
    remotes = [k.archive for k in cifar.CIFAR10_BATCHES + cifar.CIFAR100_BATCHES]
    remotes += [cinic.ARCHIVE, *fashion.REMOTES]
    assert len({remote.md5 for remote in remotes}) == len(remotes) == 9
    for remote in remotes:
        assert len(bytes.fromhex(remote.md5)) == 16
        assert remote.addresses[0].endswith(f"/{remote.name}")
