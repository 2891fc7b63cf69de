"""The paper's numbers, settings and claims as data."""

import dataclasses

import pytest

from repper.paper import EXPERIMENTS
from repper.paper.claims import Finding, Numbers, claims_of
from repper.paper.experiment import PAPER, SMALL, Panel
from repper.paper.panels import PanelResult, panel_config
from repper.paper.printed import FEDAVG, FEDAVG_TUNED, FEDREP, REPPER, REPPER_AS_PRINTED
from repper.paper.side_by_side import number_table, order_table
from repper.runs.compare import rows_of
from repper.runs.comparison_table import Line
from repper.runs.row import Row

X = Panel(("x",), {}, ())
C02, C04 = (
    Panel(("participation", "epochs"), {"participation": c, "epochs": 10}, ()) for c in (0.2, 0.4)
)


def printed(name):
    return {
        (panel, row): value
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
        assert rows_of(",".join(row.name for row in panel.rows)) == list(panel.rows)
        assert set(panel.printed) <= set(panel.rows)
        assert (config.lr, config.weight_decay) == (1e-3, 1e-4)
        # An epoch has as many steps as the paper's on 50,000 images.
        images = config.train_images or 50_000
        assert images / config.batch == pytest.approx(50_000 / 256, rel=0.02)


def test_the_papers_preset_is_its_setting_to_the_letter(tmp_path):
    table1 = EXPERIMENTS["table1"]()
    config = panel_config(table1, PAPER, table1.panels[-1], tmp_path)
    assert table1.panels[-1].name == "C 0.8, E 20, alpha 0.5"
    assert (config.encoder, config.rounds, config.epochs) == ("resnet34", 100, 20)
    assert (config.participation, config.alpha) == (0.8, 0.5)
    assert (config.train_images, config.width) == (None, 1.0)
    used = config.in_use()  # by repper and by its linear heads
    assert (used["temperature"], used["head_epochs"]) == (0.1, 10)
    # Whatever `repper run` does by default. The loss as printed has a row of its own.
    assert (used["loss"], used["views"], config.augment) == ("usual", 2, "weak")
    [printed] = [row for row in table1.panels[-1].rows if row.settings]
    as_printed = printed.config(config, 0, tmp_path)
    assert (as_printed.setting("loss"), as_printed.augment) == ("paper", "strong")
    assert (printed.method, printed.personalize) == ("repper", "linear")
    assert used["head_scale"] is False  # it says nothing of centring or scaling
    assert (used["head_lr"], used["head_optimizer"]) == (1e-3, "adam")
    assert used["head_weight_decay"] == 1e-4
    assert not PAPER.departures(table1, table1.panels[0])
    small = SMALL.departures(table1, table1.panels[-1])
    assert small["epochs"] == (20, 4)
    assert small["encoder"] == ("resnet34", "small")
    assert small["batch"] == (256, 26)


def test_the_papers_tables_agree_with_each_other():
    """Table 2 repeats cells of Table 1, and Table 4 and 3 do, but for a misprint of LG-FedAvg."""
    one, two, four = (
        {(panel.name, row.name): value for (panel, row), value in printed(name).items()}
        for name in ("table1", "table2", "table4")
    )
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
        "baselines do worse on tail classes than on frequent classes (said of two clients in a "
        "figure)": (0, 0),
        "RepPer loses less from frequent to tail classes than baselines with classifiers of each "
        "client's own (said of two clients in a figure)": (0, 0),
        "RepPer loses less from frequent to tail classes than baselines with one classifier for all "
        "(said of two clients in a figure)": (0, 0),
    }  # fmt: skip
    costs = found["skew (alpha 100 to 0.5) costs RepPer less than the baselines"]
    first = "lg-fedavg+finetune at C 0.2, E 10, alpha 100 to 0.5: -5.25, RepPer -9.58"
    assert costs.listed(1) == f"{first}; and 14 more"
    assert len(costs.evidence) == 15
    # The largest change of RepPer's by more clients in a round is 1.24.
    little = next(claim for claim in claims_of("table1") if "little effect" in claim.text)
    for change, holds in ((1.9, 1), (-2.1, 0)):
        pair = {(C02, REPPER): 50.0, (C04, REPPER): 50 + change}
        assert little.find(Numbers(pair)).holds == holds
    assert Finding(9, 10, (), enough=0.9).verdict == "yes"
    assert Finding(8, 10, (), enough=0.9).verdict == "in part"


