"""Rows of a comparison point to trainings that they share; heads are all that they have alone."""

import dataclasses
import shutil

import pytest

import repper as api
from conftest import make_dataset
from repper.basics.documents import read_json, write_json
from repper.basics.errors import RepperError
from repper.basics.files import lock_file
from repper.checks.check import OK, SKIPPED, WRONG
from repper.runs.clearing import clear, leftovers, remove
from repper.runs.compare import CellStarted, compare, rows_of
from repper.runs.execute import RoundDone, execute
from repper.runs.folders import folder_at
from repper.runs.run_folder import training_of
from repper.settings.config import Config

SETTINGS = {
    "clients": 4, "epochs": 1, "width": 0.25, "participation": 0.5, "engine": "serial",
    "rounds": 2, "knn": 0,
}  # fmt: skip
ROWS = "fedrep+keep,fedrep+finetune,fedavg+keep"
DATA = make_dataset()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainings") / "c"
    api.compare(ROWS, DATA, out=folder, **SETTINGS)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "moved")


def cell(folder, row):
    return folder / "cells" / f"{row}-seed0"


def resumed(folder, rows=ROWS, **more):
    config = Config(data="toy", out=str(folder), **SETTINGS)
    events = list(compare(config, rows_of(rows), 1, DATA, resume=True, **more))
    cells = [event for event in events if isinstance(event, CellStarted)]
    return cells, [event.record["round"] for event in events if isinstance(event, RoundDone)]


def config_of(path):
    """The settings of a run whose folder was moved."""
    return dataclasses.replace(api.open_run(path).config, out=str(path))


def made_flat(folder):
    """A comparison as older versions made it: every cell has a training of its own."""
    for one in (folder / "cells").iterdir():
        training = training_of(one)
        (one / "training.json").unlink()
        for name in ("checkpoint", "private"):
            if (training / name).is_dir():
                shutil.copytree(training / name, one / name)
        shutil.copy(training / "rounds.jsonl", one)
    shutil.rmtree(folder / "trainings")


def test_rows_of_one_training_point_to_one_folder(folder):
    keep, tuned, fedavg = (training_of(cell(folder, row)) for row in ROWS.split(","))
    assert keep == tuned != fedavg
    assert {keep, fedavg} == set((folder / "trainings").iterdir())
    assert [path.name.rpartition("-")[0] for path in (keep, fedavg)] == [
        "fedrep-seed0", "fedavg-seed0",
    ]  # fmt: skip
    assert {path.name for path in cell(folder, "fedrep+keep").iterdir()} == {
        ".lock", "clients.parquet", "config.toml", "encoder.safetensors", "environment.json", "heads",
        "partition.json", "result.json", "training.json",
    }  # fmt: skip
    alone = api.run(
        DATA, out=folder.parent / "a", method="fedrep", personalize="finetune", **SETTINGS
    )
    run = api.open_run(cell(folder, "fedrep+finetune"))
    for key in ("encoder_digest", "heads_digest", "cost"):
        assert run.result[key] == alone.result[key], key
    assert run.private.folder == tuned / "private"
    assert list(run.private.files())


def test_every_file_is_verified_wherever_the_comparison_is(folder):
    found = api.verify(folder, DATA)
    assert {one.status for one in found} == {OK, SKIPPED}
    kinds = [one.kind for one in found if one.folder.startswith("trainings/fedrep")]
    assert kinds == ["settings", "code", "partition", "log", "checkpoint", "private"]


def test_a_training_of_other_rows_is_refused(folder):
    path = cell(folder, "fedrep+keep")
    other = training_of(cell(folder, "fedavg+keep"))
    write_json(path / "training.json", {"folder": f"../../trainings/{other.name}"})
    wrong = {one.kind for one in api.verify(path, DATA) if one.status == WRONG}
    assert {"log", "checkpoint"} <= wrong


def test_a_training_that_is_gone_is_one_sentence(folder):
    run = api.open_run(cell(folder, "fedavg+keep"))
    before = run.predict(0, DATA.test.images[:3])
    shutil.rmtree(training_of(run.folder))
    with pytest.raises(
        RepperError, match=r"needs the training in .*fedavg-seed0.*, which is missing"
    ):
        run.rounds()
    assert "which is missing" in folder_at(run.folder).damage
    assert run.predict(0, DATA.test.images[:3]) == before  # its encoder and head are in its own
    shutil.rmtree(run.folder)
    cells, rounds = resumed(folder)
    assert ([one.row.name for one in cells], rounds) == (["fedavg+keep"], [1, 2])


def test_a_comparison_that_was_killed_goes_on_in_its_training(whole, tmp_path):
    config = Config(data="toy", out=str(tmp_path / "c"), **SETTINGS)
    running = compare(config, rows_of(ROWS), 1, DATA)
    next(event for event in running if isinstance(event, RoundDone))
    running.close()
    shutil.rmtree(cell(tmp_path / "c", "fedrep+keep"))  # of the cell, nothing need be there yet
    _, rounds = resumed(tmp_path / "c")
    assert rounds == [2, 1, 2]
    for row in ROWS.split(","):
        again, first = (api.open_run(cell(at, row)).result for at in (tmp_path / "c", whole))
        assert again["encoder_digest"] == first["encoder_digest"]
        assert again["heads_digest"] == first["heads_digest"]


