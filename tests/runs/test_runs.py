import dataclasses
import functools
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import repper as api
from conftest import QUICK, last_json, make_dataset
from repper.basics.errors import RepperError
from repper.basics.params import save_params
from repper.edge import read_head
from repper.encoders.encoder import EncoderSpec, read_encoder
from repper.runs import run_folder
from repper.runs.round_log import Checkpoint, read_checkpoint, read_chosen, write_round
from repper.runs.run_folder import CHECKPOINT, locked
from repper.server.round_loop import Served

SETTINGS = {
    "clients": 4,
    "rounds": 3,
    "epochs": 1,
    "width": 0.25,
    "participation": 0.5,
    "engine": "serial",
}


def digests(run):
    return run.result["encoder_digest"], run.result["heads_digest"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, digits):
    return api.run(digits, out=str(tmp_path_factory.mktemp("runs") / "one"), **SETTINGS)


def test_the_folder_holds_everything_a_reader_needs(finished):
    names = {path.name for path in finished.folder.iterdir()}
    assert names == {
        "config.toml", "partition.json", "environment.json", "rounds.jsonl", "checkpoint",
        "encoder.safetensors", "heads", "clients.parquet", "result.json", ".lock",
    }  # fmt: skip
    assert {p.name for p in (finished.folder / "heads").iterdir()} == {
        f"{client}.safetensors" for client in range(4)
    }
    environment = json.loads((finished.folder / "environment.json").read_text())
    assert environment["packages"].keys() >= {"torch", "numpy", "repper"}


def test_every_round_is_logged(finished):
    rounds = finished.rounds()
    assert [record["round"] for record in rounds] == [1, 2, 3]
    for record in rounds:
        assert len(record["cohort"]) == 2
        assert record["loss"] > 0
        assert 0 <= record["knn"] <= 100


def test_scores_are_read_back_as_they_were_measured(finished, digits):
    scores = finished.scores()
    assert [score.client for score in scores] == [0, 1, 2, 3]
    assert sum(score.tested.sum() for score in scores) == len(digits.test)
    assert sum(score.train.sum() for score in scores) == len(digits.train)
    assert finished.accuracy["mean"] == pytest.approx(np.mean([s.accuracy for s in scores]))


def test_predictions_are_those_that_were_scored(finished, digits):
    manifest = json.loads((finished.folder / "partition.json").read_text())
    for client, score in enumerate(finished.scores()):
        rows = manifest["clients"][client]["test"]
        images = digits.test.images[rows]
        images.flags.writeable = False  # as a file's that is mapped into memory
        predicted = finished.predict(client, images)
        correct = [
            name == str(digits.test.labels[row]) for name, row in zip(predicted, rows, strict=True)
        ]
        assert sum(correct) == score.correct.sum()


def test_the_same_seed_gives_the_same_digests_and_another_does_not(finished, tmp_path, digits):
    assert digests(api.run(digits, out=str(tmp_path / "a"), **SETTINGS)) == digests(finished)
    other = api.run(digits, out=str(tmp_path / "b"), seed=1, **SETTINGS)
    assert not set(digests(other)) & set(digests(finished))


def test_evaluating_on_the_way_changes_no_result(finished, tmp_path, digits):
    run = api.run(digits, out=str(tmp_path / "a"), evaluate_every=2, **SETTINGS)
    assert digests(run) == digests(finished)
    assert ["accuracy" in record for record in run.rounds()] == [False, True, False]


def test_the_accuracy_logged_for_the_last_round_is_the_result(tmp_path, digits):
    run = api.run(digits, out=str(tmp_path / "a"), evaluate_every=1, **SETTINGS)
    assert run.rounds()[-1]["accuracy"] == run.accuracy


def test_validation_chooses_the_round_and_test_accuracy_does_not(tmp_path, digits):
    settings = {**SETTINGS, "rounds": 5, "evaluate_every": 1, "validation": 0.3, "seed": 2}
    # With these, the best round on validation images is not the best on test images.
    settings |= {
        "batch": 256,
        "lr": 0.001,
        "augment": "strong",
        "loss": "paper",
        "head_scale": True,
    }
    run = api.run(digits, out=str(tmp_path / "a"), **settings)
    rounds = run.rounds()
    best = max(rounds, key=lambda record: record["validation"])
    best_on_test = max(rounds, key=lambda record: record["accuracy"]["mean"])
    assert best["round"] != best_on_test["round"], "this seed no longer tells the two apart"
    assert run.result["chosen_round"] == best["round"]
    assert run.accuracy == best["accuracy"]


