"""A comparison is fair, trains no more than it must, and its table says what its runs found."""

import csv
import dataclasses
import json
import shutil

import numpy as np
import pytest

import repper as api
from conftest import last_json, make_dataset
from repper.basics.documents import read_json
from repper.basics.errors import RepperError
from repper.runs.compare import CellStarted, Compared, compare, rows_of
from repper.runs.comparison_table import Comparison, interval, over_rounds
from repper.runs.execute import RoundDone, Started
from repper.runs.row import Row
from repper.runs.run_folder import training_of
from repper.settings.config import Config

QUICK = {
    "clients": 6, "epochs": 1, "width": 0.25, "participation": 0.34, "engine": "serial",
    "rounds": 2, "knn": 0,
}  # fmt: skip
ROWS = "repper+linear,repper+svm,fedrep+finetune,fedrep,fedavg"


def run_all(digits, folder, rows=ROWS, seeds=1, resume=False, **settings):
    config = Config(out=str(folder), **QUICK | settings)
    return list(compare(config, rows_of(rows), seeds, digits, resume=resume))


@pytest.fixture(scope="module")
def done(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "c"
    return folder, run_all(digits, folder, seeds=2)


def table(events) -> Comparison:
    assert isinstance(events[-1], Compared)
    return events[-1].comparison


def test_rows_that_differ_only_in_the_personalizer_share_one_training(done):
    _, events = done
    assert sum(isinstance(e, CellStarted) for e in events) == 5 * 2
    rounds = [e for e in events if isinstance(e, RoundDone)]
    assert len(rounds) == 3 * 2 * 2  # repper, fedrep and fedavg; two rounds; two seeds
    assert [e.trained for e in events if isinstance(e, CellStarted)][:5] == [
        False, True, False, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize("row", ["repper+svm", "fedrep+keep"])
def test_a_row_without_a_training_of_its_own_is_the_run_it_stands_for(done, digits, tmp_path, row):
    folder, _ = done
    method, _, personalize = row.partition("+")
    alone = api.run(
        digits, out=tmp_path / "alone", method=method, personalize=personalize, seed=1, **QUICK
    )
    cell = api.open_run(folder / "cells" / f"{row}-seed1")
    for key in ("encoder_digest", "heads_digest", "accuracy", "cost", "groups"):
        assert cell.result[key] == alone.result[key], key
    assert [r["loss"] for r in cell.rounds()] == [r["loss"] for r in alone.rounds()]
    assert cell.predict(0, digits.test.images[:3]) == alone.predict(0, digits.test.images[:3])


def test_what_there_is_of_an_unfinished_comparison_is_its_whole_seeds(done):
    folder, events = done
    config = Config(out=str(folder), **QUICK)
    found = Comparison.of(folder, config, rows_of(ROWS), seeds=3)
    assert (found.seeds, found.so_far) == ((0, 1), "2 of 3 seeds")
    assert found.lines == table(events).lines
    assert found.caption().startswith("Not finished: 2 of 3 seeds so far. ")
    assert Comparison.of(folder, config, rows_of("ditto"), seeds=1) is None
    some = Comparison.of(folder, config, rows_of("ditto,fedavg"), seeds=1)
    assert ([line.row for line in some.lines], some.so_far) == (["fedavg+keep"], "1 of 2 rows")
    assert table(events).so_far == ""
    assert Comparison.open(folder) == table(events)
    for row in (Row("a", "b"), Row("lg-fedavg", "keep", (("augment", "weak"), ("lr", 1e-05)))):
        assert Row.named(row.name) == row


def test_trainings_of_another_folder_are_taken(done, digits, tmp_path):
    folder, _ = done
    config = Config(out=str(tmp_path / "other"), **QUICK)
    rows = rows_of("repper+mlp,fedrep,ditto")
    events = list(compare(config, rows, 1, digits, reuse=folder))
    assert [e.trained for e in events if isinstance(e, CellStarted)] == [True, True, False]
    taken, first = (
        api.open_run(at / "cells" / "fedrep+keep-seed0") for at in (tmp_path / "other", folder)
    )
    for key in ("encoder_digest", "heads_digest", "accuracy", "cost"):
        assert taken.result[key] == first.result[key], key
    assert taken.private.begun
    assert training_of(taken.folder).parent == tmp_path / "other" / "trainings"
    # Other settings, or other images, are another training.
    longer = list(compare(
        Config(out=str(tmp_path / "longer"), **QUICK | {"rounds": 1}), rows[1:2], 1, digits, reuse=folder
    ))  # fmt: skip
    assert not next(e for e in longer if isinstance(e, CellStarted)).trained
    toy = make_dataset(train=600, test=120)
    others = list(compare(
        Config(out=str(tmp_path / "others"), **QUICK), rows[1:2], 1, toy, reuse=folder
    ))  # fmt: skip
    assert not next(e for e in others if isinstance(e, CellStarted)).trained
    with pytest.raises(RepperError, match="there is no folder .*nothing to reuse trainings of"):
        next(compare(config, rows, 1, digits, resume=True, reuse=tmp_path / "nothing"))
    with pytest.raises(RepperError, match="leave out --evaluate-every"):
        next(compare(
            Config(out=str(tmp_path / "e"), evaluate_every=1, **QUICK), rows, 1, digits, reuse=folder
        ))  # fmt: skip
    assert not (tmp_path / "e").exists()


def test_what_is_needed_is_not_overwritten(done, digits):
    folder, _ = done
    config, rows = Config(out=str(folder), **QUICK), rows_of("fedavg")
    for reuse, init in (
        (folder, None), (folder / "cells", None), (None, folder / "cells" / "fedavg+keep-seed0"),
    ):  # fmt: skip
        given = dataclasses.replace(config, init=init and str(init))
        with pytest.raises(RepperError, match="--overwrite would delete what --(reuse|init)"):
            next(compare(given, rows, 1, digits, overwrite=True, reuse=reuse))
    assert (folder / "cells" / "fedavg+keep-seed0" / "result.json").is_file()


def test_rows_that_began_elsewhere_are_not_put_into_one_table(digits, tmp_path):
    quick = QUICK | {"rounds": 1}
    first, second = (api.run(digits, out=tmp_path / n, seed=int(n), **quick) for n in "12")
    start = tmp_path / "start"
    shutil.copyfile(first.folder / "encoder.safetensors", start)
    config = Config(out=str(tmp_path / "c"), init=str(start), **quick)
    list(compare(config, rows_of("fedavg"), 1, digits))
    shutil.copyfile(second.folder / "encoder.safetensors", start)
    with pytest.raises(RepperError, match="the encoder in .*start has changed since .* was begun"):
        list(compare(config, rows_of("fedavg,fedprox"), 1, digits, resume=True))
    # Nor is its training taken for another.
    other = dataclasses.replace(config, out=str(tmp_path / "d"))
    events = compare(other, rows_of("fedavg"), 1, digits, reuse=tmp_path / "c")
    assert not next(event for event in events if isinstance(event, CellStarted)).trained


def damage_checkpoint(training):
    path = training / "checkpoint" / "last.safetensors"
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))


