"""The paper's tables as data, and a small table run to the end."""

import base64
import csv
import dataclasses
import html
import io
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from repper import open_run
from repper.cli.progress import Display
from repper.cli.results import print_reproduction
from repper.config import Config
from repper.errors import RepperError
from repper.paper import EXPERIMENTS
from repper.paper.beside import number_cells, order_cells
from repper.paper.claims import Finding, Numbers, claims_of
from repper.paper.estimate import estimate
from repper.paper.events import PanelMissing, PanelStarted, Reproduced, WorkLeft
from repper.paper.experiment import PAPER, PRESETS, SMALL, Experiment, Panel, Preset
from repper.paper.panels import PanelResult, epochs_in, panel_config, without
from repper.paper.reproduce import reproduce
from repper.paper.reproduction import Reproduction
from repper.report import write_report
from repper.runs.compare import CellStarted, rows_of

TINY = Preset(
    "tiny",
    {"clients": 4, "rounds": 1, "epochs": 1, "participation": 0.5, "width": 0.25, "knn": 0},
    scaled=False,
)
TWO = Experiment(
    "table2",
    "Two panels",
    (
        Panel(
            "digits, alpha 1",
            {"data": "digits", "alpha": 1.0},
            ("repper+linear", "fedavg+keep", "fedavg+finetune"),
            {"repper+linear": 90.0, "fedavg+keep": 80.0},
        ),
        Panel("cinic10, alpha 1", {"data": "cinic10"}, ("repper+linear",), {"repper+linear": 5.0}),
    ),
    {},
    ("A note.",),
)


def printed(name):
    return {
        (panel.name, row): value
        for panel in EXPERIMENTS[name]().panels
        for row, value in panel.printed.items()
    }


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("preset", [PAPER, SMALL], ids=lambda preset: preset.name)
def test_every_panel_has_settings_that_can_be_run(name, preset, tmp_path):
    experiment = EXPERIMENTS[name]()
    assert len({panel.folder for panel in experiment.panels}) == len(experiment.panels)
    for panel in experiment.panels:
        config = panel_config(experiment, preset, panel, tmp_path)
        assert config.clients == 20
        assert set(panel.printed) <= {row.name for row in rows_of(",".join(panel.rows))}
        assert (config.batch, config.lr, config.weight_decay) == (256, 1e-3, 1e-4)


def test_the_papers_preset_is_its_setting_to_the_letter(tmp_path):
    table1 = EXPERIMENTS["table1"]()
    config = panel_config(table1, PAPER, table1.panels[-1], tmp_path)
    assert table1.panels[-1].name == "C 0.8, E 20, alpha 0.5"
    assert (config.encoder, config.rounds, config.epochs) == ("resnet34", 100, 20)
    assert (config.participation, config.alpha, config.temperature) == (0.8, 0.5, 0.1)
    assert (config.head_epochs, config.train_images, config.width) == (10, None, 1.0)
    assert config.head_plain  # it says nothing of centring or scaling
    assert (config.head_lr, config.head_optimizer, config.head_weight_decay) == (1e-3, "adam", 1e-4)
    assert not PAPER.departures(table1, table1.panels[0])
    small = SMALL.departures(table1, table1.panels[-1])
    assert small["epochs"] == (20, 4)
    assert small["encoder"] == ("resnet34", "small")


def test_the_papers_tables_agree_with_each_other():
    """Table 2 repeats cells of Table 1, and Table 4 and 3 do, but for a misprint of LG-FedAvg."""
    one, two, four = printed("table1"), printed("table2"), printed("table4")
    for row in ("fedavg+keep", "lg-fedavg+finetune", "fedrep+finetune", "repper+linear"):
        for alpha in ("1", "0.5"):
            assert two[f"cifar10, alpha {alpha}", row] == one[f"C 0.2, E 10, alpha {alpha}", row]
        assert four["cifar10, resnet34", row] == one["C 0.4, E 10, alpha 1", row]
    assert len(one) == 72
    assert len(two) == 42
    assert len(printed("table3")) == 12
    assert len(four) == 16


def test_no_number_of_the_paper_is_mistyped():
    """Sums of the paper's tables: compared with it once, number by number."""
    sums = {t: round(sum(printed(t).values()), 2) for t in ("table1", "table2", "table3", "table4")}
    assert sums == {"table1": 5596.80, "table2": 2494.71, "table3": 872.15, "table4": 893.57}


