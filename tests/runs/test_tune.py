"""Rows choose their settings fairly: equally many tries, and never on a test image."""

import csv
import json

import numpy as np
import pytest

import repper as api
from conftest import last_json, make_dataset
from repper.basics.errors import RepperError
from repper.basics.seeds import Purpose, stream
from repper.data.dataset import set_apart
from repper.runs.compare import CellStarted, compare, rows_of
from repper.runs.comparison_table import Comparison
from repper.runs.execute import RoundDone
from repper.runs.row import Row
from repper.runs.sweep import asked_for
from repper.runs.tune import read_tuning
from repper.settings.config import Config

QUICK = {
    "clients": 4, "epochs": 1, "width": 0.25, "participation": 0.5, "engine": "serial",
    "rounds": 1, "knn": 0,
}  # fmt: skip
TRIES = {
    "tuning": {"share": 0.25},
    "every": {"lr": [1e-6, 0.003]},
    "repper": {"loss": ["paper", "usual"]},
    "fedavg": {"augment": ["none", "weak"]},
}
ROWS = "repper+linear,fedavg+finetune"


def tries_of(tables, rows=ROWS):
    found = read_tuning(tables).tries_of(rows_of(rows), Config())
    return {row.name: [one.name for one in some] for row, some in found.items()}


def test_a_grid_is_all_combinations_and_a_tighter_table_wins():
    own = {**TRIES, "fedavg+finetune": {"lr": [0.01, 0.02]}}
    assert tries_of(own) == {
        "repper+linear": [
            f"repper[lr={lr} loss={loss}]+linear"
            for lr in (1e-06, 0.003)
            for loss in ("paper", "usual")
        ],
        "fedavg+finetune": [
            f"fedavg[augment={level} lr={lr}]+finetune"
            for lr in (0.01, 0.02)
            for level in ("none", "weak")
        ],
    }


def test_tries_may_be_listed_one_by_one():
    listed = {"every": {"tries": [{"lr": 0.1, "batch": 8}, {"lr": 0.2}], "head-lr": [0.5]}}
    assert tries_of(listed, "fedavg+finetune")["fedavg+finetune"] == [
        "fedavg[batch=8 lr=0.1 head-lr=0.5]+finetune",
        "fedavg[lr=0.2 head-lr=0.5]+finetune",
    ]


def test_as_many_are_drawn_as_asked_for_whatever_the_other_rows():
    wide = {"tuning": {"tries": 3}, "every": {"lr": [0.1, 0.2, 0.3, 0.4], "batch": [8, 16]}}
    both = tries_of(wide)
    assert [len(some) for some in both.values()] == [3, 3]
    assert tries_of(wide, "fedavg+finetune")["fedavg+finetune"] == both["fedavg+finetune"]


@pytest.mark.parametrize(
    ("tables", "match"),
    [
        ({}, "has nothing to try"),
        ({"every": 3}, "every is not a table"),
        ({"every": {"lr": 0.1}}, "lr must be a list of values"),
        ({"every": {"lr": []}}, "lr must be a list of values"),
        ({"every": {"lr": [-1.0]}}, "--lr must be above 0"),
        ({"every": {"alpha": [0.1]}}, "all rows have the same alpha"),
        ({"every": {"tries": [3]}}, "tries must be a table of settings, or a list of such"),
        ({"every": {"tries": []}}, "tries must be a list of tables"),
        ({"every": {"lr": [None]}}, "lr has no value"),
        ({"every": {3: [0.1]}}, "every must be a table of settings"),
        ({"every": {"head-lr": [0.1], "head_lr": [0.2]}}, "a setting twice"),
        ({"every": {"init": ["0, 2"]}}, "may hold no spaces, commas and brackets"),
        ([1], "takes a file or tables"),
        ({"every": {"lr": [0.1, 0.1]}}, "a try of repper.linear twice"),
        ({"fedprox": {"mu": [0.1]}}, "unknown table in the tuning file 'fedprox'"),
        (
            {"repper": {"loss": ["paper", "usual"]}},
            r"fedavg.finetune has 1 tries and repper.linear",
        ),
        ({"tuning": {"tries": 5}, **{k: v for k, v in TRIES.items() if k != "tuning"}}, "not 5"),
        ({"tuning": {"trys": 5}, "every": {"lr": [0.1]}}, "unknown key in .tuning. of tune 'trys'"),
        ({"tuning": {"share": 0.9}, "every": {"lr": [0.1]}}, "share must be at most 0.5"),
    ],
)
def test_mistakes_in_a_tuning_file_are_one_sentence(tables, match):
    with pytest.raises(RepperError, match=match):
        tries_of(tables)


