"""The report: what it holds, that it escapes what it is given, and what it refuses."""

import functools
import itertools
import json
import re
import shlex
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import repper as api
from repper.basics.errors import RepperError
from repper.basics.table import Number, Table
from repper.data.partition import read_partition
from repper.figures import plots
from repper.figures.embedding import _some_clients, embedding_of
from repper.figures.palette import DARK, LIGHT, Look, class_looks, looks
from repper.methods import METHODS
from repper.paper import figures
from repper.paper.figures import OTHERS
from repper.report import charts, svg, write_report
from repper.report.content import command_of, subjects_of
from repper.report.html import table, tag
from repper.report.opening import listed, verdict
from repper.report.sections import section
from repper.runs.compare import CellStarted, compare, rows_of
from repper.runs.newcomers import join_config
from repper.runs.row import Row
from repper.runs.run_folder import EMBEDDING
from repper.settings.config import OPTIONS, Config


@pytest.fixture(scope="module")
def page(reported):
    write_report([reported / "run", reported / "both"], reported / "report.html")
    return (reported / "report.html").read_text()


def test_text_is_escaped_and_html_is_not():
    evil = '<script>"&'
    assert tag("p", evil, title=evil) == (
        '<p title="&lt;script&gt;&quot;&amp;">&lt;script&gt;"&amp;</p>'
    )
    assert tag("p", tag("b", "x")) == "<p><b>x</b></p>"
    assert tag("input", checked=True, value=None, aria_label="a") == (
        '<input checked aria-label="a">'
    )


@given(st.text())
def test_nothing_a_run_is_named_gets_out_of_its_element(text):
    inside = table(Table.of([text], [[text]], text, text))
    allowed = "p|div|table|caption|thead|tbody|tr|th|button|td|wbr"
    assert re.findall(rf"<(?!/?(?:{allowed})\b)", inside) == []


def test_a_note_stands_above_the_frame_that_scrolls():
    made = table(Table.of(["a"], [["b"]], "n", "c"))
    assert made.startswith('<p class="note">c</p><div class="scroll"')
    assert '<caption class="unseen">n</caption>' in made


def test_columns_of_numbers_stand_at_the_right():
    rows = [["x", "1", Number(2.0)], ["y", Number(3.0), Number(None)]]
    made = table(Table.of(["a", "b", "c"], rows, "n"))
    assert re.findall(r'<td class="(\w+)"', made) == ["text", "number"] * 2
    assert re.findall(r'<th scope="col" class="(\w+)"', made) == ["text", "text", "number"]


def test_what_stands_beside_the_papers_numbers_is_sorted_by_ours():
    ours = Number(61.8, rank=1, beside=(Number(75.67), Number(-13.87, "{:+.2f}")))
    rows = [
        ["a", ours, Number(1e-05, "{:.1e}"), "1 2 3"],
        ["b", Number(None, missing="no data", beside=(Number(5.0),)), Number(2500.0), "words"],
    ]
    made = table(Table.of(["row", "x", "y", "z"], rows, "n"))
    assert re.findall(r'<td class="number" data-sort="([^"]+)">', made) == [
        "61.8", "1e-05", "-inf", "2500.0",
    ]  # fmt: skip
    assert "><b>61.80</b><br><small>(75.67, -13.87)</small></td>" in made
    assert ">no data<br><small>(5.00)</small></td>" in made


