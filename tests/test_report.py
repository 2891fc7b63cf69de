"""The report: what it holds, that it escapes what it is given, and what it refuses."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import repper as api
from repper.config import Config
from repper.embedding import FILE, embedding_of
from repper.errors import RepperError
from repper.report import charts, write_report
from repper.report.html import Html, number, table, tag
from repper.report.subject import command_of, subjects_of


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
    inside = table([text], [[text]], caption=text)
    assert re.findall(r"<(?!/?(?:p|div|table|thead|tbody|tr|th|button|td)\b)", inside) == []


def test_a_caption_stands_above_the_frame_that_scrolls():
    assert table(["a"], [["b"]], caption="c").startswith('<p class="note">c</p><div class="scroll"')


def test_unknown_numbers_sort_below_all():
    assert number(None) == ("-", float("-inf"))
    assert number(1234.567) == ("1,234.57", 1234.567)


@given(
    st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.booleans()
)  # fmt: skip
def test_ticks_span_the_values_and_are_few(low, span, whole):
    ticks = charts._ticks(low, low + span, whole)
    slack = 1e-6 * max(1.0, abs(low), span)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + span - slack
    assert 2 <= len(ticks) <= 7
    assert not whole or all(tick == int(tick) for tick in ticks)


def test_a_bubbles_area_is_its_number_of_images():
    drawn = charts.bubbles("x", ("a", "b"), np.array([[100, 25], [0, 4]]))
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


def test_a_command_names_what_is_not_a_default(reported):
    config = api.open_run(reported / "run").config
    assert command_of("run", config) == (
        "repper run --clients 5 --width 0.25 --rounds 2 --epochs 1 --personalize linear "
        "--evaluate-every 1 --device cpu"
    )


def test_a_command_repeats_what_rows_and_single_clients_have_of_their_own(tmp_path):
    settings = {"clients": 4, "rounds": 1, "epochs": 1, "width": 0.25, "engine": "serial", "knn": 0}
    api.compare(
        "repper+linear,fedavg", "digits", augment_for={"fedavg": "none"}, out=tmp_path, **settings
    )
    [subject], _ = subjects_of(tmp_path)
    assert subject.command.endswith(
        "--knn 0 --methods repper+linear,fedavg+keep --augment-for fedavg=none"
    )
    config = Config(overrides={1: {"personalize": "svm"}}, out="runs/mine")
    assert command_of("run", config) == "repper run --config runs/mine/config.toml"


def test_rows_of_one_training_share_a_picture(reported, page):
    [subject], none = subjects_of(reported / "both")
    assert none is None
    assert [len(runs) for runs in subject.rows.values()] == [2, 2, 2]
    assert page.count("<figcaption>fedavg</figcaption>") == 1


def test_an_embedding_is_drawn_once(reported):
    run, data = api.open_run(reported / "run"), api.load("digits")
    first = embedding_of(run, data)
    path = run.folder / FILE
    before = path.stat().st_mtime_ns
    again = embedding_of(run, data)
    assert path.stat().st_mtime_ns == before
    assert np.array_equal(first.points, again.points)
    assert 0 <= first.knn <= 100
    assert -1 <= first.silhouette <= 1
    path.write_text("{}")
    assert np.array_equal(embedding_of(run, data).points, first.points)
    assert json.loads(path.read_text())["knn"] == first.knn


def test_without_its_images_a_run_has_a_report_without_the_picture(reported, tmp_path):
    data = api.Dataset("mine", ("a", "b"), *(_split(n) for n in (40, 20)))
    api.run(data, out=tmp_path / "mine", clients=2, rounds=1, epochs=1, engine="serial", width=0.25)
    write_report([tmp_path / "mine"], tmp_path / "r.html")
    assert "Not drawn, because the images are not here" in (tmp_path / "r.html").read_text()


def _split(count):
    random = np.random.default_rng(count)
    images = random.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8)
    return api.Split(images, np.arange(count) % 2)


def test_what_cannot_be_reported_is_refused(reported, tmp_path):
    with pytest.raises(RepperError, match="holds no run, comparison or reproduction"):
        write_report([tmp_path], tmp_path / "r.html")
    with pytest.raises(RepperError, match="its name must end in .html"):
        write_report([reported / "run"], tmp_path / "r.pdf")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_says_where_the_report_is(repper, reported, tmp_path):
    done = repper("report", reported / "run", "--out", tmp_path / "x.html", "--no-tsne")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"Report: {(tmp_path / 'x.html').as_uri()}"
    assert "What the encoders see" not in (tmp_path / "x.html").read_text()
    assert isinstance(tag("p"), Html)
