"""Federations of real processes over loopback, whole and with faults: `make test-federation`.

After every fault the run ends with the digest that it would have had, or says which rounds differ.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from repper.basics.params import digest, load_params
from repper.data.augment import normalize
from repper.edge.saved_head import read_head
from repper.encoders.encoder import read_encoder
from repper.engines.engine import one_thread
from repper.engines.private import PrivateStore
from repper.flower.site import Site
from repper.runs.round_log import read_rounds

from .conftest import CLASSES, SITES, Federation, Process, command, result, until

LINEAR = ("--rounds", 2, "--personalize", "linear")
COMMON = ("--rounds", 1, "--personalize", "common", "--common-rounds", 1)
FEDREP = ("--method", "fedrep", "--rounds", 2, "--personalize", "keep")
"""A method whose heads are the sites' own, so that a site must stand where it stood."""


def test_sites_learn_what_one_machine_learns_and_keep_what_is_theirs(
    federation, sites, serial, tmp_path
):
    run, (north, south) = tmp_path / "run", sites.values()
    Site(south.home, str(south.images), share_scores=False).save()
    (north.tricks / "sent").write_bytes(b"")
    done = result(federation.federate(run, *LINEAR))
    Site(south.home, str(south.images), share_scores=True).save()

    assert done["encoder_digest"] == serial(*LINEAR)["encoder_digest"]
    assert done["rounds_without"] == {}
    assert done["personalized"] == ["north", "south"]
    assert done["sites"]["north"] == pytest.approx(_accuracy_at(north.run_folder(run)))
    assert done["sites"]["south"] is None
    assert _accuracy_at(south.run_folder(run)) > 0
    assert not (run / "clients.parquet").exists()

    home = north.run_folder(run)
    spec, encoder = read_encoder(home / "encoder.safetensors")
    head = read_head(home / "heads" / "0.safetensors")
    assert head.encoder == digest(encoder) == digest(read_encoder(run / "encoder.safetensors")[1])
    image = min(north.images.glob("3/*.png"))
    said = federation.repper("predict", "--run", home, "--client", 0, image).stdout
    assert said.split("\t")[1].strip() in CLASSES

    sent = (north.tricks / "sent").read_bytes()
    network = spec.build()
    load_params(network, {n.removeprefix("encoder."): t for n, t in encoder.items()})
    with one_thread(), torch.no_grad():
        pixels = [np.asarray(Image.open(p)).transpose(2, 0, 1) for p in north.images.glob("*/*")]
        features = network.eval()(normalize(torch.from_numpy(np.stack(pixels)))).numpy()
    assert all(name.encode() in sent for name in encoder)  # the record is one of all that was sent
    theirs = [*head.arrays.values(), *pixels, *features, *(p / np.float32(255) for p in pixels)]
    assert not [a for a in theirs if a.size > 1 and np.ascontiguousarray(a).tobytes() in sent]
    assert not [p.name for p in north.images.glob("*/*") if p.name.encode() in sent]


def test_sites_train_a_common_head_as_one_machine_does(federation, sites, serial, tmp_path):
    done = result(federation.federate(tmp_path / "run", *COMMON, "--classes", CLASSES))
    alone = serial(*COMMON)
    assert done["encoder_digest"] == alone["encoder_digest"]
    assert np.mean([*done["sites"].values()]) == pytest.approx(alone["accuracy"]["mean"])
    assert done["rounds_without"] == {}
    for site in sites.values():
        assert (site.run_folder(tmp_path / "run") / "given.safetensors").is_file()


def _accuracy_at(home: Path) -> float:
    return json.loads((home / "result.json").read_text())["accuracy"]["mean"]


def test_a_site_that_joins_late_dies_in_a_round_and_comes_back(federation, sites, serial, tmp_path):
    """Its own parameters survive its death: the run ends as if nothing had happened."""
    run, south = tmp_path / "run", sites["south"]
    os.killpg(south.process.process.pid, signal.SIGTERM)
    south.process.end()
    watching = federation.federate(run, *FEDREP, "--classes", CLASSES)
    # At once: lines must not wait in a pipe until there are many.
    watching.says("waiting for 2 sites; connected: north\n", 90)
    south.spoil("hang 2")
    south.start()
    watching.says("round 1/2: north, south")
    south.hangs()
    south.process.kill()
    south.behave()
    south.come_back()
    done = result(watching)

    assert done["encoder_digest"] == serial(*FEDREP)["encoder_digest"]
    assert done["rounds_without"] == {}
    assert "asking south again" in watching.said()
    store = PrivateStore(south.run_folder(run) / "private")
    assert all(store.path(1, number).is_file() for number in (1, 2))


