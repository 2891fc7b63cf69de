"""Files, arguments and machines that mean no good: each ends in a sentence, and soon."""

import ast
import gzip
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import repper as api
from engines.test_engines import work_for
from repper.basics.documents import read_json, write_json
from repper.basics.errors import RepperError, failure_of_machine
from repper.basics.files import plain
from repper.basics.params import params_of
from repper.cli import show
from repper.cli.progress import Display
from repper.data import fashion
from repper.data.partition import read_partition, split
from repper.edge.saved_head import SavedHead, read_head
from repper.encoders.encoder import EncoderSpec, read_encoder, save_encoder
from repper.engines.pool import PoolEngine
from repper.engines.worker import failing_in_silence

ESCAPE = "\x1b]0;owned\x07\x9b31m\u202egnp.exe\u2066\x7f"
"""A terminal's commands, and a name that reads from right to left."""
COMMANDS = set(ESCAPE) - set("]0;owned31mgnp.exe")


# What is printed


def test_text_is_made_plain():
    assert plain(ESCAPE) == "�]0;owned��31m�gnp.exe��"
    assert plain("a\nb\tc\u2028d\udc80") == "a�b�c�d�"
    assert plain("naïve 日本 עברית 👩\u200d🔬") == "naïve 日本 עברית 👩\u200d🔬"


def test_only_one_file_prints_or_makes_consoles():
    for path in Path(show.__file__).parent.glob("*.py"):
        calls = [
            node.func
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        ]
        named = {call.id for call in calls if isinstance(call, ast.Name)}
        assert path.name == "show.py" or not named & {"print", "Console"}, path


@pytest.mark.parametrize(
    "arguments",
    [
        [ESCAPE],
        ["run", "--data", ESCAPE],
        ["run", f"--{ESCAPE}"],
        ["run", "--out", ESCAPE],
        ["run", "--config", ESCAPE],
        ["report", ESCAPE],
        ["predict", "--run", ESCAPE, "--client", "0", "x.png"],
        ["predict", ESCAPE, "x.png", "--debug"],
        ["export", ESCAPE, "--out", ESCAPE],
    ],
)  # fmt: skip
def test_errors_do_not_echo_commands_of_a_terminal(repper, arguments):
    done = repper(*arguments)
    assert done.returncode == 2
    assert not COMMANDS & set(done.stderr + done.stdout)


def test_predict_does_not_print_commands_in_the_names_of_a_foreign_head(repper, tmp_path):
    how = {"clients": 2, "rounds": 0, "width": 0.125, "engine": "serial", "personalize": "logistic"}
    api.run("digits", out=tmp_path / "run", **how)
    path = tmp_path / "run" / "heads" / "0.safetensors"
    head = read_head(path)
    names = tuple(f"{name}{ESCAPE}\nok.png\t1" for name in head.names)
    SavedHead(head.kind, head.shape, head.arrays, head.classes, names, head.encoder).save(path)
    result = read_json(tmp_path / "run" / "result.json")
    del result["digests"]  # as of an older version: the head is not tied to its run
    write_json(tmp_path / "run" / "result.json", result)
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    done = repper("predict", "--run", "run", "--client", 0, "a.png")
    assert done.returncode == 0, done.stderr
    assert not COMMANDS & set(done.stdout)
    assert len(done.stdout.splitlines()) == 1


def test_tables_and_progress_show_no_commands(capsys):
    show.console(width=60).print(f"[bold]x[/bold] {ESCAPE}")
    Display()._say(ESCAPE)
    shown = capsys.readouterr()
    assert "x �]0;owned" in shown.out
    assert "�]0;owned" in shown.err
    assert not COMMANDS & set(shown.out + shown.err)


def test_a_terminal_keeps_its_colours(monkeypatch, capsys):
    show.console(width=60, force_terminal=True, color_system="standard").print("[bold]x[/bold]")
    assert "\x1b[1mx\x1b[0m" in capsys.readouterr().out


# Arguments


@pytest.mark.parametrize(
    "arguments", [["run", "--lr=--"], ["predict", "--run=--", "x.png"], ["compare", "--methods=--"]]
)
def test_two_dashes_are_no_value(repper, arguments):
    done = repper(*arguments)
    assert (done.returncode, done.stderr) == (
        2,
        f"repper: {arguments[1][:-3]} needs a value, got '--'\n",
    )


def test_a_data_folder_that_is_a_file_is_refused(repper, tmp_path):
    (tmp_path / "file").write_text("")
    done = repper("run", "--data", "fashion-mnist", "--data-dir", "file")
    assert (done.returncode, done.stderr) == (
        2, "repper: --data-dir file is a file: give a folder of data sets\n",
    )  # fmt: skip
    done = repper("run", "--data", "fashion-mnist", env={"REPPER_DATA": str(tmp_path / "file")})
    assert "REPPER_DATA" in done.stderr
    assert done.returncode == 2