def test_claims_are_computed_from_the_papers_own_numbers():
    numbers = Numbers(printed("table1"))
    found = {claim.text: claim.find(numbers) for claim in claims_of("table1")}
    assert [finding.verdict for finding in found.values()][:8] == [
        "yes", "in part", "in part", "yes", "yes", "yes", "in part", "yes",
    ]  # fmt: skip
    counts = {text: (finding.holds, finding.cases) for text, finding in found.items()}
    assert counts == {
        "RepPer is first everywhere": (18, 18),
        "each step of skew (alpha 100 to 1 to 0.5) costs almost all baselines accuracy (read as: "
        "nine in ten)": (27, 36),
        "skew (alpha 100 to 0.5) costs RepPer less than the baselines": (3, 18),
        "more clients in a round (C 0.2 to 0.4 to 0.8) do not always help the baselines": (1, 1),
        "more clients in a round have little effect on RepPer (read as: less than two points)": (
            12, 12,
        ),
        "accuracy falls at the 11 steps to more clients in a round that the paper marks": (11, 11),
        "more local epochs (E 10 to 20) cost almost all baselines accuracy (read as: nine in "
        "ten)": (19, 27),
        "more local epochs help RepPer": (9, 9),
        # The paper shows these in a figure and prints no numbers.
        "baselines do worse on tail classes than on head classes (said of two clients in a "
        "figure)": (0, 0),
        "RepPer loses less from head to tail classes than baselines with classifiers of each "
        "client's own (said of two clients in a figure)": (0, 0),
        "RepPer loses less from head to tail classes than baselines with one classifier for all "
        "(said of two clients in a figure)": (0, 0),
    }  # fmt: skip
    costs = found["skew (alpha 100 to 0.5) costs RepPer less than the baselines"]
    first = "lg-fedavg+finetune at C 0.2, E 10, alpha 100 to 0.5: -5.25, RepPer -9.58"
    assert costs.listed(1) == f"{first}; and 14 more"
    assert len(costs.evidence) == 15
    # The largest change of RepPer's by more clients in a round is 1.24.
    little = next(claim for claim in claims_of("table1") if "little effect" in claim.text)
    for change, holds in ((1.9, 1), (-2.1, 0)):
        pair = {
            ("C 0.2, E 10", "repper+linear"): 50.0,
            ("C 0.4, E 10", "repper+linear"): 50 + change,
        }
        assert little.find(Numbers(pair)).holds == holds
    assert Finding(9, 10, (), enough=0.9).verdict == "yes"
    assert Finding(8, 10, (), enough=0.9).verdict == "in part"


def test_who_is_first_is_looked_at_head_by_head():
    [first] = claims_of("table3")
    numbers = {
        ("x", f"{method}+{head}"): value
        for head, values in (("linear", (80.0, 70.0)), ("svm", (50.0, 60.0)))
        for method, value in zip(("repper", "fedavg"), values, strict=True)
    }
    assert first.find(Numbers(numbers)) == Finding(
        1, 2, ("x, svm: fedavg+svm 60.00, RepPer 50.00",)
    )
    assert first.find(Numbers({})).verdict == "no data"


def test_claims_on_tail_classes_are_computed_from_our_lines():
    _, worse, than_own, than_common = claims_of("table2")
    rows = ("repper+linear", "fedavg+keep", "fedavg+finetune", "fedrep+finetune")
    head, tail = (
        {("x", row): value for row, value in zip(rows, values, strict=True)}
        for values in ((80.0, 60.0, 90.0, 70.0), (60.0, 61.0, 40.0, 55.0))
    )
    numbers = Numbers({}, head, tail)
    assert worse.find(numbers) == Finding(2, 3, ("fedavg+keep at x: +1.00",))
    against = ("fedrep+finetune at x: -15.00, RepPer -20.00",)
    assert than_own.find(numbers) == Finding(1, 2, against)
    assert than_common.find(numbers).evidence == ("fedavg+keep at x: +1.00, RepPer -20.00",)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduction") / "out"
    how = {"data_dir": str(folder / "nothing"), "engine": "serial"}
    return folder, how, list(reproduce(TWO, TINY, folder, how=how))


def test_a_table_is_run_panel_by_panel(done):
    folder, _, events = done
    kinds = [type(event) for event in events]
    assert kinds.count(PanelStarted) == 2
    assert kinds.count(CellStarted) == 3
    shares = [event.share for event in events if isinstance(event, WorkLeft)]
    # RepPer looks at two views of an image; CINIC-10, which is not here, is no work.
    third = pytest.approx(1 / 3)
    assert shares == [1.0, third, third, 0.0, 0.0]
    [missing] = [event for event in events if isinstance(event, PanelMissing)]
    assert "cinic10" in missing.reason
    assert isinstance(events[-1], Reproduced)
    assert (folder / "panels" / "digits-alpha-1" / "table.md").is_file()


