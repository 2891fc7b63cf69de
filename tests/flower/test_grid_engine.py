"""Who is asked, waited for, asked again or done without."""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Message

from repper.basics.errors import RepperError
from repper.basics.params import Params
from repper.engines.engine import Absent, Update
from repper.flower import grid_engine, wire
from repper.flower.grid_engine import PATIENT, GridEngine, Patience, Place
from repper.methods.network import Holds

from .nodes import RAISED, SHARED, Answer, Nodes, away, good, in_turn, silent

NONE = frozenset[str]()
HOLDS = Holds(frozenset(SHARED), NONE, NONE, NONE, keeps_private=False, own_encoders=False)


def with_examples(examples) -> Answer:
    return lambda message: wire.update_reply(Update(0, SHARED, examples, 0.5), message, "float32")


def with_params(params: Params) -> Answer:
    return lambda message: wire.update_reply(Update(0, params, 10, 0.5), message, "float32")


def with_loss(loss) -> Answer:
    def answer(message: Message) -> Message:
        reply = good(message)
        reply.content[wire.TOLD]["loss"] = loss
        return reply

    return answer


def fit(
    nodes: Nodes, patience: Patience = PATIENT, said: list[str] | None = None, places=None,
    voluntary=(),
):  # fmt: skip
    """A round of all nodes as clients, each of which has declared 10 examples."""
    engine = GridEngine(
        nodes, places or nodes.places, {}, [HOLDS], names="site{}".format, patience=patience,
        tell=lambda kind, text: said.append(text) if said is not None else None,
        declared=dict.fromkeys(nodes.answers, 10), voluntary=voluntary, growth=30.0,
    )  # fmt: skip
    found = sorted(engine.fit(SHARED, list(nodes.answers), 3), key=lambda one: one.client)
    return {one.client: one.reason if isinstance(one, Absent) else "good" for one in found}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (with_params({n: t * float("nan") for n, t in SHARED.items()}), "NaN or infinity"),
        (with_params(SHARED | {"encoder.bias": torch.zeros(3)}), r"encoder.bias as \(3,\)"),
        (with_params({"encoder.bias": SHARED["encoder.bias"]}), "lacks encoder.weight"),
        (with_params(SHARED | {"head.weight": torch.zeros(1)}), "unexpected head.weight"),
        (with_examples(0), "counts 0 examples"),
        (with_examples(-3), "counts -3 examples"),
        (with_examples(10.0), r"counts 10.0 examples"),
        (with_examples(11), "counts 11 examples, but declared 10"),
        (lambda m: wire.said({"problem": "its disk is full"}, m), "its disk is full"),
        (lambda m: wire.said({}, m), "it lacks"),
        (lambda m: RAISED, "the app raised an error"),
        (lambda m: ValueError("junk"), r"its answer is unreadable: ValueError\('junk'\)"),
        (with_loss([1.0]), "its loss is"),
        (with_loss(1e308), "the loss of client 0 in round 3 is 1e\\+308, which is not plausible"),
        (with_loss(-2e9), "which is not plausible"),
        (with_params({n: t * -100 for n, t in SHARED.items()}), "200 among its weights, but the largest value sent to it is 2"),
        (with_params({n: t * 0 + 1e38 for n, t in SHARED.items()}), "1e\\+38 among its weights"),
        (lambda m: wire.update_reply(Update(0, SHARED, 10, float("nan")), m, "float32"), "the loss of client 0"),
    ],
)  # fmt: skip
def test_a_bad_answer_is_refused_and_its_site_named(answer, why):
    with pytest.raises(RepperError, match=f"too few good answers: site0, asked twice: .*{why}"):
        fit(Nodes(answer, good))
    # Once is no reason to end: the second answer counts.
    assert fit(Nodes(in_turn(answer, good), good)) == {0: "good", 1: "good"}
    # Where enough others have answered, and that was chosen, the round goes on at once.
    found = fit(Nodes(answer, good), Patience(60, 1))
    assert found[1] == "good"
    assert re.search(why, found[0])


def test_too_few_good_answers_end_the_federation_even_with_patience():
    spoilt = with_examples(0)
    with pytest.raises(RepperError, match="site0, asked twice: .*; site1, asked twice"):
        fit(Nodes(spoilt, spoilt, good), Patience(60, 2))


def declines(message: Message) -> Message:
    return wire.said({"declined": "it does not share a head"}, message)


def test_a_site_may_decline_a_voluntary_stage_only():
    said: list[str] = []
    found = fit(Nodes(declines, good), said=said, voluntary=[0])
    assert found == {0: "it does not share a head", 1: "good"}
    assert said == []
    with pytest.raises(RepperError, match="too few good answers: site0, asked twice"):
        fit(Nodes(declines, good))


