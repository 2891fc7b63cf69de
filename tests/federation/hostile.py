"""A node with an admitted key that is no site: it speaks Flower's protocol, and answers as it likes.

    python hostile.py HOST:PORT CA KEY FOLDER ROUND=DEED,DEED ...

Each time that it is asked in a round it does the next of these deeds. In other rounds, and to other
questions, it answers well, with the parameters that it got. A file in FOLDER tells what it has
done.

- `announce`: an answer is announced, and nothing of it is uploaded.
- `break-off`: all but the message itself is uploaded, object by object.
- `many`: a hundred objects are announced and uploaded.
- `thousands`: 4,000 objects are announced, and then a good answer.
- `large`: an object of 4 MB where a few numbers are expected.
- `replay`: its good answer to the round before, under the number of this question.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response
from httpx import HTTPStatusError

from repper.engines.engine import Update
from repper.flower import wire

EXAMPLES = 48


class Hostile:
    def __init__(self, deeds: dict[int, list[str]], folder: Path) -> None:
        self.deeds, self.folder = deeds, folder
        self.before: Message | None = None

    def answer(self, asked: Message) -> tuple[Message, str]:
        """The answer, and what is done to the server with it."""
        kind = asked.metadata.message_type
        if kind == wire.WHO:
            return wire.said({"examples": EXAMPLES}, asked), ""
        if kind == wire.PERSONALIZE:
            return wire.said({"done": True}, asked), ""
        told = wire.told_in(asked)
        left = self.deeds.get(told["round"])
        deed = left.pop(0) if left else ""
        received = wire.received_in(asked)
        good = wire.update_reply(Update(told["client"], received, EXAMPLES, 0.5), asked, "float32")
        if deed == "many":
            arrays = {str(n): Array(np.array([float(n)])) for n in range(50)}
            good.content["more"] = ArrayRecord(arrays)
        elif deed == "large":
            good.content["more"] = ConfigRecord({"text": "x" * 2**22})
        elif deed == "replay":
            good.content[wire.TOLD][wire.ANSWERED] = wire.answered_in(self.before)
        else:
            self.before = good
        return good, deed

    def tell(self, text: str) -> None:
        with (self.folder / "done").open("a") as file:
            file.write(f"{text}\n")


def main(server: str, ca: str, key: str, folder: str, *deeds: str) -> None:
    private = load_ssh_private_key(Path(key).read_bytes(), None)
    each = (deed.split("=") for deed in deeds)
    by_round = {int(number): deed.split(",") for number, deed in each}
    hostile = Hostile(by_round, Path(folder))
    keys = private, private.public_key()
    with http_request_response(server, False, Path(ca).read_bytes(), keys) as connection:
        node, receive, send, _, _, pull, push, confirm = connection
        TaskIdentity.node_id, TaskIdentity.task_id = node, 1
        sys.stdout.write(f"SuperNode ID {node}\n")
        sys.stdout.flush()
        while True:
            if (got := receive()) is None:
                time.sleep(0.2)
                continue
            asked = fetch(got, pull, confirm)
            reply, deed = hostile.answer(asked)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects = get_all_nested_objects(reply)
            if deed == "thousands":
                hostile.tell(f"{deed}: {announce_thousands(reply, send)}")
            missing, session = send(reply, get_object_tree(reply), 0.0)
            for one in missing:
                if deed == "announce" or (deed == "break-off" and one == reply.object_id):
                    continue
                try:
                    push(asked.metadata.run_id, session, one, objects[one].deflate())
                except Exception as error:
                    hostile.tell(f"{deed}: no more than that: {type(error).__name__}")
                    break
            hostile.tell(f"{wire.told_in(asked).get('round', 0)} {deed or 'good'}")


def announce_thousands(reply: Message, send: Callable) -> str:
    """How the server takes an answer of 4,000 parts, and in how many seconds."""
    numbers = (hashlib.sha256(n.to_bytes(2)).hexdigest() for n in range(4000))
    leaves = [ObjectTree(object_id=number) for number in numbers]
    tree = ObjectTree(object_id=reply.object_id, children=leaves)
    began = time.monotonic()
    try:
        send(reply, tree, 0.0)
        taken = "taken"
    except HTTPStatusError as error:
        taken = str(error.response.status_code)
    return f"{taken} {time.monotonic() - began:.1f}"


def fetch(got: tuple[Message, object], pull: Callable, confirm: Callable) -> Message:
    """The whole question."""
    head, tree = got
    run = TaskIdentity.run_id = head.metadata.run_id
    numbers = [one.object_id for one in iterate_object_tree(tree)]
    contents = pull_objects(numbers, lambda one: pull(run, one))
    confirm(run, tree.object_id)
    asked = inflate_object_from_contents(tree.object_id, contents)
    asked.metadata.__dict__["_message_id"] = tree.object_id
    return asked


if __name__ == "__main__":
    main(*sys.argv[1:])