def test_ours_stand_beside_the_papers(done):
    folder, _, events = done
    result = events[-1].reproduction
    ours = result.panels[0].ours()
    text = (folder / "table.md").read_text()
    plain = re.sub(r"\*\*|</?u>", "", text)
    own = ours["fedavg+keep"]
    assert f"{own:.2f} (80.00, {own - 80:+.2f})" in plain
    assert "no data (5.00)" in text
    assert text.count("<u>") == 2 * text.count("**") // 4  # one best, one second in each table
    assert "head lr" not in text
    assert "clients 20, here 4" in text
    assert "Where the paper leaves room: the same strong augmentation for all methods" in text
    assert "A note." in text
    assert "Run again with `repper reproduce table2 --preset tiny`; one seed." in text
    assert "Images: digits, 1437 train and 360 test images of scikit-learn's digits." in text
    lead = re.search(r"\| digits, alpha 1 \| (\S+) \[(\S+), (\S+)\] ", text)
    difference, low, high = (float(number) for number in lead.groups())
    best = max(("fedavg+keep", "fedavg+finetune"), key=ours.__getitem__)
    assert difference == pytest.approx(ours["repper+linear"] - ours[best], abs=0.006)
    line = result.panels[0].lines[best]
    assert (low, high) == pytest.approx((-line.high, -line.low), abs=0.006)
    # Rows that differ only in what clients do last share a training.
    assert re.search(r"- 2 trainings, \d+ min in all on .+, \d+ cores \(cpu\)\.", text)
    with (folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows] == [*TWO.panels[0].rows, "repper+linear"]
    assert float(rows[0]["difference"]) == pytest.approx(ours["repper+linear"] - 90.0)
    assert rows[2]["paper"] == rows[3]["ours"] == ""
    with (folder / "claims.csv").open() as file:
        assert [row[0] for row in csv.reader(file)][1] == "RepPer is first everywhere"


def test_places_marks_and_agreement(done):
    found = done[2][-1].reproduction.panels[0]
    ours = found.ours()
    up = sorted(ours, key=ours.get)
    for order, tau in ((up, "+1.00"), (up[::-1], "-1.00"), ([up[1], up[0], up[2]], "+0.33")):
        panel = dataclasses.replace(
            found.panel, printed={row: float(place) for place, row in enumerate(order)}
        )
        _, line = order_cells(TWO, [dataclasses.replace(found, panel=panel)])
        places = [f"{3 - up.index(row)} ({3 - order.index(row)})" for row in panel.rows]
        assert line[2:] == [*places, tau]
    heading, line = number_cells(TWO, [found], "<{}>", "_{}_")
    cells = dict(zip(heading, line, strict=True))
    assert cells[up[-1]].startswith("<")
    assert cells[up[-2]].startswith("_")
    assert cells[up[-3]][0].isdecimal()


def test_table_3_is_ordered_head_by_head():
    table3 = EXPERIMENTS["table3"]()
    _, linear, svm, _ = order_cells(table3, [PanelResult(table3.panels[0], None, "none")])
    lead = ["cifar10, alpha 1, linear", "- (+11.58)"]
    assert linear == [*lead, "- (1)", "- (4)", "- (2)", "- (3)", "-"]
    assert svm[:4] == ["cifar10, alpha 1, svm", "- (+11.96)", "- (1)", "- (3)"]


def test_a_table_is_shown_with_its_marks_on_a_terminal_too(done, capsys):
    result = done[2][-1].reproduction
    print_reproduction(result)
    own = result.panels[0].ours()["fedavg+keep"]
    shown = " ".join(capsys.readouterr().out.split())
    assert f"({80:.2f}, {own - 80:+.2f})" in shown
    assert f"{done[0] / 'table.md'}" in shown.replace(" ", "")