def test_the_server_is_killed_and_the_federation_resumed(federation, sites, serial, tmp_path):
    """Also: an interruption ends the watching only, `--attach` takes it up again, `--stop`."""
    home, run, south = federation.home, tmp_path / "run", sites["south"]
    south.spoil("hang 2")
    first = federation.federate(run, *FEDREP, "--classes", CLASSES)
    first.says("round 1/2")
    os.kill(first.process.pid, signal.SIGINT)
    assert first.end() == 130
    assert "the federation continues" in first.said()
    again = Process(command("federate", home, "--attach"), federation.folder / "attach.log")
    again.says("round 1/2")
    second = federation.repper("federate", home, "--out", tmp_path / "other", code=2)
    assert "a federation is running already" in second.stderr
    south.hangs()
    federation.server.kill_alone()
    south.behave()
    assert again.end() == 2
    assert "--resume continues" in again.said()
    federation.serve()
    until(
        lambda: "no federation is running" in _stop(federation),
        "the killed federation runs on",
        180,
    )
    done = result(federation.federate(run, *FEDREP, "--classes", CLASSES, "--resume"))

    assert done["encoder_digest"] == serial(*FEDREP)["encoder_digest"]
    assert done["rounds_without"] == {}
    over = federation.repper("federate", home, "--attach", "--json")
    assert json.loads(over.stdout.splitlines()[-1])["encoder_digest"] == done["encoder_digest"]


def _stop(federation: Federation) -> str:
    done = subprocess.run(
        command("federate", federation.home, "--stop"), capture_output=True, text=True, check=False
    )
    return done.stderr


def test_a_round_goes_on_without_a_site_that_hangs_if_that_was_chosen(federation, sites, tmp_path):
    run, (_, south) = tmp_path / "run", sites.values()
    south.spoil("hang")
    watching = federation.federate(run, *LINEAR, "--round-timeout", 45, "--min-cohort", 1)
    watching.says("round 1/2: north;")
    south.behave()
    done = result(watching)
    assert done["rounds_without"]["1"] == {
        "south": "no answer within 45 s: it has not answered yet"
    }
    assert "without south: no answer within 45 s" in watching.said()
    log = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [record["cohort"][0] for record in log] == [0, 0]
    assert log[0]["examples"] < log[1]["examples"] or "2" in done["rounds_without"]


def test_bad_answers_are_refused_and_named(federation, sites, tmp_path):
    run, (_, south) = tmp_path / "run", sites.values()
    south.spoil("nan", "nan", "shape", "shape", "junk", "float")
    patience = ("--round-timeout", 600, "--min-cohort", 1)
    watching = federation.federate(run, "--rounds", 3, *LINEAR[2:], *patience)
    without = result(watching)["rounds_without"]
    assert "NaN or infinity" in without["1"]["south"]
    assert "(7, 7)" in without["2"]["south"]
    assert "counts 2.5 examples" in without["3"]["south"]
    assert "asking south again: its answer is unreadable" in watching.said()
    log = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [record["cohort"] for record in log] == [[0]] * 3


def test_one_bad_answer_is_asked_for_again(federation, sites, serial, tmp_path):
    sites["south"].spoil("nan")
    done = result(federation.federate(tmp_path / "run", *LINEAR))
    assert federation.is_over()  # so that another one may begin at once
    assert done["encoder_digest"] == serial(*LINEAR)["encoder_digest"]


def test_two_bad_answers_end_the_federation(federation, sites, tmp_path):
    sites["south"].spoil("count", "count")
    watching = federation.federate(tmp_path / "run", *LINEAR)
    assert watching.end() == 2
    assert federation.is_over()
    assert "too few good answers: south, asked twice: it counts" in watching.said()
    assert "but declared" in watching.said()


