"""Federations without processes: what travels, who is waited for, what a site lets a server do."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image

import repper as api
from conftest import last_json
from repper.config import Config
from repper.datasets import load
from repper.engines.engine import Absent, Personal, Update
from repper.errors import RepperError
from repper.evaluate import Score
from repper.flower import apps, wire
from repper.flower.grid_engine import PATIENT, GridEngine, Patience, Place
from repper.flower.server import Federation, run_federation
from repper.flower.site import TRAVELS, Site, travelling
from repper.params import Params, digest, read_params
from repper.private import PrivateStore

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


def good(message: Message) -> Message:
    told = wire.told_in(message)
    return wire.update_reply(Update(told["client"], SHARED, 10, 0.5), message, "float32")


def with_examples(examples) -> Answer:
    return lambda message: wire.update_reply(Update(0, SHARED, examples, 0.5), message, "float32")


def with_params(params: Params) -> Answer:
    return lambda message: wire.update_reply(Update(0, params, 10, 0.5), message, "float32")


def in_turn(*answers: Answer) -> Answer:
    left = list(answers)
    return lambda message: left.pop(0)(message)


def silent(message: Message) -> None: ...


def away(message: Message) -> Error:
    return AWAY


@pytest.fixture(autouse=True, scope="module")
def identity():
    """What Flower sets in a process of its own before it starts an app there."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    yield
    TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = None


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("repper.flower.grid_engine.PAUSE", 0.001)
    monkeypatch.setattr("repper.flower.grid_engine.LONGEST_PAUSE", 0.001)
    monkeypatch.setattr("repper.flower.grid_engine.LOOK", 0.0)


def fit(nodes: Nodes, patience: Patience = PATIENT, said: list[str] | None = None, places=None):
    """A round of all nodes as clients, each of which has declared 10 examples."""
    names = [f"site{node}" for node in nodes.answers]
    engine = GridEngine(
        nodes, places or nodes.places, {}, names=names, patience=patience,
        tell=lambda kind, text: said.append(text) if said is not None else None,
        declared=dict.fromkeys(nodes.answers, 10),
    )  # fmt: skip
    found = sorted(engine.fit(SHARED, list(nodes.answers), 3), key=lambda one: one.client)
    return {one.client: one.reason if isinstance(one, Absent) else "good" for one in found}


numbers = some.floats(width=32)
tensors = some.lists(numbers, max_size=6).map(torch.tensor) | numbers.map(torch.tensor)