def test_what_is_done_of_a_table_stands_in_it_before_the_rest_is_run(tmp_path):
    panels = [
        Panel(name, {"data": "digits", "train_images": n}, ("fedavg+keep",), {"fedavg+keep": 5.0})
        for name, n in (("first", 300), ("second", 600))
    ]
    two = dataclasses.replace(TWO, panels=tuple(panels))
    folder, how = tmp_path / "out", {"engine": "serial"}
    table = folder / "table.md"
    shares = []

    def run_up_to_second(resume):
        running = reproduce(two, TINY, folder, resume=resume, how=how)
        for event in running:
            if isinstance(event, WorkLeft):
                shares.append(event.share)
            if isinstance(event, PanelStarted) and event.number == 2:
                return running
        raise AssertionError("there is no second panel")

    running = run_up_to_second(resume=False)
    text = table.read_text()
    assert "| second | not run (5.00) |" in text
    assert re.search(r"\| first \| \*\*[\d.]+\*\* \(5.00, [+\d.]+\) \|", text)
    shares += [event.share for event in running if isinstance(event, WorkLeft)]
    # A training on twice the images is twice the work.
    assert shares == [1.0, pytest.approx(2 / 3), pytest.approx(2 / 3), 0.0]
    # What was finished before stays in the table when it is written again from the first panel on.
    whole = table.read_text()
    table.unlink()
    run_up_to_second(resume=True).close()
    assert table.read_text() == whole


def test_a_part_of_a_table_can_be_run_before_the_rest(tmp_path):
    panels = [
        Panel(name, {"data": data, "train_images": 300}, ("fedavg+keep",), {"fedavg+keep": 5.0})
        for name, data in (("digits, E 1", "digits"), ("cinic10, E 2", "cinic10"))
    ]
    panels.append(dataclasses.replace(panels[0], name="digits, E 10"))
    three = dataclasses.replace(TWO, panels=tuple(panels))
    folder, how = tmp_path / "out", {"engine": "serial", "data_dir": str(tmp_path)}

    def run(only, *, resume=True):
        events = list(reproduce(three, TINY, folder, only=only, resume=resume, how=how))
        started = [event for event in events if isinstance(event, PanelStarted)]
        assert [event.number for event in started] == list(range(1, len(started) + 1))
        found = events[-1].reproduction
        kinds = [type(event) for event in events]
        names = [event.panel.name for event in started]
        return names, kinds.count(CellStarted), [result.missing for result in found.panels], found

    # E 1 is no word of E 10.
    names, trained, missing, found = run("E 10", resume=False)
    assert (names, trained, missing) == (["digits, E 10"], 1, ["not run", "not run", ""])
    assert found.unfinished
    names, trained, missing, found = run(None)
    assert (len(names), trained) == (3, 1)
    assert missing == ["", "no images of cinic10 could be loaded", ""]
    assert not found.unfinished
    # What is known of the rest stays.
    assert run("E 1 , digits")[:3] == (["digits, E 1"], 0, missing)
    assert "| digits, E 10 | **" in (folder / "table.md").read_text()
    assert run("Digits,e 10,")[:2] == (["digits, E 10"], 0)
    for wrong in ("digits, E 3", "E", ","):
        with pytest.raises(RepperError, match=f"^--only '{wrong}' is no part of table2: .*E 10$"):
            run(wrong)
    # Of other parts there are results; of this there can be none.
    with pytest.raises(RepperError, match=r"^nothing of table2 \(cinic10\) can be run: cinic10 is"):
        run("cinic10")


def test_what_is_done_of_a_panel_stands_in_the_table_too(tmp_path, monkeypatch):
    running = reproduce(TWO, TINY, tmp_path / "out", how={"engine": "serial"})
    next(event for event in running if isinstance(event, CellStarted) and event.number == 2)
    running.close()
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    monkeypatch.setattr("repper.paper.reproduction.EXPERIMENTS", {"table2": lambda: TWO})
    found = Reproduction.open(tmp_path / "out")
    assert list(found.panels[0].ours()) == ["repper+linear"]
    line = found.tables("{}", "{}")[0].cells[1]
    assert line[2:] == ["not run (80.00)", "not run"]
    assert "Not finished: 1 of 3 rows so far. Accuracy in %" in found.markdown()
    assert "; one seed so far." in found.markdown()
    write_report([tmp_path / "out"], tmp_path / "page.html", tsne=False)
    assert "Not finished: 1 of 3 rows so far." in (tmp_path / "page.html").read_text()


def test_a_finished_table_is_only_read(done):
    folder, how, events = done
    again = list(reproduce(TWO, TINY, folder, resume=True, how=how))
    assert not any(isinstance(event, CellStarted) for event in again)
    assert again[-1].reproduction.panels[0].ours() == events[-1].reproduction.panels[0].ours()


def test_with_more_seeds_a_table_is_not_finished(done):
    *_, events = done
    result = events[-1].reproduction
    assert not result.unfinished  # CINIC-10 will never be here
    more = dataclasses.replace(result, seeds=2)
    assert more.unfinished
    assert more.claim_cells()[1][2].startswith(("yes so far", "no so far"))


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