def lose_rounds(training):
    (training / "rounds.jsonl").write_text("")


def lose_private(training):
    shutil.rmtree(training / "private")


@pytest.mark.parametrize("harm", [damage_checkpoint, lose_rounds, lose_private, shutil.rmtree])
def test_a_damaged_training_is_not_reused_and_own_work_stays(done, digits, tmp_path, harm):
    folder, _ = done
    shelf = tmp_path / "shelf"
    one = shutil.copytree(folder, shelf / "one") / "cells" / "fedrep+keep-seed0"
    shutil.rmtree(one.with_name("fedrep+finetune-seed0"))
    harm(training_of(one))
    # What is no run, or none that this version can read, is passed over.
    (shelf / "other").mkdir()
    (shelf / "other" / "result.json").write_text("{}")
    shutil.copytree(one, shelf / "newer")
    with (shelf / "newer" / "config.toml").open("a") as file:
        file.write("\nunheard-of = 1\n")
    config = Config(out=str(tmp_path / "out"), **QUICK)
    rows = rows_of("fedrep")
    running = compare(config, rows, 1, digits)
    next(event for event in running if isinstance(event, RoundDone))
    running.close()
    again = list(compare(config, rows, 1, digits, resume=True, reuse=shelf))
    [cell] = [event for event in again if isinstance(event, CellStarted)]
    assert not cell.trained
    assert [str(shelf / "one" / "trainings") in damage for damage in cell.passed_over] == [True]
    assert next(e for e in again if isinstance(e, Started)).finished_rounds == 1
    first = api.open_run(folder / "cells" / "fedrep+keep-seed0")
    assert api.open_run(rows[0].cell(tmp_path / "out", 0)).accuracy == first.accuracy