def test_more_rounds_continue_a_finished_run(finished, tmp_path, digits):
    out = str(tmp_path / "a")
    api.run(digits, out=out, **{**SETTINGS, "rounds": 1})
    more = api.run(digits, out=out, resume=True, **SETTINGS)
    assert digests(more) == digests(finished)
    assert more.result["rounds"] == 3
    with pytest.raises(RepperError, match="has 3 rounds already, more than --rounds 2"):
        api.run(digits, out=out, resume=True, **{**SETTINGS, "rounds": 2})


def test_resuming_a_finished_run_only_shows_its_result(finished, digits):
    before = (finished.folder / "result.json").stat().st_mtime_ns
    again = api.run(digits, out=str(finished.folder), resume=True, **SETTINGS)
    assert again.result == finished.result
    assert (finished.folder / "result.json").stat().st_mtime_ns == before


def test_untrained_clients_get_heads_too(tmp_path, digits):
    run = api.run(digits, out=str(tmp_path / "a"), **{**SETTINGS, "rounds": 0})
    assert run.rounds() == []
    assert run.accuracy["mean"] > 20
    assert run.result["groups"]["never_took_part"]["clients"] == 4


def test_clients_kept_out_of_stage_1_are_scored_apart(tmp_path, digits):
    run = api.run(digits, out=str(tmp_path / "a"), stage1_clients="1,2", **SETTINGS)
    assert {client for record in run.rounds() for client in record["cohort"]} <= {1, 2}
    groups = run.result["groups"]
    took_part = groups["took_part"]["clients"]
    assert 1 <= took_part <= 2
    assert groups["never_took_part"]["clients"] == 4 - took_part
    scores = run.scores()
    sampled = {client for record in run.rounds() for client in record["cohort"]}
    expected = np.mean([s.accuracy for s in scores if s.client not in sampled])
    assert groups["never_took_part"]["accuracy"]["mean"] == pytest.approx(expected)


def test_a_run_can_start_from_the_encoder_of_another(finished, tmp_path, digits):
    settings = {**SETTINGS, "rounds": 0}
    run = api.run(digits, out=str(tmp_path / "a"), init=str(finished.folder), **settings)
    assert run.result["encoder_digest"] == finished.result["encoder_digest"]
    with pytest.raises(
        RepperError, match="holds encoder 'small' of width 0.25 .* needs .* width 0.5"
    ):
        api.run(
            digits, out=str(tmp_path / "b"), init=str(finished.folder), **{**settings, "width": 0.5}
        )
    assert not (tmp_path / "b").exists()


def test_fedavg_keeps_its_head_and_repper_has_none_to_keep(tmp_path, digits):
    run = api.run(digits, out=str(tmp_path / "a"), method="fedavg", **SETTINGS)
    assert run.result["personalize"] == "keep"
    assert {score.personalize for score in run.scores()} == {"keep"}
    with pytest.raises(RepperError, match="repper trains none: choose another --personalize"):
        api.run(digits, out=str(tmp_path / "b"), personalize="keep", **SETTINGS)
    assert not (tmp_path / "b").exists()


def test_a_projection_is_dropped_after_stage_1(tmp_path, digits):
    run = api.run(digits, out=str(tmp_path / "a"), projection="mlp", **SETTINGS)
    _, params = read_encoder(run.folder)
    assert all(name.startswith("encoder.") for name in params)
    assert len(run.predict(0, digits.test.images[:2])) == 2


def test_your_own_arrays_and_partition_can_be_used(tmp_path):
    data = make_dataset(train=90, test=60, channels=3, size=12)
    partition = api.split(data, "shards", clients=3, classes_per_client=2, seed=5)
    run = api.run(data, partition, out=str(tmp_path / "a"), **{**SETTINGS, "clients": 20})
    assert run.result["clients"] == 3
    assert run.config.partition == "shards"
    assert set(run.predict(0, data.test.images)) <= set(data.classes)
    assert api.open_run(tmp_path / "a").result == run.result


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "already holds a run: add --resume"),
        ({"resume": True, "seed": 3}, "has a run with other settings: its seed is 0, not 3"),
        ({"resume": True, "personalize": "svm"}, "its personalize is linear, not svm"),
        ({"resume": True, "clients": 5}, "its clients is 4, not 5"),
    ],
)
def test_a_folder_with_another_run_is_refused_and_untouched(finished, digits, change, message):
    def state():
        return {p: p.stat().st_mtime_ns for p in finished.folder.rglob("*") if p.name != ".lock"}

    before = state()
    with pytest.raises(RepperError, match=message):
        api.run(digits, out=str(finished.folder), **{**SETTINGS, **change})
    assert state() == before