def test_a_folder_of_something_else_is_refused(done, tmp_path):
    folder, how, _ = done
    with pytest.raises(RepperError, match="already holds a reproduction: add --resume"):
        next(reproduce(TWO, TINY, folder, how=how))
    other = dataclasses.replace(TWO, name="table9")
    with pytest.raises(RepperError, match="its experiment is table2, not table9"):
        next(reproduce(other, TINY, folder, resume=True, how=how))
    identity = json.loads((folder / "reproduction.json").read_text())
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "reproduction.json").write_text(json.dumps(identity | {"seeds": 2}))
    with pytest.raises(RepperError, match="has 2 seeds: give --seeds as many or more"):
        next(reproduce(TWO, TINY, tmp_path / "two", resume=True, how=how))
    with pytest.raises(RepperError, match="is not empty and holds no reproduction"):
        next(reproduce(TWO, TINY, tmp_path, how=how))
    assert json.loads((folder / "reproduction.json").read_text())["preset"] == "tiny"


def test_new_clients_join_every_run(tmp_path):
    experiment = Experiment(
        "new-clients",
        "New clients",
        (Panel("digits", {"data": "digits"}, ("repper+linear", "fedavg+keep")),),
        {},
        newcomers={"data": "digits", "clients": 3, "personalize": "linear", "head_epochs": 12},
    )
    how = {"engine": "serial"}
    *_, last = reproduce(experiment, TINY, tmp_path / "out", how=how)
    [extra] = last.reproduction.extras
    heading, repper_line, fedavg_line = extra.cells
    ahead = [
        float(a) > float(b)
        for a, b in zip(repper_line[-1].split(), fedavg_line[-1].split(), strict=True)
    ]
    assert extra.note.endswith(f"best for every new client; here it is for {sum(ahead)} of 3.")
    assert heading[:3] == ["encoder of", "after 1", "after 10"]
    assert [repper_line[0], fedavg_line[0]] == ["repper", "fedavg"]
    joined = tmp_path / "out" / "panels" / "digits" / "joined" / "repper+linear"
    run = open_run(joined)
    assert run.result["clients"] == 3
    # The heads were done after 12 epochs, so later columns repeat the last.
    assert repper_line[3] == repper_line[5] == f"{run.accuracy['mean']:.2f}"
    assert heading[6:8] == ["minus repper", "best for"]
    assert repper_line[6:8] == ["-", str(sum(ahead))]
    gains = [
        float(b) - float(a)
        for a, b in zip(repper_line[-1].split(), fedavg_line[-1].split(), strict=True)
    ]
    mean, low, high = (float(n) for n in re.findall(r"[-+][\d.]+", fedavg_line[6]))
    assert mean == pytest.approx(np.mean(gains), abs=0.01)
    assert (low + high) / 2 == pytest.approx(mean, abs=0.01)
    assert (
        "Images: digits, 1437 train and 360 test images of scikit-learn's digits; digits, "
        in (tmp_path / "out" / "table.md").read_text()
    )
    assert len(repper_line[-1].split()) == 3
    assert extra.title in (tmp_path / "out" / "table.md").read_text()
    # A folder may be moved.
    out = (tmp_path / "out").rename(tmp_path / "moved")
    *_, again = reproduce(experiment, TINY, out, resume=True, how=how)
    assert again.reproduction.extras == last.reproduction.extras
    # Heads on an encoder that is gone would stand beside trainings that made another.
    cells = out / "panels" / "digits" / "cells"
    shutil.copy(
        cells / "fedavg+keep-seed0" / "encoder.safetensors",
        cells / "repper+linear-seed0" / "encoder.safetensors",
    )
    with pytest.raises(RepperError, match=r"joined/repper\+linear was begun with another encoder"):
        list(reproduce(experiment, TINY, out, resume=True, how=how))


def test_without_the_newcomers_images_nothing_is_trained(tmp_path):
    experiment = Experiment(
        "new-clients",
        "New clients",
        (Panel("digits", {"data": "digits"}, ("repper+linear",)),),
        {},
        newcomers={"data": "cifar10", "clients": 3, "personalize": "linear"},
    )
    how = {"engine": "serial", "data_dir": str(tmp_path)}
    with pytest.raises(RepperError, match="nothing of new-clients can be run: .*cifar10"):
        next(reproduce(experiment, TINY, tmp_path / "out", how=how))
    assert list(tmp_path.iterdir()) == []


