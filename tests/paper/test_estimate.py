"""What a table would cost, and what is left of it."""

import dataclasses

import pytest

from paper.small import TINY, TWO
from repper.basics.errors import RepperError
from repper.cli.progress import Display
from repper.cli.results import print_estimates
from repper.paper.estimate import estimate
from repper.paper.events import Estimate
from repper.runs.compare import compare, rows_of
from repper.runs.row import Row
from repper.runs.sweep import sweep
from repper.runs.time_left import CellStarted, WorkLeft, epochs_in
from repper.runs.tune import read_tuning
from repper.settings.config import Config


def test_estimates_are_of_every_panel_whose_data_is_here(tmp_path):
    [timed, missing] = estimate(TWO, TINY, how={"data_dir": str(tmp_path), "workers": 1})
    assert timed.seconds > 0
    assert missing.seconds is None
    assert "cinic10" in missing.missing


@pytest.mark.parametrize(
    ("how", "seeds", "factor"),
    [
        ({"workers": 1}, 1, 1),
        ({"workers": 8}, 1, 0.5),  # a round has two clients
        ({"workers": 8, "engine": "serial"}, 1, 1),
        ({"workers": 1}, 3, 3),
    ],
)
def test_an_estimate_is_of_all_views_of_every_training(how, seeds, factor, tmp_path, monkeypatch):
    monkeypatch.setattr("repper.paper.estimate._seconds_per_view", lambda config, data: 1.0)
    how = {"data_dir": str(tmp_path), **how}
    [found] = estimate(TWO, TINY, seeds=seeds, only="digits", how=how)
    # A round of two clients, of a quarter of the images each; RepPer has two views of each.
    assert found.seconds == pytest.approx(factor * (4 + 2) * 1437 / 4)


def test_work_is_counted_in_passes_over_clients():
    config = Config(clients=20, rounds=10, participation=0.2, epochs=3)
    assert epochs_in(config) == 10 * 4 * 3 * 2  # RepPer looks at two views
    assert epochs_in(dataclasses.replace(config, method="fedavg")) == 10 * 4 * 3
    assert epochs_in(dataclasses.replace(config, method="local")) == 2 * 20 * 3


def test_the_time_left_of_all_is_on_a_terminal_too(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    clock = iter([0.0, 0.0, 100.0, 200.0])
    monkeypatch.setattr("repper.cli.progress.time.monotonic", lambda: next(clock, 200.0))
    with Display() as display:
        for share, seconds in ((1.0, 0.0), (0.9, 100.0), (0.8, 100.0)):
            display.show(WorkLeft(share, seconds=seconds))
        [task] = display._bars.tasks
    assert task.completed == 20
    assert task.fields["note"] == "20% of all trainings done, 13:20 left"


def test_trainings_that_were_given_make_nothing_faster(capsys, monkeypatch):
    clock = iter([0.0, 0.0, 100.0, 200.0])
    monkeypatch.setattr("repper.cli.progress.time.monotonic", lambda: next(clock, 200.0))
    with Display() as display:
        for share, seconds in ((0.5, 0.0), (0.4, 100.0), (0.3, 100.0)):
            display.show(WorkLeft(share, 0.5, seconds))
        assert display._whole_left == "70% of all trainings done, 5:00 left"


def test_starts_count_once_for_every_run_that_is_left(monkeypatch):
    now = 0.0
    monkeypatch.setattr("repper.cli.progress.time.monotonic", lambda: now)
    with Display() as display:
        display.show(CellStarted(Row("fedavg", "keep"), 0, 1, 4, trained=False))
        display.show(WorkLeft(1.0, cells=3))
        now = 30.0  # of which 20 went by before the first round began
        display.show(WorkLeft(0.9, seconds=10.0, cells=3))
        assert display._whole_left == "10% of all trainings done, 2:30 left"  # 9 x 10 + 3 x 20


def test_a_comparison_says_what_is_left_of_the_whole(digits, tmp_path):
    config = Config(
        clients=4, rounds=2, epochs=1, participation=0.5, width=0.25, knn=0, engine="serial",
        out=str(tmp_path / "sweep"),
    )  # fmt: skip
    rows = rows_of("repper+linear,fedavg+keep,fedavg+linear")
    tuning = read_tuning({"every": {"lr": [0.001, 0.003]}, "tuning": {"rounds": 1}})
    events = list(sweep(config, rows[1:2], 1, "alpha", [1.0, 2.0], digits, tuning=tuning))
    left = [event for event in events if isinstance(event, WorkLeft)]
    # At each alpha two tries of one round each, then two rounds with what was chosen.
    assert [round(8 * one.share) for one in left] == [8, 7, 7, 6, 6, 5, 4, 4, 3, 3, 2, 2, 1, 0]
    assert [one.cells for one in left if not one.seconds] == [5, 4, 3, 2, 1, 0]
    config = dataclasses.replace(config, out=str(tmp_path / "rows"))
    left = [e for e in compare(config, rows, 1, digits) if isinstance(e, WorkLeft)]
    # RepPer looks at two views; the last row has the encoder of the one before.
    assert [round(6 * one.share) for one in left] == [6, 4, 2, 2, 1, 0, 0]
    assert [one.cells for one in left if not one.seconds] == [2, 1, 0]


def test_panels_without_data_are_named_and_not_in_the_sum(capsys):
    first, second = TWO.panels
    found = [Estimate(second, None, "cinic10 is not here"), Estimate(first, 65.0)]
    print_estimates("table2", found)
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert shown[:2] == [
        "digits, alpha 1 1:05",
        "cinic10, alpha 1 no estimate: cinic10 is not here",
    ]
    assert shown[2].startswith("1 of 2 1:05 of training on this machine")
    with pytest.raises(RepperError, match=r"^cannot estimate table2: cinic10 is not"):
        print_estimates("table2", found[:1])
