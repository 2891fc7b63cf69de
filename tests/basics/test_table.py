"""Tables: numbers stay numbers, and every way of writing them says the same."""

import csv
import io
import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repper.basics.documents import build
from repper.basics.errors import RepperError
from repper.basics.table import Column, Number, Table, count, figure, gain, places
from repper.cli.tables import console_for_results, print_table
from repper.report.html import table as in_html

ACCURACY = Number(61.8, deviation=1.25, rank=1)
WITH_PAPER = Number(50.0, rank=2, beside=(Number(75.67), gain(-25.67, -30.0, -21.34)))
EXAMPLE = Table.of(
    ["row", "accuracy", Column("beside", beside=("paper", "difference")), "images", "note"],
    [
        ["a_b|c", ACCURACY, WITH_PAPER, count(1234567), "50 % & more"],
        ["d", Number(None, missing="not run"), Number(None, beside=(Number(5.0),)), count(0), ""],
    ],
    "A title",
    "Best bold.",
)
floats = st.floats(-1e6, 1e6)
known = st.none() | floats
numbers = st.builds(
    Number,
    known,
    st.sampled_from(["{:.2f}", "{:+.2f}", "± {:.1f}", "{:.0%} of 7", "{:,.0f}", "{:.4g}"]),
    deviation=known,
    interval=st.none() | st.tuples(floats, floats),
    rank=st.none() | st.integers(1, 4),
    beside=st.lists(st.builds(Number, known), max_size=2).map(tuple),
    missing=st.sampled_from(["-", "", "not run"]),
)
texts = st.text(r"\|<>{}$&#_%~^[]*-± a1", max_size=9) | st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=20
)


@st.composite
def tables(draw):
    kinds = [draw(st.sampled_from([texts, numbers])) for _ in range(draw(st.integers(1, 4)))]
    columns = [Column(draw(texts), f"key{n}", ("b", "c")) for n in range(len(kinds))]
    rows = draw(st.lists(st.tuples(*kinds), max_size=4))
    return Table.of(columns, rows, draw(texts), draw(texts))


def test_a_table_in_markdown():
    assert EXAMPLE.markdown().splitlines() == [
        "| row | accuracy | beside | images | note |",
        "| --- | ---: | ---: | ---: | --- |",
        r"| a_b\|c | **61.80 ± 1.25** | <u>50.00</u> (75.67, -25.67 [-30.00, -21.34]) | 1,234,567 "
        "| 50 % & more |",
        "| d | not run | - (5.00) | 0 |  |",
    ]


def test_what_markdown_would_take_for_its_own_is_escaped():
    rows = [["a\\|b", "<u>x", "two\nlines"]]
    assert Table.of(["1", "2", "3"], rows).markdown().splitlines()[2:] == [
        r"| a\\\|b | \<u>x | two lines |"
    ]
    assert r"a\textbackslash{}\textbar{}b" in Table.of(["1"], [["a\\|b"]]).latex()


def test_a_table_in_latex():
    heading, first, second = (
        line.strip() for line in EXAMPLE.latex().splitlines() if line.endswith(r"\\")
    )
    assert heading == r"row & accuracy & beside & images & note \\"
    assert first == (
        r"a\_b\textbar{}c & \textbf{61.80 $\pm$ 1.25} & \underline{50.00} (75.67, $-$25.67 "
        r"[$-$30.00, $-$21.34]) & 1,234,567 & 50 \% \& more \\"
    )
    assert second == r"d & not run & - (5.00) & 0 &  \\"
    text = EXAMPLE.latex()
    assert r"\begin{tabular}{lrrrl}" in text
    assert r"\caption{A title. Best bold.}" in text
    for command in ("toprule", "midrule", "bottomrule", "end{tabular}", "end{table}"):
        assert text.count(f"\\{command}") == 1
    # Some would be taken for an argument of the end of a line, or for a dash.
    starred = Table.of(["[x]"], [["*"], ["a--b-1"], ["x" * 51]]).latex()
    assert [line.strip() for line in starred.splitlines() if line.endswith(r"\\")] == [
        r"{}[x] \\", r"{}* \\", r"a-{}-b-1 \\", rf"{'x' * 51} \\",
    ]  # fmt: skip
    assert r"{p{0.3\linewidth}}" in starred


def test_a_table_in_csv_has_a_column_per_number():
    first, second = csv.DictReader(io.StringIO(EXAMPLE.csv()))
    assert first == {
        "row": "a_b|c", "accuracy": "61.8", "accuracy_deviation": "1.25", "beside": "50.0",
        "beside_paper": "75.67", "beside_difference": "-25.67", "beside_difference_low": "-30.0",
        "beside_difference_high": "-21.34", "images": "1234567", "note": "50 % & more",
    }  # fmt: skip
    assert {key for key, text in second.items() if text} == {"row", "beside_paper", "images"}


def test_a_table_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_table(console_for_results(), EXAMPLE)
    shown = capsys.readouterr().out
    assert "\x1b[1m61.80 ± 1.25\x1b[0m" in shown
    assert "\x1b[4m50.00\x1b[0m (75.67, -25.67 [-30.00, -21.34])" in shown
    assert shown.startswith("\x1b[3mA title")