def test_what_was_found_stays_when_the_images_are_gone(tmp_path):
    source = tmp_path / "data"
    make_folder(source)
    experiment = Experiment(
        "gradients",
        "Gradients",
        (Panel("mine", {"data": str(source)}, ("repper+linear", "fedavg+keep")),),
        {},
        measure="gradients",
    )
    out, how = tmp_path / "out", {"engine": "serial"}
    *_, first = reproduce(experiment, TINY, out, how=how)
    whole = (out / "table.md").read_text()
    assert "Gradients by the size of a class, mine" in whole
    shutil.rmtree(source)
    *_, again = reproduce(experiment, TINY, out, resume=True, how=how)
    assert (out / "table.md").read_text() == whole
    assert again.reproduction.extras == first.reproduction.extras


def make_folder(path):
    """Two classes of small pictures, of which one is brighter."""
    random = np.random.default_rng(0)
    for label, low in (("dark", 0), ("light", 128)):
        (path / label).mkdir(parents=True)
        for number in range(40 if low else 20):
            pixels = random.integers(low, low + 128, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / label / f"{number}.png")


def test_trainings_of_another_folder_are_reused(done, tmp_path):
    folder, how, events = done
    again = list(reproduce(TWO, TINY, tmp_path / "out", reuse=folder, how=how))
    started = [event for event in again if isinstance(event, CellStarted)]
    # The third row is of the second's training, which is here by then.
    assert [(e.trained, e.reused) for e in started] == [(True, True), (True, True), (True, False)]
    assert again[-1].reproduction.panels[0].ours() == events[-1].reproduction.panels[0].ours()
    # What was taken is done, but not as fast as it was taken.
    shares = [(event.share, event.given) for event in again if isinstance(event, WorkLeft)]
    third, two, whole = (pytest.approx(n / 3) for n in (1, 2, 3))
    assert shares == [(third, two), (0.0, whole), (0.0, whole)]
    text = (tmp_path / "out" / "table.md").read_text()
    assert re.search(r"- 2 trainings, .+; 2 of them were made by another command\.", text)


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_reproduce import TINY, TWO
from repper.paper.reproduce import reproduce
for event in reproduce(TWO, TINY, Path(sys.argv[2]), resume=True, how={"engine": "serial"}):
    print(type(event).__name__, flush=True)