def test_who_is_first_is_looked_at_head_by_head():
    [first] = claims_of("table3")
    numbers = {
        (X, Row(method, head)): value
        for head, values in (("linear", (80.0, 70.0)), ("svm", (50.0, 60.0)))
        for method, value in zip(("repper", "fedavg"), values, strict=True)
    }
    assert first.find(Numbers(numbers)) == Finding(
        1, 2, ("x, svm: fedavg+svm 60.00, RepPer 50.00",)
    )
    assert first.find(Numbers({})).verdict == "no data"


def test_each_form_of_reppers_loss_has_cases_of_its_own():
    first, _, own, _ = claims_of("table2")
    rows = (REPPER, REPPER_AS_PRINTED, FEDAVG_TUNED)
    numbers, head, tail = (
        {(X, row): value for row, value in zip(rows, values, strict=True)}
        for values in ((70.0, 60.0, 65.0), (80.0, 70.0, 70.0), (60.0, 60.0, 55.0))
    )
    found = first.find(Numbers(numbers))
    assert found == Finding(1, 2, ("x: fedavg+finetune 65.00, RepPer as printed 60.00",))
    found = own.find(Numbers(numbers, head, tail))
    assert found == Finding(1, 2, ("fedavg+finetune at x: -15.00, RepPer -20.00",))
    steps = {
        (at, row): value
        for row, change in ((REPPER, 1.0), (REPPER_AS_PRINTED, 5.0))
        for at, value in ((C02, 50.0), (C04, 50 + change))
    }
    little = next(claim for claim in claims_of("table1") if "little effect" in claim.text)
    against = "repper[augment=strong loss=paper]+linear at C 0.2 to 0.4, E 10: +5.00"
    assert little.find(Numbers(steps)) == Finding(1, 2, (against,))


def test_claims_on_tail_classes_are_computed_from_our_lines():
    _, worse, than_own, than_common = claims_of("table2")
    rows = (REPPER, FEDAVG, FEDAVG_TUNED, FEDREP)
    head, tail = (
        {(X, row): value for row, value in zip(rows, values, strict=True)}
        for values in ((80.0, 60.0, 90.0, 70.0), (60.0, 61.0, 40.0, 55.0))
    )
    numbers = Numbers({}, head, tail)
    assert worse.find(numbers) == Finding(2, 3, ("fedavg+keep at x: +1.00",))
    against = ("fedrep+finetune at x: -15.00, RepPer -20.00",)
    assert than_own.find(numbers) == Finding(1, 2, against)
    assert than_common.find(numbers).evidence == ("fedavg+keep at x: +1.00, RepPer -20.00",)


def test_table_3_is_ordered_head_by_head():
    table3 = EXPERIMENTS["table3"]()
    order = order_table(table3, [PanelResult(table3.panels[0], None, "none")])
    _, linear, svm, _ = order.texts()
    lead = ["cifar10, alpha 1, linear", "- (+11.58)"]
    # RepPer in both forms, then fedavg, lg-fedavg, fedrep.
    assert linear == [*lead, "- (1)", "- (1)", "- (4)", "- (2)", "- (3)", "-"]
    assert svm[:5] == ["cifar10, alpha 1, svm", "- (+11.96)", "- (1)", "- (1)", "- (3)"]


def test_rows_of_ours_have_no_place_and_forms_do_not_race_each_other():
    rows = (REPPER, REPPER_AS_PRINTED, FEDAVG, Row("repper", "common"))
    panel = Panel(("x",), {}, rows, {REPPER: 80.0, FEDAVG: 70.0})

    class Given(PanelResult):
        @property
        def lines(self):
            nothing = dict.fromkeys(field.name for field in dataclasses.fields(Line))
            found = zip(rows, (60.0, 65.0, 50.0, 90.0), strict=True)
            return {row: Line(**nothing | {"accuracy": value}) for row, value in found}

    result = Given(panel, None, "none")
    heading, line = order_table(EXPERIMENTS["table2"](), [result]).texts()
    _, numbers = number_table(EXPERIMENTS["table2"](), [result]).texts()
    assert dict(zip(heading, line, strict=True)) == {
        "setting": "x",
        "RepPer minus the best other": "+10.00 (+10.00)",
        "repper+linear": "1 (1)",
        "repper[augment=strong loss=paper]+linear": "1 (1)",
        "fedavg+keep": "2 (2)",
        "agreement (Kendall)": "+1.00",
    }
    assert any("(80.00, -15.00)" in cell for cell in numbers)  # the same number beside both forms
