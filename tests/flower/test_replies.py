"""How answers are fetched that nodes upload: none is waited for, none is larger than it may be."""

from __future__ import annotations

import time

import httpx
import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.superlink.grid.http_grid import HttpGrid

from repper.basics.errors import RepperError
from repper.engines.engine import Update
from repper.flower import replies, wire
from repper.flower.grid_engine import Patience
from repper.flower.replies import Replies, UploadedReplies, replies_of

from .nodes import SHARED, Link, Nodes, away, good, in_turn, silent
from .test_grid_engine import fit


def own(message):
    """An answer that has nothing in common with that of others: what is equal is stored once."""
    client = wire.told_in(message)["client"]
    sent = {name: tensor + client / 8 for name, tensor in SHARED.items()}
    return wire.update_reply(Update(client, sent, 10, 0.5), message, "float32")


def nothing(objects):
    """Announced, and never uploaded."""
    for one in objects:
        objects[one] = b""


def all_but_the_last(objects):
    objects[[*objects][-1]] = b""


def broken_off(objects):
    """What Flower does three minutes after the last object."""
    objects.clear()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(replies, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(replies, "SLOWEST", 10**9)


def test_answers_of_flowers_server_are_fetched_object_by_object():
    assert isinstance(HttpGrid._runtime_client, property)
    assert type(replies_of(Link())) is UploadedReplies
    assert type(replies_of(Nodes())) is Replies
    link = Link(good, good, in_turn(away, good))
    assert fit(link) == {0: "good", 1: "good", 2: "good"}
    assert link.stored == {}  # nothing is left behind


@pytest.mark.parametrize("upload", [nothing, all_but_the_last])
def test_an_upload_that_does_not_end_is_refused_after_its_deadline(upload, impatient):
    link, said = Link(own, own, own), list[str]()
    link.upload[0] = upload
    found = fit(link, Patience(60, 2), said)
    assert found == {0: "its upload was not complete after 0 s", 1: "good", 2: "good"}
    assert said == ["asking site0 again: its upload was not complete after 0 s"]
    assert [node for node, _ in link.asked] == [0, 1, 2, 0]
    assert link.stored == {}
    with pytest.raises(RepperError, match="too few good answers: site0, asked twice: its upload"):
        fit(link)


def test_others_do_not_wait_for_an_upload():
    """Neither in this round nor in the next: both end with their timeout."""
    link = Link(good, good)
    link.upload[0] = nothing
    for _ in range(2):
        found = fit(link, Patience(0.05, 1))
        assert found == {0: "no answer within 0.05 s: it has not answered yet", 1: "good"}


def test_an_upload_that_breaks_off_is_a_bad_answer():
    link = Link(good, good)
    link.upload[0] = broken_off
    assert fit(link, Patience(60, 1)) == {0: "its upload broke off", 1: "good"}


def test_an_upload_that_takes_its_time_is_waited_for():
    link = Link(good, good)
    whole: dict[str, bytes] = {}

    def slowly(objects):
        whole.update(objects)
        nothing(objects)

    def places():
        if missing := [one for one in whole if not link.stored.get(one)]:
            link.stored[missing[-1]] = whole.pop(missing[-1])
        return link.places()

    link.upload[0] = slowly
    assert fit(link, places=places) == {0: "good", 1: "good"}
    assert len(link.asked) == 2


def test_what_is_missing_is_all_that_is_looked_for_again():
    link = Link(good)
    link.upload[0] = all_but_the_last
    assert "no answer" in fit(link, Patience(0.2, 0))[0]
    assert len(set(link.pulled)) + 2 < len(link.pulled)
    assert len(set(link.pulled[-3:])) == 1


def test_a_site_that_died_in_its_upload_and_came_back_is_not_blamed(impatient):
    """The deadline of its first upload passes while it works on the second answer."""
    link, said, looks = Link(in_turn(good, silent, good), good), list[str](), list[float]()
    link.upload[0] = nothing

    def places():
        if link.asked:
            link.upload.clear()
            looks.append(time.monotonic())
            link.since[0] = "evening" if looks[-1] < looks[0] + 0.3 else "night"
        return link.places()

    assert fit(link, places=places, said=said) == {0: "good", 1: "good"}
    assert said == ["asking site0 again: it has come back"] * 2


def larger(message):
    big = {name: torch.zeros(100_000) for name in SHARED}
    return wire.update_reply(Update(0, big, 10, 0.5), message, "float32")


def more_parts(message):
    reply = wire.said({}, message)
    reply.content["more"] = ArrayRecord({str(n): Array(np.array([float(n)])) for n in range(40)})
    return reply


def longer_words(message):
    reply = wire.said({}, message)
    reply.content["more"] = ConfigRecord({"text": "x" * 10**6})
    return reply


@pytest.mark.parametrize(
    ("answer", "why", "most"),
    [
        (larger, "its answer is larger than the", 10),
        (more_parts, "parts, more than the", 0),
        (longer_words, "its answer is larger than the", 10),
    ],
)
def test_an_answer_larger_than_expected_is_not_fetched(answer, why, most):
    link = Link(answer, good)
    assert why in fit(link, Patience(60, 1))[0]
    honest = Link(good)
    fit(honest)
    # Twice, because it is asked again; beside what the good site has sent.
    assert len(link.pulled) - len(honest.pulled) <= 2 * most
    assert link.stored == {}


def test_an_answer_that_nobody_waits_for_is_deleted():
    link = Link(silent, good, good)
    found = fit(link, Patience(0.05, 2))
    assert found[1] == "good"
    engine_replies = replies_of(link)
    number = next(f"question {n}" for n, (node, _) in enumerate(link.asked) if node == 0)
    engine_replies.forget([number])
    late = good(link.asked[0][1])
    link._store(number, 0, late)
    assert link.stored
    link.pulled.clear()
    assert list(engine_replies.arrived({})) == []
    assert link.stored == {}
    assert link.pulled == []


def replayed(message):
    """The answer to an earlier question."""
    old = wire.question(wire.FIT, 0, wire.told_in(message), message.content.array_records["shared"])
    old.metadata.__dict__["_message_id"] = message.metadata.message_id
    return good(old)


def of_other_parameters(message):
    reply = good(message)
    changed = wire.question(wire.FIT, 0, wire.told_in(message), ArrayRecord())
    reply.content[wire.TOLD][wire.ANSWERED] = wire.digest_of(changed)
    return reply


@pytest.mark.parametrize("grid", [Nodes, Link])
@pytest.mark.parametrize("answer", [replayed, of_other_parameters])
def test_an_answer_to_another_question_is_refused(answer, grid):
    assert fit(grid(answer, good), Patience(60, 1))[0] == "it answers another question"
    assert fit(grid(in_turn(answer, good), good)) == {0: "good", 1: "good"}


def test_every_part_of_a_question_is_in_its_digest():
    def asked(told=None, params=SHARED, kind=wire.FIT, once="0"):
        one = wire.question(
            kind, 0, {"run": "a", "round": 1} | (told or {}), wire.arrays_of(params)
        )
        one.content[wire.TOLD][wire.ONCE] = once
        return wire.digest_of(one)

    others = [
        asked({"round": 2}), asked({"run": "b"}), asked({"stage": 1}), asked(kind=wire.PERSONALIZE),
        asked(params={n: t + 1 for n, t in SHARED.items()}), asked(once="1"),
        asked(params={f"{n}.x": t for n, t in SHARED.items()}),
    ]  # fmt: skip
    assert asked() == asked()
    assert len({asked(), *others}) == len(others) + 1


def test_no_two_questions_are_the_same():
    one, two = (wire.digest_of(wire.question(wire.WHO, 0, {})) for _ in range(2))
    assert one != two


def test_a_server_whose_database_is_locked_is_called_again(monkeypatch):
    monkeypatch.setattr(replies, "PAUSES", (0.0,) * 3)
    link = Link(good)
    for name in ("PullMessages", "PullObject", "ConfirmMessageReceived", "push_messages"):
        monkeypatch.setattr(link, name, fails(3, getattr(link, name)))
    assert fit(link) == {0: "good"}
    for times, status in ((1, 401), (9, 500)):
        monkeypatch.setattr(link, "PullMessages", fails(times, link.PullMessages, status))
        with pytest.raises(httpx.HTTPStatusError):
            fit(link)


def fails(times, call, status=500):
    left = [1] * times

    def answer(*args):
        if left:
            left.pop()
            request = httpx.Request("POST", "https://server.example")
            httpx.Response(status, request=request).raise_for_status()
        return call(*args)

    return answer