def test_overwrite_replaces_a_run_and_only_a_run(tmp_path, digits):
    out = tmp_path / "a"
    api.run(digits, out=str(out), **SETTINGS)
    (out / "heads" / "99.safetensors").write_text("from an earlier run")
    run = api.run(digits, out=str(out), overwrite=True, **{**SETTINGS, "seed": 4})
    assert run.config.seed == 4
    assert not (out / "heads" / "99.safetensors").exists()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("precious")
    with pytest.raises(RepperError, match="is not empty and holds no run"):
        api.run(digits, out=str(tmp_path / "photos"), overwrite=True, **SETTINGS)
    assert os.listdir(tmp_path / "photos") == ["cat.png"]


def test_a_damaged_checkpoint_is_refused(tmp_path, digits):
    out = tmp_path / "a"
    api.run(digits, out=str(out), **SETTINGS)
    (out / "result.json").unlink()
    checkpoint = out / CHECKPOINT
    content = bytearray(checkpoint.read_bytes())
    content[-5] ^= 1
    checkpoint.write_bytes(content)
    with pytest.raises(RepperError, match=r"last\.safetensors is damaged"):
        api.run(digits, out=str(out), resume=True, **SETTINGS)


def test_two_processes_cannot_run_in_one_folder(tmp_path, digits):
    with (
        locked(tmp_path / "a"),
        pytest.raises(RepperError, match="another process is running in"),
    ):
        api.run(digits, out=str(tmp_path / "a"), **SETTINGS)


