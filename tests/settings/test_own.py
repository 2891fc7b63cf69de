"""Methods, heads, rules, encoders and data sets of the user's own, and every example."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import repper as api
from conftest import last_json, make_dataset
from repper.basics.errors import RepperError
from repper.basics.registry import load_reference, source_digest
from repper.heads import HEADS
from repper.methods import METHODS, Method
from repper.methods.fedavg import FedAvg, FedProx
from repper.server.momentum import FedAvgM
from repper.settings.config import OPTIONS, Config

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = {"clients": 4, "rounds": 2, "epochs": 1, "width": 0.25, "knn": 0, "participation": 0.5}
FLAGS = [part for name, value in TINY.items() for part in (f"--{name}", value)]
OWN = {
    "my_method.py": ("--method", "ShortFeatures", ("--weight-of-length", 0.5)),
    "my_head.py": ("--personalize", "NearestMean", ("--head-shrink", 0.25)),
    "my_rule.py": ("--server", "TrimmedMean", ("--trim", 0)),
    "my_encoder.py": ("--encoder", "two_layers", ()),
    "two_stages.py": ("--method", "EncoderThenHead", ("--head-rounds", 2)),
}


def loaded(file):
    spec = importlib.util.spec_from_file_location(f"example_{file[:-3]}", EXAMPLES / file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*OWN, "loop_by_hand.py"}
    own = EXAMPLES.glob("my_*.py")
    assert max(len(path.read_text().splitlines()) for path in own) < 50


@pytest.mark.parametrize("file", OWN)
def test_an_example_gives_the_same_bits_on_the_pool_and_when_it_is_resumed(repper, tmp_path, file):
    flag, name, setting = OWN[file]
    command = ("run", *FLAGS, flag, f"{EXAMPLES / file}:{name}", *setting, "--json")
    serial = last_json(repper(*command, "--engine", "serial", "--out", tmp_path / "a"))
    pool = last_json(repper(*command, "--workers", 2, "--out", tmp_path / "b"))
    first = repper(*command, "--engine", "serial", "--rounds", 1, "--out", tmp_path / "c")
    assert first.returncode == 0, first.stderr
    whole = ("digest",) if file == "two_stages.py" else ("encoder_digest", "heads_digest")
    if file != "two_stages.py":  # its stages are not those of a longer run cut short
        again = last_json(
            repper(*command, "--engine", "serial", "--out", tmp_path / "c", "--resume")
        )
        assert [again[key] for key in whole] == [serial[key] for key in whole]
    for key in ("encoder_digest", "heads_digest"):
        assert pool[key] == serial[key]
    plain = last_json(
        repper("run", *FLAGS, "--json", "--engine", "serial", "--out", tmp_path / "d")
    )
    assert serial["heads_digest"] != plain["heads_digest"]


def test_the_data_set_of_the_example_is_learned(repper, tmp_path):
    data = f"{EXAMPLES / 'my_encoder.py'}:stripes"
    command = ("run", *FLAGS, "--data", data, "--rounds", 4, "--engine", "serial", "--json")
    done = last_json(repper(*command, "--out", tmp_path / "a"))
    assert done["accuracy"]["mean"] > 80


def test_the_loop_by_hand_learns(capsys):
    assert loaded("loop_by_hand.py").main(rounds=3) > 85
    assert "round 3: clients" in capsys.readouterr().out


def test_a_setting_of_ones_own_changes_the_result_and_is_part_of_what_a_run_is(repper, tmp_path):
    method = f"{EXAMPLES / 'my_method.py'}:ShortFeatures"
    command = ("run", *FLAGS, "--engine", "serial", "--method", method, "--json")
    one = last_json(repper(*command, "--out", tmp_path / "a"))
    zero = last_json(repper(*command, "--weight-of-length", 0, "--out", tmp_path / "b"))
    fedavg = last_json(
        repper("run", *FLAGS, "--engine", "serial", "--method", "fedavg", "--json",
               "--out", tmp_path / "c")
    )  # fmt: skip
    assert zero["encoder_digest"] == fedavg["encoder_digest"] != one["encoder_digest"]
    assert one["method"] == "my_method.py:ShortFeatures"  # no folder of this machine
    other = repper(*command, "--weight-of-length", 2, "--out", tmp_path / "a", "--resume")
    assert "its weight-of-length is 0.01, not 2.0" in other.stderr
    (tmp_path / "own.toml").write_text(f'[method]\nname = "{method}"\nweight-of-length = 0\n')
    filed = last_json(
        repper("run", *FLAGS, "--engine", "serial", "--config", tmp_path / "own.toml", "--json",
               "--out", tmp_path / "d")
    )  # fmt: skip
    assert filed["encoder_digest"] == fedavg["encoder_digest"]


def test_a_run_is_not_resumed_with_other_code(repper, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text((EXAMPLES / "my_method.py").read_text())
    command = ("run", *FLAGS, "--engine", "serial", "--method", f"{mine}:ShortFeatures")
    assert repper(*command, "--rounds", 1, "--out", tmp_path / "a").returncode == 0
    mine.write_text(mine.read_text().replace("square()", "abs()"))
    changed = repper(*command, "--out", tmp_path / "a", "--resume")
    assert changed.returncode == 2
    assert "has a run with other settings: its source of method is" in changed.stderr


def test_rows_of_ones_own_stand_beside_others(repper, tmp_path):
    method = f"{EXAMPLES / 'my_method.py'}:ShortFeatures"
    done = last_json(
        repper("compare", *FLAGS, "--engine", "serial", "--methods", f"{method}+linear,fedavg",
               "--weight-of-length", 0.2, "--out", tmp_path / "c", "--json")
    )  # fmt: skip
    assert [row["row"] for row in done["rows"]] == ["ShortFeatures+linear", "fedavg+keep"]
    assert (tmp_path / "c" / "cells" / "ShortFeatures+linear-seed0" / "result.json").is_file()
    assert repper("report", tmp_path / "c", "--out", tmp_path / "r.html").returncode == 0
    wrong = repper("compare", *FLAGS, "--methods", "fedavg", "--weight-of-length", 1)
    assert "unknown option --weight-of-length" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--method", "nowhere.py:X"), "there is no file nowhere.py"),
        (("--method", "{}/my_method.py:Shorts"), "did you mean 'ShortFeatures'?"),
        (("--method", "{}/my_head.py:NearestMean"), "is not a method: it must be a subclass of Method"),
        (("--method", "no_such_package:X"), "there is no package no_such_package: install it"),
        (("--personalize", "{}/my_rule.py:TrimmedMean"), "is not a head: it must be a subclass of Head"),
        (("--server", "{}/my_rule.py:TrimmedMean", "--trim", -1), "trim must be at least 0, got -1"),
        (("--server", "{}/my_rule.py:TrimmedMean", "--trim", "x"), "must be a whole number, got 'x'"),
        (("--personalize", "{}/my_head.py:NearestMean", "--head-shrink", 2), "shrink must be at most 1"),
        (("--data", "{}/my_head.py:NearestMean"), "must return a repper.Dataset, got NearestMean"),
    ],
)  # fmt: skip
def test_a_wrong_reference_gets_one_sentence_and_nothing_is_written(
    repper, tmp_path, arguments, said
):
    filled = [str(argument).format(EXAMPLES) for argument in arguments]
    done = repper("run", *filled, "--out", tmp_path / "out")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_setting_of_ones_own_is_not_called_idle_because_another_method_has_its_name(
    repper, tmp_path
):
    text = (EXAMPLES / "my_method.py").read_text().replace("weight_of_length", "mu")
    (tmp_path / "mine.py").write_text(text)
    done = repper("run", *FLAGS, "--rounds", 0, "--method", "mine.py:ShortFeatures", "--mu", 0.5)
    assert done.returncode == 0
    assert "has no effect" not in done.stderr


def test_a_file_that_cannot_be_loaded_says_why(repper, tmp_path):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    done = repper("run", "--method", "broken.py:X")
    assert "broken.py, line 1, in <module>: ZeroDivisionError: division by zero" in done.stderr


MISTAKES = {
    "an output that is not there": (
        "my_method.py", 'outputs["r"]', 'outputs["rr"]',
        "mine.py, line 30, in ShortFeatures.loss: LookupError: the network has no output 'rr', only r, head",
    ),
    "an error of one's own": (
        "my_method.py", "length = ", "length = {}[0] * ", "mine.py, line 30, in ShortFeatures.loss: KeyError: 0",
    ),
    "no tuple of phases": (
        "my_method.py", "return (Phase(everything, epochs, self.loss),)", "Phase",
        "phases of ShortFeatures must return a tuple of Phase, got None",
    ),
    "no stages": (
        "two_stages.py", "return encoder, head", "return [encoder, head]",
        "stages of EncoderThenHead must return a tuple of Stage, got [Stage(",
    ),
    "an unknown shape of a head": (
        "my_head.py", '"linear"', '"liner"', "unknown shape of NearestMean 'liner', did you mean",
    ),
    "a head without its arrays": (
        "my_head.py", '"bias":', '"offset":',
        "NearestMean must give the arrays weight, bias for shape 'linear', got weight, offset",
    ),
    "an encoder that is none": (
        "my_encoder.py", "return Encoder(body, features)", "return body",
        "must return an Encoder (from repper.encoders.encoder import Encoder), got Sequential",
    ),
    "wrong features of an encoder": (
        "my_encoder.py", "Encoder(body, features)", "Encoder(body, 3)",
        "mine.py:two_layers makes 16 features of an image, but its Encoder says 3",
    ),
    "an error far from its own lines": (
        "my_method.py", "return losses.cross_entropy(seen)", "return seen.outputs['head']",
        "mine.py:ShortFeatures raised RuntimeError: grad can be implicitly created only",
    ),
    "nothing is shared by mistake": (
        "my_method.py", "return True", "True",
        "shared of ShortFeatures must return True or False, got None",
    ),
    "a head that yields nothing": (
        "my_head.py", "yield ", "if x is None: yield ", "_fit of a head must yield a shape",
    ),
    "a stage of too many": (
        "two_stages.py", "participation=Fraction(1)", "participation=Fraction(2)",
        "participation of a stage must be above 0 and at most 1, got 2",
    ),
    "an error while loading": (
        "my_method.py", "setting(0.01", "settings(0.01",
        "mine.py cannot be loaded: mine.py, line 21, in ShortFeatures: NameError: name 'settings'",
    ),
    "an abstract class": (
        "my_rule.py", "def apply(", "def apples(",
        "mine.py:TrimmedMean raised TypeError: Can't instantiate abstract class",
    ),
    "a rule that fails": (
        "my_rule.py", "torch.stack(", "torch.stock(",
        "mine.py, line 32, in TrimmedMean.apply.<dictcomp>: AttributeError: module 'torch' has",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_ones_own_code_is_told_before_anything_is_written(repper, tmp_path, mistake):
    file, old, new, said = MISTAKES[mistake]
    text = (EXAMPLES / file).read_text()
    assert old in text
    (tmp_path / "mine.py").write_text(text.replace(old, new, 1))
    flag, name, _ = OWN[file]
    done = repper("run", *FLAGS, flag, f"mine.py:{name}", "--out", tmp_path / "out")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_a_mistake_that_only_clients_meet_names_its_line(repper, tmp_path, engine):
    text = (EXAMPLES / "my_method.py").read_text()
    # The trial before the first round has fewer images.
    late = "assert len(seen.labels) < 20, 'too many'\n        length = "
    (tmp_path / "mine.py").write_text(text.replace("length = ", late, 1))
    done = repper(
        "run", *FLAGS, "--method", "mine.py:ShortFeatures", "--engine", engine, "--workers", 2
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "repper: mine.py, line 30, in ShortFeatures.loss: AssertionError: too many"
    )


def test_a_field_may_not_have_the_name_of_a_setting_of_every_run(repper, tmp_path):
    text = (EXAMPLES / "my_method.py").read_text().replace("weight_of_length", "batch")
    (tmp_path / "clash.py").write_text(text)
    done = repper("run", "--method", "clash.py:ShortFeatures")
    assert "has a field batch, but batch is a setting of every run: rename the field" in done.stderr


# By value


@dataclass(frozen=True)
class Mine(Method):
    beta: float = 2.0

    def shared(self, name):
        return True

    def phases(self, epochs):
        return FedAvg().phases(epochs)


def test_a_method_by_value_is_the_method_by_name(tmp_path):
    data = make_dataset()
    settings = {**TINY, "engine": "serial"}
    value = api.run(data, method=FedProx(mu=0.3), out=tmp_path / "a", **settings)
    name = api.run(data, method="fedprox", mu=0.3, out=tmp_path / "b", **settings)
    assert value.result["encoder_digest"] == name.result["encoder_digest"]
    assert value.config.identity() == name.config.identity()
    assert value.config.setting("mu") == 0.3


def test_values_work_for_rules_and_heads_too(tmp_path):
    data, settings = make_dataset(), {**TINY, "engine": "serial", "method": "fedavg"}
    head = HEADS["svm"](c=0.1)
    value = api.run(
        data, server=FedAvgM(server_momentum=0.5), personalize=head, out=tmp_path / "a", **settings
    )
    name = api.run(
        data, server="fedavgm", server_momentum=0.5, personalize="svm", head_c=0.1,
        out=tmp_path / "b", **settings,
    )  # fmt: skip
    for key in ("encoder_digest", "heads_digest"):
        assert value.result[key] == name.result[key]


def test_a_value_of_ones_own_runs_and_is_resumed(tmp_path):
    data, settings = make_dataset(), {**TINY, "engine": "serial"}
    mine = api.run(data, method=Mine(beta=3.0), out=tmp_path / "a", **settings)
    fedavg = api.run(data, method="fedavg", out=tmp_path / "b", **settings)
    assert mine.result["encoder_digest"] == fedavg.result["encoder_digest"]
    again = api.run(data, method=Mine(beta=3.0), out=tmp_path / "a", resume=True, **settings)
    assert again.result == mine.result
    with pytest.raises(RepperError, match="its beta is 3.0, not 2.0"):
        api.run(data, method=Mine(), out=tmp_path / "a", resume=True, **settings)
    with pytest.raises(RepperError, match="^beta must be a number, got 'x'$"):
        Mine(beta="x")


def test_a_setting_given_to_the_value_and_beside_it_is_refused():
    with pytest.raises(
        RepperError, match="mu is given twice: as a setting of method, and as a separate"
    ):
        Config(method=FedProx(mu=0.1), mu=0.2)
    assert Config(method=FedProx(mu=0.1), mu=0.1).own == {"mu": 0.1}


def test_values_are_rows_of_a_comparison(tmp_path):
    rows = [FedProx(mu=0.1), FedProx(mu=1.0), ("fedavg", "finetune"), (Mine(), "linear"), "fedavg"]
    settings = {**TINY, "epochs": 3, "engine": "serial"}  # the first step has nothing to pull
    found = api.compare(rows, make_dataset(), out=tmp_path / "c", **settings)
    assert [line.row for line in found.lines] == [
        "fedprox[mu=0.1]+keep", "fedprox[mu=1]+keep", "fedavg+finetune", "Mine+linear",
        "fedavg+keep",
    ]  # fmt: skip
    digests = [run.result["encoder_digest"] for [run] in found.runs().values()]
    assert len(set(digests)) == 3  # Mine and both rows of FedAvg have trained the same
    with pytest.raises(RepperError, match=r"names fedavg\+keep twice"):
        api.compare([FedAvg(), "fedavg"], make_dataset(), out=tmp_path / "d", **TINY)


SCRIPT = """
from dataclasses import dataclass
import repper
from repper.methods import Method
from repper.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Here(Method):
    def shared(self, name):
        return True
    def phases(self, epochs):
        return FedAvg().phases(epochs)