def test_images_set_apart_are_training_images_of_every_class_alone():
    data = make_dataset()
    found = set_apart(data, 0.25, stream(0, Purpose.TUNING))
    keys = [{image.tobytes() for image in split.images} for split in (found.train, found.test)]
    assert not keys[0] & keys[1]
    assert keys[0] | keys[1] == {image.tobytes() for image in data.train.images}
    counts, apart = (np.bincount(s.labels, minlength=3) for s in (data.train, found.test))
    assert apart.tolist() == [round(0.25 * n) for n in counts]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned") / "c"
    return folder, api.compare(ROWS, make_dataset(), tune=TRIES, out=folder, seeds=2, **QUICK)


def test_each_row_is_the_try_that_was_best_on_the_images_set_apart(tuned):
    folder, found = tuned
    tried = {line.row: line.accuracy for line in Comparison.open(folder / "tuning").lines}
    assert len(tried) == 8
    for method, line in zip(("repper", "fedavg"), found.lines, strict=True):
        own = {row: accuracy for row, accuracy in tried.items() if row.startswith(method)}
        assert tried[line.row] == max(own.values())
        assert line.tries == 4
    assert "tries" in (folder / "table.md").read_text()
    assert json.loads((folder / "table.json").read_text())["rows"][0]["tries"] == 4


def test_no_try_has_seen_a_test_image_or_a_seed_of_the_table(tuned):
    folder, _ = tuned
    data = make_dataset()
    for cell in (folder / "tuning" / "cells").iterdir():
        run = api.open_run(cell)
        assert run.config.seed == 1000
        tested = sum(int(score.tested.sum()) for score in run.scores())
        assert tested == len(set_apart(data, 0.25, stream(0, Purpose.TUNING)).test)


def test_tuning_never_looks_at_test_images(tmp_path):
    """With other test images, the same settings are chosen, by the same figures."""
    data = make_dataset()
    other = api.Dataset(data.name, data.classes, data.train, api.Split(255 - data.test.images, data.test.labels))  # fmt: skip
    found = []
    for name, images in (("a", data), ("b", other)):
        api.compare(ROWS, images, tune=TRIES, out=tmp_path / name, **QUICK)
        found.append(
            [(x.row, x.accuracy) for x in Comparison.open(tmp_path / name / "tuning").lines]
        )
    assert found[0] == found[1]


def test_a_tuned_comparison_is_resumed(tuned, tmp_path):
    folder = tmp_path / "c"
    config = Config(out=str(folder), **QUICK)
    tuning = read_tuning(TRIES)
    events = compare(config, rows_of(ROWS), 2, make_dataset(), tuning=tuning)
    for _ in range(3):  # in the middle of the tries
        next(event for event in events if isinstance(event, CellStarted))
    events.close()
    again = list(compare(config, rows_of(ROWS), 2, make_dataset(), tuning=tuning, resume=True))
    assert sum(isinstance(event, RoundDone) for event in again) == 8 - 2 + 4
    assert [(x.row, x.accuracy) for x in again[-1].comparison.lines] == [
        (x.row, x.accuracy) for x in tuned[1].lines
    ]


def test_a_comparison_that_cannot_be_tuned_writes_nothing(tmp_path):
    folder = tmp_path / "c"
    bad = {"every": {"lr": [0.1], "common-rounds": [0, 3]}}
    with pytest.raises(RepperError, match="common head needs at least one round"):
        api.compare("fedavg+common", make_dataset(), tune=bad, out=folder, **QUICK)
    with pytest.raises(RepperError, match="does not use mu"):
        api.compare("fedavg", make_dataset(), tune={"every": {"mu": [0.1]}}, out=folder, **QUICK)
    assert not folder.exists()