def test_a_torn_last_line_of_the_log_is_dropped(finished, tmp_path, digits):
    out = tmp_path / "a"
    api.run(digits, out=str(out), **{**SETTINGS, "rounds": 2})
    (out / "result.json").unlink()
    with (out / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "coh')
    resumed = api.run(digits, out=str(out), resume=True, **SETTINGS)
    assert digests(resumed) == digests(finished)
    assert [record["round"] for record in resumed.rounds()] == [1, 2, 3]


def test_a_crash_after_any_file_was_written_loses_nothing(tmp_path, monkeypatch):
    """In every order of files: private ones, log, chosen round, checkpoint, scores, result."""
    settings = {
        **SETTINGS, "rounds": 2, "method": "fedrep", "evaluate_every": 1, "validation": 0.3,
    }  # fmt: skip
    data, replaced = make_dataset(), Path.replace
    whole = api.run(data, out=tmp_path / "whole", **settings)
    for last in itertools.count(1):
        left = itertools.count(last, -1)

        def dying(self, target, left=left):
            done = replaced(self, target)
            if next(left) == 1:
                raise KeyboardInterrupt
            return done

        out = tmp_path / str(last)
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(Path, "replace", dying)
            api.run(data, out=out, **settings)
            break
        again = api.run(data, out=out, resume=True, **settings)
        assert digests(again) == digests(whole)
        assert again.accuracy == whole.accuracy
        assert again.result["chosen_round"] == whole.result["chosen_round"]
        assert len(again.scores()) == 4
    assert last > 15  # so many files are written


LINE = {
    "cohort": [0], "examples": 1, "images": 1, "bytes_up": 1, "bytes_down": 1, "loss": 1.0,
    "knn": None, "seconds": 0.1,
}  # fmt: skip


def test_a_round_that_was_chosen_and_lost_again_is_not_taken_for_another(tmp_path):
    """Killed when round 3 was the best so far, but not counted yet; then resumed with 2 rounds."""
    run_folder.prepare(tmp_path, overwrite=False)
    each = [{"w": torch.full((2,), float(number))} for number in range(4)]
    for number, chosen in ((1, 1), (2, 1)):
        checkpoint = Checkpoint(number, Served(each[number]), chosen, 61.5)
        write_round(tmp_path, {"round": number, **LINE}, checkpoint, each[number])
    save_params(tmp_path / "checkpoint" / "chosen-3.safetensors", each[3], {})
    found = read_checkpoint(tmp_path, lambda number: each[0])
    assert (found.number, found.chosen, found.chosen_accuracy) == (2, 1, 61.5)
    assert not (tmp_path / "checkpoint" / "chosen-3.safetensors").exists()
    assert read_chosen(tmp_path, 1)["w"].tolist() == [1, 1]
    with pytest.raises(
        RepperError, match="chosen-2.safetensors, .*, is missing; restore it, or begin"
    ):
        read_chosen(tmp_path, 2)
    write_round(tmp_path, {"round": 3, **LINE}, Checkpoint(3, Served(each[3]), 3, 70.0), each[3])
    assert {p.name for p in (tmp_path / "checkpoint").iterdir()} == {
        "last.safetensors", "chosen-3.safetensors",
    }  # fmt: skip


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_the_ceiling_learns_from_all_images_and_nothing_travels(digits, tmp_path, engine):
    settings = SETTINGS | {"rounds": 2, "engine": engine, "workers": 2, "personalize": "keep"}
    run = api.run(digits, out=tmp_path / "a", method="central", **settings)
    [record] = run.rounds()  # as many epochs as a client has in two rounds of half of them
    assert (record["cohort"], record["examples"]) == ([4], len(digits.train))
    assert record["bytes_up"] == record["bytes_down"] == 0
    assert run.result["groups"]["took_part"]["clients"] == 4


@pytest.mark.parametrize("start", [api.run, functools.partial(api.compare, "fedavg")])
def test_what_goes_on_is_not_replaced_too(tmp_path, digits, start):
    out = tmp_path / "a"
    start(data=digits, out=out, **SETTINGS | {"rounds": 0})
    before = sorted(out.rglob("*"))
    with pytest.raises(RepperError, match="give only one of them"):
        start(data=digits, out=out, resume=True, overwrite=True, **SETTINGS | {"rounds": 0})
    assert sorted(out.rglob("*")) == before


def test_a_run_killed_at_any_moment_resumes_to_the_same_bits(repper, tmp_path):
    settings = [*QUICK, "--rounds", 14, "--epochs", 2, "--engine", "pool", "--workers", 2, "--json"]
    whole = last_json(repper("run", *settings, "--out", "whole"))
    command = [
        sys.executable,
        "-m",
        "repper",
        "run",
        *map(str, settings),
        "--out",
        "killed",
        "--resume",
    ]
    log = tmp_path / "killed" / "rounds.jsonl"
    for kill in range(2):
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        done = len(log.read_text().splitlines()) if log.exists() else 0
        deadline = time.monotonic() + 120
        while not log.exists() or len(log.read_text().splitlines()) <= done:
            assert time.monotonic() < deadline, "no round was finished"
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.01)
        time.sleep(random.Random(kill).uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / "result.json").exists()
    resumed = repper("run", *settings, "--out", "killed", "--resume")
    assert "resuming after round" in resumed.stderr
    for key in ("encoder_digest", "heads_digest", "accuracy"):
        assert last_json(resumed)[key] == whole[key]


def test_the_workers_of_a_killed_run_end_with_it(tmp_path):
    """Else one could write what a client keeps into the run that replaces this one."""
    settings = ["--clients", 2, "--participation", 1, "--epochs", 10_000, "--method", "fedrep"]
    command = [sys.executable, "-m", "repper", "run", *map(str, settings), "--workers", "2"]
    run = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    try:
        while len(busy := [pid for pid in descendants(run.pid) if seconds_of(pid) > 1]) < 2:
            assert run.poll() is None
            assert time.monotonic() < deadline, "no worker trains"
            time.sleep(0.1)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}/stat").exists() for pid in busy):
        assert time.monotonic() < deadline, "a worker goes on"
        time.sleep(0.1)