# Files


def idx(*shape):
    return b"\0\0\x08" + bytes([len(shape)]) + np.array(shape, ">u4").tobytes()


def test_a_small_file_that_unpacks_without_end_is_left_in_time(tmp_path):
    """It holds 300 times more than its header says; reading all would take that much memory."""
    path = tmp_path / "train-images-idx3-ubyte.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(idx(10, 28, 28))
        for _ in range(300):
            file.write(bytes(10 * 28 * 28))
    with pytest.raises(RepperError, match="its header says 7840 bytes, but more follow"):
        fashion.read_idx(path)
    path.write_bytes(gzip.compress(idx(2**31, 2**31, 2**31) + bytes(100)))
    with pytest.raises(
        RepperError, match=r"says 9903520314283042199192993792 bytes, above the limit of 1000000000"
    ):
        fashion.read_idx(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"size": 100_000}, "its size is 100000, but must be 1 to 4096"),
        ({"size": 0}, "its size is 0"),
        ({"size": -8}, "its size is -8"),
        ({"channels": 10**6}, "its channels is 1000000, but must be 1 or 3"),
        ({"width": 1e9}, "its width is 1000000000.0, but must be above 0 and at most 16"),
        ({"width": float("nan")}, "its width is nan"),
        ({"norm": "none"}, "its norm is none, but must be batch or group"),
        ({"width": 16.0}, "does not contain the parameters of its encoder 'resnet34'"),
    ],
)
def test_an_encoder_of_impossible_size_is_refused_without_being_built(tmp_path, change, sentence):
    path = tmp_path / "encoder.safetensors"
    small = EncoderSpec("small", 1, 8, 0.125)
    params = {f"encoder.{n}": t for n, t in params_of(small.build()).items()}
    numbers = {"name": "resnet34", "channels": 1, "size": 8, "width": 0.125, "norm": "batch"}
    save_encoder(path, EncoderSpec(**(numbers | change)), params, "test")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RepperError, match=sentence):
        read_encoder(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


@pytest.mark.parametrize("names", [5, "ab", ["a"], [1, 2], {"a": 1}])
def test_a_manifest_with_wrong_names_is_refused_before_training(digits, tmp_path, names):
    path = tmp_path / "p.json"
    split(digits, clients=2).save(path, digits)
    manifest = read_json(path)
    manifest["settings"]["names"] = names
    write_json(path, manifest)
    with pytest.raises(RepperError, match=r"p\.json is .*name"):
        read_partition(path, digits)


# The machine


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of another process is limited")
def test_a_worker_without_memory_says_which_and_what_to_do(digits):
    work, shared = work_for(digits, epochs=1, batch=512, width=4.0, augment="none")
    with PoolEngine(work, digits, 1) as engine:
        pid = engine._workers[0].process.pid
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        room = pages * resource.getpagesize() + 2**27
        resource.prlimit(pid, resource.RLIMIT_AS, (room, room))
        with pytest.raises(RepperError, match=(
            r"^repper worker 0 failed while training client 0 in round 1: "
            r"not enough memory: try fewer --workers, a smaller --batch"
        )):  # fmt: skip
            list(engine.fit(shared, [0], 1))


@pytest.mark.parametrize("error", [
    MemoryError(), np._core._exceptions._ArrayMemoryError((2**40,), np.dtype("f8")),
    torch.OutOfMemoryError("CUDA"), OSError(12, "Cannot allocate memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("could not create a primitive"), RuntimeError("can't start new thread"),
])  # fmt: skip
def test_lack_of_memory_is_a_sentence_wherever_it_is_noticed(error):
    assert failure_of_machine(error).startswith("not enough memory")
    assert failure_of_machine(RuntimeError("shape")) is None


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (lambda place: place.symlink_to("nowhere"), r"^cannot write .*private/0: File exists$"),
        (
            lambda place: place.write_text("a file where a folder should be"),
            r"^repper worker 0 failed while training client 0 in round 1: Not a directory: .*/0",
        ),
    ],
)
def test_a_folder_that_a_worker_cannot_make_or_read_is_a_sentence(
    digits, tmp_path, break_it, sentence
):
    work, shared = work_for(digits, tmp_path / "private", method="fedrep", epochs=1)
    break_it(tmp_path / "private" / "0")
    with PoolEngine(work, digits, 1) as engine, pytest.raises(RepperError, match=sentence):
        list(engine.fit(shared, [0], 1))


def test_a_worker_whose_machine_fails_leaves_the_word_to_its_parent():
    with pytest.raises(SystemExit) as ended, failing_in_silence():
        raise RuntimeError("can't start new thread")
    assert ended.value.code == 1
    with pytest.raises(RuntimeError, match="a mistake of ours"), failing_in_silence():
        raise RuntimeError("a mistake of ours")