settings = dict(clients=4, rounds=1, epochs=1, width=0.25, knn=0, workers=2)
for method, engine in ((Here(), "{engine}"), ("fedavg", "serial")):
    run = repper.run(method=method, out=engine, engine=engine, **settings)
    print(run.result["encoder_digest"])
"""


def check_a_class_of_a_script(folder, engine):
    """As in a notebook: there is no module that a worker could import."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(engine=engine)], cwd=folder, capture_output=True,
        text=True, check=False, timeout=600, env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    mine, fedavg = [line for line in done.stdout.splitlines() if len(line) == 64]
    assert mine == fedavg


def test_a_class_of_a_script_reaches_the_workers(tmp_path):
    check_a_class_of_a_script(tmp_path, "pool")  # Flower's are in tests/federation


# What every owner of settings promises


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_fields_have_help_and_become_flags(repper, name):
    from repper.basics.options import options_of

    shown = repper("run", "--help").stdout
    for field, option in options_of(METHODS[name]).items():
        assert option.help, field
        assert name in OPTIONS[option.flag or field].owners
        assert f"--{option.key}" in shown


def test_the_object_refuses_what_the_flag_refuses_in_the_same_words(repper):
    flag = repper("run", "--method", "fedprox", "--mu", -1).stderr
    with pytest.raises(RepperError) as error:
        FedProx(mu=-1)
    assert flag == f"repper: --{error.value}\n"
    assert "--" not in str(error.value)
    with pytest.raises(RepperError) as error:
        HEADS["linear"](optimizer="x").fit([[0.0], [1.0]], [0, 1])
    flag = repper("run", "--head-optimizer", "x").stderr
    assert flag == f"repper: {str(error.value).replace('optimizer', 'head optimizer', 1)}\n"
    assert "--" not in str(error.value)


def test_the_source_of_what_is_ones_own_has_a_digest():
    one = load_reference(f"{EXAMPLES / 'my_method.py'}:ShortFeatures")
    assert len(source_digest(one)) == 64
    assert load_reference(f"{EXAMPLES / 'my_method.py'}:ShortFeatures") is one


def test_a_row_of_ones_own_may_have_settings(repper):
    """Its flags are found also where its name stands before brackets."""
    rows = f"{EXAMPLES / 'my_method.py'}:ShortFeatures[lr=0.003]+linear,fedavg"
    process = repper(
        "compare", "--methods", rows, "--weight-of-length", 0.1, *FLAGS, "--engine", "serial",
        "--out", "c", "--json",
    )  # fmt: skip
    assert [row["row"] for row in last_json(process)["rows"]] == [
        "ShortFeatures[lr=0.003]+linear", "fedavg+keep",
    ]  # fmt: skip
