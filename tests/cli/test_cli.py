import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from conftest import QUICK, last_json
from repper.basics.table import Number, Table
from repper.cli.progress import Display, duration
from repper.cli.tables import console_for_results, print_table
from repper.methods import METHODS
from repper.runs.execute import RoundDone, Started
from repper.runs.plan import plan
from repper.runs.round_log import Checkpoint
from repper.server.round_loop import Served
from repper.settings.config import OPTIONS, Config

ACCURACY = {
    "mean", "std", "worst", "worst_tenth", "weighted", "balanced", "head_classes", "tail_classes",
}  # fmt: skip


def test_digests_are_the_same_on_any_engine_and_number_of_workers(repper):
    runs = [
        last_json(repper("run", *QUICK, "--out", f"run{n}", "--json", *engine))
        for n, engine in enumerate(
            [
                ("--engine", "serial"),
                ("--engine", "pool", "--workers", 1),
                ("--engine", "pool", "--workers", 2),
                ("--engine", "serial", "--seed", 1),
            ]
        )
    ]
    for key in ("encoder_digest", "heads_digest"):
        first, one, two, other_seed = (run[key] for run in runs)
        assert first == one == two != other_seed


def test_with_json_stdout_is_one_object_and_the_rest_is_on_stderr(repper):
    process = repper("run", *QUICK, "--json")
    result = json.loads(process.stdout)
    assert process.stdout.count("\n") == 1
    assert "round 3/3" in process.stderr
    assert "Accuracy per client (%)" in process.stderr
    joined = repper("join", "--run", result["run"], "--clients", 2, "--out", "joined", "--json")
    assert json.loads(joined.stdout)["run"] == "joined"
    rows = ("compare", "--methods", "fedavg+keep", *QUICK, "--rounds", 1, "--out", "c", "--json")
    compared = repper(*rows)
    assert json.loads(compared.stdout)["comparison"] == "c"
    assert "fedavg+keep" in compared.stderr


WIDE = ["row", "accuracy", "frequent classes", "minus repper+linear"]