def test_a_sweep_is_a_comparison_at_every_value(repper, tmp_path):
    arguments = (
        "compare", "--methods", "repper+linear,fedavg+finetune", "--sweep", "alpha=0.5,5",
        "--clients", 4, "--rounds", 1, "--epochs", 1, "--width", 0.25, "--engine", "serial",
        "--out", "s", "--knn", 0,
    )  # fmt: skip
    process = repper(*arguments, "--json")
    found = last_json(process)
    assert (found["setting"], found["values"]) == ("alpha", [0.5, 5.0])
    accuracies = [[row["accuracy"] for row in one["rows"]] for one in found["comparisons"]]
    assert accuracies[0] != accuracies[1]
    for column in accuracies:
        for accuracy in column:
            assert f"{accuracy:.2f}" in process.stderr
    assert "already holds a sweep" in repper(*arguments).stderr
    assert "(2 of 2) alpha 5.0" in repper(*arguments, "--resume").stderr
    assert repper("report", "s", "--out", "r.html").returncode == 0
    [first, second] = csv.DictReader((tmp_path / "s" / "sweep.csv").read_text().splitlines())
    for value, one in zip(("0.5", "5.0"), found["comparisons"], strict=True):
        assert float(second[f"alpha_{value}"]) == one["rows"][1]["accuracy"]
        assert float(second[f"alpha_{value}_difference_low"]) == one["rows"][1]["low"]
        assert first[f"alpha_{value}_difference"] == ""
    latex = (tmp_path / "s" / "sweep.tex").read_text()
    assert (latex.count(r"\textbf{"), latex.count(r"\underline{")) == (2, 2)
    assert "tables: OK, 3 files beside sweep.json" in repper("verify", "s").stdout
    (tmp_path / "s" / "sweep.tex").write_text("71")
    assert "sweep.tex is damaged" in repper("verify", "s").stdout


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("alpha", "takes setting=value"),
        ("alpha=", "takes setting=value"),
        ("alpha=1,1.0", "a value twice"),
        ("alpha=-1", "--alpha must be above 0"),
        ("alpa=1", "unknown setting in --sweep 'alpa', did you mean 'alpha'"),
        ("seed=1,2", "unknown setting in --sweep 'seed'"),
        ("method=fedavg", "unknown setting in --sweep 'method'"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(text, match):
    with pytest.raises(RepperError, match=match):
        asked_for(text)


def test_a_rows_brackets_are_not_tried_over(tmp_path):
    with pytest.raises(RepperError, match="has lr in its brackets, and the tuning file tries"):
        tries_of({"every": {"lr": [0.1, 0.2]}}, "fedavg[lr=0.5]")


def test_overwriting_keeps_what_the_comparison_begins_with(tuned):
    folder, _ = tuned
    cell = next((folder / "tuning" / "cells").iterdir())
    with pytest.raises(RepperError, match="--overwrite would delete what --init"):
        api.compare("repper", make_dataset(), out=folder, overwrite=True, init=str(cell), **QUICK)
    row = f"repper[init={cell}]+linear"
    with pytest.raises(RepperError, match="--overwrite would delete what --init"):
        api.compare(row, make_dataset(), out=folder, overwrite=True, **QUICK)
    assert cell.is_dir()


def test_overwriting_a_sweep_keeps_what_it_begins_with(repper, tmp_path):
    command = ("compare", "--sweep", "lr=0.01,0.1", "--out", "s", *TINY, "--methods")
    assert repper(*command, "fedavg").returncode == 0
    cell = tmp_path / "s" / "lr=0.01" / "cells" / "fedavg+keep-seed0"
    for flags in (("--init", cell), ("--reuse", "s")):
        process = repper(*command, "fedprox", "--overwrite", *flags)
        assert process.returncode == 2
        assert f"--overwrite would delete what {flags[0]}" in process.stderr
    assert (cell / "result.json").is_file()


@pytest.mark.parametrize("swept", ["mu=0.1,1", "classes-per-client=2,3"])
def test_a_sweep_over_what_changes_nothing_is_refused(repper, tmp_path, swept):
    process = repper("compare", "--methods", "fedavg", "--sweep", swept, "--out", "s", *TINY)
    assert process.returncode == 2
    assert "would change nothing" in process.stderr
    assert not (tmp_path / "s").exists()


def test_a_tuned_comparison_goes_on_only_as_it_was_begun(tuned, tmp_path):
    folder, _ = tuned
    with pytest.raises(RepperError, match="but this command is without --tune"):
        api.compare(ROWS, make_dataset(), out=folder, resume=True, **QUICK)
    other = TRIES | {"tuning": {"share": 0.3}}
    with pytest.raises(RepperError, match="was begun with .tuning."):
        api.compare(ROWS, make_dataset(), out=folder, resume=True, tune=other, **QUICK)


TINY = (
    "--clients", 4, "--rounds", 1, "--epochs", 1, "--width", 0.25, "--engine", "serial", "--knn", 0,
)  # fmt: skip


def test_a_sweep_refuses_a_bad_value_before_the_first_one_trains(repper, tmp_path):
    process = repper(
        "compare", "--methods", "fedavg", "--sweep", "min-test=1,100000", "--out", "s", *TINY
    )
    assert process.returncode == 2
    assert "at least 100000 test images" in process.stderr
    assert not (tmp_path / "s").exists()


def test_rows_of_a_sweep_keep_the_names_that_were_asked_for(repper, tmp_path):
    (tmp_path / "t.toml").write_text("[every]\nlr = [0.01, 0.001]\n")
    command = (
        "compare", "--methods", "fedavg[augment=none],fedavg[augment=weak]", "--tune", "t.toml",
        "--out", "s", *TINY,
    )  # fmt: skip
    found = last_json(repper(*command, "--sweep", "alpha=0.5,5", "--json"))
    asked = [[row["asked"] for row in one["rows"]] for one in found["comparisons"]]
    assert asked == 2 * [["fedavg[augment=none]+keep", "fedavg[augment=weak]+keep"]]
    text = (tmp_path / "s" / "sweep.md").read_text()
    assert "| fedavg[augment=none]+keep |" in text
    assert "difference to fedavg[augment=none]+keep" in text
    # Less is asked for: what is left over is neither kept nor shown.
    assert repper(*command, "--sweep", "alpha=5", "--overwrite").returncode == 0
    assert [path.name for path in sorted((tmp_path / "s").glob("alpha=*"))] == ["alpha=5.0"]
    clash = repper(*command[: -len(TINY)], *TINY, "--sweep", "lr=0.1,0.2")
    assert "sets lr, which --sweep sets for every row" in clash.stderr


def test_cells_of_different_rows_are_different_folders(tmp_path):
    names = ("fedavg[init=i/b]", "fedavg[init=i-b]", "fedavg[init=v1.0]", "fedavg[init=v1]")
    rows = rows_of(",".join(names))
    assert len({row.cell(tmp_path, 0) for row in rows}) == 4
    assert [Row.named(row.name) for row in rows] == rows


def test_rows_are_scored_on_the_same_clients():
    with pytest.raises(RepperError, match="all rows have the same personalize-clients"):
        rows_of("repper[personalize-clients=1]+linear")


def test_two_rows_do_not_try_the_same():
    tables = {"fedavg+linear": {"lr": [0.01, 0.1]}, "fedavg[lr=0.01]+linear": {"batch": [8, 9]}}
    read_tuning(tables).tries_of(rows_of("fedavg+linear,fedavg[lr=0.01]+linear"), Config())
    tables["fedavg[lr=0.01]+linear"] = {"tries": [{}, {"batch": 9}]}
    with pytest.raises(RepperError, match=r"both try fedavg\[lr=0.01\]\+linear"):
        read_tuning(tables).tries_of(rows_of("fedavg+linear,fedavg[lr=0.01]+linear"), Config())


def test_all_tries_have_the_same_rounds():
    tuning = read_tuning({"tuning": {"rounds": 2}, "every": {"lr": [0.01, 0.1]}})
    with pytest.raises(RepperError, match="has rounds of its own, and .tuning. gives all tries 2"):
        tuning.tries_of(rows_of("fedavg[rounds=60]+linear"), Config())
