"""What is measured on finished trainings: new clients, gradients, figures."""

import base64
import html
import io
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from paper.small import TINY, make_folder, panel
from repper import open_run
from repper.basics.errors import RepperError
from repper.paper.chapter import chapter_of
from repper.paper.experiment import PRESETS, Experiment
from repper.paper.findings import Reproduction
from repper.paper.reproduce import reproduce
from repper.report import write_report


def test_new_clients_join_every_run(tmp_path):
    experiment = Experiment(
        "new-clients",
        "New clients",
        (panel("digits", {"data": "digits"}, ("repper+linear", "fedavg+keep")),),
        {},
        newcomers={"data": "digits", "clients": 3, "personalize": "linear", "head_epochs": 12},
    )
    how = {"engine": "serial"}
    *_, last = reproduce(experiment, TINY, tmp_path / "out", how=how)
    [extra] = last.reproduction.extras
    heading, repper_line, fedavg_line = extra.table.texts()
    ahead = [
        float(a) > float(b)
        for a, b in zip(repper_line[-1].split(), fedavg_line[-1].split(), strict=True)
    ]
    assert extra.table.caption.endswith(
        f"best for every new client; here it is for {sum(ahead)} of 3."
    )
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
    assert extra.table.title in (tmp_path / "out" / "table.md").read_text()
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
    with pytest.raises(
        RepperError, match=r"encoder in .* has changed since .*joined/repper\+linear was begun"
    ):
        list(reproduce(experiment, TINY, out, resume=True, how=how))


def test_without_the_newcomers_images_nothing_is_trained(tmp_path):
    experiment = Experiment(
        "new-clients",
        "New clients",
        (panel("digits", {"data": "digits"}, ("repper+linear",)),),
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
        (panel("mine", {"data": str(source)}, ("repper+linear", "fedavg+keep")),),
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


def test_gradients_are_measured_on_finished_runs(tmp_path):
    settings = {"data": "digits", "alpha": 0.5}
    experiment = Experiment(
        "gradients",
        "Gradients",
        (panel("early", settings, ("repper+linear", "fedavg+keep")),),
        {},
        measure="gradients",
    )
    *_, last = reproduce(experiment, TINY, tmp_path / "out", how={"engine": "serial"})
    [extra] = last.reproduction.extras
    rows = extra.table.rows
    found = {tuple(line[:2]): [cell.value for cell in line[2:5]] for line in rows}
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
    panels = [panel(name, settings, ("repper+linear",)) for name in ("early", "late")]
    experiment = Experiment("gradients", "Gradients", tuple(panels), {}, measure="gradients")
    folder, how = tmp_path / "out", {"engine": "serial"}
    for only in ("late", "early"):
        *_, last = reproduce(experiment, TINY, folder, only=only, resume=True, how=how)
    found = last.reproduction
    assert [extra.panel for extra in found.extras] == ["early", "late"]
    again = Reproduction.read(folder, experiment, TINY, 1)
    assert (again.extras, again.images) == (found.extras, found.images)
    # What it is cannot be read any more.
    (folder / "found.json").write_text('{"extras": [], "missing": {}}')
    with pytest.raises(RepperError, match=r"found.json is damaged: it has no images; delete it"):
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
            panel("digits", {"data": "digits", "train_images": 400}, rows),
            panel("cinic10", {"data": "cinic10"}, rows),
        ),
        {},
        measure="figures",
    )
    how = {"engine": "serial", "data_dir": str(tmp_path / "nothing")}
    *_, last = reproduce(experiment, TINY, tmp_path / "out", how=how)
    drawn = sorted(path.name for path in (tmp_path / "out" / "figures").iterdir())
    names = ["accuracy-per-class", "tsne-clients", "tsne-methods"]
    assert drawn == [name + suffix for name in names for suffix in (".png", ".svg")]
    parting, extra = (one.table for one in last.reproduction.extras)
    for place, what in ((3, "silhouette"), (6, "nearest image")):
        first = max(parting.rows, key=lambda line: line[place].value)[0]
        assert f"by {what}, {first} is first" in parting.caption
    assert parting.texts()[0][1:4] == [
        f"silhouette, {of}" for of in ("all", "frequent classes", "tail classes")
    ]
    assert [line[0] for line in parting.rows] == [
        "repper",
        "lg-fedavg (averaged after training)",
    ]
    assert all(-1 <= line[1].value <= 1 and 0 <= line[4].value <= 100 for line in parting.rows)
    text = (tmp_path / "out" / "table.md").read_text()
    assert "(figures/tsne-methods.png)" in text
    assert [line[:2] for line in extra.texts()[1:3]] == [["cifar10", "100"], ["cifar10", "1"]]
    assert all(line[2].startswith("left out: ") for line in extra.rows)
    # Read back from its folder it is the same, and its report needs no file beside it.
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    monkeypatch.setattr("repper.paper.findings.EXPERIMENTS", {"figures": lambda: experiment})
    opened = Reproduction.open(tmp_path / "out")
    assert opened.markdown() == last.reproduction.markdown()
    assert opened.panels[1].missing == "no images of cinic10 could be loaded"
    write_report([chapter_of(tmp_path / "out")], tmp_path / "page.html", tsne=False)
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
        (panel("digits", {"data": "digits"}, rows, {"lg-fedavg+svm": 59.82}),),
        {},
        measure="averaged",
    )
    *_, last = reproduce(experiment, TINY, tmp_path / "out", how={"engine": "serial"})
    [extra] = last.reproduction.extras
    assert [line[0] for line in extra.table.rows] == ["lg-fedavg+linear", "lg-fedavg+svm"]
    assert [line[3].value for line in extra.table.rows] == [None, 59.82]
    folder = tmp_path / "out" / "panels" / "digits"
    joined, own = (
        open_run(folder / f) for f in ("joined/lg-fedavg+svm", "cells/lg-fedavg+svm-seed0")
    )
    found = [cell.value for cell in extra.table.rows[1][1:3]]
    assert found == [run.accuracy["mean"] for run in (own, joined)]
    assert (joined.folder / "partition.json").read_text() == (
        own.folder / "partition.json"
    ).read_text()
    assert joined.result["personalize"] == "svm"
    assert joined.result["rounds"] == 0