def stat(pid):
    """A process's fields after its name, which may hold anything; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def seconds_of(pid):
    fields = stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0


def descendants(pid):
    parents = {p.name: stat(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal()}
    found = {str(pid)}
    for _ in range(4):
        found |= {child for child, fields in parents.items() if fields and fields[1] in found}
    return found - {str(pid)}


def test_clients_without_test_images_are_personalized_too(tmp_path):
    data = make_dataset(train=90, test=3)
    run = api.run(data, out=str(tmp_path / "a"), min_test=0, **{**SETTINGS, "clients": 6})
    untested = [score for score in run.scores() if score.accuracy is None]
    assert untested
    assert len(list((tmp_path / "a" / "heads").iterdir())) == 6
    assert run.accuracy["mean"] is not None


DAMAGE = {
    "partition.json": "{}",
    "rounds.jsonl": "\x80\nnot json\n",
    "clients.parquet": "not parquet",
    "result.json": "[]",
    "checkpoint/last.safetensors": "{}",
    "config.toml": "rounds = ",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_named_and_the_folder_left_alone(finished, tmp_path, digits, name):
    out = tmp_path / "a"
    shutil.copytree(finished.folder, out)
    (out / name).write_bytes(DAMAGE[name].encode("latin1"))
    with pytest.raises(RepperError, match=re.escape(name)):
        api.run(digits, out=str(out), resume=True, **SETTINGS).scores()


def test_a_run_that_lost_its_configuration_is_not_begun_over(finished, tmp_path, digits):
    out = tmp_path / "a"
    shutil.copytree(finished.folder, out)
    (out / "config.toml").unlink()
    for choice in ({"resume": True}, {"overwrite": True}, {}):
        with pytest.raises(RepperError, match=r"holds no run with a config\.toml"):
            api.run(digits, out=str(out), **choice, **SETTINGS)


@pytest.mark.parametrize("line", ['{"round": 1, "coh', '{"round": 1, "cohort": [0]}\n'])
def test_a_log_without_a_checkpoint_begins_anew(finished, tmp_path, digits, line):
    out = tmp_path / "a"
    shutil.copytree(finished.folder, out)
    shutil.rmtree(out / "checkpoint")
    (out / "result.json").unlink()
    (out / "rounds.jsonl").write_text(line)
    resumed = api.run(digits, out=out, resume=True, **SETTINGS)
    assert digests(resumed) == digests(finished)
    assert [record["round"] for record in resumed.rounds()] == [1, 2, 3]


def test_an_interrupted_overwrite_can_be_repeated_but_not_taken_for_a_result(
    finished, tmp_path, digits, monkeypatch
):
    out = tmp_path / "a"
    shutil.copytree(finished.folder, out)

    def killed(path):
        raise KeyboardInterrupt

    other = {**SETTINGS, "seed": 5}
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            api.run(digits, out=out, overwrite=True, **other)
    with pytest.raises(RepperError, match="its seed is 0, not 5"):
        api.run(digits, out=out, resume=True, **other)
    again = api.run(digits, out=out, overwrite=True, **other)
    assert digests(again) == digests(api.run(digits, out=tmp_path / "b", **other))


def test_folders_of_others_are_not_overwritten(tmp_path, digits):
    (tmp_path / "a" / "heads").mkdir(parents=True)
    (tmp_path / "a" / "heads" / "mine.txt").write_text("precious")
    with pytest.raises(RepperError, match="is not empty and holds no run"):
        api.run(digits, out=tmp_path / "a", overwrite=True, **SETTINGS)
    assert (tmp_path / "a" / "heads" / "mine.txt").exists()


def test_a_moved_run_knows_where_it_is(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "moved")
    assert api.open_run(tmp_path / "moved").result["run"] == str(tmp_path / "moved")


def test_a_head_that_diverges_is_named_and_can_be_had_otherwise(tmp_path, digits, finished):
    wild = {"head_optimizer": "sgd", "head_lr": 1e6, "head_weight_decay": 1e6}
    told = "the head of client 0 diverged: try a lower --head-lr"
    with pytest.raises(RepperError, match=told) as refused:
        api.run(digits, out=tmp_path / "a", **SETTINGS, **wild)
    # The rounds are not lost: heads may have other settings until there are heads.
    assert "--resume to keep the encoder" in str(refused.value)
    tame = api.run(digits, out=tmp_path / "a", resume=True, **SETTINGS, head_lr=0.05)
    assert tame.config.setting("head_lr") == 0.05
    assert tame.result["encoder_digest"] == finished.result["encoder_digest"]
    with pytest.raises(
        RepperError, match="has a run with other settings: its head-lr is 0.05, not 0.01"
    ):
        api.run(digits, out=tmp_path / "a", resume=True, **SETTINGS)


def test_mistakes_in_python_are_sentences_too(tmp_path, finished, digits):
    with pytest.raises(RepperError, match="unknown setting 'round', did you mean 'rounds'"):
        api.run(digits, round=3)
    with pytest.raises(RepperError, match="clients must be at least 1, got 0"):
        api.split(digits, clients=0)
    partition = api.split(digits, clients=np.int64(4))
    with pytest.raises(RepperError, match="rows must be 0 to 59 for 'toy'"):
        api.run(make_dataset(), partition, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert api.run(digits, partition, out=tmp_path / "b", **SETTINGS).result["clients"] == 4
    assert finished.predict(0, []) == []


def test_images_are_mirrored_only_where_the_data_set_says_so(finished, tmp_path, digits):
    mirrored = dataclasses.replace(digits, flip=True)
    assert digests(api.run(mirrored, out=tmp_path / "a", **SETTINGS)) != digests(finished)


def test_a_run_is_not_resumed_with_other_images_or_another_partition(tmp_path, digits):
    partition = api.split(digits, clients=4)
    api.run(digits, partition, out=tmp_path / "a", **SETTINGS)
    images = digits.train.images.copy()
    images[0, 0, 0, 0] ^= 1
    changed = dataclasses.replace(digits, train=api.Split(images, digits.train.labels))
    with pytest.raises(RepperError, match="was made for another data set"):
        api.run(changed, partition, out=tmp_path / "a", resume=True, **SETTINGS)
    other = api.split(digits, clients=4, seed=9)
    with pytest.raises(RepperError, match="was begun with another partition"):
        api.run(digits, other, out=tmp_path / "a", resume=True, **SETTINGS)


def test_the_encoder_is_the_one_that_was_asked_for(tmp_path, digits):
    settings = {**SETTINGS, "rounds": 0, "encoder": "resnet18", "norm": "group", "width": 0.125}
    run = api.run(digits, out=tmp_path / "a", **settings)
    assert read_encoder(run.folder)[0] == EncoderSpec("resnet18", 1, 8, 0.125, "group")


def test_a_head_of_another_encoder_does_not_predict(finished, tmp_path, digits):
    shutil.copytree(finished.folder, tmp_path / "a")
    other = api.run(digits, out=tmp_path / "b", **{**SETTINGS, "seed": 1})
    shutil.copy(other.folder / "encoder.safetensors", tmp_path / "a")
    with pytest.raises(RepperError, match="undamaged, but not the file that this run has written"):
        api.open_run(tmp_path / "a").predict(0, digits.test.images[:1])


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_heads_of_a_sample_of_clients_are_those_of_all(tmp_path, engine):
    settings = {
        "clients": 6, "min_train": 2, "alpha": 5.0, "rounds": 1, "width": 0.25, "knn": 0,
        "engine": engine,
    }  # fmt: skip
    whole = api.run(make_dataset(), out=tmp_path / "all", **settings)
    some = api.run(make_dataset(), out=tmp_path / "some", personalize_clients=3, **settings)
    assert some.result["encoder_digest"] == whole.result["encoder_digest"]
    fitted = {path.stem for path in (some.folder / "heads").iterdir()}
    assert len(fitted) == 3
    for client in fitted:
        files = [run.folder / "heads" / f"{client}.safetensors" for run in (some, whole)]
        assert read_head(files[0]).digest() == read_head(files[1]).digest()
    known = {score.client: score.accuracy for score in whole.scores()}
    assert {s.client: s.accuracy for s in some.scores()} == {int(c): known[int(c)] for c in fitted}
    other = next(client for client in range(6) if str(client) not in fitted)
    image = make_dataset().test.images[:1]
    with pytest.raises(RepperError, match=f"client {other} has no head: --personalize-clients 3"):
        some.predict(other, image)
    assert len(some.predict(int(min(fitted)), image)) == 1


def test_a_damaged_manifest_is_no_lack_of_images(digits, tmp_path):
    """Else `unknown` would be left out of predictions without a word."""
    settings = {"clients": 4, "rounds": 1, "epochs": 1, "width": 0.25, "engine": "serial", "knn": 0}
    run = api.run(digits, method="fedavg", out=tmp_path / "run", **settings)
    assert api.open_run(run.folder).rule_for_unknown(0) is not None
    path = run.folder / "partition.json"
    whole = path.read_text()
    path.write_text(whole.replace("1", "2", 1))
    with pytest.raises(RepperError, match=r"partition\.json"):
        api.open_run(run.folder).rule_for_unknown(0)
    path.unlink()
    with pytest.raises(RepperError, match=r"partition\.json"):
        api.open_run(run.folder).rule_for_unknown(0)
