"""Flower's server with limits of our own: `python -m repper.flower.superlink ...`.

It forgets refused requests soon. A request's body is in memory until the error that refused it is
collected, which Python seldom does where millions of objects live. So whoever floods the server
with requests that cannot be read costs hundreds of MB. With what was loaded at the start set aside,
looking through the rest is cheap, and can be done often.

It refuses answers of many parts. Flower enters every part that a node announces into its database
before any of them has come, and keeps the database locked meanwhile: 4,000 take 10 seconds, in
which all other sites wait, and once more when they are deleted.

It looks for tasks whose process has died once a second. Flower does that in most requests, and each
time takes the lock by which one request at a time writes to the database: a quarter of its work.

It waits longer for its database, which one request at a time can write to. When many sites start at
once on a slow machine, Flower's five seconds are not enough, and sites are answered with an error.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Sequence
from math import inf
from typing import Any

THRESHOLDS = (200, 2, 1)
"""Thresholds of Python's garbage collector: six bodies of 5 MB at a time then cost 70 MB instead of
420, and a request takes 4.0 ms of a core instead of 3.4."""
MOST_PARTS = 250
"""Maximum parts of one answer. A site needs some twenty, and one per 5 MiB of parameters."""
LOST_TASKS = 1.0
"""Seconds between two checks for tasks whose process has died; Flower notices that after 30."""
DATABASE_TIMEOUT = 30
"""Seconds that a request waits for the database."""


def wait_for_the_database() -> None:
    """Let Flower's server wait for its database as long as `DATABASE_TIMEOUT`."""
    from flwr.supercore import sql_mixin

    ours = {"busy_timeout": str(1000 * DATABASE_TIMEOUT)}
    settings = dict(vars(sql_mixin)["SQLITE_PRAGMAS"]) | ours
    vars(sql_mixin)["SQLITE_PRAGMAS"] = tuple(settings.items())


def look_for_lost_tasks_seldom() -> None:
    """Let Flower's server look for tasks whose process has died every `LOST_TASKS` seconds."""
    from flwr.supercore.corestate.sql_corestate import SqlCoreState

    name = "_cleanup_expired_task_tokens"
    look, last = getattr(SqlCoreState, name), -inf

    def look_seldom(state: SqlCoreState) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= LOST_TASKS:
            last = now
            look(state)

    setattr(SqlCoreState, name, look_seldom)


def parts_of(trees: Sequence[Any]) -> int:
    """How many objects an answer is announced to have."""
    found, level = 0, [*trees]
    while level:
        found += len(level)
        level = [child for node in level for child in node.children]
    return found


def limit_parts() -> None:
    """Let Flower's server refuse an answer of too many parts before its database knows of it."""
    from fastapi import HTTPException
    from flwr.superlink.servicer.fleet import fleet_handlers

    take = fleet_handlers.push_messages

    def push_messages(request: Any, state: Any) -> Any:
        if (parts := parts_of(request.message_object_trees)) > MOST_PARTS:
            nodes = ", ".join(str(one.metadata.src_node_id) for one in request.messages_list)
            why = f"an answer of {parts} parts, more than {MOST_PARTS}"
            logging.getLogger("flwr").warning("refused from node %s: %s", nodes, why)
            raise HTTPException(413, why)
        return take(request=request, state=state)

    vars(fleet_handlers)["push_messages"] = push_messages


def main() -> None:
    from flwr.superlink.cli import flower_superlink

    limit_parts()
    look_for_lost_tasks_seldom()
    wait_for_the_database()
    sys.argv[0] = "flower-superlink"
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    flower_superlink()


if __name__ == "__main__":
    main()