def lightness(colour, sight=None):
    """A colour in Lab, and its luminance, as people with a kind of colour-blindness see it."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(sight or np.eye(3)) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ seen
    f = xyz / [0.9505, 1, 1.089]
    f = np.where(f > 0.008856, np.cbrt(f), 7.787 * f + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])]), xyz[1]


# Machado, Oliveira and Fernandes 2009, for linear RGB.
SIGHTS = {
    "usual": None,
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize(("colours", "paper"), [(LIGHT, "#ffffff"), (DARK, "#12161b")])
def test_colours_are_told_apart_by_all_and_stand_out(colours, paper, sight):
    seen = [lightness(colour, SIGHTS[sight])[0] for colour in colours]
    nearest = min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2))
    assert nearest > 20  # Okabe and Ito's palette has 16
    for colour in colours:
        low, high = sorted(lightness(c)[1] for c in (colour, paper))
        assert (high + 0.05) / (low + 0.05) >= 3


def contrast(one, other):
    low, high = sorted(lightness(c)[1] for c in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("place", "colours"), [(0, LIGHT), (1, DARK)])
def test_the_page_and_the_figures_have_marks_that_stand_out(place, colours):
    """A bundle of colours of the page's style, in light and in dark; and none is seen through."""
    style = resources.files("repper.report").joinpath("page.css").read_text()
    schemes = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in style.split("@media")[:2]]
    paper = schemes[place]["paper"]
    for colour in (
        *colours,
        schemes[place]["ink"],
        schemes[place]["soft"],
        schemes[place]["other"],
    ):
        assert contrast(colour, paper) >= 3, colour
    assert re.findall(r"\.(?:dot|mark|line|mean|other)\b[^}]*opacity", style) == []
    grey = f"#{round(255 * float(OTHERS)):02x}" + 2 * f"{round(255 * float(OTHERS)):02x}"
    assert contrast(grey, "#ffffff") >= 3
    source = Path(figures.__file__).read_text() + Path(plots.__file__).read_text()
    # A band of deviations is no mark.
    lines = [line for line in source.splitlines() if "fill_between" not in line]
    assert "alpha=0" not in "\n".join(lines)


def test_a_method_looks_the_same_everywhere():
    rows = looks(["repper+linear", "fedavg+keep", "fedavg+finetune", "fedrep+finetune"])
    assert rows["fedavg+keep"].colour == rows["fedavg+finetune"].colour
    assert rows["fedavg+keep"].turn != rows["fedavg+finetune"].turn
    alone = looks(["lg-fedavg (averaged after training)", "fedrep", "repper"])
    assert alone["fedrep"] == rows["fedrep+finetune"]
    assert len({look.colour for look in alone.values()}) == 3
    every = looks([*METHODS, "repper+svm", "fedavg+svm", "fedavg+linear"])
    assert len(set(every.values())) == len(every)
    assert looks(["local"])["local"] == every["local"] != every["repper"]


def test_of_very_many_classes_the_commonest_have_colours():
    few = class_looks(np.array([9, 1, 1, 3]))
    assert few == {1: Look(1), 3: Look(3), 9: Look(4, 1)}
    assert class_looks(np.zeros(0, np.int64)) == {}
    labels = np.repeat(np.arange(100), np.where(np.arange(100) >= 92, 3, 1))
    assert list(class_looks(labels)) == list(range(92, 100))
    drawn = charts.scatter(
        "x",
        np.random.default_rng(0).random((len(labels), 2)),
        labels,
        [f"n{i}" for i in range(100)],
    )
    assert drawn.count('class="mark"') == len(labels) + 8 + 1  # and those of the legend
    assert "</svg>n92</li>" in drawn
    assert "</svg>others</li>" in drawn


def test_long_and_wide_names_are_cut_where_they_do_not_fit():
    assert svg.short("lg-fedavg+finetune") == "lg-fedavg+finetune"
    for long in ("x" * 80, "\u6f22" * 80):
        assert svg._length(svg.short(long)) <= svg.LONGEST_LABEL
        assert svg.short(long).endswith("\u2026")
    drawn = charts.heat("t", ["r"], ["x" * 30, "a"], np.array([[5.0, 6.0]]))
    width = float(re.search(r'viewBox="0 0 (\d+)', drawn)[1])
    # The first name leans over the second column and out of it.
    assert width > svg.room(["r"]) + 46 / 2 + 0.57 * svg.LETTER * 30
    drawn = charts.heat("t", ["r" * 50], ["c"], np.array([[5.0]]))
    assert f"<title>{'r' * 50}</title>" in drawn


@given(
    st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.booleans()
)  # fmt: skip
def test_ticks_span_the_values_and_are_few(low, span, whole):
    ticks = svg.ticks(low, low + span, whole)
    slack = 1e-6 * max(1.0, abs(low), span)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + span - slack
    assert 2 <= len(ticks) <= 7
    assert not whole or all(tick == int(tick) for tick in ticks)


