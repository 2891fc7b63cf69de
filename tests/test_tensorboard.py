"""Event files for TensorBoard, read back with its own reader."""

import pytest

import repper as api
from repper.errors import RepperError
from repper.runs import tensorboard as board

pytest.importorskip("tensorboard", reason="pip install 'repper[tensorboard]'")

SETTINGS = {
    "clients": 4, "participation": 0.5, "epochs": 1, "width": 0.25, "engine": "serial", "knn": 100,
    "evaluate_every": 1, "tensorboard": True,
}  # fmt: skip


def scalars(folder):
    """What TensorBoard would draw, by name: (step, value) of each point."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {
        name: [(event.step, event.value) for event in read.Scalars(name)]
        for name in read.Tags()["scalars"]
    }


def test_a_board_shows_what_the_log_says_with_and_without_an_interruption(tmp_path):
    api.run("digits", rounds=1, out=tmp_path, **SETTINGS)
    run = api.run("digits", rounds=3, out=tmp_path, resume=True, **SETTINGS)
    drawn = scalars(tmp_path)
    for name in ("loss", "knn", "seconds", "bytes_up"):
        expected = [(record["round"], pytest.approx(record[name])) for record in run.rounds()]
        assert drawn[f"round/{name}"] == expected
    by_round = [(r["round"], pytest.approx(r["accuracy"]["mean"])) for r in run.rounds()]
    assert drawn["round/accuracy/mean"] == by_round
    assert drawn["result/accuracy/mean"][-1] == (3, pytest.approx(run.accuracy["mean"]))


def test_a_board_changes_no_result_and_can_be_had_later(tmp_path):
    plain = api.run("digits", rounds=1, out=tmp_path / "plain", **SETTINGS | {"tensorboard": False})
    assert not (tmp_path / "plain" / "tensorboard").exists()
    watched = api.run("digits", rounds=1, out=tmp_path / "watched", **SETTINGS)
    assert watched.result["heads_digest"] == plain.result["heads_digest"]
    later = api.run("digits", rounds=2, out=tmp_path / "plain", resume=True, **SETTINGS)
    assert [step for step, _ in scalars(later.folder)["round/loss"]] == [2]


def test_without_the_package_a_run_does_not_begin(tmp_path, monkeypatch):
    monkeypatch.setattr(board, "find_spec", lambda name: None)
    with pytest.raises(RepperError, match=r"pip install .*\[tensorboard\]'"):
        api.run("digits", out=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()
