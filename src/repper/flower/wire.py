"""The contents of messages, and how they are read. Arrays are raw numbers: nothing is pickled.

A round: parameters go out; those that are shared, a number of examples and a mean loss come back.
The heads: parameters go out; scores and digests come back.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from repper.basics.errors import RepperError
from repper.basics.params import Params
from repper.engines.engine import Personal, Update
from repper.heads.scores import Score

WHO, FIT, PERSONALIZE = "query.who", "train.fit", "evaluate.personalize"
PARAMS, TOLD = "shared", "told"
"""The two records of a message: every further record would cost some requests."""
PACKED, PACKING = "packed", "repper"
"""The one array in which parameters travel, and how it says that it is packed (`arrays_of`)."""
ONCE, ANSWERED = "once", "answered"
"""Told in every question: a number used once; in every answer: the digest of its question."""
GIVEN = "given"
"""The digest of parameters that an earlier stage has trained, which a site is sent once."""
FLOATS = ("float32", "float16")

Told = dict[str, Any]
"""Plain values of a message, besides parameters."""


def arrays_of(params: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """Parameters as one array: a line of JSON with names, kinds and shapes, then the raw numbers.

    Flower sends every array in two parts, each in a request of its own that is signed and stored.
    For the arrays of a small network, that took longer than to train it.
    """
    arrays = {n: t.detach().cpu().contiguous().numpy() for n, t in params.items()}
    layout = {name: [array.dtype.name, array.shape] for name, array in arrays.items()}
    data = b"".join([json.dumps(layout).encode(), b"\n", *(a.tobytes() for a in arrays.values())])
    return ArrayRecord({PACKED: Array("uint8", (len(data),), PACKING, data)})


def params_in(record: ArrayRecord) -> Params:
    """The parameters of a record, all as float32; any other record is refused."""
    if [*record] != [PACKED] or record[PACKED].stype != PACKING:
        raise RepperError("its parameters are not packed by this version of repper")
    data, params = memoryview(record[PACKED].data), Params()
    start = record[PACKED].data.find(b"\n") + 1
    try:
        layout = json.loads(bytes(data[:start]))
        for name, (kind, shape) in layout.items():
            if kind not in FLOATS:
                raise RepperError(f"{name} has numbers of type {kind}, not {FLOATS[0]}")
            count = math.prod(shape)
            values = np.frombuffer(data, kind, count, start).reshape(shape)
            params[name] = torch.from_numpy(values.astype(np.float32))
            start += values.nbytes
    except RepperError:
        raise
    except Exception as error:  # whatever a stranger's bytes lead to
        raise RepperError(f"its parameters cannot be read ({type(error).__name__})") from error
    if start != len(data):
        raise RepperError("its parameters cannot be read (there are more numbers than announced)")
    return params


def question(kind: str, node: int, told: Told, params: ArrayRecord | None = None) -> Message:
    """A message to a node."""
    content = RecordDict({TOLD: ConfigRecord(told | {ONCE: secrets.token_hex(16)})})
    if params is not None:
        content[PARAMS] = params
    return Message(content, node, kind, group_id=str(told.get("round", "")))


def digest_of(asked: Message) -> str:
    """The digest that binds an answer to its question: request, parameters and time."""
    content, sha = asked.content, hashlib.sha256(asked.metadata.message_type.encode())
    for name, told in sorted(content.config_records.items()):
        sha.update(json.dumps([name, sorted(told.items())]).encode())
    for name, array in sorted(content.array_records.get(PARAMS, ArrayRecord()).items()):
        sha.update(f"{name} {len(array.data)}\n".encode())
        sha.update(array.data)
    return sha.hexdigest()


def answered_in(reply: Message) -> str:
    """The digest of the question that an answer says it answers."""
    told = reply.content.config_records.get(TOLD)
    return str(told.get(ANSWERED, "")) if told else ""


def told_in(message: Message) -> Told:
    """The plain values of a message, without the digest that binds it to its question."""
    try:
        told = message.content.config_records[TOLD]
    except KeyError as error:
        raise RepperError(f"it lacks {error}") from error
    return {name: value for name, value in told.items() if name not in (ONCE, ANSWERED)}


def one_line(text: str) -> str:
    """Make foreign text safe to print and to keep: one line of at most 300 characters."""
    return "".join(c if c.isprintable() else " " for c in text[:300])


def received_in(message: Message) -> Params:
    return params_in(message.content.array_records[PARAMS])


def given_in(told: Told) -> str:
    """The digest of what an earlier stage has trained; "" where there is none."""
    return str(told.get(GIVEN, ""))


def update_reply(update: Update, asked: Message, kind: str) -> Message:
    """All that leaves a client in a round, in numbers of this kind."""
    sent = {n: t.to(getattr(torch, kind)) for n, t in update.sent.items()}
    reply = said({"examples": update.examples, "loss": update.loss}, asked)
    reply.content[PARAMS] = arrays_of(sent)
    return reply


def update_in(reply: Message, client: int) -> Update:
    """A client's update; raises an error that says what is wrong with an answer."""
    try:
        told = told_in(reply)
        examples, loss = told["examples"], told["loss"]
        params = received_in(reply)
    except KeyError as error:
        raise RepperError(f"it lacks {error}") from error
    if type(loss) not in (int, float):
        raise RepperError(f"its loss is {loss!r}")
    return Update(client, params, examples, float(loss))  # `check` refuses what is no number


def said(content: Told, asked: Message) -> Message:
    """An answer of plain values."""
    told = ConfigRecord(content | {ANSWERED: digest_of(asked)})
    return Message(RecordDict({TOLD: told}), reply_to=asked)


def problem_in(reply: Message) -> str:
    """The client's error, if its answer is one, else an empty text."""
    told = reply.content.config_records.get(TOLD)
    return str(told.get("problem", "")) if told else ""


def declined_in(reply: Message) -> str:
    """The reason why a client declines, if its answer is one, else an empty text."""
    told = reply.content.config_records.get(TOLD)
    return str(told.get("declined", "")) if told else ""


def personal_text(personal: Personal) -> str:
    """A client's complete result as text, for a simulation."""
    content = asdict(personal)
    for name in ("test", "validation"):
        if content[name] is not None:
            counts = ("train", "tested", "correct")
            content[name] |= {n: content[name][n].tolist() for n in counts}
    return json.dumps(content)


def personal_in(text: str) -> Personal:
    content = json.loads(text)
    for name in ("test", "validation"):
        if (found := content[name]) is not None:
            counts = {n: np.array(found[n], np.int64) for n in ("train", "tested", "correct")}
            content[name] = Score(found["client"], found["personalize"], **counts)
    curve = tuple((epoch, accuracy) for epoch, accuracy in content.pop("curve"))
    return Personal(**content, curve=curve)
