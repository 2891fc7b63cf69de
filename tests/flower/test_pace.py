"""How often a site looks for messages."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.supernode import start_client_internal

from repper.flower.pace import Pace, pause


def test_pauses_grow_to_flowers_own():
    assert [pause(3, since) for since in (0, 0.5, 5, 15, 1000)] == [0.1, 0.1, 1, 3, 3]
    assert pause(0.5, 1000) == 0.5


def looks(seconds):
    """How often a site asks in so many seconds after a message, if an answer takes no time."""
    now, count = 0.0, 0
    while now < seconds:
        now, count = now + pause(3, now), count + 1
    return count


def test_a_server_is_asked_little_more_often_than_by_flowers_own_nodes():
    assert looks(1) <= 10
    assert looks(15) <= 25
    assert looks(600) - 600 / 3 <= 20


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