"""


def test_a_killed_reproduction_goes_on_and_ends_the_same(done, tmp_path):
    whole = done[2][-1].reproduction
    running = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path / "out")],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in running.stdout:
        if line.strip() == "Finished":  # the first row is there, and the second begins
            break
    running.send_signal(signal.SIGKILL)
    running.communicate()
    # What a kill can leave of a file, and of a row that was being branched off.
    (tmp_path / "out" / ".table.md.1.tmp").write_text("half")
    cells = tmp_path / "out" / "panels" / "digits-alpha-1" / "cells"
    (cells / ".fedavg+finetune-seed0.tmp" / "heads").mkdir(parents=True)
    rest = list(reproduce(TWO, TINY, tmp_path / "out", resume=True, how={"engine": "serial"}))
    assert [e.row.name for e in rest if isinstance(e, CellStarted)][-1] == "fedavg+finetune"
    assert rest[-1].reproduction.panels[0].ours() == whole.panels[0].ours()
    assert sorted(path.name for path in cells.iterdir()) == [
        f"{row}-seed0" for row in sorted(TWO.panels[0].rows)
    ]


def test_a_kill_at_the_first_file_leaves_a_folder_that_can_be_used(tmp_path):
    (tmp_path / ".reproduction.json.1.tmp").write_text("half")
    assert isinstance(next(reproduce(TWO, TINY, tmp_path, how={"engine": "serial"})), PanelStarted)


def test_gradients_are_measured_on_finished_runs(tmp_path):
    settings = {"data": "digits", "alpha": 0.5}
    experiment = Experiment(
        "gradients",
        "Gradients",
        (Panel("early", settings, ("repper+linear", "fedavg+keep")),),
        {},
        measure="gradients",
    )
    *_, last = reproduce(experiment, TINY, tmp_path / "out", how={"engine": "serial"})
    [extra] = last.reproduction.extras
    found = {tuple(line[:2]): [float(n) for n in line[2:5]] for line in extra.cells[1:]}
    assert set(found) == {
        ("repper", "gradient norm"), ("repper", "sum of |P - X|"),
        ("repper", "1 / |r|"), ("repper", "distance of positives and negatives"),
        ("repper", "hardness of positives"), ("repper", "hardness, without the own other view"),
        ("fedavg", "gradient norm"), ("fedavg", "|p - y|"),
    }  # fmt: skip
    # Before much is learned, fewer positives have a smaller share of the softmax over all.
    tail, head, ratio = found["repper", "sum of |P - X|"]
    assert 1 > tail > head
    assert ratio > 1
    drawn = (tmp_path / "out" / "figures" / "gradients-early.svg").read_text()
    assert drawn.count("<!-- repper: ") == 6
    assert drawn.count("<!-- early: after round 1 -->") == 1
    assert drawn.count("<!-- fedavg: ") == 2
    assert (
        "![Gradients by the size of a class, early](figures/gradients-early.png)\n\n"
        "*Gradients by the size of a class, early.*" in (tmp_path / "out" / "table.md").read_text()
    )
    # A stroke would end a cell.
    assert r"| sum of \|P - X\| |" in (tmp_path / "out" / "table.md").read_text()


def test_what_was_measured_of_one_part_stands_beside_that_of_another(tmp_path):
    settings = {"data": "digits", "alpha": 0.5, "train_images": 300}
    panels = [Panel(name, settings, ("repper+linear",)) for name in ("early", "late")]
    experiment = Experiment("gradients", "Gradients", tuple(panels), {}, measure="gradients")
    folder, how = tmp_path / "out", {"engine": "serial"}
    for only in ("late", "early"):
        *_, last = reproduce(experiment, TINY, folder, only=only, resume=True, how=how)
    found = last.reproduction
    assert [extra.title[-5:].strip(" ,") for extra in found.extras] == ["early", "late"]
    again = Reproduction.read(folder, experiment, TINY, 1)
    assert (again.extras, again.images) == (found.extras, found.images)
    # What it is cannot be read any more.
    (folder / "found.json").write_text('{"extras": [], "missing": {}}')
    with pytest.raises(RepperError, match=r"found.json is damaged: delete it"):
        list(reproduce(experiment, TINY, folder, resume=True, how=how))
    (folder / "reproduction.json").write_text("[]")
    with pytest.raises(RepperError, match=r"reproduction.json names no experiment"):
        list(reproduce(experiment, TINY, folder, resume=True, how=how))


def test_figures_are_drawn_and_those_without_data_are_named(tmp_path, monkeypatch):
    rows = ("repper+linear", "lg-fedavg+finetune")
    experiment = Experiment(
        "figures",
        "Figures",
        (
            Panel("digits", {"data": "digits", "train_images": 400}, rows),
            Panel("cinic10", {"data": "cinic10"}, rows),
        ),
        {},
        measure="figures",
    )
    how = {"engine": "serial", "data_dir": str(tmp_path / "nothing")}
    *_, last = reproduce(experiment, TINY, tmp_path / "out", how=how)
    drawn = sorted(path.name for path in (tmp_path / "out" / "figures").iterdir())
    names = ["accuracy-per-class", "tsne-clients", "tsne-methods"]
    assert drawn == [name + suffix for name in names for suffix in (".png", ".svg")]
    parting, extra = last.reproduction.extras
    for place, what in ((3, "silhouette"), (6, "nearest image")):
        first = max(parting.cells[1:], key=lambda line: float(line[place]))[0]
        assert f"by {what}, {first} is first" in parting.note
    assert parting.cells[0][1:4] == [
        f"silhouette, {of}" for of in ("all", "head classes", "tail classes")
    ]
    assert [line[0] for line in parting.cells[1:]] == [
        "repper",
        "lg-fedavg (averaged after training)",
    ]
    assert all(
        -1 <= float(line[1]) <= 1 and 0 <= float(line[4]) <= 100 for line in parting.cells[1:]
    )
    text = (tmp_path / "out" / "table.md").read_text()
    assert "(figures/tsne-methods.png)" in text
    assert [line[:2] for line in extra.cells[1:3]] == [["cifar10", "100"], ["cifar10", "1"]]
    assert all(line[2].startswith("left out: ") for line in extra.cells[1:])
    # Read back from its folder it is the same, and its report needs no file beside it.
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    monkeypatch.setattr("repper.paper.reproduction.EXPERIMENTS", {"figures": lambda: experiment})
    opened = Reproduction.open(tmp_path / "out")
    assert opened.markdown() == last.reproduction.markdown()
    assert opened.panels[1].missing == "no images of cinic10 could be loaded"
    write_report([tmp_path / "out"], tmp_path / "page.html", tsne=False)
    page = (tmp_path / "page.html").read_text()
    shown = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]+)">', page)
    assert [alt for _, alt in shown] == [
        path.stem.replace("-", " ") for _, path in opened.figures()
    ]
    for caption, _ in opened.figures():
        assert f"<figcaption>{html.escape(caption, quote=False)}</figcaption>" in page
    with (
        Image.open(io.BytesIO(base64.b64decode(shown[0][0]))) as embedded,
        Image.open(tmp_path / "out/figures/accuracy-per-class.png") as drawn,
    ):
        apart = np.abs(np.asarray(embedded.convert("RGB"), int) - np.asarray(drawn.convert("RGB")))
    assert apart.mean() < 1  # of 255: it has fewer colours
    # What the experiment is about stands before the trainings.
    titles = [table.title for table in opened.tables()]
    assert titles == [parting.title, extra.title, "The trainings behind it"]
    assert "How well the features part the classes" in page


def test_heads_on_averaged_encoders_are_those_of_the_same_clients(tmp_path):
    rows = ("lg-fedavg+linear", "lg-fedavg+svm", "repper+linear")
    experiment = Experiment(
        "table3",
        "Heads",
        (Panel("digits", {"data": "digits"}, rows, {"lg-fedavg+svm": 59.82}),),
        {},
        measure="averaged",
    )
    *_, last = reproduce(experiment, TINY, tmp_path / "out", how={"engine": "serial"})
    [extra] = last.reproduction.extras
    assert [line[0] for line in extra.cells[1:]] == ["lg-fedavg+linear", "lg-fedavg+svm"]
    assert [line[3] for line in extra.cells[1:]] == ["-", "59.82"]
    panel = tmp_path / "out" / "panels" / "digits"
    joined, own = (
        open_run(panel / f) for f in ("joined/lg-fedavg+svm", "cells/lg-fedavg+svm-seed0")
    )
    assert extra.cells[2][1:3] == [f"{run.accuracy['mean']:.2f}" for run in (own, joined)]
    assert (joined.folder / "partition.json").read_text() == (
        own.folder / "partition.json"
    ).read_text()
    assert joined.result["personalize"] == "svm"
    assert joined.result["rounds"] == 0


def test_orders_and_their_agreement(tmp_path):
    panel = Panel("x", {}, ("repper+linear", "fedavg+keep"), {"repper+linear": 2, "fedavg+keep": 1})
    result = PanelResult(panel, None, "there is none")
    found = Reproduction(tmp_path, TWO, TINY, 1, (result,))
    [_, order, claims] = found.tables()
    assert order.cells == [
        ["setting", "RepPer minus the best other", *panel.rows, "agreement (Kendall)"],
        ["x", "- (+1.00)", "- (1)", "- (2)", "-"],
    ]
    assert claims.cells[1][1:3] == ["yes (1 of 1)", "no data (0 of 0)"]
    assert claims.cells[2][1:3] == ["not printed", "no data (0 of 0)"]


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


def test_the_command_line(repper, tmp_path):
    wrong = repper("reproduce", "table9")
    assert wrong.returncode == 2
    assert "unknown experiment 'table9', did you mean 'table" in wrong.stderr
    wrong = repper("reproduce", "table2", "--preset", "tiny")
    assert wrong.returncode == 2
    assert "unknown preset 'tiny'" in wrong.stderr
    wrong = repper("reproduce", "table2", "--seeds", "0")
    assert "--seeds must be at least 1" in wrong.stderr
    nothing = ("reproduce", "table2", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out"))
    for more, said in (
        ((), "nothing of table2 can be run: "),
        (("--device", "cuda:99"), "--device cuda:99 is not available"),
        (("--reuse", str(tmp_path / "typo")), "to reuse trainings of"),
        (("--seeds", "2000"), "--seeds must be 1 to 1000, got 2000"),
        (("--estimate", "--reuse", str(tmp_path)), "leave out --reuse"),
        (("--only", "cifar1"), "--only 'cifar1' is no part of table2"),
    ):
        wrong = repper(*nothing, *more)
        assert (wrong.returncode, said in wrong.stderr) == (2, True), wrong.stderr
        assert wrong.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    timed = repper("reproduce", "table2", "--estimate", "--data-dir", str(tmp_path))
    assert timed.returncode == 0
    assert timed.stdout.count("no estimate") == 6
    timed = repper(
        "reproduce", "table2", "--estimate", "--only", "cifar10", "--data-dir", str(tmp_path)
    )
    assert timed.stdout.count("no estimate") == 2


def test_too_few_images_are_counted(tmp_path):
    assert (
        without(Config(train_images=9_999)) == "digits has 1437 training images here, 9999 needed"
    )
    missing = Config(data="cifar10", data_dir=str(tmp_path), train_images=5)
    assert without(missing) == "no images of cifar10 could be loaded"