def test_a_bubbles_area_is_its_number_of_images():
    drawn = charts.bubbles("x", ("a", "b"), ("client 0", "client 1"), np.array([[100, 25], [0, 4]]))
    radii = [float(r) for r in re.findall(r'r="([\d.]+)"', drawn)]
    assert len(radii) == 3
    assert np.allclose(sorted(np.square(radii) / max(radii) ** 2), [0.04, 0.25, 1], atol=0.01)
    assert "client 1, b: 4 images" in drawn


def test_a_heat_map_leaves_out_what_is_unknown():
    drawn = charts.heat("x", ["one"], ["a", "b"], np.array([[50.0, np.nan]]))
    assert drawn.count("<rect") == 1
    assert "--share:0.500" in drawn


def test_the_page_stands_alone(page):
    assert page.startswith("<!doctype html>")
    # No address to fetch from: links within the page only, and nothing but data in images.
    assert re.findall(r'(?:src|href)="(?!#)', page) == []
    assert "url(" not in page
    assert "default-src 'none'" in page
    assert len(page) < 600_000


def test_the_page_tells_what_was_run_and_found(page, reported):
    run = api.open_run(reported / "run")
    assert "repper run --clients 5 --width 0.25" in page
    assert f"<b>{run.accuracy['mean']:.2f}</b>" in page
    comparison = api.open_comparison(reported / "both")
    for line in comparison.lines:
        assert f'data-sort="{line.accuracy}"' in page
    for title in ("Over rounds", "Over clients", "Classes", "Who holds what", "Cost"):
        assert page.count(f"<h3>{title}</h3>") == 2
    assert "--methods repper+linear,fedavg+keep,fedavg+finetune --seeds 2" in page
    assert page.count("Accuracy over rounds") >= 2
    assert run.result["encoder_digest"][:16] in page


def test_curves_of_several_seeds_are_their_means_in_a_band(reported):
    [subject] = subjects_of(reported / "both")
    [drawn] = re.findall(
        r"<figcaption>Accuracy over rounds</figcaption>.*?</figure>",
        section(subject, "x", tsne=False),
    )
    assert drawn.count('class="band"') == len(subject.rows)
    for row, runs in subject.rows.items():
        means = [np.mean([run.rounds()[i]["accuracy"]["mean"] for run in runs]) for i in (0, 1)]
        assert f"{row.name}: {means[0]:.2f} at round 1, {means[1]:.2f} at 2" in drawn


def test_a_band_goes_around_its_line():
    look = Look(0, 0)
    around = charts.Series("a", look, [1, 2], [5.0, 6.0], [1.0, 0.5])
    assert around.band() == [(1, 6.0), (2, 6.5), (2, 5.5), (1, 4.0)]
    assert charts.Series("a", look, [1, 2], [5.0, 6.0], [0.0, 0.0]).band() == []
    drawn = charts.lines("t", "x", "y", [around])
    corners = re.search(r'd="M([^"]+)Z" class="band"', drawn)[1].split("L")
    assert len(corners) == 4
    assert all(svg.TOP <= float(c.split()[1]) <= svg.HEIGHT - svg.BOTTOM for c in corners)


def test_a_command_names_what_is_not_a_default(reported):
    [subject] = subjects_of(reported / "run")
    assert subject.command == (
        "repper run --clients 5 --width 0.25 --rounds 2 --epochs 1 --personalize linear "
        "--evaluate-every 1 --device cpu"
    )


def test_a_command_repeats_what_rows_and_single_clients_have_of_their_own(tmp_path):
    settings = {"clients": 4, "rounds": 1, "epochs": 1, "width": 0.25, "engine": "serial", "knn": 0}
    api.compare("repper+linear,fedavg[augment=none]", "digits", out=tmp_path, **settings)
    [subject] = subjects_of(tmp_path)
    assert subject.command.endswith("--knn 0 --methods 'repper+linear,fedavg[augment=none]+keep'")
    config = Config(overrides={1: {"personalize": "svm"}}, data="/srv/my images & co")
    assert command_of("compare", config, Path("runs/mine")) == (
        "repper compare --config runs/mine/config.toml --out again --data '/srv/my images & co'"
    )