def test_a_table_on_a_page():
    made = in_html(EXAMPLE)
    assert '<td class="number" data-sort="61.8"><b>61.80 ± 1.25</b></td>' in made
    small = "<small>(75.67, -25.67 [-30.00, -21.34])</small>"
    assert f'<td class="number" data-sort="50.0"><u>50.00</u><br>{small}</td>' in made
    assert '<td class="number" data-sort="-inf">not run</td>' in made
    assert '<td class="text">50 % &amp; more</td>' in made


def test_only_columns_that_are_numbers_throughout_are_numeric():
    rows = [["a", Number(None), Number(1.0)], ["b", Number(None), "text"]]
    mixed = Table.of(["row", "missing", "mixed"], rows)
    assert [mixed.is_numeric(place) for place in range(3)] == [False, True, False]
    assert not Table.of(["row"], []).is_numeric(0)


def test_equal_values_share_a_place_and_unknown_ones_have_none():
    assert places([3.0, None, 5.0, 5.0, 1.0]) == {5.0: 1, 3.0: 2, 1.0: 3}
    assert places([None]) == {}
    assert [Number(1.0, rank=n).mark for n in (1, 2, 3, None)] == [1, 2, 0, 0]
    assert Number(None, rank=1).mark == 0


def test_a_number_and_what_belongs_to_it():
    assert (figure(1.005), figure(None)) == ("1.00", "-")
    assert gain(1.0, 0.5, 1.5).text == "+1.00 [+0.50, +1.50]"
    assert gain(1.0, None, 1.5).text == "+1.00"
    assert Number(None, beside=(Number(None, missing=""),)).in_brackets == ""


@given(tables())
def test_a_markdown_table_has_as_many_cells_as_it_should(table):
    lines = table.markdown().split("\n")
    assert len(lines) == 2 + len(table.rows)
    for line in lines:
        # What GitHub takes for the end of a cell: a stroke with no backslash before it.
        assert len(re.sub(r"\\.", "", line).split("|")) == len(table.columns) + 2


@given(tables())
def test_latex_never_leaves_its_cell(table):
    text = table.latex()
    bare = re.sub(r"\\[{}$&#_%]", "x", text)  # what is escaped is text
    depth = 0
    for letter in bare:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    assert not set(bare) & set("#%~^|<>±_")
    commands = set(re.findall(r"\\([A-Za-z]+)", bare))
    assert commands <= {
        "begin", "end", "centering", "caption", "toprule", "midrule", "bottomrule", "textbf",
        "underline", "pm", "linewidth", "textbackslash", "textasciitilde", "textasciicircum",
        "textbar", "textless", "textgreater",
    }  # fmt: skip
    lines = [line.strip() for line in bare.split("\n") if line.endswith(r"\\")]
    assert len(lines) == 1 + len(table.rows)
    for line in lines:
        assert line.count("&") == len(table.columns) - 1
        assert not line.startswith(("[", "*"))


@given(tables())
def test_csv_reads_back_as_the_numbers_themselves(table):
    rows = list(csv.DictReader(io.StringIO(table.csv(), newline="")))
    assert len(rows) == len(table.rows)
    for found, row in zip(rows, table.rows, strict=True):
        for place, cell in enumerate(row):
            if isinstance(cell, str):
                assert found[f"key{place}"] == cell
                continue
            expected = {"": cell.value, "_deviation": cell.deviation}
            expected |= {f"_{key}": one.value for key, one in zip("bc", cell.beside)}  # noqa: B905
            for end, value in zip(("_low", "_high"), cell.interval or (), strict=False):
                expected[end] = value
            for key, value in expected.items():
                text = found.get(f"key{place}{key}") or None
                assert (None if text is None else float(text)) == value


@given(tables())
def test_a_page_shows_text_and_no_elements_of_it(table):
    made = in_html(table)
    allowed = "p|div|table|caption|thead|tbody|tr|th|button|td|wbr|br|small|b|u"
    assert re.findall(rf"<(?!/?(?:{allowed})\b)", made) == []
    assert made.count("<tr") == 1 + len(table.rows)


@given(tables())
def test_a_table_is_kept_in_json_as_it_is(table):
    assert build(Table, json.loads(json.dumps(asdict(table))), Path("found.json")) == table


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ({"value": "1"}, "its rows.value cannot be '1'"),
        ({}, "it has no rows.value"),
        (1.5, "its rows cannot be 1.5"),
        ({"value": 1.0, "form": "{:999999999f}"}, "is no number of a table"),
        ({"value": 1.0, "form": "{.__class__}"}, "is no number of a table"),
        ({"value": 1.0, "interval": [1.0]}, "is no number of a table"),
        ("one of five", "does not have 5 cells"),
    ],
)
def test_a_damaged_table_is_refused(cell, said):
    kept = json.dumps(asdict(EXAMPLE) | {"rows": [[cell]]})
    with pytest.raises(RepperError, match=f"found.json is damaged: .*{said}.*; restore it"):
        build(Table, json.loads(kept), Path("found.json"))