@pytest.fixture
def hostile(federation, tmp_path) -> Callable[..., Process]:
    """Starts a node of a third, admitted site, whose `deeds` by round are those of hostile.py."""
    started = []

    def start(*deeds: str) -> Process:
        home, ca = tmp_path / "mallory", federation.home / "ca.crt"
        server = f"127.0.0.1:{federation.port}"
        federation.repper(
            "node", home, "--server", server, "--data", tmp_path, "--ca", ca, "--key-only"
        )
        federation.repper("serve", federation.home, "--admit", f"mallory={home / 'site.pub'}")
        script = Path(__file__).with_name("hostile.py")
        line = [
            sys.executable,
            str(script),
            server,
            str(ca),
            str(home / "site.key"),
            str(tmp_path),
            *deeds,
        ]
        started.append(Process(line, tmp_path / "mallory.log"))
        started[0].says("SuperNode ID")
        return started[0]

    yield start
    for process in started:
        process.kill()
    if started:
        federation.repper("serve", federation.home, "--revoke", "mallory")


def test_one_site_cannot_stall_the_others_fill_the_disk_or_answer_twice(
    federation, sites, hostile, tmp_path
):
    """Answers that are never uploaded, too many, too large, and those of another round."""
    hostile("1=announce", "2=many,large", "3=replay,break-off", "4=thousands")
    watching = federation.federate(
        tmp_path / "run", "--rounds", 4, "--personalize", "linear", "--round-timeout", 30,
        "--min-cohort", 2, sites=("mallory", *SITES),
    )  # fmt: skip
    without = result(watching)["rounds_without"]
    assert all(absent.keys() == {"mallory"} for absent in without.values())
    assert without.pop("2")["mallory"].startswith("its answer is larger than the")
    late = {"mallory": "no answer within 30 s: it has not answered yet"}
    assert without == {"1": late, "3": late}
    said = watching.said()
    assert "asking mallory again: its answer has 107 parts, more than the" in said
    assert "asking mallory again: it answers another question" in said
    assert "mallory 48 (34 %)" in said
    seconds = [record["seconds"] for record in read_rounds(tmp_path / "run")]
    assert max(seconds) < 170  # Flower itself waits three minutes for every object
    done = (tmp_path / "done").read_text().splitlines()
    deeds = ("1 announce", "2 many", "2 large", "3 replay", "3 break-off", "4 thousands")
    assert [line for line in done if line in deeds] == [*deeds]
    [(status, seconds)] = [line.split()[1:] for line in done if line.startswith("thousands: ")]
    assert status == "413"
    assert float(seconds) < 5  # else the others' database would have been locked for so long
    assert "an answer of 4001 parts, more than 250" in federation.server.said()
    listed = federation.repper("serve", federation.home, "--list").stdout
    assert "mallory                        online since 20" in listed
    until(federation.is_over, "Flower has not closed the run")
    assert (federation.home / "link.db").stat().st_size < 3_000_000


def test_nothing_is_installed_or_reported(federation, sites):
    """What runs on behalf of a server and of a site, by its own command line and variables."""
    programs = set()
    for process in [federation.server, *(node.process for node in sites.values())]:
        for number in process.family():
            try:
                line, variables = (
                    Path(f"/proc/{number}/{name}").read_text().split("\0")
                    for name in ("cmdline", "environ")
                )
            except OSError:
                continue  # it has ended
            programs |= {Path(part).name for part in line[:3]}
            assert "--allow-runtime-dependency-installation" not in line
            assert {
                "FLWR_TELEMETRY_ENABLED=0",
                "FLWR_DISABLE_UPDATE_CHECK=1",
                "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1",
            } <= set(variables)
    assert programs >= {"repper.flower.superlink", "repper.flower.watched", "flower-superexec"}


def test_four_sites_with_real_images(tmp_path_factory, cifar10, serial):
    """Train and personalize through the commands, as four owners of images would."""
    folder = tmp_path_factory.mktemp("cifar")
    names = ("east", "north", "south", "west")
    for site, name in enumerate(names):
        for row in range(100 * site, 100 * site + 100):
            path = (
                folder / "images" / name / cifar10.classes[cifar10.train.labels[row]] / f"{row}.png"
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(cifar10.train.images[row].transpose(1, 2, 0)).save(path)
    federation = Federation(folder)
    try:
        for name in names:
            federation.add(name, folder / "images" / name, "--share-scores")
        settings = ("--image-size", 32, "--rounds", 2, "--personalize", "linear")
        done = result(federation.federate(folder / "run", *settings, sites=names))
        expected = serial(*settings, data=folder / "images")
        assert done["encoder_digest"] == expected["encoder_digest"]
        assert done["accuracy"]["mean"] == pytest.approx(expected["accuracy"]["mean"])
    finally:
        federation.close()
