"""Settings that change nothing are named; those that change something are not."""

import pytest

from repper.cli.unused_settings import idle
from repper.heads import HEADS
from repper.settings.config import OPTIONS, Config


def listed(names):
    *most, last = names
    return f"{', '.join(most)} and {last} heads"


@pytest.mark.parametrize(
    ("settings", "flag", "whose"),
    [
        ({"method": "fedavg", "temperature": 0.5}, "--temperature", "repper and calibrated"),
        ({"method": "fedavg", "projection": "mlp"}, "--projection", "repper"),
        ({"mu": 0.5}, "--mu", "fedprox"),
        ({"server": "window", "server_lr": 0.5}, "--server-lr", "fedavgm, fedadam and fedyogi"),
        ({"partition": "iid", "alpha": 0.1}, "--alpha", "--partition dirichlet"),
        ({"classes_per_client": 3}, "--classes-per-client", "--partition shards"),
        ({"head_choose_c": True}, "--head-choose-c", "svm and logistic heads"),
        ({"personalize": "mlp", "svm_kernel": "rbf"}, "--svm-kernel", "svm heads"),
        ({"personalize": "svm", "head_lr": 0.1}, "--head-lr", "linear, mlp and finetune heads"),
        (
            {"method": "fedavg", "personalize": "finetune", "head_scale": True},
            "--head-scale",
            listed(HEADS),
        ),
        (
            {"method": "fedavg", "personalize": "keep", "head_input": "z"},
            "--head-input",
            listed(HEADS),
        ),
    ],
)
def test_what_changes_nothing_is_named(settings, flag, whose):
    assert list(idle(settings, [Config(**settings)])) == [
        f"{flag} has no effect here: it is for {whose}"
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.5, "loss": "usual", "alpha": 0.1, "head_lr": 0.1, "head_scale": True},
        {"method": "fedprox", "mu": 0.5, "personalize": "finetune", "head_epochs": 3},
        {"method": "fedavg", "temperature": OPTIONS["temperature"].default},
        {"personalize": "svm", "head_choose_c": True, "svm_kernel": "rbf", "head_c": 0.1},
        {"head_c": 0.1, "overrides": {3: {"personalize": "logistic"}}},
        {"method": "fedavg", "rounds": 3, "epochs": 2, "lr": 0.1, "batch": 7, "augment": "weak"},
    ],
)
def test_what_changes_something_is_not(settings):
    assert list(idle(settings, [Config(**settings)])) == []


def test_one_row_that_uses_it_is_enough():
    given = {"temperature": 0.5, "head_c": 0.1}
    rows = [Config(method=m, **given) for m in ("fedavg", "repper")]
    assert [s.split()[0] for s in idle(given, rows)] == ["--head-c"]
    assert [s.split()[0] for s in idle(given, rows[:1])] == ["--temperature", "--head-c"]


def test_only_what_was_given_is_spoken_of():
    one = Config(method="fedavg", personalize="linear", temperature=0.5, head_lr=0.1)
    assert list(idle({"head_lr"}, [one])) == []
    assert len(list(idle({"head_lr", "temperature"}, [one]))) == 1


def test_every_command_that_trains_says_it(repper, tmp_path):
    small = ("--clients", 2, "--rounds", 1, "--epochs", 1, "--width", 0.25, "--engine", "serial")
    run = repper("run", *small, "--mu", 1, "--out", tmp_path / "run")
    assert "note: --mu has no effect here: it is for fedprox\n" in run.stderr
    compared = repper(
        "compare", *small, "--methods", "fedavg,fedprox", "--mu", 1, "--head-c", 2,
        "--out", tmp_path / "all",
    )  # fmt: skip
    assert [n for n in compared.stderr.splitlines() if n.startswith("note")] == [
        "note: --head-c has no effect here: it is for svm and logistic heads"
    ]
    joined = repper(
        "join", "--run", tmp_path / "run", "--clients", 2, "--head-c", 2, "--alpha", 1,
        "--out", tmp_path / "new",
    )  # fmt: skip
    assert joined.stderr.count("note: ") == 1
    assert "note: --head-c has no" in joined.stderr


def test_a_federation_says_it_before_it_begins(repper, tmp_path):
    server = pytest.importorskip("repper.flower.homes").Server(tmp_path / "home")
    server.prepare("127.0.0.1", 9, [])  # where nothing listens
    done = repper("federate", server.home, "--mu", 1, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert done.stderr.startswith("note: --mu has no effect here: it is for fedprox\n")