def test_a_reused_training_keeps_where_it_was_made(done, digits, tmp_path):
    folder, _ = done
    shelf = tmp_path / "shelf"
    shutil.copytree(folder, shelf)
    path = training_of(shelf / "cells" / "fedrep+finetune-seed0") / "environment.json"
    made = read_json(path) | {"processor": "an abacus"}
    path.write_text(json.dumps(made))
    list(
        compare(
            Config(out=str(tmp_path / "out"), **QUICK), rows_of("fedrep"), 1, digits, reuse=shelf
        )
    )
    found = json.loads((tmp_path / "out/cells/fedrep+keep-seed0/environment.json").read_text())
    assert (found["training"], found["reused"]) == (made, True)
    assert found["processor"] != "an abacus"


def test_all_rows_of_a_seed_have_the_same_clients_and_cohorts(done):
    folder, _ = done
    hashes, cohorts = {}, {}
    for path in (folder / "cells").iterdir():
        seed = path.name[-1]
        manifest = json.loads((path / "partition.json").read_text())
        hashes.setdefault(seed, set()).add(manifest["hash"])
        rounds = api.open_run(path).rounds()
        cohorts.setdefault(seed, set()).add(str([r["cohort"] for r in rounds]))
    assert [len(found) for found in (*hashes.values(), *cohorts.values())] == [1, 1, 1, 1]
    assert hashes["0"] != hashes["1"]


def test_finished_cells_are_not_run_again(done, digits):
    folder, before = done
    again = run_all(digits, folder, seeds=2, resume=True)
    assert [type(e) for e in again] == [Compared]
    assert table(again) == table(before)


def test_a_lost_cell_is_made_again_without_training(done, digits):
    folder, before = done
    (folder / "cells" / "fedrep+keep-seed0" / "result.json").unlink()
    (folder / "cells" / "fedrep+keep-seed0" / "config.toml").unlink()
    again = run_all(digits, folder, seeds=2, resume=True)
    assert sum(isinstance(e, CellStarted) for e in again) == 1
    assert not any(isinstance(e, RoundDone) for e in again)
    for line, first in zip(table(again).lines, table(before).lines, strict=True):
        assert (line.row, line.accuracy, line.low) == (first.row, first.accuracy, first.low)


def test_the_table_says_what_the_runs_found(done):
    folder, events = done
    found = table(events)
    assert found.reference == "repper+linear"
    runs = {
        row: [api.open_run(folder / "cells" / f"{row}-seed{seed}") for seed in (0, 1)]
        for row in ("repper+linear", "fedavg+keep")
    }
    line = next(line for line in found.lines if line.row == "fedavg+keep")
    means = [run.accuracy["mean"] for run in runs["fedavg+keep"]]
    assert line.accuracy == pytest.approx(np.mean(means))
    assert line.deviation == pytest.approx(abs(means[0] - means[1]) / 2**0.5)
    gains = [
        np.mean([a.accuracy - b.accuracy for a, b in zip(mine, theirs, strict=True)])
        for mine, theirs in zip(
            *([run.scores() for run in runs[r]] for r in ("fedavg+keep", "repper+linear")),
            strict=True,
        )
    ]
    assert line.difference == pytest.approx(np.mean(gains))
    half = 12.706204736174694 * np.std(gains, ddof=1) / 2**0.5  # Student's t of two seeds
    assert (line.low, line.high) == pytest.approx((line.difference - half, line.difference + half))
    for name, key in (
        ("spread", "std"), ("head_classes", "head_classes"), ("tail_classes", "tail_classes"),
        ("worst_tenth", "worst_tenth"),
    ):  # fmt: skip
        each = [run.accuracy[key] for run in runs["fedavg+keep"]]
        assert getattr(line, name) == pytest.approx(np.mean(each))
    assert found.lines[0].difference is None