@pytest.mark.parametrize("columns", [40, 60, 80, 160])
def test_no_heading_and_no_figure_is_cut(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [["fedavg+keep", *[Number(12.34, deviation=5.67)] * 6]] * 2
    table = Table.of([*WIDE, *WIDE[1:]], rows, caption="All in percent.")
    print_table(console_for_results(), table)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    assert "…" not in shown
    assert shown.count("12.34 ± 5.67") == 12
    words = re.findall(r"[\w+.±]+", shown)
    for name in ("frequent", "classes", "accuracy", "repper+linear"):
        assert words.count(name) == 2
    assert shown.endswith("All in percent.\n")


@pytest.mark.parametrize(("columns", "width"), [(None, 100), ("80", 80), ("140", 140)])
def test_columns_is_obeyed_in_a_pipe(columns, width, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    assert console_for_results(100).width == width


def test_json_has_the_promised_keys(repper):
    process = repper("run", *QUICK, "--json")
    result = last_json(process)
    assert set(result) == {
        "run", "method", "personalize", "rounds", "accuracy", "encoder_digest", "heads_digest",
        "seconds",
    }  # fmt: skip
    assert set(result["accuracy"]) == ACCURACY
    assert set(result["seconds"]) == {"crl", "pcl"}
    assert (result["method"], result["personalize"], result["rounds"]) == ("repper", "linear", 3)
    assert result["run"].startswith("runs/digits-repper-linear-")


def test_without_a_terminal_progress_is_plain_lines_on_stderr(repper, tmp_path):
    process = repper("run", *QUICK)
    assert re.search(
        r"^round 2/3  loss \d+\.\d+  k-NN \d+\.\d %  \d+\.\d s  \d+:\d\d left$",
        process.stderr,
        re.M,
    )
    assert "personalized 6/6 clients" in process.stderr
    assert "\x1b" not in process.stderr + process.stdout
    assert "round 2/3" not in process.stdout
    assert "repper+linear, accuracy (%)" in process.stdout
    [log] = tmp_path.glob("runs/*/rounds.jsonl")
    sampled = {c for line in log.read_text().splitlines() for c in json.loads(line)["cohort"]}
    assert f"{6 - len(sampled)} of 6 clients were never sampled" in process.stdout


def test_the_time_left_counts_rounds_of_this_process_only(tmp_path, digits, capsys, monkeypatch):
    started = Started(plan(Config(rounds=10, clients=3, out=str(tmp_path)), digits), 4)
    now = 0.0
    monkeypatch.setattr("repper.cli.progress.time.monotonic", lambda: now)
    record = {"round": 6, "loss": 1.0, "knn": None, "seconds": 50.0}
    with Display() as display:
        display.show(started)
        now = 100.0
        display.show(RoundDone(record, Checkpoint(6, Served({}))))
    assert "round 6/10  loss 1.000  50.0 s  3:20 left" in capsys.readouterr().err


def test_the_time_left_does_not_count_the_start_once_a_round(tmp_path, digits, capsys, monkeypatch):
    started = Started(plan(Config(rounds=30, clients=3, out=str(tmp_path)), digits), 0)
    now = 0.0
    monkeypatch.setattr("repper.cli.progress.time.monotonic", lambda: now)
    with Display() as display:
        display.show(started)
        for number, at in ((1, 60.0), (2, 62.0), (3, 66.0)):  # a minute's start
            now = at
            record = {"round": number, "loss": 1.0, "knn": None, "seconds": 5.0}
            display.show(RoundDone(record, Checkpoint(number, Served({}))))
    shown = re.findall(r"round \d+/30 .* (\d+:\d+) left", capsys.readouterr().err)
    assert shown == [duration(29 * 5), duration(28 * 2), duration(27 * 3)]


def test_durations_are_as_on_a_clock():
    assert [duration(s) for s in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]


def test_a_tilde_that_the_shell_has_left_is_the_home_folder(repper, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    assert repper("partition", "--out=~/who.json").returncode == 0
    assert (tmp_path / "home" / "who.json").is_file()
    run = repper("run", *QUICK, "--rounds", 0, "--out=~/run")
    assert run.returncode == 0, run.stderr
    page = repper("report", "~/run", "--no-tsne", "--out=~/page.html")
    assert page.returncode == 0, page.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"home"}


def on_a_terminal(tmp_path, **env):
    """Run with stderr on a pseudo-terminal and return what it showed."""
    reader, writer = os.openpty()
    command = [sys.executable, "-m", "repper", "run", *map(str, QUICK)]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=writer,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "140", **env},
    ) as process:  # fmt: skip
        os.close(writer)
        shown = b""
        while True:
            try:
                part = os.read(reader, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(reader)
    assert process.returncode == 0
    return shown.decode()


def test_on_a_terminal_there_are_bars_with_the_time_left(tmp_path):
    shown = on_a_terminal(tmp_path)
    assert "stage 1 encoder" in shown
    assert "stage 2 heads" in shown
    assert "3/3" in shown
    assert "left" in shown
    assert "\x1b[38" in shown or "\x1b[3" in shown


def test_no_color_is_respected(tmp_path):
    shown = on_a_terminal(tmp_path, NO_COLOR="1")
    assert "stage 1 encoder" in shown
    assert not re.search(r"\x1b\[[0-9;]*3[0-9](;[0-9;]*)?m", shown)


def test_a_toml_file_gives_settings_and_flags_win(repper, tmp_path):
    (tmp_path / "my.toml").write_text(
        'rounds = 1\nepochs = 1\nwidth = 0.25\npersonalize = "logistic"\n'
        '[clients]\ncount = 4\n[clients.2]\npersonalize = "svm"\n'
    )
    process = repper("run", "--config", "my.toml", "--rounds", 2, "--out", "run", "--json")
    result = last_json(process)
    assert (result["rounds"], result["personalize"]) == (2, "logistic")
    import repper as api

    kinds = [score.personalize for score in api.open_run(tmp_path / "run").scores()]
    assert kinds == ["logistic", "logistic", "svm", "logistic"]


BAD = {
    "--alpha 0": "--alpha must be above 0, got 0",
    "--alpha nan": "--alpha must be a finite number, got nan",
    "--clients 5000": "5000 clients with at least 10 train images each need 50000",
    "--participation 0": "--participation must be above 0, got 0",
    "--participation 1.5": "--participation must be at most 1, got 1.5",
    "--rounds -3": "--rounds must be at least 0, got -3",
    "--rounds many": "--rounds must be a whole number, got 'many'",
    "--method fedprx": "unknown method 'fedprx'",
    "--data digit": "unknown data set 'digit', did you mean 'digits'?",
    "--personalize svn": "unknown personalize 'svn', did you mean 'svm'?",
    "--encoder pixels": "has nothing for repper to train: use --rounds 0",
    "--device tpu": "--device must be auto, cpu, cuda, cuda:N or mps, got 'tpu'",
    "--device cuda": "--device cuda is not available on this machine",
    "--partition mine.json": "there is no file mine.json",
    "--partition shard": "unknown partition 'shard', did you mean 'shards'?",
    "--init nowhere": "there is no file nowhere",
    "--config none.toml": "cannot read none.toml: No such file or directory",
    "--data cifar10 --data-dir nowhere": "cifar10 is neither in nowhere/cifar10 nor in nowhere: fetch it with --download",
    "--data my/images": "the folder of images my/images does not exist",
    "--data digits --partition folders": "--partition folders needs a folder of images",
    "--data . --download": "--download needs a data set by name, but . is a folder of images",
    "--test-share 1": "--test-share must be at most 0.9, got 1",
    "--alhpa 1": "unknown option --alhpa, did you mean --alpha?",
    "--alpha": "argument --alpha: expected one argument",
    "--resume --overwrite": "give only one of them",
    "--out /proc/nowhere/run": "cannot write to --out /proc/nowhere/run",
    "--out /dev/null/run": "cannot use --out /dev/null/run: Not a directory",
    "--stage1-clients 0,99": "--stage1-clients names client 99",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_gets_one_sentence_and_writes_nothing(repper, tmp_path, arguments):
    if arguments == "--device cuda":
        import torch

        if torch.cuda.is_available():
            pytest.skip("this machine has CUDA")
    process = repper("run", *arguments.split(), env={"REPPER_DATA": ""})
    assert process.returncode == 2
    assert process.stderr.startswith("repper: ")
    assert BAD[arguments] in process.stderr
    assert len(process.stderr.splitlines()) == 1
    assert process.stdout == ""
    assert os.listdir(tmp_path) == []


def test_a_process_ends_with_the_code_and_the_sentence(repper_process, tmp_path):
    process = repper_process("run", "--alpha", 0)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == "repper: --alpha must be above 0, got 0\n"
    assert repper_process("--version").stdout.startswith("repper 0.")
    assert os.listdir(tmp_path) == []


def test_a_switch_takes_no_value_and_a_toml_file_can_set_it(repper, tmp_path):
    (tmp_path / "photos" / "a").mkdir(parents=True)
    (tmp_path / "photos" / "a" / "x.png").write_text("no image")
    (tmp_path / "on.toml").write_text('data = "photos"\nskip-unreadable = true\n')
    lost = "class 'a' has no readable image"
    assert lost in repper("run", "--config", "on.toml").stderr
    assert lost in repper("partition", "--data", "photos", "--skip-unreadable").stderr
    assert "a/x.png" in repper("partition", "--data", "photos").stderr


def test_debug_shows_the_traceback_too(repper):
    process = repper("run", "--data", "digit", "--debug")
    assert process.returncode == 2
    assert "Traceback" in process.stderr
    assert process.stderr.splitlines()[-1].startswith("repper: unknown data set")


@pytest.mark.parametrize(
    ("arguments", "goes_on"),
    [
        (("run",), True),
        (("reproduce", "table2"), True),
        (("reproduce", "table2", "--estimate"), False),
        (("report", "x"), False),
    ],
)
def test_an_interrupted_command_goes_on_if_it_can(repper, monkeypatch, arguments, goes_on):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    # Not what the commands call: a module that is loaded meanwhile would keep it for later tests.
    for name in ("runs._run", "paper._reproduce", "paper._report"):
        monkeypatch.setattr(f"repper.cli.{name}", interrupt)
    stopped = repper(*arguments)
    hint = "; the same command with --resume continues" if goes_on else ""
    assert (stopped.returncode, stopped.stderr) == (130, f"repper: interrupted{hint}\n")


def test_unknown_commands_are_refused(repper):
    process = repper("rnu")
    assert process.returncode == 2
    assert "repper: unknown command 'rnu', did you mean 'run'?" in process.stderr


def test_without_arguments_help_is_shown(repper):
    assert "examples:" in repper().stdout
    assert repper("--version").stdout.startswith("repper 0.")


def test_every_setting_is_in_the_help_with_its_default(repper):
    text = " ".join(repper("run", "--help").stdout.split())
    for name, option in OPTIONS.items():
        assert f"--{name.replace('_', '-')}" in text
        assert " ".join(option.help.split()) in text


def test_help_says_what_a_command_has_by_default(repper):
    joining = " ".join(repper("join", "--help").stdout.split())
    assert "--clients X number of clients (default: the run's)" in joining
    assert (
        "--personalize linear|mlp|svm|logistic|FILE.py:NAME how each client gets its head after "
        "the last round (default: linear)" in joining
    )
    assert "random seed (default: the run's seed plus 1)" in joining
    assert "at least 10" not in joining
    federating = " ".join(repper("federate", "--help").stdout.split())
    methods = "|".join(name for name in METHODS if name != "central")
    assert f"--method {methods} federated learning method (default: repper)" in federating
    assert "--out X folder to write to (default: none: give one)" in federating


@pytest.mark.parametrize("name", ["bubbles.png", "bubbles.svg", "bubbles.pdf"])
def test_partition_draws_who_holds_what(repper, tmp_path, name):
    process = repper(
        "partition", "--data", "digits", "--clients", 20, "--alpha", 0.5, "--seed", 0, "--out", name
    )
    assert process.returncode == 0, process.stderr
    assert "20 clients with" in process.stdout
    content = (tmp_path / name).read_bytes()
    assert len(content) > 3000
    repper("partition", "--out", "again" + name[7:])
    if not name.endswith("pdf"):
        assert (tmp_path / ("again" + name[7:])).read_bytes() == content
    if name.endswith("png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.width > picture.height > 300
            assert (np.asarray(picture.convert("L")) < 250).mean() > 0.02


def test_a_partition_can_be_written_and_used_by_a_run(repper, tmp_path):
    assert repper("partition", "--clients", 5, "--alpha", 2, "--out", "p.json").returncode == 0
    process = repper("run", *QUICK, "--partition", "p.json", "--out", "run", "--json")
    assert last_json(process)
    assert (
        json.loads((tmp_path / "p.json").read_text())["hash"]
        == json.loads((tmp_path / "run" / "partition.json").read_text())["hash"]
    )


def test_partition_refuses_a_format_it_cannot_draw(repper, tmp_path):
    process = repper("partition", "--out", "x.doc")
    assert process.returncode == 2
    assert "its name must end in .png, .svg, .pdf" in process.stderr
    process = repper("partition", "--out", "no/such/folder/x.png")
    assert process.returncode == 2
    assert "repper: cannot write no/such/folder/x.png" in process.stderr
    assert os.listdir(tmp_path) == []


def test_predict_classifies_image_files(repper, tmp_path, digits):
    last_json(repper("run", *QUICK, "--rounds", 8, "--epochs", 5, "--out", "run", "--json"))
    manifest = json.loads((tmp_path / "run" / "partition.json").read_text())
    rows = manifest["clients"][3]["train"][:12]
    for row in rows:
        Image.fromarray(digits.train.images[row, 0]).save(tmp_path / f"{row}.png")
    names = [f"{row}.png" for row in rows]
    process = repper("predict", "--run", "run", "--client", 3, "--no-unknown", *names)
    assert process.returncode == 0, process.stderr
    answers = [line.split("\t") for line in process.stdout.splitlines()]
    assert [name for name, _ in answers] == names
    right = [
        label == str(digits.train.labels[row])
        for (_, label), row in zip(answers, rows, strict=True)
    ]
    assert sum(right) >= 11
    as_json = last_json(repper("predict", "--run", "run", "--client", 3, "--json", *names))
    known = sorted({int(n) for n in digits.train.labels[manifest["clients"][3]["train"]]})
    assert as_json["known"] == [str(n) for n in known] != [str(n) for n in range(10)]
    unknown = [p["unknown"] for p in as_json["predictions"]]
    assert sum(unknown) <= 3
    for told, (_, label) in zip(as_json["predictions"], answers, strict=True):
        assert told["class"] == (None if told["unknown"] else label)

    # Of images of other classes, many are called unknown; and a person is told what a head knows.
    others = [r for r, label in enumerate(digits.train.labels) if label not in known][:20]
    for row in others:
        Image.fromarray(digits.train.images[row, 0]).save(tmp_path / f"{row}.png")
    paths = [f"{row}.png" for row in others]
    process = repper("predict", "--run", "run", "--client", 3, "--top", 2, *paths)
    assert f"client 3's head knows {len(known)} of 10 classes ({known[0]}, " in process.stderr
    assert process.stdout.count("\tunknown (nearest: ") >= 10
    assert process.stdout.count(", ") == 20
    process = repper("predict", "--run", "run", "--client", 3, "--no-unknown", *paths)
    assert "an image of any other class gets one of these too" in process.stderr
    assert "unknown" not in process.stdout

    for arguments, message in {
        "--run run --client 99 0.png": "there is no client 99: this run has 0 to 5",
        "--run run --client x 0.png": "--client must be a whole number, got 'x'",
        "--run nowhere --client 1 0.png": "nowhere is not a run folder",
        "--run run --client 1 missing.png": "cannot read image missing.png",
        "--run run --client 1": "the following arguments are required: IMAGE",
    }.items():
        process = repper("predict", *arguments.split())
        assert process.returncode == 2
        assert message in process.stderr
        assert "Traceback" not in process.stderr
