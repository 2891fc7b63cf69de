"""What a table would cost, and what is left of it."""

import dataclasses

import pytest

from paper.small import TINY, TWO
from repper.cli.progress import Display
from repper.config import Config
from repper.paper.estimate import estimate
from repper.paper.events import WorkLeft
from repper.paper.panels import epochs_in


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
        for share in (1.0, 0.9, 0.8):
            display.show(WorkLeft(share))
        [task] = display._bars.tasks
    assert task.completed == 20
    assert task.fields["note"] == "20% of all is done, 13:20 left"


def test_trainings_that_were_given_make_nothing_faster(capsys, monkeypatch):
    clock = iter([0.0, 0.0, 100.0, 200.0])
    monkeypatch.setattr("repper.cli.progress.time.monotonic", lambda: next(clock, 200.0))
    with Display() as display:
        for share, given in ((0.5, 0.5), (0.4, 0.5), (0.3, 0.5)):
            display.show(WorkLeft(share, given))
        assert display._whole_left == "70% of all is done, 5:00 left"
