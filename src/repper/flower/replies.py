"""Fetch answers without waiting for slow uploads, and refuse answers that are too large.

Flower's own `pull_messages` waits for an upload as long as it makes any progress, and takes
whatever comes. Here the objects of an answer are fetched when all of them have arrived, one answer
at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, ParamSpec, TypeVar

from flwr.app import Error, Message
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
)
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from google.protobuf.message import DecodeError
from httpx import HTTPStatusError

from repper.basics.errors import RepperError
from repper.basics.params import Params

UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError, DecodeError)
"""Exceptions that Flower raises on a malformed answer."""
FIRST_SECONDS, SLOWEST = 60.0, 16_000
"""Time limit of an upload: so many seconds, and one more for each `SLOWEST` bytes."""
CHUNK = 2**20
"""Bytes: Flower cuts arrays into pieces that are not smaller."""


PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between two calls of Flower's server while its database is locked."""

Given = ParamSpec("Given")
Result = TypeVar("Result")


def patiently(call: Callable[Given, Result], *args: Given.args, **named: Given.kwargs) -> Result:
    """Call Flower's server, and retry after a server error: its database may be locked."""
    for pause in PAUSES:
        try:
            return call(*args, **named)
        except HTTPStatusError as error:
            if error.response.status_code < 500:
                raise
            time.sleep(pause)
    return call(*args, **named)


class Size(NamedTuple):
    """Maximum size of an answer: number of Flower's objects, and bytes in all of them."""

    objects: int
    bytes: int

    @property
    def seconds(self) -> float:
        """The time limit of its upload."""
        return FIRST_SECONDS + self.bytes / SLOWEST


SMALL = Size(16, 2**16)
"""An answer of plain values."""


def size_of(params: Params) -> Size:
    """The maximum size of an answer with such parameters."""
    numbers = sum(tensor.numel() for tensor in params.values()) * 4
    layout = sum(4 * len(name) + 256 for name in params)
    # All are one array: Flower stores its description, and its bytes in pieces with a number each.
    pieces = 3 + (numbers + layout) // CHUNK
    return Size(SMALL.objects + pieces, SMALL.bytes + numbers + layout + 128 * pieces)


class Replies:
    """The answers of nodes that keep them in this process until they are fetched."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def arrived(self, sizes: Mapping[str, Size]) -> Iterator[tuple[str, Message | Error]]:
        """The answers to these questions that have arrived completely.

        One by one: only one is in memory at a time, and one that cannot be read spoils no other.
        """
        for number in sizes:
            try:
                reply = next(iter(self._grid.pull_messages([number])), None)
            except UNREADABLE as error:
                yield number, _unreadable(error)
            else:
                if reply is not None:
                    yield number, reply.error if reply.has_error() else reply

    def forget(self, numbers: Iterable[str]) -> None:
        """Drop the answers to these questions."""


@dataclass
class _Upload:
    """An answer that a node has announced, and may not have uploaded yet."""

    root: str
    objects: list[str]
    """From the message down to the bytes of arrays: a node uploads them the other way round."""
    missing: str
    """The object that was missing at the last attempt."""
    began: float = field(default_factory=time.monotonic)


class UploadedReplies(Replies):
    """The answers that nodes upload to Flower's server.

    What is stored there of an answer that is refused, or that nobody wants any more, is deleted.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._link: Any = grid
        self._uploads: dict[str, _Upload] = {}
        self._unwanted: set[str] = set()

    def arrived(self, sizes: Mapping[str, Size]) -> Iterator[tuple[str, Message | Error]]:
        self._look_for_new([*(sizes.keys() - self._uploads.keys()), *self._unwanted])
        for number in self._unwanted & self._uploads.keys():
            self._delete(number)
            self._unwanted.discard(number)
        for number in sizes.keys() & self._uploads.keys():
            try:
                answer: Message | Error | None = self._fetch(number, sizes[number])
            except RepperError as error:
                answer = Error(0, str(error))
            except UNREADABLE as error:
                answer = _unreadable(error)
            if answer is not None:
                self._delete(number)
                yield number, answer

    def forget(self, numbers: Iterable[str]) -> None:
        # Flower cannot take a question back, so answers may come as long as this run goes on.
        self._unwanted.update(numbers)

    @property
    def _client(self) -> Any:
        return self._link._runtime_client

    def _look_for_new(self, numbers: list[str]) -> None:
        if not numbers:
            return
        # Flower takes no other answer to a question from now on.
        request = PullAppMessagesRequest(message_ids=numbers)
        found = patiently(self._client.PullMessages, request)
        for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            number, root = message.metadata.reply_to_message_id, message.metadata.message_id
            if number in numbers:
                self._uploads[number] = _Upload(root, _from_the_top(tree), root)

    def _fetch(self, number: str, size: Size) -> Message | Error | None:
        """The answer if it has arrived completely; refuse an answer that never will."""
        upload, contents, left = self._uploads[number], dict[str, bytes](), size.bytes
        if len(upload.objects) > size.objects:
            raise RepperError(
                f"its answer has {len(upload.objects)} parts, more than the {size.objects} expected"
            )
        # To begin with the one that was missing costs least while it is.
        for one in dict.fromkeys([upload.missing, *upload.objects]):
            content = self._pull(one)
            if content is None:
                upload.missing = one
                if time.monotonic() - upload.began > size.seconds:
                    raise RepperError(f"its upload was not complete after {size.seconds:.0f} s")
                return None
            left -= len(content)
            if left < 0:
                raise RepperError(f"its answer is larger than the {size.bytes} bytes expected")
            contents[one] = content
        reply = inflate_object_from_contents(upload.root, contents)
        if not isinstance(reply, Message):
            raise RepperError("its answer is not a message")
        return reply.error if reply.has_error() else reply

    def _pull(self, one: str) -> bytes | None:
        grid = self._link
        request = PullObjectRequest(node=grid.node, run_id=grid.run.run_id, object_id=one)
        found = patiently(self._client.PullObject, request)
        if not found.object_found:
            raise RepperError("its upload broke off")
        return bytes(found.object_content) if found.object_available else None

    def _delete(self, number: str) -> None:
        grid, upload = self._link, self._uploads.pop(number)
        patiently(
            self._client.ConfirmMessageReceived,
            ConfirmMessageReceivedRequest(
                node=grid.node, run_id=grid.run.run_id, message_object_id=upload.root
            ),
        )


def replies_of(grid: Grid) -> Replies:
    """How the answers to a grid's questions are fetched."""
    uploaded = hasattr(type(grid), "_runtime_client")
    return UploadedReplies(grid) if uploaded else Replies(grid)


def _from_the_top(tree: ObjectTree) -> list[str]:
    """The objects of a tree by depth, each once."""
    found, level = dict[str, None](), [tree]
    while level:
        found |= dict.fromkeys(node.object_id for node in level)
        level = [child for node in level for child in node.children]
    return list(found)


def _unreadable(error: Exception) -> Error:
    return Error(0, f"its answer is unreadable: {error!r}")
