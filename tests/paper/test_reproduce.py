"""A small table run to the end, in parts, after a kill, from other folders, by command."""

import csv
import dataclasses
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paper.small import TINY, TWO, panel
from repper.basics.documents import read_json
from repper.basics.errors import RepperError
from repper.checks import verify
from repper.checks.check import OK, SKIPPED, WRONG
from repper.cli.results import print_reproduction
from repper.paper.chapter import chapter_of
from repper.paper.events import PanelMissing, PanelStarted, Reproduced
from repper.paper.experiment import PRESETS
from repper.paper.findings import Reproduction
from repper.paper.panels import PanelResult, without
from repper.paper.reproduce import reproduce
from repper.paper.side_by_side import number_table, order_table
from repper.report import write_report
from repper.runs.row import Row
from repper.runs.time_left import CellStarted, WorkLeft
from repper.settings.config import Config


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
    repper_row, kept, tuned = result.panels[0].panel.rows
    own = ours[kept]
    assert f"{own:.2f} (80.00, {own - 80:+.2f})" in plain
    assert "no data (5.00)" in text
    assert text.count("<u>") == 2 * text.count("**") // 4  # one best, one second in each table
    assert "head lr" not in text
    assert "clients 20, here 4" in text
    assert "Where the paper leaves room: RepPer's loss in its usual form" in text
    assert "A note." in text
    assert "Run again with `repper reproduce table2 --preset tiny`; one seed." in text
    assert "Images: digits, 1437 train and 360 test images of scikit-learn's digits." in text
    lead = re.search(r"\| digits, alpha 1 \| (\S+) \[(\S+), (\S+)\] ", text)
    difference, low, high = (float(number) for number in lead.groups())
    best = max((kept, tuned), key=ours.__getitem__)
    assert difference == pytest.approx(ours[repper_row] - ours[best], abs=0.006)
    line = result.panels[0].lines[best]
    assert (low, high) == pytest.approx((-line.high, -line.low), abs=0.006)
    # Rows that differ only in what clients do last share a training.
    assert re.search(r"- 2 trainings, \d+ min in all on .+, \d+ cores \(cpu, float32\)\.", text)
    with (folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = [row.name for row in TWO.panels[0].rows]
    assert [row["row"] for row in rows] == [*names, "repper+linear"]
    assert float(rows[0]["difference"]) == pytest.approx(ours[repper_row] - 90.0)
    assert rows[2]["paper"] == rows[3]["ours"] == ""
    with (folder / "claims.csv").open() as file:
        assert [row[0] for row in csv.reader(file)][1] == "RepPer is first everywhere"


def test_its_tables_are_written_in_latex_and_all_are_covered(done, tmp_path):
    folder, _, events = done
    text = (folder / "table.tex").read_text()
    shown = events[-1].reproduction.tables()
    assert text == "\n".join(table.latex() for table in shown)
    assert text.count(r"\toprule") == len(shown) == 3
    assert "digits, alpha 1 & " in text
    copy = shutil.copytree(folder, tmp_path / "copy")
    # There are no images of CINIC-10, and those of digits come with scikit-learn.
    assert {one.status for one in verify(copy)} == {OK, SKIPPED}
    covered = {"table.md", "table.csv", "table.tex", "order.csv", "claims.csv"}
    assert set(read_json(copy / "found.json")["digests"]) == covered
    for name in covered:
        whole = (copy / name).read_bytes()
        (copy / name).write_bytes(whole + b" ")
        wrong = next(one for one in verify(copy) if one.status == WRONG)
        assert (wrong.kind, wrong.folder, name in wrong.said) == ("tables", "", True)
        (copy / name).write_bytes(whole)


def test_places_marks_and_agreement(done):
    found = done[2][-1].reproduction.panels[0]
    ours = found.ours()
    up = sorted(ours, key=ours.get)
    for order, tau in ((up, "+1.00"), (up[::-1], "-1.00"), ([up[1], up[0], up[2]], "+0.33")):
        printed = dataclasses.replace(
            found.panel, printed={row: float(place) for place, row in enumerate(order)}
        )
        _, line = order_table(TWO, [dataclasses.replace(found, panel=printed)]).texts()
        places = [f"{3 - up.index(row)} ({3 - order.index(row)})" for row in printed.rows]
        assert line[2:] == [*places, tau]
    numbers = number_table(TWO, [found])
    [line] = numbers.rows
    marks = {one.name: cell.mark for one, cell in zip(numbers.columns[1:], line[1:], strict=True)}
    assert [marks[row.name] for row in reversed(up)] == [1, 2, 0]


def test_a_table_is_shown_with_its_marks_on_a_terminal_too(done, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = done[2][-1].reproduction
    print_reproduction(result)
    own = result.panels[0].ours()[Row("fedavg", "keep")]
    shown = " ".join(capsys.readouterr().out.split())
    assert f"({80:.2f}, {own - 80:+.2f})" in shown
    assert f"{done[0] / 'table.md'}" in shown.replace(" ", "")


def test_what_is_done_of_a_table_stands_in_it_before_the_rest_is_run(tmp_path):
    panels = [
        panel(name, {"data": "digits", "train_images": n}, ("fedavg+keep",), {"fedavg+keep": 5.0})
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
        panel(name, {"data": data, "train_images": 300}, ("fedavg+keep",), {"fedavg+keep": 5.0})
        for name, data in (("digits, E 1", "digits"), ("cinic10, E 2", "cinic10"))
    ]
    panels.append(dataclasses.replace(panels[0], shown=("digits", "E 10")))
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
    monkeypatch.setattr("repper.paper.findings.EXPERIMENTS", {"table2": lambda: TWO})
    found = Reproduction.open(tmp_path / "out")
    assert list(found.panels[0].ours()) == [Row("repper", "linear")]
    line = found.tables()[0].texts()[1]
    assert line[2:] == ["not run (80.00)", "not run"]
    assert "Not finished: 1 of 3 rows so far. Accuracy in %" in found.markdown()
    assert "; one seed so far." in found.markdown()
    write_report([chapter_of(tmp_path / "out")], tmp_path / "page.html", tsne=False)
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
    assert more.claims().rows[0][2].startswith(("yes so far", "no so far"))


def test_a_folder_of_something_else_is_refused(done, tmp_path):
    folder, how, _ = done
    with pytest.raises(RepperError, match="already holds a reproduction: add --resume"):
        next(reproduce(TWO, TINY, folder, how=how))
    other = dataclasses.replace(TWO, name="table9")
    with pytest.raises(RepperError, match="its experiment is table2, not table9"):
        next(reproduce(other, TINY, folder, resume=True, how=how))
    identity = read_json(folder / "reproduction.json")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "reproduction.json").write_text(json.dumps(identity | {"seeds": 2}))
    with pytest.raises(RepperError, match="has 2 seeds: give --seeds as many or more"):
        next(reproduce(TWO, TINY, tmp_path / "two", resume=True, how=how))
    with pytest.raises(RepperError, match="is not empty and holds no reproduction"):
        next(reproduce(TWO, TINY, tmp_path, how=how))
    assert json.loads((folder / "reproduction.json").read_text())["preset"] == "tiny"


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
from small import TINY, TWO
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
    # What a kill can leave of a file.
    (tmp_path / "out" / ".table.md.1.tmp").write_text("half")
    cells = tmp_path / "out" / "panels" / "digits-alpha-1" / "cells"
    rest = list(reproduce(TWO, TINY, tmp_path / "out", resume=True, how={"engine": "serial"}))
    assert [e.row.name for e in rest if isinstance(e, CellStarted)][-1] == "fedavg+finetune"
    assert rest[-1].reproduction.panels[0].ours() == whole.panels[0].ours()
    assert sorted(path.name for path in cells.iterdir()) == [
        f"{name}-seed0" for name in sorted(row.name for row in TWO.panels[0].rows)
    ]


def test_a_kill_at_the_first_file_leaves_a_folder_that_can_be_used(tmp_path):
    (tmp_path / ".reproduction.json.1.tmp").write_text("half")
    assert isinstance(next(reproduce(TWO, TINY, tmp_path, how={"engine": "serial"})), PanelStarted)


def test_orders_and_their_agreement(tmp_path):
    rows = ("repper+linear", "fedavg+keep")
    result = PanelResult(
        panel("x", {}, rows, zip(rows, (2, 1), strict=True)), None, "there is none"
    )
    found = Reproduction(tmp_path, TWO, TINY, 1, (result,))
    [_, order, claims] = found.tables()
    assert order.texts() == [
        ["setting", "RepPer minus the best other", *rows, "agreement (Kendall)"],
        ["x", "- (+1.00)", "- (1)", "- (2)", "-"],
    ]
    assert claims.rows[0][1:3] == ("yes (1 of 1)", "no data (0 of 0)")
    assert claims.rows[1][1:3] == ("not printed", "no data (0 of 0)")


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
    assert (timed.returncode, timed.stdout) == (2, "")
    assert timed.stderr.startswith("repper: cannot estimate table2: ")
    assert timed.stderr.count("\n") == 1


def test_too_few_images_are_counted(tmp_path):
    assert (
        without(Config(train_images=9_999)) == "digits has 1437 training images here, 9999 needed"
    )
    missing = Config(data="cifar10", data_dir=str(tmp_path), train_images=5)
    assert without(missing) == "no images of cifar10 could be loaded"
