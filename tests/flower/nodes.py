"""A grid in memory: nodes are functions, and sites run in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import numpy as np
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from PIL import Image

from repper.data import load
from repper.engines.engine import Update
from repper.flower import entry_points as apps
from repper.flower import wire
from repper.flower.grid_engine import Place
from repper.flower.site import Site
from repper.settings.config import Config

SHARED = {"encoder.weight": torch.tensor([[1.0, 2.0]]), "encoder.bias": torch.tensor(0.5)}
AWAY, RAISED = Error(5, "the node is away"), Error(2, "the app raised an error")


Answer = Callable[[Message], Message | Error | Exception | None]


class Nodes:
    """A grid in memory: every node is a function, and who returns nothing stays silent."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = dict(enumerate(answers))
        self.since = dict.fromkeys(self.answers, "morning")
        self.asked: list[tuple[int, Message]] = []
        self._replies: dict[str, Message | Exception] = {}

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(node_id=node, name=f"site{node}", last_activated_at=since)
            for node, since in self.since.items()
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def arrive(self, node: int) -> None:
        """The answer to the last question of a node that was silent comes now."""
        asked = next(message for one, message in reversed(self.asked) if one == node)
        self._replies[asked.metadata.message_id] = self.answers[node](asked)

    def _push(self, message: Message) -> str:
        node, number = message.metadata.dst_node_id, f"question {len(self.asked)}"
        message.metadata.__dict__["_message_id"] = number
        self.asked.append((node, message))
        answer = self.answers[node](message)
        if isinstance(answer, Error):
            answer = Message(answer, reply_to=message)
        if answer is not None:
            self._replies[number] = answer
        return number

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        found = [self._replies.pop(number) for number in numbers if number in self._replies]
        if broken := [reply for reply in found if isinstance(reply, Exception)]:
            raise broken[0]  # and the others are lost
        return found

    def places(self) -> dict[int, Place]:
        return {node: Place(node, since) for node, since in self.since.items()}


class Home(Nodes):
    """Sites whose apps run in this process, one after the other."""

    def __init__(self, folder, images) -> None:
        for number in range(2):
            (folder / f"site{number}").mkdir(parents=True, exist_ok=True)
            Site(folder / f"site{number}", str(images / f"site{number}"), share_scores=True).save()
        super().__init__(*(self._site(folder / f"site{number}") for number in range(2)))

    def _site(self, home) -> Answer:
        context = Context(1, 1, {"home": str(home)}, RecordDict(), {})
        return lambda message: apps.client(message, context)


def good(message: Message) -> Message:
    told = wire.told_in(message)
    return wire.update_reply(Update(told["client"], SHARED, 10, 0.5), message, "float32")


def in_turn(*answers: Answer) -> Answer:
    left = list(answers)
    return lambda message: left.pop(0)(message)


def silent(message: Message) -> None: ...


def away(message: Message) -> Error:
    return AWAY


CONFIG = Config(
    clients=2, rounds=2, epochs=1, width=0.25, participation=1.0, image_size=8, knn=0,
    method="fedrep", personalize="keep",
)  # fmt: skip


CLASSES = tuple("0123456789")


def folder_of_site(folder, rows, colour=True):
    digits = load("digits")
    for row in rows:
        grey = digits.train.images[row][0]
        pixels = np.stack([grey, grey // 2, 255 - grey], -1) if colour else grey
        path = folder / str(digits.train.labels[row]) / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


class Link(Nodes):
    """A grid whose nodes upload their answers to a server, object by object, as over a network.

    `upload` changes what a node uploads of an answer: objects by number, from the message down.
    """

    def __init__(self, *answers: Answer) -> None:
        super().__init__(*answers)
        self.node, self.run = Node(node_id=1), SimpleNamespace(run_id=1)
        self.upload: dict[int, Callable[[dict[str, bytes]], None]] = {}
        self.trees: dict[str, ObjectTree] = {}
        self.stored: dict[str, bytes] = {}
        self.pulled: list[str] = []
        self._announced: dict[str, tuple[str, str]] = {}

    @property
    def _runtime_client(self) -> Link:
        return self

    def _push(self, message: Message) -> str:
        number = super()._push(message)
        if number in self._replies:
            self._store(number, message.metadata.dst_node_id, self._replies.pop(number))
        return number

    def _store(self, number: str, node: int, reply: Message) -> None:
        objects = {one: o.deflate() for one, o in reversed(get_all_nested_objects(reply).items())}
        tree = get_object_tree(reply)
        self.trees[tree.object_id] = tree
        self._announced[number] = number, tree.object_id
        self.upload.get(node, lambda objects: None)(objects)
        self.stored |= objects

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        found = PullAppMessagesResponse()
        for number in request.message_ids:
            if known := self._announced.pop(number, None):
                message = found.messages_list.add()
                message.metadata.reply_to_message_id, message.metadata.message_id = known
                found.message_object_trees.append(self.trees[known[1]])
        return found

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        self.pulled.append(request.object_id)
        content = self.stored.get(request.object_id)
        return PullObjectResponse(
            object_found=content is not None, object_available=bool(content), object_content=content
        )

    def ConfirmMessageReceived(self, request: ConfirmMessageReceivedRequest) -> None:  # noqa: N802
        gone = self.trees.pop(request.message_object_id)
        # The same content has the same number: equal answers share all but the message.
        left = {o.object_id for tree in self.trees.values() for o in iterate_object_tree(tree)}
        for one in iterate_object_tree(gone):
            if one.object_id not in left:
                self.stored.pop(one.object_id, None)
