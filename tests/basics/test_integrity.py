"""A damaged file is found when it is read: bits of every kind of file, flipped one at a time."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save as save_arrays
from safetensors.torch import save as save_tensors

from repper.basics.errors import RepperError
from repper.basics.params import digest, read_params, save_params
from repper.basics.tensor_files import read_notes, sealed
from repper.edge.saved_head import SavedHead, read_head
from repper.edge.unknown import Unknown, read_unknown

PARAMS = {"encoder.a": torch.arange(6.0).view(2, 3), "encoder.b": torch.ones(1)}
NOTES = {"round": "3", "chosen": "0", "name": 'a:"sha256:, "seal":"'}


def a_head(kind="linear"):
    arrays = {
        "mean": np.zeros(3, np.float32), "scale": np.ones(1, np.float32),
        "weight": np.eye(2, 3, dtype=np.float32), "bias": np.zeros(2, np.float32),
    }  # fmt: skip
    return SavedHead(kind, "linear", arrays, (0, 4), ("cat", "dög"), "e" * 64)


def flips(content):
    """The content with one bit flipped."""
    for place in range(0, 8 * len(content), 13):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        yield place, bytes(flipped)


def silent(path, read):
    """The places at which a flipped bit is not told in a sentence."""
    good = path.read_bytes()
    missed = []
    for place, bad in flips(good):
        path.write_bytes(bad)
        try:
            read(path)
        except RepperError:
            continue
        missed.append(place)
    path.write_bytes(good)
    read(path)
    return missed


WRITTEN = {
    "parameters": (lambda path: save_params(path, PARAMS, NOTES), read_params),
    "a head": (lambda path: a_head().save(path), read_head),
    "a rule for unknown": (
        lambda path: Unknown(np.zeros((1, 2)), np.eye(2), 1.0, "e" * 64).save(path),
        lambda path: read_unknown(path, "e" * 64),
    ),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_flipped_bit_in_a_file_of_weights_is_found(kind, tmp_path):
    write, read = WRITTEN[kind]
    write(tmp_path / "x.safetensors")
    assert silent(tmp_path / "x.safetensors", read) == []


def test_notes_alone_are_covered_too(tmp_path):
    path = tmp_path / "x.safetensors"
    save_params(path, PARAMS, NOTES)
    header = 8 * (8 + int.from_bytes(path.read_bytes()[:8], "little"))
    assert [place for place in silent(path, read_notes) if place < header] == []


def test_a_file_that_is_cut_short_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    save_params(path, PARAMS, NOTES)
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(RepperError, match="damaged or not a safetensors file"):
            read_params(path)


def test_equal_content_gives_equal_bytes(tmp_path):
    written = set()
    for number in range(8):
        save_params(tmp_path / str(number), dict(reversed(PARAMS.items())), NOTES)
        written.add((tmp_path / str(number)).read_bytes())
    assert len(written) == 1
    assert read_params(tmp_path / "0")[1] == {**NOTES, "digest": digest(PARAMS)}


def test_files_of_older_versions_are_read(tmp_path):
    """They have no seal, and their headers are in any order."""
    path = tmp_path / "x.safetensors"
    notes = {**NOTES, "digest": digest(PARAMS)}
    path.write_bytes(save_tensors(PARAMS, metadata=notes))
    params, found = read_params(path)
    assert digest(params) == notes["digest"]
    assert found == read_notes(path) == notes
    head = a_head()
    head.save(path)
    with safe_open(path, "np") as file:
        notes = {key: text for key, text in file.metadata().items() if key != "seal"}
    path.write_bytes(save_arrays(head.arrays, metadata=notes))
    assert read_head(path).digest() == head.digest()


def test_a_header_that_was_written_anew_does_not_match_its_seal(tmp_path):
    path = tmp_path / "x.safetensors"
    content = sealed(save_tensors(PARAMS, metadata={**NOTES, "digest": digest(PARAMS)}))
    path.write_bytes(content.replace(b'"round":"3"', b'"round":"2"'))
    with pytest.raises(RepperError, match="its header does not match its seal"):
        read_params(path)
    length = int.from_bytes(content[:8], "little")
    deep = b'{"a":' + b"[" * 50_000
    deep += b" " * (-len(deep) % 8)
    path.write_bytes(len(deep).to_bytes(8, "little") + deep)
    with pytest.raises(RepperError, match="damaged or not a safetensors file"):
        read_params(path)
    assert json.loads(content[8 : 8 + length])["__metadata__"]["seal"].startswith("sha256:")