def test_those_who_decline_do_not_count_as_answers():
    """Two have declined, so the least number of two still waits for the other two."""
    said: list[str] = []
    nodes = Nodes(declines, declines, silent, good)

    def places() -> dict[int, Place]:
        if said:
            nodes.answers[2], nodes.since[2] = good, "evening"
        return nodes.places()

    found = fit(nodes, Patience(0.05, 2), said, places, voluntary=[0])
    assert [found[site] for site in (2, 3)] == ["good", "good"]
    assert "waiting for site2: it has not answered yet" in said
    # Where fewer are left than that, all of those are waited for.
    found = fit(Nodes(declines, declines, declines, good), Patience(60, 2), voluntary=[0])
    assert found[3] == "good"


def test_a_site_that_is_away_is_asked_again_as_often_as_it_takes():
    said: list[str] = []
    assert fit(Nodes(in_turn(*[away] * 9, good), good), said=said) == {0: "good", 1: "good"}
    # The operator hears of it ever more rarely.
    often = ["", *(f" ({count} times so far)" for count in (2, 4, 8))]
    assert said == [f"asking site0 again: the node is away{one}" for one in often]


def test_a_silent_site_is_waited_for_or_done_without():
    said: list[str] = []
    late = "no answer within 0.05 s: it has not answered yet"
    assert fit(Nodes(silent, good), Patience(0.05, 1), said) == {0: late, 1: "good"}
    assert said == []
    nodes = Nodes(silent, silent, good)

    def places() -> dict[int, Place]:
        if said:  # somebody has looked after it
            nodes.answers[1], nodes.since[1] = good, "evening"
        return nodes.places()

    found = fit(nodes, Patience(0.05, 2), said, places)
    assert found == {0: late, 1: "good", 2: "good"}
    waited = {f"waiting for site{n}: it has not answered yet" for n in (0, 1)}
    assert set(said) == waited | {"asking site1 again: it has come back"}


def test_a_site_that_is_not_connected_is_waited_for():
    nodes, looks = Nodes(good, good), []

    def places() -> dict[int, Place]:
        looks.append(1)
        return {n: place for n, place in nodes.places().items() if n or len(looks) > 3}

    assert fit(nodes, places=places) == {0: "good", 1: "good"}
    assert len(nodes.asked) == 2
    late = "no answer within 0.05 s: it is not connected"
    assert fit(nodes, Patience(0.05, 1), places=lambda: {1: Place(1)}) == {0: late, 1: "good"}


@pytest.mark.parametrize(
    ("since", "again"),
    [("morning", []), ("evening", ["asking site0 again: it has come back"])],
)
def test_the_operator_hears_of_a_site_that_goes_in_a_round(since, again):
    """Its connection may come back, with its question still open, or another, which is asked."""
    nodes, said, looks = Nodes(silent, good), list[str](), list[int]()

    def places() -> dict[int, Place]:
        looks.append(1)
        if len(looks) == 4:
            nodes.since[0], nodes.answers[0] = since, good
            if since == "morning":
                nodes.arrive(0)
        return {n: one for n, one in nodes.places().items() if n or len(looks) not in (2, 3)}

    assert fit(nodes, said=said, places=places) == {0: "good", 1: "good"}
    assert said == ["site0: it is not connected any more; the round waits for it", *again]


def test_who_chose_no_timeout_hears_who_a_round_waits_for(monkeypatch):
    monkeypatch.setattr(grid_engine, "WORD", 0.02)
    nodes, said = Nodes(*[silent] * 7), list[str]()

    def places() -> dict[int, Place]:
        if len(said) > 6:
            nodes.answers = dict.fromkeys(range(7), good)
            nodes.since = dict.fromkeys(range(7), "evening")
        return nodes.places()

    fit(nodes, said=said, places=places)
    each = [f"waiting for site{n}: it has not answered yet" for n in range(5)]
    assert said[:6] == [*each, "waiting for 2 more"]


def test_a_site_has_one_open_question_until_it_comes_back():
    nodes = Nodes(silent, good)

    def places() -> dict[int, Place]:
        if len(nodes.asked) == 2 and looks.append(1) is None and len(looks) > 5:
            nodes.answers[0], nodes.since[0] = good, "evening"
        return nodes.places()

    looks: list[int] = []
    said: list[str] = []
    assert fit(nodes, said=said, places=places) == {0: "good", 1: "good"}
    assert [node for node, _ in nodes.asked] == [0, 1, 0]
    assert said == ["asking site0 again: it has come back"]


def test_a_site_that_came_back_and_answers_badly_is_asked_again():
    """Its first question is lost with its process, and is no reason not to ask."""
    nodes = Nodes(in_turn(silent, with_examples(0), good), good)

    def places() -> dict[int, Place]:
        if nodes.asked:
            nodes.since[0] = "evening"
        return nodes.places()

    assert fit(nodes, places=places) == {0: "good", 1: "good"}
    assert [node for node, _ in nodes.asked] == [0, 1, 0, 0]


def test_a_site_that_takes_no_question_has_not_come_back(monkeypatch):
    nodes, said, refused = Nodes(good, good), list[str](), [1, 1, 1]
    push = nodes.push_messages

    def pushes(messages):
        sent = push(messages)
        return ["" if refused and refused.pop() else number for number in sent]

    monkeypatch.setattr(nodes, "push_messages", pushes)
    assert fit(nodes, said=said) == {0: "good", 1: "good"}
    assert said == []