def test_a_command_names_the_manifest_of_a_partition_that_was_made_in_python(tmp_path, digits):
    settings = {"rounds": 0, "width": 0.25, "engine": "serial", "knn": 0}
    drawn, same, own = (
        api.split(digits, "dirichlet", clients=3, seed=1),
        api.split(digits, "dirichlet", clients=3, seed=0),
        api.Partition((np.arange(9), np.arange(9, 20)), (np.arange(5), np.arange(5, 9))),
    )
    for name, partition in (("drawn", drawn), ("same", same), ("own", own)):
        api.run(digits, partition, out=tmp_path / name, **settings)
        [subject] = subjects_of(tmp_path / name)
        manifest = f"--partition {tmp_path / name / 'partition.json'} "
        assert (manifest in subject.command) == (name != "same")
        assert "given" not in subject.command


def test_clients_who_joined_are_repeated_with_join(reported, tmp_path, repper):
    run = api.open_run(reported / "run")
    joined = api.join(run, clients=3, alpha=2.0, head_epochs=4, out=tmp_path / "joined")
    [subject] = subjects_of(joined.folder)
    assert subject.command == (
        f"repper join --run {run.folder} --clients 3 --alpha 2.0 --personalize linear "
        "--head-curve 1 --seed 1 --device cpu --epochs 4"
    )
    # What `join` would choose by itself is named too where it was chosen otherwise.
    same = join_config(run, {"seed": run.config.seed, "head_curve": 0}, same_clients=False)
    assert "--head-curve 0 --seed 0" in command_of("run", same, joined.folder)
    again = repper(*shlex.split(subject.command)[1:], "--out", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    found = api.open_run(tmp_path / "again").result
    assert found["heads_digest"] == joined.result["heads_digest"]
    write_report([joined.folder], tmp_path / "r.html", tsne=False)
    page = (tmp_path / "r.html").read_text()
    assert "3 clients, who fit heads on the encoder of a finished run" in page
    last = joined.mean_curve()[4]
    assert f"repper+linear: {last:.2f} at 4" in page


def test_images_of_newcomers_are_seen_as_their_encoder_does(reported, tmp_path):
    run = api.open_run(reported / "run")
    joined = api.join(
        run, data="digits", image_size=16, clients=3, head_epochs=2, out=tmp_path / "joined"
    )
    write_report([joined.folder], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "<figcaption>repper</figcaption>" in page
    assert "How well the features part the classes" in page


def test_a_report_does_without_images_that_are_others_now(tmp_path):
    digits = api.load("digits")
    for row in range(60):
        path = tmp_path / "images" / str(digits.train.labels[row]) / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.train.images[row][0]).save(path)
    settings = {"clients": 2, "rounds": 1, "epochs": 1, "width": 0.25, "engine": "serial", "knn": 0}
    api.run(str(tmp_path / "images"), image_size=8, out=tmp_path / "run", **settings)
    (tmp_path / "images" / "0" / "0.png").unlink(missing_ok=True)
    Image.fromarray(digits.train.images[99][0]).save(tmp_path / "images" / "0" / "more.png")
    write_report([tmp_path / "run"], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert re.search("repper is not drawn: [^<]* was made for another data set", page)


def test_of_large_runs_some_clients_are_looked_at(reported, monkeypatch):
    run = api.open_run(reported / "run")
    partition = read_partition(run.folder / "partition.json", api.load("digits"))
    assert _some_clients(partition) == list(range(5))
    sizes = {c: len(partition.train[c]) + len(partition.test[c]) for c in range(5)}
    monkeypatch.setattr("repper.figures.embedding.MOST_IMAGES", sum(sizes.values()) - 1)
    fewer = _some_clients(partition)
    assert 1 <= len(fewer) < 5
    monkeypatch.setattr("repper.figures.embedding.MOST_IMAGES", 1)
    assert len(_some_clients(partition)) == 1


def test_an_unfinished_comparison_says_how_to_run_the_whole(tmp_path):
    config = Config(
        clients=4, rounds=1, epochs=1, width=0.25, engine="serial", out=str(tmp_path / "c")
    )
    rows = rows_of("repper+linear,fedavg[augment=none],fedavg+finetune")
    running = compare(config, rows, seeds=2)
    next(event for event in running if isinstance(event, CellStarted) and event.number == 2)
    running.close()
    [subject] = subjects_of(tmp_path / "c")
    assert subject.names == ["repper+linear"]
    assert subject.command.endswith(
        "--methods 'repper+linear,fedavg[augment=none]+keep,fedavg+finetune' --seeds 2"
    )
    write_report([tmp_path / "c"], tmp_path / "r.html", tsne=False)
    page = (tmp_path / "r.html").read_text()
    assert "Not finished: 1 of 3 rows so far." in page
    assert "<fieldset" not in page  # a filter of one row would hide its clients


def test_a_report_of_the_folder_one_is_in_has_its_name(reported, monkeypatch, tmp_path):
    monkeypatch.chdir(reported / "run")
    write_report([Path()], tmp_path / "r.html", tsne=False)
    assert "<title>repper: run</title>" in (tmp_path / "r.html").read_text()


def test_rows_of_one_training_share_a_picture(reported, page):
    [subject] = subjects_of(reported / "both")
    assert [len(runs) for runs in subject.rows.values()] == [2, 2, 2]
    assert page.count("<figcaption>fedavg</figcaption>") == 1


def test_an_embedding_is_drawn_once(reported):
    run, loads = api.open_run(reported / "run"), []

    def load():
        loads.append("digits")
        return api.load("digits")

    first = embedding_of(run, load)
    path = run.folder / EMBEDDING
    before, loads[:] = path.stat().st_mtime_ns, []
    again = embedding_of(run, load)
    assert path.stat().st_mtime_ns == before
    assert loads == []  # a folder that was moved away from its images keeps its picture
    assert np.array_equal(first.points, again.points)
    assert all(0 <= value <= 100 for value in first.parting.nearest)
    assert all(-1 <= value <= 1 for value in first.parting.silhouette)
    path.write_text("{}")
    assert np.array_equal(embedding_of(run, load).points, first.points)
    assert json.loads(path.read_text())["nearest"] == list(first.parting.nearest)


def test_without_its_images_a_run_has_a_report_without_the_picture(reported, tmp_path):
    data = api.Dataset("mine", ("a", "b"), *(_split(n) for n in (40, 20)))
    api.run(data, out=tmp_path / "mine", clients=2, rounds=1, epochs=1, engine="serial", width=0.25)
    write_report([tmp_path / "mine"], tmp_path / "r.html")
    assert re.search("repper is not drawn: [^<]*mine", (tmp_path / "r.html").read_text())


def test_a_report_fetches_nothing_whatever_the_run_was_allowed(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: asked.append(a))
    data = api.Dataset("cifar10", ("a", "b"), *(_split(n) for n in (40, 20)))
    settings = {"clients": 2, "rounds": 0, "width": 0.25, "engine": "serial", "knn": 0}
    api.run(data, download=True, data_dir=str(tmp_path), out=tmp_path / "r", **settings)
    write_report([tmp_path / "r"], tmp_path / "r.html")
    assert asked == []
    assert "fetch it with --download" in (tmp_path / "r.html").read_text()


def test_a_picture_is_of_the_clients_that_are_there(tmp_path):
    common = {"rounds": 0, "width": 0.25, "engine": "serial", "out": tmp_path / "run"}
    load = functools.cache(lambda: api.load("digits"))
    seen = []
    for clients in (6, 3):
        run = api.run("digits", clients=clients, overwrite=True, **common)
        seen.append(embedding_of(run, load))
    # The same encoder, which was not trained, on the images of others.
    assert np.array_equal(seen[0].points, seen[1].points)
    assert [one.clients for one in seen] == [6, 3]
    assert seen[0].parting != seen[1].parting
    write_report([run.folder], tmp_path / "r.html", tsne=False)
    page = (tmp_path / "r.html").read_text()
    assert "3 clients, who fit heads on an encoder that was not trained" in page


def test_rows_of_one_method_can_be_told_apart_in_charts():
    heads = [f"repper+{head}" for head in ("linear", "mlp", "svm", "logistic")]
    series = [charts.Series(name, look, [1, 2], [1, 2]) for name, look in looks(heads).items()]
    drawn = charts.lines("x", "round", "y", series)
    kinds = re.findall(r'<svg [^>]*class="key wide ([^"]+)"', drawn)
    assert len(set(kinds)) == 4
    style = (Path(charts.__file__).parent / "page.css").read_text()
    for turn in range(1, svg.TURNS + 1):
        assert style.count(f".t{turn} .line") == style.count(f".t{turn} .mark") == 1


def test_a_heat_map_says_that_it_is_not_of_all_clients(tmp_path):
    data = api.Dataset("mine", ("a", "b"), *(_split(n) for n in (900, 450)))
    run = api.run(
        data, out=tmp_path / "many", clients=70, rounds=0, engine="serial", width=0.25,
        partition="iid",
    )  # fmt: skip
    write_report([run.folder], tmp_path / "r.html", tsne=False)
    page = (tmp_path / "r.html").read_text()
    assert "no test image, the first 60 of 70 clients" in page
    assert "Training images by client and class, the first 60 of 70 clients" in page


def _split(count):
    random = np.random.default_rng(count)
    images = random.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8)
    return api.Split(images, np.arange(count) % 2)


def test_what_cannot_be_reported_is_refused(reported, tmp_path):
    with pytest.raises(RepperError, match="holds no results: give a folder that was --out"):
        write_report([tmp_path], tmp_path / "r.html")
    with pytest.raises(RepperError, match="its name must end in .html"):
        write_report([reported / "run"], tmp_path / "r.pdf")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_says_where_the_report_is(repper, reported, tmp_path):
    done = repper("report", reported / "run", "--out", tmp_path / "x.html", "--no-tsne")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"Report: {(tmp_path / 'x.html').as_uri()}"
    assert "What the encoders see" not in (tmp_path / "x.html").read_text()


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ({"b": (1.0, -1.0, 3.0), "c": (2.0, -0.1, 4.0)}, "no row can be told from the best, a, by"),
        ({"b": (1.0, 0.5, 3.0), "c": (2.0, 0.1, 4.0)}, "a is better than all other rows, by"),
        ({"b": (1.0, -1.0, 3.0), "c": (2.0, 0.1, 4.0)}, "over seeds, except c, which is worse"),
        (
            {"b": (1.0, -1.0, 3.0), "c": (2.0, 0.1, 4.0), "d": (2.0, 0.1, 4.0)},
            "a is better than all other rows but b, by",
        ),
        (
            {"b": (1.0, None, None)},
            "a has the highest mean; no difference to another row has an interval",
        ),
    ],
)
def test_the_opening_says_which_rows_can_be_told_from_the_best(gains, said):
    assert said in verdict("a", gains, "over seeds")
    assert listed("ab") == "a and b"
    assert listed("abcde") == "5 rows"


