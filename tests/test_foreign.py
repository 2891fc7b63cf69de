"""Bytes that somebody else wrote: every parser reads them, or says in a sentence that it cannot."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from foreign import PARSERS, SEALED, resealed, samples
from repper.basics.errors import RepperError

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"


def parsed(name: str, data: bytes) -> object:
    """What a parser reads, or its sentence; anything else fails the test."""
    folder = Path(tempfile.mkdtemp())
    try:
        return PARSERS[name](data, folder)
    except RepperError as error:
        return error
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return samples(tmp_path_factory.mktemp("samples"))


@pytest.mark.parametrize("name", PARSERS)
def test_every_parser_reads_its_samples(name, written):
    for data in written[name]:
        assert not isinstance(answer := parsed(name, data), RepperError), answer


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda p: "/".join(p.parts[-2:]))
def test_the_corpus_is_read_or_refused(path):
    parsed(path.parent.name, path.read_bytes())


pieces = some.one_of(
    some.binary(max_size=8),
    some.sampled_from(
        [b'"', b"[", b"{", b"-1", b"1e999", b"9" * 400, b"null", b"\xff", b"\0" * 8, b"[]", b"{}",
         b"NaN", b"\xff" * 8, b"\\ud800", b"true", b'"x"', b"2.5"]
    ),
)  # fmt: skip
changes = some.lists(some.tuples(some.floats(0, 1), some.integers(0, 12), pieces), max_size=4)


def changed(data: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    """Bytes with pieces of them taken out, and others in their places."""
    for share, length, piece in changes:
        at = round(share * len(data))
        data = data[:at] + piece + data[at + length :]
    return data


@pytest.mark.parametrize("name", PARSERS)
def test_any_bytes_are_read_or_refused(name, written):
    @given(
        some.binary(max_size=200) | some.builds(changed, some.sampled_from(written[name]), changes)
    )
    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    def read_or_refused(data):
        parsed(name, data)

    read_or_refused()


@pytest.mark.parametrize("name", sorted(SEALED))
def test_a_header_that_was_changed_and_sealed_again_is_read_or_refused(name, written):
    @given(changes)
    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    def read_or_refused(changes):
        [data] = written[name]
        end = 8 + int.from_bytes(data[:8], "little")
        header = changed(data[8:end], changes)
        parsed(name, resealed(len(header).to_bytes(8, "little") + header + data[end:]))

    read_or_refused()
