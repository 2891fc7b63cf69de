"""What travels between a server and its sites."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord

from repper.engines.engine import Personal, Update
from repper.errors import RepperError
from repper.evaluate import Score
from repper.flower import wire
from repper.params import Params

numbers = some.floats(width=32)


tensors = some.lists(numbers, max_size=6).map(torch.tensor) | numbers.map(torch.tensor)


def same_bits(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(
        a[n].numpy().tobytes() == b[n].numpy().tobytes() and a[n].shape == b[n].shape for n in a
    )


@given(some.dictionaries(some.text(min_size=1, max_size=8), tensors, min_size=1, max_size=3))
@settings(max_examples=50, deadline=None)
def test_parameters_travel_to_the_bit(params):
    params = {name: tensor.float() for name, tensor in params.items()}
    asked = wire.question(wire.FIT, 1, {"client": 4, "round": 2}, wire.arrays_of(params))
    assert same_bits(wire.received_in(asked), params)
    assert wire.told_in(asked) == {"client": 4, "round": 2}
    asked.metadata.__dict__["_message_id"] = "question"
    update = wire.update_in(wire.update_reply(Update(4, params, 7, 0.25), asked, "float32"), 4)
    assert same_bits(update.sent, params)
    assert (update.client, update.examples, update.loss) == (4, 7, 0.25)


def test_half_numbers_travel_as_such_and_arrive_as_float32():
    params = {"weight": torch.tensor([0.5, 1 / 3]).half().float()}
    asked = wire.question(wire.FIT, 1, {})
    asked.metadata.__dict__["_message_id"] = "question"
    reply = wire.update_reply(Update(0, params, 7, 0.25), asked, "float16")
    assert reply.content.array_records[wire.PARAMS]["weight"].dtype == "float16"
    assert same_bits(wire.update_in(reply, 0).sent, params)


def test_what_is_no_parameter_is_refused():
    with pytest.raises(RepperError, match="numbers of type int64"):
        wire.params_in(ArrayRecord({"a": Array(np.arange(3))}))
    strange = Array(dtype="float32", shape=(2,), stype="numpy.ndarray", data=b"no numpy file")
    with pytest.raises(RepperError, match="a cannot be read"):
        wire.params_in(ArrayRecord({"a": strange}))
    pickled = Array(np.zeros(1, np.float32))
    content = io.BytesIO()
    np.save(content, np.array([{"code": 1}], dtype=object), allow_pickle=True)
    pickled.data = content.getvalue()
    with pytest.raises(RepperError, match="a cannot be read"):
        wire.params_in(ArrayRecord({"a": pickled}))


def test_a_personal_result_travels_whole():
    counts = np.array([1, 2, 3])
    score = Score(4, "linear", counts, counts, counts)
    one = Personal(4, score, None, "head", "own", ((1, 50.0), (2, None)))
    again = wire.personal_in(wire.personal_text(one))
    assert (again.client, again.head_digest, again.private_digest, again.curve) == (
        4, "head", "own", ((1, 50.0), (2, None)),
    )  # fmt: skip
    assert again.test.accuracy == score.accuracy
    assert again.validation is None


def test_words_of_strangers_are_one_printable_line():
    assert wire.one_line("a\x1b[2J\nb") == "a [2J b"
    assert len(wire.one_line("x" * 10**6)) == 300


def test_an_archive_of_arrays_is_no_array():
    with io.BytesIO() as file:
        np.savez(file, a=np.zeros(1))
        array = Array("float32", (1,), "numpy.ndarray", file.getvalue())
    with pytest.raises(RepperError, match="encoder.x cannot be read"):
        wire.params_in(ArrayRecord({"encoder.x": array}))
