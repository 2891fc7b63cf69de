"""How often a site looks for messages."""

from __future__ import annotations

import inspect
import logging
import socket
import time
from pathlib import Path
from threading import Timer
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.proto.runtime_pb2 import AcquireTaskResponse
from flwr.supernode import main, start_client_internal
from flwr.supernode.servicer.runtime import runtime_handlers

from repper.flower import pace as pace_of
from repper.flower.pace import Pace, answer_at_once, pause
from repper.flower.watched import Watch


def test_pauses_grow_to_flowers_own():
    assert [pause(3, since) for since in (0, 0.5, 5, 15, 1000)] == [0.1, 0.1, 0.5, 1.5, 3]
    assert pause(0.5, 1000) == 0.5


def looks(seconds):
    """How often a site asks in so many seconds after a message, if an answer takes no time."""
    now, count = 0.0, 0
    while now < seconds:
        now, count = now + pause(3, now), count + 1
    return count


def test_a_server_is_asked_little_more_often_than_by_flowers_own_nodes():
    assert looks(1) <= 11
    assert looks(15) <= 40
    assert looks(600) - 600 / 3 <= 40


def test_flowers_node_sleeps_at_our_pace(monkeypatch):
    assert vars(start_client_internal)["time"] is time
    pace, left = Pace(), [None, None, None]
    monkeypatch.setitem(vars(start_client_internal), "time", pace)

    def answers(is_reply):
        return [] if left and left.pop() is None else 1 / 0

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        start_client_internal._push_messages(
            SimpleNamespace(get_messages_legacy=answers), *[None] * 3
        )
    assert not left
    assert 0.25 < time.monotonic() - began < 1.2  # Flower's own: 1.5
    pace.message()
    assert pace.monotonic() >= began


@pytest.fixture
def node(monkeypatch):
    """The pace of a node, whose handlers find `tasks` and take whatever is pushed."""
    assert main._RUNTIME_HANDLERS is runtime_handlers
    tasks, handlers = [], vars(runtime_handlers)

    def look(request, state):
        return tasks.pop() if tasks else AcquireTaskResponse()

    monkeypatch.setitem(handlers, "acquire_task", look)
    for name in ("push_messages", "push_object"):
        monkeypatch.setitem(handlers, name, lambda *request: "taken")
    pace = Pace()
    answer_at_once(pace)
    return pace, tasks


def test_a_look_for_work_is_answered_as_soon_as_there_is_some(node, monkeypatch):
    monkeypatch.setattr(pace_of, "HELD", 60.0)
    pace, tasks = node

    def come():
        tasks.append(AcquireTaskResponse(token="token"))
        pace.work.set()

    Timer(0.2, come).start()
    began = time.monotonic()
    assert runtime_handlers.acquire_task(None, None).token == "token"
    assert 0.1 < time.monotonic() - began < 30
    come()
    assert runtime_handlers.acquire_task(None, None).token == "token"


def test_a_look_for_work_that_finds_none_takes_as_long_as_flowers_pause(node):
    began = time.monotonic()
    assert not runtime_handlers.acquire_task(None, None).token
    assert time.monotonic() - began > 0.9 * pace_of.HELD


def test_work_begins_when_flowers_node_has_received_a_message():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = Watch(Path(), "server:1", Path("ca.crt"), theirs)
        for text in ("Receiving: %s message (ID: %s)", "Received successfully"):
            assert not watch.pace.work.is_set()
            assert f'"{text}"' in inspect.getsource(start_client_internal)
            args = ("train.fit", "1") if "%" in text else ()
            watch.emit(logging.LogRecord("flwr", logging.INFO, "", 0, text, args, None))
        assert watch.pace.work.is_set()


@pytest.mark.parametrize("push", ["push_messages", "push_object"])
def test_a_node_hears_of_an_answer_at_once(node, push):
    pace, _ = node
    pace._last -= 1000
    for _ in range(2):
        Timer(0.2, lambda: getattr(runtime_handlers, push)(None, None, None)).start()
        began = time.monotonic()
        pace.sleep(60)
        assert 0.1 < time.monotonic() - began < 30
    began = time.monotonic()
    pace.sleep(0.3)
    assert time.monotonic() - began > 0.25