def test_costs_are_images_and_bytes_of_stage_1(done):
    folder, events = done
    lines = {line.row: line for line in table(events).lines}
    images = {}
    for row in ("repper+linear", "fedavg+keep", "fedrep+keep"):
        rounds = [api.open_run(folder / "cells" / f"{row}-seed{s}").rounds() for s in (0, 1)]
        images[row] = sum(r["examples"] for log in rounds for r in log) / 2
        assert lines[row].bytes_up == lines[row].bytes_down > 0
    assert lines["repper+linear"].images == 2 * images["repper+linear"]  # two views
    assert lines["fedavg+keep"].images == images["fedavg+keep"]
    assert (
        lines["fedrep+keep"].images == 2 * images["fedrep+keep"]
    )  # E = 1: one epoch for each half
    head = 4 * (64 * 10 + 10)
    assert lines["fedavg+keep"].bytes_up - lines["repper+linear"].bytes_up == 2 * 2 * head


def test_the_files_hold_the_table(done):
    folder, events = done
    found = table(events)
    opened = Comparison.open(folder)
    assert [(x.row, x.accuracy, x.high) for x in opened.lines] == [
        (x.row, x.accuracy, x.high) for x in found.lines
    ]
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    assert [row["row"] for row in rows] == [line.row for line in found.lines]
    assert [float(row["accuracy"]) for row in rows] == [line.accuracy for line in found.lines]
    text = (folder / "table.md").read_text()
    order = sorted(found.lines, key=lambda line: -line.accuracy)
    assert f"**{order[0].accuracy:.2f} ±" in text
    distinct = [line for line in order if line.accuracy < order[0].accuracy]
    assert f"<u>{distinct[0].accuracy:.2f} ±" in text


def test_from_python(digits, tmp_path):
    found = api.compare(
        ["fedavg[augment=none]", "fedavg[augment=none]+finetune"], digits, out=tmp_path / "c", **QUICK
    )  # fmt: skip
    assert found.reference == "fedavg[augment=none]+keep"
    assert found.lines[1].accuracy > found.lines[0].accuracy


def test_rows_have_settings_of_their_own(digits, tmp_path):
    rows = rows_of("repper+linear,fedavg[batch=16 augment=none],fedprox[mu=0.5]+finetune")
    assert rows[1:] == [
        Row("fedavg", "keep", (("augment", "none"), ("batch", 16))),
        Row("fedprox", "finetune", (("mu", 0.5),)),
    ]
    assert [Row.named(row.name) for row in rows] == rows
    folder = tmp_path / "c"
    events = run_all(digits, folder, "repper+linear,fedavg[augment=none batch=16]")
    own = {
        p.name: (c.augment, c.batch)
        for p in (folder / "cells").iterdir()
        for c in [api.open_run(p).config]
    }
    assert own == {
        "repper+linear-seed0": ("medium", 64),
        "fedavg-augment=none-batch=16+keep-seed0": ("none", 16),
    }
    assert table(events).lines[1].row == "fedavg[augment=none batch=16]+keep"
    # Another row goes into the same folder: only that one is run.
    both = run_all(digits, folder, "repper+linear,fedavg", resume=True)
    assert [e.row.name for e in both if isinstance(e, CellStarted)] == ["fedavg+keep"]


def test_a_rows_own_setting_is_that_of_a_run_with_it(digits, tmp_path):
    events = run_all(digits, tmp_path / "c", "fedprox[mu=0.5 lr=0.003]+finetune")
    alone = api.run(
        digits, out=tmp_path / "a", method="fedprox", mu=0.5, personalize="finetune",
        **QUICK | {"lr": 0.003},
    )  # fmt: skip
    [[cell]] = table(events).runs().values()
    assert cell.result["encoder_digest"] == alone.result["encoder_digest"]
    assert cell.result["heads_digest"] == alone.result["heads_digest"]


def test_rows_with_other_heads_share_a_training_and_others_do_not(digits, tmp_path):
    rows = "repper[head-c=0.1]+svm,repper[head-c=1]+svm,repper[lr=0.01 head-c=1]+svm"
    events = run_all(digits, tmp_path / "c", rows)
    assert [e.trained for e in events if isinstance(e, CellStarted)] == [False, True, False]