def same_bits(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(
        a[n].numpy().tobytes() == b[n].numpy().tobytes() and a[n].shape == b[n].shape for n in a
    )


@given(some.dictionaries(some.text(min_size=1, max_size=8), tensors, min_size=1, max_size=3))
@settings(max_examples=50, deadline=None)
def test_parameters_travel_to_the_bit(params):
    params = {name: tensor.float() for name, tensor in params.items()}
    asked = wire.question(wire.FIT, 1, {"client": 4, "round": 2}, wire.arrays_of(params))
    assert same_bits(wire.shared_in(asked), params)
    assert wire.told_in(asked) == {"client": 4, "round": 2}
    asked.metadata.__dict__["_message_id"] = "question"
    update = wire.update_in(wire.update_reply(Update(4, params, 7, 0.25), asked, "float32"), 4)
    assert same_bits(update.shared, params)
    assert (update.client, update.examples, update.loss) == (4, 7, 0.25)


def test_half_numbers_travel_as_such_and_arrive_as_float32():
    params = {"weight": torch.tensor([0.5, 1 / 3]).half().float()}
    asked = wire.question(wire.FIT, 1, {})
    asked.metadata.__dict__["_message_id"] = "question"
    reply = wire.update_reply(Update(0, params, 7, 0.25), asked, "float16")
    assert reply.content.array_records[wire.SHARED]["weight"].dtype == "float16"
    assert same_bits(wire.update_in(reply, 0).shared, params)


def test_what_is_no_parameter_is_refused():
    with pytest.raises(RepperError, match="numbers of type int64"):
        wire.params_in(ArrayRecord({"a": Array(np.arange(3))}))
    strange = Array(dtype="float32", shape=(2,), stype="numpy.ndarray", data=b"no numpy file")
    with pytest.raises(RepperError, match="a cannot be read"):
        wire.params_in(ArrayRecord({"a": strange}))
    pickled = Array(np.zeros(1, np.float32))
    content = io.BytesIO()
    np.save(content, np.array([{"code": 1}], dtype=object), allow_pickle=True)
    pickled.data = content.getvalue()
    with pytest.raises(RepperError, match="a cannot be read"):
        wire.params_in(ArrayRecord({"a": pickled}))


def test_a_personal_result_travels_whole():
    counts = np.array([1, 2, 3])
    score = Score(4, "linear", counts, counts, counts)
    one = Personal(4, score, None, "head", "own", ((1, 50.0), (2, None)))
    again = wire.personal_in(wire.personal_text(one))
    assert (again.client, again.head_digest, again.private_digest, again.curve) == (
        4, "head", "own", ((1, 50.0), (2, None)),
    )  # fmt: skip
    assert again.test.accuracy == score.accuracy
    assert again.validation is None


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
        (lambda m: Message(RecordDict({wire.SHARED: wire.arrays_of(SHARED), wire.COUNTED: MetricRecord({"examples": 10, "loss": [1.0]})}), reply_to=m), "its loss is"),
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


def test_a_site_that_is_away_is_asked_again_as_often_as_it_takes():
    said: list[str] = []
    assert fit(Nodes(in_turn(away, away, away, good), good), said=said) == {0: "good", 1: "good"}
    assert said == ["asking site0 again: the node is away"] * 3


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


# Sites


def folder_of_site(folder, rows, colour=True):
    digits = load("digits")
    for row in rows:
        grey = digits.train.images[row][0]
        pixels = np.stack([grey, grey // 2, 255 - grey], -1) if colour else grey
        path = folder / str(digits.train.labels[row]) / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


CONFIG = Config(
    clients=2, rounds=2, epochs=1, width=0.25, participation=1.0, image_size=8, knn=0,
    method="fedrep", personalize="keep",
)  # fmt: skip
TOLD = {"settings": travelling(CONFIG), "run": "ab" * 8, "client": 0, "classes": ""}
CLASSES = tuple("0123456789")


@pytest.fixture(scope="module")
def image_folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    for site in range(2):
        folder_of_site(folder / f"site{site}", range(40 * site, 40 * site + 40))
    return folder


@pytest.fixture
def site(tmp_path, image_folders):
    (tmp_path / "home").mkdir()
    one = Site(tmp_path / "home", str(image_folders / "site0"))
    one.save()
    return one


def test_a_site_takes_no_path_and_no_device_from_a_server(site):
    assert not {"data", "data_dir", "out", "init", "device", "download", "workers"} & set(TRAVELS)
    for name in ("data", "out", "init", "data_dir", "device", "skip_unreadable"):
        strange = json.dumps({name: "/etc"})
        with pytest.raises(RepperError, match=f"does not take {name} from a server"):
            site.part_in(TOLD | {"settings": strange})
    for run in ("../../elsewhere", "", "AB" * 8, "ab/cd", "a" * 65):
        with pytest.raises(RepperError, match="in the name of no run"):
            site.part_in(TOLD | {"run": run})
    for missing in TOLD:
        with pytest.raises(RepperError, match="was asked what it cannot read"):
            site.part_in({name: value for name, value in TOLD.items() if name != missing})

    for wrong, why in (
        ({"client": 2}, "asked as client 2 of 2"),
        ({"client": -1}, "a client or round that is none"),
        ({"last": "../x"}, "a client or round that is none"),
        ({"settings": travelling(replace(CONFIG, image_size=4096))}, "images of 512 pixels"),
        ({"settings": travelling(replace(CONFIG, clients=10**6))}, "at most 10000 clients"),
    ):
        with pytest.raises(RepperError, match=why):
            site.part_in(TOLD | wrong)


def test_a_site_keeps_its_settings_and_others_are_no_site(site, tmp_path):
    assert Site.open(site.home) == site
    with pytest.raises(RepperError, match="is not the home of a site"):
        Site.open(tmp_path)


def test_grey_images_of_a_site_have_three_channels(tmp_path):
    folder = folder_of_site(tmp_path / "grey", range(30), colour=False)
    images = replace(Site(tmp_path, str(folder)).part_in(TOLD)).images
    assert images.train.images.shape[1:] == (3, 8, 8)
    assert (images.train.images[:, 0] == images.train.images[:, 2]).all()


def test_a_site_goes_back_to_where_the_server_left_it(site):
    part = site.part_in(TOLD | {"classes": "\n".join(CLASSES)})
    store = PrivateStore(part.folder / "private")
    part.folder.mkdir(parents=True)
    store.begin({"head.weight": torch.zeros(1)})
    for number in (1, 2):
        store.write(0, number, {"head.weight": torch.full((1,), float(number))}, keep_all=False)
    part.go_back_to(1)
    assert not store.path(0, 2).exists()
    assert store.read(0, 5)["head.weight"] == 1
    with pytest.raises(RepperError, match="lost its own parameters of round 2: restore"):
        part.go_back_to(2)


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


@pytest.fixture(scope="module")
def expected(image_folders, tmp_path_factory):
    """The digest of the same run in one process."""
    out = tmp_path_factory.mktemp("serial") / "run"
    settings = {n: getattr(CONFIG, n) for n in ("rounds", "epochs", "width", "participation", "image_size", "knn", "method", "personalize")}  # fmt: skip
    done = api.run(str(image_folders), partition="folders", engine="serial", out=out, **settings)
    return done.result["encoder_digest"]


def test_a_federation_is_the_same_run_whatever_happens_on_the_way(
    tmp_path, image_folders, expected
):
    """Both in one process: a site is away for a while, and the server ends and is resumed."""
    nodes, said = Home(tmp_path / "sites", image_folders), []
    federation = Federation(CONFIG, tmp_path / "run", ("site0", "site1"), CLASSES)

    def tell(kind, **event):
        said.append((kind, event))
        if kind == "round" and event["round"] == 1 and not federation.resume:
            raise KeyboardInterrupt

    honest = nodes.answers[0]
    nodes.answers[0] = in_turn(honest, away, honest)
    with pytest.raises(KeyboardInterrupt):
        run_federation(federation, nodes, tell)
    nodes.answers[0] = honest
    federation = replace(federation, resume=True)
    result = run_federation(federation, nodes, tell)
    assert result["encoder_digest"] == expected
    assert result["digest_covers"] == "all that was trained"
    assert result["rounds_without"] == {}
    assert "asking site0 again: the node is away" in [e["text"] for k, e in said if k == "note"]
    assert all(accuracy is not None for accuracy in result["sites"].values())
    [run] = (tmp_path / "sites" / "site1" / "runs").iterdir()
    assert {path.name for path in run.iterdir()} >= {"private", "heads", "encoder.safetensors"}


def test_what_a_site_did_in_a_round_that_went_on_without_it_is_as_if_it_had_not_been(
    tmp_path, image_folders
):
    """Its answer of round 1 is lost or it never trained: the run is the same."""
    digests = []
    for trains in (True, False):
        folder = tmp_path / str(trains)
        nodes = Home(folder / "sites", image_folders)
        honest, who = nodes.answers[1], [True]

        def lost(message, honest=honest, who=who, trains=trains):
            if who or wire.told_in(message)["round"] != 1:
                who.clear()
                return honest(message)
            if trains:
                honest(message)
            return None

        nodes.answers[1] = lost
        patience = Patience(0.2, 1)
        federation = Federation(CONFIG, folder / "run", ("site0", "site1"), CLASSES, patience)
        result = run_federation(federation, nodes, lambda kind, **event: None)
        assert list(result["rounds_without"]) == [1]
        assert "no answer within 0.2 s" in result["rounds_without"][1]["site1"]
        digests.append(result["encoder_digest"])
    assert digests[0] == digests[1]


def test_a_site_says_nothing_of_its_scores_unless_it_may(tmp_path, image_folders):
    nodes = Home(tmp_path / "sites", image_folders)
    Site(tmp_path / "sites" / "site1", str(image_folders / "site1")).save()
    federation = Federation(replace(CONFIG, rounds=1), tmp_path / "run", (), CLASSES)
    result = run_federation(federation, nodes, lambda kind, **event: None)
    assert result["sites"]["site0"] is not None
    assert result["sites"]["site1"] is None
    assert result["personalized"] == ["site0", "site1"]
    assert result["digest_covers"] == "shared parameters only"
    assert result["encoder_digest"] == digest(
        read_params(tmp_path / "run" / "checkpoint" / "last.safetensors")[0]
    )
    assert all(json.dumps(name) not in json.dumps(result) for name in CLASSES)


def test_a_run_is_resumed_with_the_same_classes_and_sites_only(tmp_path, image_folders):
    nodes, folder = Home(tmp_path / "sites", image_folders), tmp_path / "run"
    short = replace(CONFIG, rounds=1)
    federation = Federation(short, folder, ("site0", "site1"), CLASSES)
    run_federation(federation, nodes, lambda kind, **event: None)
    again = replace(federation, resume=True)
    for changed, why in (
        (replace(again, classes=CLASSES[::-1]), "was begun with other classes: give --classes 0,1"),
        (replace(again, sites=("site1", "site2")), "other sites: give --sites site0,site1"),
        (
            replace(again, config=replace(short, rounds=0)),
            "has 1 rounds already, more than --rounds 0",
        ),
    ):
        with pytest.raises(RepperError, match=why):
            run_federation(changed, nodes, lambda kind, **event: None)
    longer = replace(again, config=replace(short, rounds=2))

    def stop(kind, **event):
        if kind == "begun":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_federation(longer, nodes, stop)
    # What is no longer true is gone, and what is true now is written.
    assert not (folder / "result.json").exists()
    assert "rounds = 2" in (folder / "config.toml").read_text()


@pytest.mark.parametrize("said", [{}, {"accuracy": "high"}, {"accuracy": 101.0}, {"private": "x"}])
def test_what_a_site_says_of_its_head_is_checked(tmp_path, image_folders, said):
    nodes = Home(tmp_path / "sites", image_folders)
    honest = nodes.answers[0]

    def strange(message):
        if message.metadata.message_type != wire.PERSONALIZE:
            return honest(message)
        return wire.said(said, message) if said else Message(RecordDict(), reply_to=message)

    nodes.answers[0] = strange
    federation = Federation(replace(CONFIG, rounds=1), tmp_path / "run", (), CLASSES)
    with pytest.raises(RepperError, match="too few good answers: site0, asked twice: it "):
        run_federation(federation, nodes, lambda kind, **event: None)


def test_words_of_strangers_are_one_printable_line():
    assert wire.one_line("a\x1b[2J\nb") == "a [2J b"
    assert len(wire.one_line("x" * 10**6)) == 300


def test_an_archive_of_arrays_is_no_array():
    with io.BytesIO() as file:
        np.savez(file, a=np.zeros(1))
        array = Array("float32", (1,), "numpy.ndarray", file.getvalue())
    with pytest.raises(RepperError, match="encoder.x cannot be read"):
        wire.params_in(ArrayRecord({"encoder.x": array}))


def test_a_site_that_cannot_take_part_says_why(tmp_path, image_folders, caplog):
    nodes, said = Home(tmp_path / "sites", image_folders), []

    def tell(kind, text="", **event):
        said.append(text)
        if "cannot take part" in text:
            raise KeyboardInterrupt

    federation = Federation(CONFIG, tmp_path / "run", (), ("cat", "dog"))
    with pytest.raises(KeyboardInterrupt):
        run_federation(federation, nodes, tell)
    # Neither a folder nor a class of the site's own gets out: they are in its log.
    assert said[-1].endswith(
        "cannot take part: it could not do what it was asked: its own log says why"
    )
    assert "which this federation does not have: its classes are cat, dog" in caplog.text


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": "central"}, "needs all images in one place"),
        ({"method": "fedavg"}, "name them with --classes"),
        ({"method": "lg-fedavg", "init": "run"}, "lg-fedavg every site has an encoder of its own"),
        ({"evaluate_every": 1}, "--evaluate-every needs scores of sites"),
        ({"participation": 0.5}, "--min-cohort must be 1 to 1, the sites of a round, got 2"),
    ],
)
def test_what_a_federation_cannot_do_is_said_before_anything_is_written(tmp_path, changes, why):
    config, classes = replace(CONFIG, **changes), () if "method" in changes else CLASSES
    federation = Federation(config, tmp_path / "run", (), classes, Patience(9, 2))
    with pytest.raises(RepperError, match=why):
        run_federation(federation, Nodes(), lambda kind, **event: None)
    assert not (tmp_path / "run").exists()


def test_the_settings_of_a_run_are_read_back():
    assert apps.config_in({"rounds": 3, "lr": 1, "out": "", "sites": "a,b"}).lr == 1.0
    with pytest.raises(RepperError, match="'colour', which is no setting"):
        apps.config_in({"colour": "red"})


def test_flower_simulation_is_the_serial_run(repper):
    """A method that keeps parameters at the clients, in Ray's processes."""
    settings = (
        "run", "--data", "digits", "--clients", 4, "--rounds", 2, "--epochs", 1, "--width", 0.25,
        "--participation", 0.5, "--method", "fedrep", "--personalize", "keep", "--workers", 2,
        "--json",
    )  # fmt: skip
    serial, flower = (
        last_json(repper(*settings, "--engine", engine, "--out", engine))
        for engine in ("serial", "flower")
    )
    for name in ("encoder_digest", "heads_digest", "accuracy"):
        assert flower[name] == serial[name]
