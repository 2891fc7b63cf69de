"""Check exported ONNX files, and read their metadata, without protobuf.

An ONNX file is a protobuf message. Its notes are pairs of a key and a value near its end, and
among them is its seal, `repper.sha256`: the SHA-256 of all bytes of the file, counted with these 64
characters as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from repper.basics.errors import RepperError
from repper.basics.seal import Place

ENCODER_FORMAT = "repper-encoder-1"
CLASSIFIER_FORMAT = "repper-classifier-1"
HUB_FORMAT = "repper-hub-1"
SHA256 = "repper.sha256"
MARK = b"\x0a\x0drepper.sha256\x12\x40"
"""What stands before the 64 characters: protobuf's tags and lengths, and the key."""
IN_ONNX = Place(MARK, (MARK,))
_PRODUCER = b"\x12\x06repper"
"""How a file of ours begins, after the version of ONNX: the name of who made it."""
_NOTES = 14
"""The number of `metadata_props` in ONNX's message."""
_KINDS = {
    ENCODER_FORMAT: "an encoder",
    CLASSIFIER_FORMAT: "a classifier in one file",
    HUB_FORMAT: "a model for Hugging Face",
}


def verified(path: Path, format: str = ENCODER_FORMAT) -> bytes:
    """The bytes of an exported encoder (or of another `format`); a damaged file is refused."""
    try:
        if path.exists() and not path.is_file():
            raise RepperError(f"cannot read {path}: it is not a file")  # a pipe would wait
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise RepperError(f"there is no file {path}") from error
    except OSError as error:
        raise RepperError(f"cannot read {path}: {error.strerror or error}") from error
    check(data, str(path), format)
    return data


def check(data: bytes, name: str, format: str = ENCODER_FORMAT) -> None:
    """Refuse bytes that are not an exported file of this format, or not all of one."""
    if not data:
        raise RepperError(f"{name} is empty: copy it again, or export it again")
    found = data.count(MARK)
    ours = found > 0 or is_ours(data)
    if ours and not _is_whole(data):
        raise RepperError(f"{name} is truncated: copy it again, or export it again")
    if not ours:
        raise RepperError(
            f"{name} is not {_KINDS.get(format, format)} of repper: `repper export` writes one"
        )
    try:
        whole = found == 1 and IN_ONNX.is_sealed(data)
    except ValueError:
        whole = False
    if not whole:
        raise RepperError(
            f"{name} is damaged: its contents do not match its checksum; copy it again, or export "
            f"it again"
        )
    try:
        said = read_notes(data).get("repper.format")
    except ValueError as error:  # made so by hand: the checksum is right
        raise RepperError(f"{name} is damaged: its metadata cannot be read ({error})") from error
    if said != format:
        raise RepperError(
            f"{name} is {_KINDS.get(str(said), f'of format {said}')} of repper, but this command "
            f"needs {_KINDS.get(format, format)}"
        )


def is_ours(start: bytes) -> bool:
    """Whether a file that starts with these bytes (16 or more) was written by `repper export`."""
    return _PRODUCER in start[:16]


def read_notes(data: bytes) -> dict[str, str]:
    """The metadata of an ONNX file, such as `repper.encoder`, by key."""
    notes = {}
    for number, value in _fields(data):
        if number == _NOTES and isinstance(value, bytes):
            pair = dict(_fields(value))
            key, text = pair.get(1, b""), pair.get(2, b"")
            if isinstance(key, bytes) and isinstance(text, bytes):
                notes[key.decode("utf-8", "replace")] = text.decode("utf-8", "replace")
    return notes


def _is_whole(data: bytes) -> bool:
    """Whether the last field of the message ends at the end of the file."""
    try:
        for _ in _fields(data):
            pass
    except ValueError:
        return False
    return True


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The outermost fields of a protobuf message: numbers and undecoded values."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"no such kind of field: {wire}")
        if at + size > len(data):
            raise ValueError("the message ends within a field")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a varint; returns the number and the position after it."""
    result = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("the message ends within a number")
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
    raise ValueError("a number without an end")