def test_a_report_opens_with_split_clients_seeds_and_the_best_row(page, reported, tmp_path):
    one, both = re.findall(r'<p class="opening">(.+?)</p>', page)
    accuracy = api.open_run(reported / "run").accuracy
    assert one == (
        f"digits, Dirichlet 0.5, 5 clients, one seed: repper+linear has {accuracy['mean']:.2f} % in "
        f"the mean over clients, and {accuracy['worst_tenth']:.2f} % in that over the worst tenth "
        f"of them."
    )
    assert both.startswith("digits, Dirichlet 0.5, 5 clients, 2 seeds: ")
    found = api.open_comparison(reported / "both")
    best = max(found.lines, key=lambda line: line.accuracy).row
    assert f" {best}" in both
    for line in found.lines:
        if line.row != best:
            _, low, _ = found.paired(Row.named(best), Row.named(line.row))
            assert (line.row in both.partition(", except ")[2]) == (low > 0)
    assert page.index(both) < page.rindex("<h3>Command and settings</h3>")


def test_a_report_shows_all_settings_and_greys_defaults(page):
    settings = re.search(r"<summary>All .+?</details>", page, re.S)[0]
    rows = {
        name: (here, default, bool(grey))
        for grey, name, here, default in re.findall(
            r'<tr( class="grey")?><th scope="row"[^>]*>(.+?)</th><td[^>]*>(.+?)</td><td[^>]*>(.+?)</td>',
            settings,
        )
    }
    assert rows["alpha"] == ("0.5", "0.5", True)
    assert rows["partition"] == ("dirichlet", "dirichlet", True)
    assert rows["clients"] == ("5", "20", False)
    assert rows["temperature"][2]  # RepPer's own, at its default
    assert "mu" not in rows  # FedProx's, which is not here
    unused = {n for n, option in OPTIONS.items() if option.owners} | {"out", "data_dir"}
    assert {OPTIONS[n].key for n in OPTIONS if n not in unused} <= set(rows)
