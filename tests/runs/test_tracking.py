"""Runs in TensorBoard and in MLflow, read back with their own readers."""

import subprocess
import sys

import pytest

import repper as api
from repper.basics.documents import read_json
from repper.basics.errors import RepperError
from repper.cli import main
from repper.runs import tracking
from repper.settings.config import Config
from repper.settings.config_file import read_config

pytest.importorskip("tensorboard", reason="pip install 'repper[tensorboard]'")
pytest.importorskip("mlflow", reason="pip install 'repper[mlflow]'")

SETTINGS = {
    "clients": 4, "participation": 0.5, "epochs": 1, "width": 0.25, "engine": "serial", "knn": 100,
    "evaluate_every": 1,
}  # fmt: skip


def in_tensorboard(folder):
    """What TensorBoard would draw, by name: (step, value) of each point."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {
        name: [(event.step, event.value) for event in read.Scalars(name)]
        for name in read.Tags()["scalars"]
    }


def in_mlflow(store):
    """MLflow's runs in a folder, by name, and a function for what each of them would draw."""
    client = tracking.mlflow_client(store)
    experiment = client.get_experiment_by_name("repper")
    found = client.search_runs([experiment.experiment_id])

    def drawn(run):
        return {
            name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }

    return {run.info.run_name: (run, drawn(run)) for run in found}


def check_drawn(drawn, run):
    for name in ("loss", "knn", "seconds", "bytes_up"):
        expected = [(record["round"], pytest.approx(record[name])) for record in run.rounds()]
        assert drawn[f"round/{name}"] == expected
    by_round = [(r["round"], pytest.approx(r["accuracy"]["mean"])) for r in run.rounds()]
    assert drawn["round/accuracy/mean"] == by_round
    assert drawn["result/accuracy/mean"][-1] == (3, pytest.approx(run.accuracy["mean"]))


def test_both_show_what_the_log_says_with_and_without_an_interruption(tmp_path):
    both = SETTINGS | {"track": "tensorboard,mlflow", "out": tmp_path / "run"}
    api.run("digits", rounds=1, **both)
    [before] = in_mlflow(tmp_path / "mlruns").values()
    run = api.run("digits", rounds=3, resume=True, **both)
    check_drawn(in_tensorboard(run.folder), run)
    [(found, drawn)] = in_mlflow(tmp_path / "mlruns").values()
    check_drawn(drawn, run)
    assert found.info.run_id == before[0].info.run_id
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["method"] == "repper"
    assert found.data.params["width"] == "0.25"
    assert found.data.tags["rounds"] == "3"
    for name in ("encoder_digest", "heads_digest"):
        assert found.data.tags[name] == run.result[name]


def test_they_change_no_result_and_can_be_had_later(tmp_path):
    plain = api.run("digits", rounds=1, out=tmp_path / "plain", **SETTINGS)
    assert not (tmp_path / "plain" / "tensorboard").exists()
    assert not (tmp_path / "mlruns").exists()
    both = SETTINGS | {"track": "mlflow, tensorboard"}
    watched = api.run("digits", rounds=1, out=tmp_path / "watched", **both)
    assert watched.result["heads_digest"] == plain.result["heads_digest"]
    later = api.run("digits", rounds=2, out=tmp_path / "plain", resume=True, **both)
    assert [step for step, _ in in_tensorboard(later.folder)["round/loss"]] == [1, 2]
    runs = in_mlflow(tmp_path / "mlruns")
    assert [step for step, _ in runs["plain"][1]["round/loss"]] == [1, 2]
    assert set(runs) == {"plain", "watched"}


def test_a_run_that_stops_says_so_in_mlflow_and_goes_on_there(tmp_path):
    settings = SETTINGS | {"track": "mlflow", "out": tmp_path / "run", "rounds": 3}

    def stop(event):
        if getattr(event, "record", {}).get("round") == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.run("digits", watch=stop, **settings)
    [(stopped, _)] = in_mlflow(tmp_path / "mlruns").values()
    assert stopped.info.status == "KILLED"
    run = api.run("digits", resume=True, **settings)
    [(found, drawn)] = in_mlflow(tmp_path / "mlruns").values()
    assert found.info.run_id == stopped.info.run_id
    check_drawn(drawn, run)
    api.run("digits", overwrite=True, **settings | {"rounds": 1})
    again = read_json(tmp_path / "run" / "mlflow.json")["run"]
    assert again != found.info.run_id  # what was overwritten stays in MLflow as it was


def test_a_comparison_has_its_cells_side_by_side_in_mlflow(tmp_path):
    api.compare("fedavg,fedavg+finetune", rounds=1, out=tmp_path, **SETTINGS | {"track": "mlflow"})
    found = in_mlflow(tmp_path / "cells" / "mlruns")
    assert {run.data.params["personalize"] for run, _ in found.values()} == {"keep", "finetune"}
    assert all("result/accuracy/mean" in drawn for _, drawn in found.values())


def test_mlflow_is_silent_on_the_network(tmp_path):
    code = """
import sys
def look(event, arguments):
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect", "socket.sendto"):
        raise SystemExit(f"asks the network: {event} {arguments}")
sys.addaudithook(look)
from repper.cli import main
run = "run --clients 4 --rounds 1 --epochs 1 --width 0.25 --engine serial --track mlflow --out run"
code = main(run.split())
from mlflow.telemetry import get_telemetry_client
assert get_telemetry_client() is None
sys.exit(code)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mlruns").is_dir()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_without_the_package_a_run_does_not_begin(tmp_path, monkeypatch, name):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(RepperError, match=rf"pip install .*\[{name}\]'"):
        api.run("digits", out=tmp_path / "run", track=name, **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_an_unknown_program_is_refused(capsys):
    assert main(["run", "--track", "tensorboard,wandb"]) == 2
    assert "unknown program in --track 'wandb'" in capsys.readouterr().err


@pytest.mark.parametrize(("old", "trackers"), [("true", ("tensorboard",)), ("false", ())])
def test_folders_of_earlier_versions_are_read(tmp_path, old, trackers):
    file = tmp_path / "config.toml"
    file.write_text(f"tensorboard = {old}\n")
    assert Config(**read_config(file)).trackers == trackers


def test_a_tracker_that_fails_is_one_sentence(tmp_path):
    """Here MLflow's experiment was deleted; without MLflow the run can be resumed."""
    settings = {"rounds": 1, "epochs": 1, "clients": 4, "width": 0.25, "knn": 0, "engine": "serial"}
    api.run("digits", method="fedavg", track="mlflow", out=tmp_path / "a", **settings)
    client = tracking.mlflow_client(tmp_path / "mlruns")
    client.delete_experiment(client.get_experiment_by_name("repper").experiment_id)
    with pytest.raises(RepperError, match=r"--track mlflow failed: .*add --resume"):
        api.run("digits", method="fedavg", track="mlflow", out=tmp_path / "b", **settings)
    run = api.run("digits", method="fedavg", out=tmp_path / "b", resume=True, **settings)
    assert run.result["rounds"] == 1
