"""What does a round cost the server of a federation for each site, and does its memory grow?

    .venv/bin/python benchmarks/many_sites.py 50 200 800

The server's whole loop over a grid in memory whose sites answer at once with an update of `small`:
processor time without that of the sites, and peak memory, each in a process of its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from repper.engines.engine import Update
from repper.flower import wire
from repper.flower.server import Federation, run_federation
from repper.settings.config import Config

ROUNDS = 6


class Sites:
    """A grid whose sites answer when they are asked for their answers, so that none lie in memory.

    `seconds` is the processor time that the answers have taken, which is not the server's.
    """

    def __init__(self, sites: int) -> None:
        self._nodes = [NodeInfo(node_id=n, name=f"site{n:04}") for n in range(sites)]
        self._asked: dict[str, Message] = {}
        self._count, self.seconds = 0, 0.0

    def get_nodes(self) -> list[NodeInfo]:
        return self._nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            self._count += 1
            message.metadata.__dict__["_message_id"] = number = str(self._count)
            self._asked[number] = message
            numbers.append(number)
        return numbers

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        began = time.process_time()
        replies = [self._answer(self._asked.pop(number)) for number in numbers]
        self.seconds += time.process_time() - began
        return replies

    def _answer(self, message: Message) -> Message:
        kind = message.metadata.message_type
        if kind == wire.WHO:
            return wire.said({"examples": 100}, message)
        if kind == wire.PERSONALIZE:
            return wire.said({"done": True}, message)
        update = Update(wire.told_in(message)["client"], wire.received_in(message), 100, 0.5)
        return wire.update_reply(update, message, "float32")


def measure(sites: int) -> None:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    grid, marks = Sites(sites), []

    def tell(kind: str, **said: object) -> None:
        if kind == "round":
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            marks.append((time.process_time() - grid.seconds, peak))

    config = Config(
        method="fedavg", personalize="keep", clients=sites, participation=1.0, rounds=ROUNDS,
        image_size=32,
    )  # fmt: skip
    classes = tuple("abcdefghij")
    with tempfile.TemporaryDirectory() as folder:
        run_federation(Federation(config, Path(folder) / "run", classes=classes), grid, tell)
    (first, _), (last, peak) = marks[1], marks[-1]
    each = (last - first) / (len(marks) - 2) / sites
    print(f"{sites:8} {each * 1000:24.2f} {marks[1][1]:24.0f} {peak:10.0f}")


def main() -> None:
    if sys.argv[1] == "--one":
        measure(int(sys.argv[2]))
        return
    print("   sites   ms of a site and round   peak MB after 2 rounds    after 6", flush=True)
    for sites in sys.argv[1:]:
        subprocess.run([sys.executable, __file__, "--one", sites], check=True)


if __name__ == "__main__":
    main()
