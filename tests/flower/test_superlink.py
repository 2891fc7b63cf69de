"""What Flower's server does not take from a site."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

pytest.importorskip("flwr")

from fastapi import HTTPException
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, ObjectTree
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore import sql_mixin
from flwr.supercore.corestate.sql_corestate import SqlCoreState
from flwr.superlink.routers.fleet import router
from flwr.superlink.servicer.fleet import fleet_handlers

from repper.flower import superlink


def announced(leaves):
    tree = ObjectTree(object_id="0" * 64, children=[ObjectTree(object_id="1" * 64)] * leaves)
    return PushMessagesRequest(messages_list=[Message()], message_object_trees=[tree])


def test_an_answer_of_too_many_parts_is_refused_before_the_database_hears_of_it(monkeypatch):
    taken = []
    handlers = vars(router.fleet_handlers)
    assert router.fleet_handlers is fleet_handlers
    monkeypatch.setitem(handlers, "push_messages", lambda request, state: taken.append(request))
    superlink.limit_parts()
    most = announced(superlink.MOST_PARTS - 1)
    router.fleet_push_messages(most, None)
    assert taken == [most]
    with pytest.raises(HTTPException, match="413: an answer of 251 parts, more than 250"):
        router.fleet_push_messages(announced(superlink.MOST_PARTS), None)
    assert taken == [most]


def test_requests_wait_for_the_database(monkeypatch, tmp_path):
    monkeypatch.setitem(vars(sql_mixin), "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    superlink.wait_for_the_database()
    with closing(sqlite3.connect(tmp_path / "link.db")) as link:
        sql_mixin._set_sqlite_pragmas(link, None)
        found = [link.execute(f"PRAGMA {n}").fetchone() for n in ("busy_timeout", "journal_mode")]
    assert found == [(30_000,), ("wal",)]


def test_tasks_whose_process_has_died_are_looked_for_once_a_second(monkeypatch):
    looked = []
    monkeypatch.setattr(SqlCoreState, "_cleanup_expired_task_tokens", looked.append)
    superlink.look_for_lost_tasks_seldom()
    state = SqlLinkState.__new__(SqlLinkState)
    for _ in range(3):
        state.get_run_status(set())
    assert looked == [state]
    monkeypatch.setattr(superlink, "LOST_TASKS", 0.0)
    state.get_run_status(set())
    assert looked == [state, state]