def test_a_comparison_of_an_older_version_goes_on(folder):
    made_flat(folder)
    assert {one.status for one in api.verify(folder, DATA)} == {OK, SKIPPED}
    cells, rounds = resumed(folder, f"{ROWS},fedrep+svm")
    assert ([one.trained for one in cells], rounds) == ([True], [])
    assert training_of(cell(folder, "fedrep+keep")) == cell(folder, "fedrep+keep")
    shutil.rmtree(cell(folder, "fedrep+finetune"))
    before = read_json(cell(folder, "fedrep+keep") / "result.json")
    assert resumed(folder)[1] == []
    after = read_json(cell(folder, "fedrep+finetune") / "result.json")
    assert after["encoder_digest"] == before["encoder_digest"]


def test_a_training_of_another_folder_is_copied(folder, tmp_path):
    cells, rounds = resumed(tmp_path / "other", "fedrep+svm,fedavg+svm", reuse=folder)
    assert ([one.reused for one in cells], rounds) == ([True, True], [])
    shutil.rmtree(folder)
    assert {one.status for one in api.verify(tmp_path / "other", DATA)} == {OK, SKIPPED}


def test_a_shared_training_gets_no_more_rounds(folder):
    path = cell(folder, "fedrep+keep")
    longer = dataclasses.replace(config_of(path), rounds=3)
    with pytest.raises(RepperError, match="shares its training of 2 rounds with other runs"):
        list(execute(longer, DATA, resume=True))
    assert len(api.open_run(path).rounds()) == 2


def test_a_cell_that_is_overwritten_trains_itself(folder):
    path = cell(folder, "fedrep+keep")
    training = training_of(path)
    log = (training / "rounds.jsonl").read_bytes()
    list(execute(config_of(path), DATA, overwrite=True))
    assert training_of(path) == path
    assert (training / "rounds.jsonl").read_bytes() == log
    assert len(api.open_run(cell(folder, "fedrep+finetune")).rounds()) == 2


def test_a_training_is_written_by_one_process_at_a_time(folder):
    path = cell(folder, "fedrep+keep")
    (path / "result.json").unlink()
    config = config_of(path)
    refused = pytest.raises(RepperError, match="another process is running in .*trainings")
    with lock_file(training_of(path) / ".lock", wait=False), refused:
        list(execute(config, DATA, resume=True))


def test_a_training_that_no_row_points_to_can_go(folder):
    assert folder_at(folder).strange == ()
    assert list(leftovers(folder)) == []
    training = training_of(cell(folder, "fedrep+keep"))
    assert (folder_at(training).kind, folder_at(training).done) == ("training", 2)
    assert folder_at(cell(folder, "fedrep+keep")).points_to == (training,)
    list(remove([cell(folder, "fedrep+keep")], force=True))
    assert list(leftovers(folder)) == []  # the other row needs it
    with pytest.raises(RepperError, match=r"trainings/fedrep.* is part of the comparison"):
        list(remove([training]))
    list(remove([cell(folder, "fedrep+finetune")], force=True))
    [left] = leftovers(folder)
    assert (left.path, left.why) == (training, "a training that no run uses")
    clear([left])
    assert [path.name.partition("-")[0] for path in (folder / "trainings").iterdir()] == ["fedavg"]


def test_a_run_in_a_folder_called_trainings_is_no_leftover_and_is_verified(tmp_path):
    run = api.run(DATA, out=tmp_path / "trainings" / "mine", method="fedavg", **SETTINGS)
    assert list(leftovers(tmp_path)) == []
    assert "scores" in {one.kind for one in api.verify(run.folder, DATA)}


def test_the_trainings_of_a_comparison_are_no_leftovers_when_looked_at_alone(folder):
    assert list(leftovers(folder / "trainings")) == []


def test_a_lost_training_keeps_nobody_from_clearing_the_rest(folder, tmp_path):
    shutil.rmtree(training_of(cell(folder, "fedavg+keep")))
    killed = tmp_path / "killed"
    for name in ("checkpoint", "heads"):
        (killed / name).mkdir(parents=True)
    (killed / ".lock").touch()
    [left] = leftovers(tmp_path)
    assert left.path == killed
    with lock_file(killed / ".lock", wait=False):
        clear([left])
    assert killed.exists()
    clear([left])
    assert not killed.exists()


def test_a_row_of_another_training_is_not_trained_into_a_shared_one(folder):
    path = cell(folder, "fedrep+finetune")
    (path / "result.json").unlink()
    config = dataclasses.replace(config_of(path), personalize="common")
    with pytest.raises(RepperError, match="these settings need another training"):
        list(execute(config, DATA, resume=True))
    assert [one.status for one in api.verify(cell(folder, "fedrep+keep"), DATA)].count(WRONG) == 0


def test_a_common_head_goes_on_where_it_was_killed(tmp_path):
    rows = "fedavg+keep,fedavg+common"
    config = Config(data="toy", out=str(tmp_path / "c"), **SETTINGS)
    done = 0
    for event in compare(config, rows_of(rows), 1, DATA):
        if isinstance(event, RoundDone) and event.record["round"] > SETTINGS["rounds"]:
            done = event.record["round"]
            if done == SETTINGS["rounds"] + 2:
                break
    assert done == SETTINGS["rounds"] + 2
    _, rounds = resumed(tmp_path / "c", rows)
    assert rounds[0] == done + 1  # no round is repeated