def test_rows_that_are_tested_on_the_way_train_each_for_itself(digits, tmp_path):
    folder = tmp_path / "c"
    events = run_all(digits, folder, "repper+linear,repper+svm", seeds=2, evaluate_every=1)
    assert sum(isinstance(e, RoundDone) for e in events) == 8
    found = {}
    for row in ("repper+linear", "repper+svm"):
        runs = [api.open_run(folder / "cells" / f"{row}-seed{seed}") for seed in (0, 1)]
        for run in runs:
            assert run.rounds()[-1]["accuracy"] == run.accuracy
        found[row] = np.array([[r["accuracy"]["mean"] for r in run.rounds()] for run in runs])
    # Means and deviations over seeds after every round, and differences paired by seed.
    heading, *lines = table(events).table_over_rounds().texts()
    assert heading == ["round", "repper+linear", "repper+svm"]
    for place, line in enumerate(lines):
        own, other = (found[row][:, place] for row in heading[1:])
        gain, low, high = interval(list(other - own))
        assert line == [
            str(place + 1),
            f"{own.mean():.2f} ± {own.std(ddof=1):.2f}",
            f"{other.mean():.2f} ± {other.std(ddof=1):.2f} ({gain:+.2f} [{low:+.2f}, {high:+.2f}])",
        ]
    markdown = (folder / "table.md").read_text()
    assert f"| {' | '.join(lines[0])} |" in markdown
    assert "counts as the number of rounds" not in markdown
    # To test heads on the way changes no training: it can be taken for others, without the tests.
    config = Config(out=str(tmp_path / "other"), **QUICK)
    again = list(compare(config, rows_of("repper+logistic,repper+svm"), 1, digits, reuse=folder))
    assert [e.reused for e in again if isinstance(e, CellStarted)] == [True, False]
    assert not any(isinstance(e, RoundDone) for e in again)
    assert table(again).table_over_rounds() is None
    assert table(again).lines[1].accuracy == found["repper+svm"][0, -1]
    with (folder / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    for row in rows:
        value = found[row["row"]][int(row["seed"]), int(row["round"]) - 1]
        assert float(row["accuracy"]) == value


def test_rounds_in_which_all_take_part_stand_where_others_have_trained_as_much(digits, tmp_path):
    folder = tmp_path / "c"
    settings = {"evaluate_every": 1, "rounds": 4, "participation": 0.5}
    events = run_all(digits, folder, "fedavg,local", **settings)
    _, *lines = table(events).table_over_rounds().texts()
    assert [line[0] for line in lines] == ["1", "2", "3", "4"]
    assert [line[2] == "-" for line in lines] == [True, False, True, False]
    assert "counts as the number of rounds of other methods" in (folder / "table.md").read_text()
    ends = [api.open_run(path).accuracy["mean"] for path in sorted((folder / "cells").iterdir())]
    assert lines[-1][1:] == [f"{ends[0]:.2f}", f"{ends[1]:.2f} ({ends[1] - ends[0]:+.2f})"]
    # A round that one of the seeds has not is left out.
    other = api.run(
        digits, out=tmp_path / "other", method="fedavg", personalize="keep",
        **QUICK | settings | {"evaluate_every": 2},
    )  # fmt: skip
    runs = [api.open_run(folder / "cells" / "fedavg+keep-seed0"), other]
    both = over_rounds(runs, "accuracy")
    assert list(both) == [2, 4]
    assert both[4] == [run.accuracy["mean"] for run in runs]


def test_a_table_without_rows_is_refused(done, tmp_path):
    folder, _ = done
    found = read_json(folder / "table.json")
    for empty in ("rows", "seeds"):
        (tmp_path / "table.json").write_text(json.dumps(found | {empty: []}))
        with pytest.raises(RepperError, match=r"table.json is not the table of a comparison"):
            Comparison.open(tmp_path)


def test_without_a_test_on_the_way_there_is_no_table_of_rounds(done):
    folder, events = done
    assert table(events).table_over_rounds() is None
    assert "after rounds" not in (folder / "table.md").read_text()
    assert not (folder / "rounds.csv").exists()


def test_cells_with_other_images_do_not_come_into_one_table(tmp_path):
    run_all(make_dataset(), tmp_path / "c", "fedavg", data="toy", min_train=2)
    with pytest.raises(RepperError, match="was made for another data set"):
        run_all(
            make_dataset(train=90), tmp_path / "c", "fedavg,local", data="toy", min_train=2, resume=True
        )  # fmt: skip


def test_overwriting_begins_without_the_old_table_and_touches_nothing_else(digits, tmp_path):
    folder = tmp_path / "c"
    run_all(digits, folder, "fedavg", evaluate_every=1)
    assert (folder / "rounds.csv").exists()
    (folder / "runs").mkdir()
    (folder / "runs" / "mine.txt").write_text("mine")
    config = Config(out=str(folder), **QUICK | {"rounds": 1})
    events = compare(config, rows_of("fedavg"), 1, digits, overwrite=True)
    next(events)
    assert sorted(p.name for p in folder.iterdir() if p.name[0] != ".") == [
        "comparison.toml",
        "runs",
    ]
    events.close()
    (folder / "comparison.toml").write_text("[tool]\nx = 1\n")
    with pytest.raises(RepperError, match="unknown setting 'tool'"):
        list(compare(config, rows_of("fedavg"), 1, digits, overwrite=True))
    assert (folder / "runs" / "mine.txt").read_text() == "mine"


def test_settings_that_belong_to_rows_are_refused(digits, tmp_path):
    with pytest.raises(RepperError, match="personalize is not a setting of compare"):
        api.compare(["fedavg"], digits, personalize="svm", out=tmp_path / "c")
    for seeds in (0, 10**20):
        with pytest.raises(RepperError, match="--seeds must be 1 to 1000"):
            api.compare(["fedavg"], digits, seeds=seeds, out=tmp_path / "c")
    with pytest.raises(RepperError, match="fedavg.temperature=0.5..keep does not use temperature"):
        run_all(digits, tmp_path / "c", "repper,fedavg[temperature=0.5]")
    with pytest.raises(RepperError, match="fedrep-head-epochs 9 leaves none of 1"):
        run_all(digits, tmp_path / "c", "fedavg,fedrep", fedrep_head_epochs=9)
    assert not (tmp_path / "c").exists()


def test_an_interval_is_students(digits):
    assert interval([]) == (None, None, None)
    assert interval([3.0]) == (3.0, None, None)
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert (mean, low, high) == pytest.approx(
        (2.0, 2 - 4.302652729749462 / 3**0.5, 2 + 4.302652729749462 / 3**0.5)
    )


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ("", "names no method"),
        ("fedavgg", "unknown method in --methods 'fedavgg', did you mean 'fedavg'"),
        ("fedavg+svn", "unknown personalizer of fedavg.svn in --methods 'svn'"),
        ("fedavg,fedavg+keep", r"names fedavg\+keep twice"),
        ("fedavg[lr=0.1 batch=8],fedavg[batch=8 lr=0.1]", "twice"),
        ("fedavg[lr=0.1 lr=0.2]", "gives lr twice"),
        ("fedavg[lr=0.1", "takes rows such as"),
        ("fedavg[lr]", "takes rows such as"),
        ("fedavg[]", "takes rows such as"),
        ("fedavg[lr=0.1]finetune", "takes rows such as"),
        ("repper[augment=much]", "unknown augment 'much'"),
        ("repper[lr=-1]", "--lr must be above 0, got -1"),
        ("repper[alpha=1]", "all rows have the same alpha; give it once, as --alpha"),
        ("repper[seed=1]", "all rows have the same seed"),
        ("repper[bach=1]", "unknown setting of .* 'bach', did you mean 'batch'"),
    ],
)
def test_rows_that_make_no_sense_are_refused(rows, match):
    with pytest.raises(RepperError, match=match):
        rows_of(rows)


