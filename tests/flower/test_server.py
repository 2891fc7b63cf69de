"""Federations without processes: a server and its sites in memory."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict

import repper as api
from repper.basics.errors import RepperError
from repper.basics.params import digest, read_params
from repper.encoders.encoder import extract
from repper.engines import client
from repper.flower import entry_points as apps
from repper.flower import server, wire
from repper.flower.grid_engine import Patience
from repper.flower.server import Federation, _too_heavy, run_federation
from repper.flower.site import Site
from repper.runs.round_log import read_rounds

from .nodes import CLASSES, CONFIG, Home, Nodes, away, in_turn


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
        assert list(result["rounds_without"]) == ["1"]
        assert "no answer within 0.2 s" in result["rounds_without"]["1"]["site1"]
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
    assert result.pop("classes") == list(CLASSES)  # not from a site: whoever began named them
    assert all(json.dumps(name) not in json.dumps(result) for name in CLASSES)


def test_a_server_that_was_told_no_classes_names_none(tmp_path, image_folders):
    nodes = Home(tmp_path / "sites", image_folders)
    config = replace(CONFIG, rounds=1, method="repper", personalize="linear")
    federation = Federation(config, tmp_path / "run")
    result = run_federation(federation, nodes, lambda kind, **event: None)
    assert result["personalized"] == ["site0", "site1"]
    assert not result["classes"]


def test_a_finished_federation_asks_nobody_again_who_has_a_head(tmp_path, image_folders):
    nodes = Home(tmp_path / "sites", image_folders)
    federation = Federation(replace(CONFIG, rounds=1), tmp_path / "run", (), CLASSES)
    again = replace(federation, resume=True, patience=Patience(0.2, 1))
    honest = nodes.answers[1]
    nodes.answers[1] = lambda message: (
        None if message.metadata.message_type == wire.PERSONALIZE else honest(message)
    )
    first = replace(federation, patience=Patience(0.2, 1))
    assert run_federation(first, nodes, lambda kind, **event: None)["personalized"] == ["site0"]
    nodes.answers[1] = honest
    whole = run_federation(again, nodes, lambda kind, **event: None)
    assert whole["personalized"] == ["site0", "site1"]
    assert "result.json" in {path.name for path in (tmp_path / "run").iterdir()}
    asked = len(nodes.asked)
    assert run_federation(again, nodes, lambda kind, **event: None) == whole
    assert len(nodes.asked) == asked


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
        "cannot take part: it has a class that is not among --classes: its own log says which"
    )
    assert "which this federation does not have: its classes are cat, dog" in caplog.text


def test_a_site_that_could_not_take_part_is_asked_again(tmp_path, image_folders, monkeypatch):
    """The server says once why; nobody starts the site again."""
    monkeypatch.setattr(server, "ASK_AGAIN", 0.0)
    nodes, said = Home(tmp_path / "sites", image_folders), []
    agreed = tmp_path / "sites" / "site0" / "agreed.json"
    agreed.write_text(json.dumps({"test_share": CONFIG.test_share, "classes": ["cat"]}))
    whos = []

    def tell(kind, text="", **event):
        said.append(text)

    honest = nodes.answers[0]

    def answer(message):
        whos.append(message.metadata.message_type == wire.WHO)
        if whos == [True] * 2:
            agreed.unlink()
        return honest(message)

    nodes.answers[0] = answer
    federation = Federation(replace(CONFIG, rounds=1), tmp_path / "run", (), CLASSES)
    assert run_federation(federation, nodes, tell)["sites"].keys() == {"site0", "site1"}
    assert [text for text in said if "cannot take part" in text] == [
        "site0 cannot take part: it was asked with another --classes before: whoever runs the site "
        "can allow the change, its own log says how"
    ]
    assert whos.count(True) == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": "central"}, "needs all images in one place"),
        ({"server": "krum"}, "Krum needs at least 5 clients in a round"),
        ({"method": "fedavg"}, "name them with --classes"),
        (
            {"method": "lg-fedavg", "init": "run"},
            "lg-fedavg every site has private parameters in its encoder",
        ),
        ({"precision": "auto"}, "--precision auto is not available in a federation"),
        ({"evaluate_every": 1}, "--evaluate-every is not available in a federation"),
        ({"participation": 0.5}, "--min-cohort must be 1 to 1, the sites of a round, got 2"),
    ],
)
def test_what_a_federation_cannot_do_is_said_before_anything_is_written(tmp_path, changes, why):
    config, classes = replace(CONFIG, **changes), () if "method" in changes else CLASSES
    federation = Federation(config, tmp_path / "run", (), classes, Patience(9, 2))
    with pytest.raises(RepperError, match=why):
        run_federation(federation, Nodes(), lambda kind, **event: None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["method", "encoder", "personalize"])
def test_a_federation_with_code_of_ones_own_is_refused(tmp_path, name):
    """No site would run it."""
    (tmp_path / "own.py").write_text(
        "from repper.methods.fedavg import FedAvg\n"
        "from repper.heads.descent import LinearHead\n"
        "def build(channels, size, width, norm): ...\n"
    )
    thing = {"method": "FedAvg", "encoder": "build", "personalize": "LinearHead"}[name]
    config = replace(CONFIG, **{name: f"{tmp_path / 'own.py'}:{thing}"})
    federation = Federation(config, tmp_path / "run", (), CLASSES)
    with pytest.raises(RepperError, match=f"--{name} .*: sites run no code that a server names"):
        run_federation(federation, Nodes(), lambda kind, **event: None)
    assert not (tmp_path / "run").exists()


def test_the_settings_of_a_run_are_read_back():
    assert apps.config_in({"rounds": 3, "lr": 1, "out": "", "sites": "a,b"}).lr == 1.0
    with pytest.raises(RepperError, match="'colour', which is no setting"):
        apps.config_in({"colour": "red"})


COMMON = replace(CONFIG, method="repper", personalize="common", own={"common_rounds": 2})


def federate_common(folder, images, personalize="common"):
    nodes, said = Home(folder / "sites", images), []
    federation = Federation(
        replace(COMMON, personalize=personalize), folder / "run", ("site0", "site1"), CLASSES
    )
    result = run_federation(federation, nodes, lambda kind, **event: said.append((kind, event)))
    return result, said


@pytest.mark.parametrize("personalize", ["common", "common+finetune"])
def test_sites_train_a_common_head_to_the_bit_of_a_run(tmp_path, image_folders, personalize):
    settings = {n: getattr(COMMON, n) for n in ("rounds", "epochs", "width", "participation", "image_size", "knn", "method")}  # fmt: skip
    alone = api.run(
        str(image_folders), partition="folders", engine="serial", out=tmp_path / "alone",
        personalize=personalize, common_rounds=2, **settings,
    )  # fmt: skip
    result, _ = federate_common(tmp_path, image_folders, personalize)
    assert result["encoder_digest"] == alone.result["encoder_digest"]
    accuracies = [score.accuracy for score in alone.scores()]
    assert list(result["sites"].values()) == accuracies
    ours, theirs = (read_params(f / "common.safetensors")[0] for f in (tmp_path / "run", tmp_path / "alone"))  # fmt: skip
    assert digest(ours) == digest(theirs)


def test_a_site_finds_the_features_of_a_common_head_once(tmp_path, image_folders, monkeypatch):
    """Every message has a process of its own, so they lie in a file until the head is done."""
    found, files = [], []
    monkeypatch.setattr(
        client, "extract",
        lambda encoder, images, *more: found.append(len(images)) or extract(encoder, images, *more),
    )  # fmt: skip

    def look(kind, **event):
        files.append(len([*tmp_path.glob("sites/*/runs/*/features.safetensors")]))

    nodes = Home(tmp_path / "sites", image_folders)
    run_federation(federation_of(tmp_path), nodes, look)
    # Once in the three rounds of the common stage, then for the head, and for its test.
    for name in ("site0", "site1"):
        assert found.count(len(nodes_examples(image_folders / name))) == 2
    assert len(found) == 6
    assert max(files) == 2
    assert files[-1] == 0


def test_a_site_may_decline_the_common_head_and_fits_alone(tmp_path, image_folders):
    home = tmp_path / "sites" / "site1"
    nodes, said = Home(tmp_path / "sites", image_folders), []
    replace(Site.open(home), share_head=False).save()
    federation = Federation(COMMON, tmp_path / "run", ("site0", "site1"), CLASSES)
    result = run_federation(federation, nodes, lambda kind, **event: said.append((kind, event)))
    # Both train the encoder in two rounds; in the three of the common stage there is one.
    cohorts = [event["cohort"] for kind, event in said if kind == "round"]
    assert cohorts == [[0, 1], [0, 1], [0], [0], [0]]
    assert {*result["rounds_without"]} == {"3", "4", "5"}
    assert result["rounds_without"]["3"] == {"site1": "it does not share a head"}
    assert not [event for kind, event in said if kind == "note" and "again" in event["text"]]
    assert kinds_of_heads(tmp_path) == {"site0": "common", "site1": "linear"}
    assert len(result["personalized"]) == 2
    # Whoever declines has been sent the encoder all the same, once.
    log = read_rounds(tmp_path / "run")
    encoder, head = log[0]["bytes_up"], 2 * log[3]["bytes_up"]
    assert [one["bytes_down"] for one in log] == [encoder, encoder, encoder + head, head, head]


def kinds_of_heads(folder):
    return {
        name: json.loads((run / "result.json").read_text())["personalize"]
        for name in ("site0", "site1")
        for run in (folder / "sites" / name / "runs").iterdir()
    }


def test_a_common_head_that_all_decline_leaves_everyone_alone(tmp_path, image_folders):
    nodes = Home(tmp_path / "sites", image_folders)
    for name in ("site0", "site1"):
        home = tmp_path / "sites" / name
        replace(Site.open(home), share_head=False).save()
    result = run_federation(federation_of(tmp_path), nodes, lambda kind, **event: None)
    assert [one["cohort"] for one in read_rounds(tmp_path / "run")] == [[0, 1], [0, 1], [], [], []]
    assert kinds_of_heads(tmp_path) == {"site0": "linear", "site1": "linear"}
    assert min(result["sites"].values()) > 0


def sizes(nodes, node):
    """The number of parameters in every question to a node, round by round."""
    return [
        len(wire.received_in(message))
        for one, message in nodes.asked
        if one == node and "shared" in message.content.array_records
    ]


def test_a_site_is_sent_the_encoder_of_a_common_head_once(tmp_path, image_folders):
    """And once more after it has lost it; the head is the same to the bit."""
    found = {}
    for case in ("kept", "lost", "damaged"):
        nodes = Home(tmp_path / case / "sites", image_folders)
        run = federation_of(tmp_path / case)

        def tell(kind, case=case, **event):
            if kind == "round" and event["round"] == 3:
                for path in (tmp_path / case / "sites" / "site1" / "runs").glob("*/given.*"):
                    if case == "lost":
                        path.unlink()
                    elif case == "damaged":
                        content = bytearray(path.read_bytes())
                        content[-1] ^= 1
                        path.write_bytes(content)

        result = run_federation(run, nodes, tell)
        found[case] = result["encoder_digest"], digest(read_params(run.folder / "common.safetensors")[0])  # fmt: skip
        whole = max(sizes(nodes, 1))
        moments_and_layer = 4
        # Two rounds of the encoder; measuring, two rounds of the head, fitting.
        again = [moments_and_layer, whole] if case != "kept" else [moments_and_layer]
        encoder = whole - moments_and_layer
        assert sizes(nodes, 0) == [encoder, encoder, whole, *[moments_and_layer] * 3]
        assert sizes(nodes, 1) == [encoder, encoder, whole, *again, *[moments_and_layer] * 2]
    assert len(set(found.values())) == 1


def federation_of(folder):
    return Federation(COMMON, folder / "run", ("site0", "site1"), CLASSES)


def test_bytes_down_count_the_encoder_of_a_common_head_once(tmp_path, image_folders):
    nodes = Home(tmp_path / "sites", image_folders)
    run_federation(federation_of(tmp_path), nodes, lambda kind, **event: None)
    log = read_rounds(tmp_path / "run")
    encoder, head = log[0]["bytes_up"], log[3]["bytes_up"]
    assert [one["bytes_down"] for one in log] == [encoder, encoder, encoder + head, head, head]


def gathering(nodes, federation):
    """What is told until all sites are there."""
    said = []

    def tell(kind, **event):
        said.append((kind, event))
        if kind == "begun":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_federation(federation, nodes, tell)
    return said


def test_the_operator_sees_why_a_site_is_away(tmp_path, image_folders, monkeypatch):
    monkeypatch.setattr("repper.flower.server.time.sleep", lambda seconds: None)
    nodes = Home(tmp_path / "sites", image_folders)
    honest, here, looks = nodes.answers[0], nodes.get_nodes, iter(range(99))

    def since_the_third_look():
        return here() if next(looks) > 2 else [node for node in here() if node.node_id]

    nodes.answers[0] = in_turn(away, away, away, away, away, honest)
    nodes.get_nodes = since_the_third_look
    said = gathering(nodes, Federation(CONFIG, tmp_path / "run", ("site0", "site1"), CLASSES))
    why = "connected, but gave no answer, {}; its own log says why: the node is away"
    assert [event["missing"] for kind, event in said if kind == "gathering"] == [
        {"site0": "not connected"},
        *({"site0": why.format(n)} for n in ("once", "2 times or more", "4 times or more")),
        {},
    ]
    assert {tuple(event["present"]) for kind, event in said if kind == "gathering"} == {
        ("site1",), ("site0", "site1"),
    }  # fmt: skip


def test_the_operator_sees_what_sites_declare(tmp_path, image_folders):
    nodes = Home(tmp_path / "sites", image_folders)
    said = gathering(nodes, Federation(CONFIG, tmp_path / "run", (), CLASSES))
    [begun] = [event for kind, event in said if kind == "begun"]
    assert begun["images"] == [len(nodes_examples(image_folders / f"site{n}")) for n in range(2)]


def nodes_examples(folder):
    """The training images of a folder of classes: all but a fifth of each class, rounded."""
    of_class = [len(list(one.iterdir())) for one in folder.iterdir()]
    return [
        n for count in of_class for n in range(count - min(max(1, round(count * 0.2)), count - 1))
    ]


def test_a_site_that_declares_most_of_all_images_is_pointed_out():
    heavy = [("a", 10), ("b", 10), ("c", 10**9)]
    assert "c declares 100 % of all images" in _too_heavy(heavy, CONFIG)
    assert _too_heavy(heavy, replace(CONFIG, max_weight=1.0)) == ""
    assert _too_heavy(heavy[1:], CONFIG) == ""
    assert _too_heavy([("a", 10), ("b", 10), ("c", 20)], CONFIG) == ""


def test_the_weight_of_a_site_is_limited_by_what_all_have_declared(tmp_path, image_folders):
    nodes = Home(tmp_path / "sites", image_folders)
    honest = nodes.answers[1]

    def heavy(message):
        reply = honest(message)
        if message.metadata.message_type in (wire.WHO, wire.FIT):
            reply.content[wire.TOLD]["examples"] = 10**9
        return reply

    nodes.answers[1] = heavy
    config = replace(CONFIG, rounds=1, max_weight=0.5)
    run_federation(Federation(config, tmp_path / "run", (), CLASSES), nodes, lambda kind, **_: None)
    [record] = read_rounds(tmp_path / "run")
    assert record["examples"] == 2 * len(nodes_examples(image_folders / "site0"))


@pytest.mark.parametrize(("most", "good"), [(None, False), (1000.0, True)])
def test_a_site_that_sends_much_larger_values_is_refused(tmp_path, image_folders, most, good):
    nodes = Home(tmp_path / "sites", image_folders)
    honest = nodes.answers[1]

    def poisoned(message):
        if message.metadata.message_type != wire.FIT:
            return honest(message)
        update = wire.update_in(honest(message), 1)
        sent = {
            name: tensor * -100 for name, tensor in update.sent.items() if "running" not in name
        }
        return wire.update_reply(replace(update, sent=update.sent | sent), message, "float32")

    nodes.answers[1] = poisoned
    config = replace(CONFIG, rounds=1, max_growth=most)
    federation = Federation(config, tmp_path / "run", (), CLASSES, Patience(60, 1))
    result = run_federation(federation, nodes, lambda kind, **_: None)
    assert (result["rounds_without"] == {}) == good
    assert good or "among its weights, but the largest" in result["rounds_without"]["1"]["site1"]
