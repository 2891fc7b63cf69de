"""What travels between a server and its sites."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord

from repper.basics.errors import RepperError
from repper.basics.params import Params
from repper.engines.engine import Personal, Update
from repper.flower import wire
from repper.heads.scores import Score

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
    assert len(reply.content.array_records[wire.PARAMS][wire.PACKED].data.partition(b"\n")[2]) == 4
    assert same_bits(wire.update_in(reply, 0).sent, params)


def packed(layout: object, numbers: bytes = b"") -> ArrayRecord:
    text = layout if isinstance(layout, bytes) else json.dumps(layout).encode()
    data = text + b"\n" + numbers
    return ArrayRecord({wire.PACKED: Array("uint8", (len(data),), wire.PACKING, data)})


ONE = np.ones(1, np.float32).tobytes()


def test_a_packed_record_is_read_by_its_layout():
    found = wire.params_in(packed({"a": ["float32", [1, 1]], "b": ["float32", []]}, ONE * 2))
    assert same_bits(found, {"a": torch.ones(1, 1), "b": torch.tensor(1.0)})


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (packed({"a": ["int64", [1]]}, ONE * 2), "a has numbers of type int64"),
        (packed({"a": ["object", [1]]}, ONE * 2), "a has numbers of type object"),
        (packed({"a": ["float32", [2]]}, ONE), "cannot be read"),
        (packed({"a": ["float32", [10**18]]}, ONE), "cannot be read"),
        (packed({"a": ["float32", [-3, 2]]}, ONE), "cannot be read"),
        (packed({"a": ["float32", ["1"]]}, ONE), "cannot be read"),
        (packed({"a": ["float32", [1]]}, ONE * 2), "more numbers than announced"),
        (packed(["a"], ONE), "cannot be read"),
        (packed(b"no layout", ONE), "cannot be read"),
        (packed(b"[" * 10**5, ONE), "cannot be read"),
        (packed(b'{"a": ["float32", [1]], "a": ["float32", [1]]}', ONE * 2), "more numbers"),
        (ArrayRecord({"a": Array(np.zeros(1, np.float32))}), "not packed"),
        (ArrayRecord({wire.PACKED: Array(np.zeros(1, np.float32))}), "not packed"),
        (ArrayRecord(), "not packed"),
    ],
)
def test_what_is_no_parameter_is_refused(record, why):
    with pytest.raises(RepperError, match=why):
        wire.params_in(record)


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