def test_a_comparison_that_cannot_run_writes_nothing(digits, tmp_path):
    folder = tmp_path / "c"
    with pytest.raises(RepperError, match="repper trains none"):
        run_all(digits, folder, "fedavg,repper+keep")
    assert not folder.exists()


def test_a_folder_with_something_else_is_refused(done, digits, tmp_path):
    folder, _ = done
    with pytest.raises(RepperError, match="already holds a comparison: add --resume"):
        run_all(digits, folder)
    with pytest.raises(
        RepperError, match="has a comparison with other settings: its epochs is 1, not 2"
    ):
        run_all(digits, folder, resume=True, epochs=2)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RepperError, match="is not empty and holds no comparison"):
        run_all(digits, tmp_path)


def test_the_command_ends_with_a_table(repper):
    process = repper(
        "compare", "--methods", "repper+linear,repper+logistic", "--clients", 4, "--rounds", 1,
        "--epochs", 1, "--width", 0.25, "--engine", "serial", "--out", "c", "--json",
    )  # fmt: skip
    found = last_json(process)
    assert [row["row"] for row in found["rows"]] == ["repper+linear", "repper+logistic"]
    assert f"{found['rows'][0]['accuracy']:.2f}" in process.stderr
    assert "[2/2] repper+logistic, seed 0, trained before" in process.stderr
