"""What a run has written is read as it was written, or refused in one sentence; `repper verify`."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import repper as api
from conftest import make_dataset
from repper.basics.documents import (
    MOST_BYTES,
    build,
    check_covered,
    check_kinds,
    read_json,
    read_toml,
    write_covered,
    write_json,
    write_toml,
)
from repper.basics.errors import RepperError
from repper.basics.files import clear_leftovers
from repper.checks.check import OK, SKIPPED, WRONG
from repper.cli.results import print_results
from repper.edge.model_folder import EncoderNotes, InputNotes, ModelNotes, read_model
from repper.engines.private import PrivateStore
from repper.runs.comparison_table import Comparison, Line
from repper.runs.round_log import read_rounds, read_served
from repper.runs.run_folder import name_of

SETTINGS = {
    "clients": 3, "min_train": 2, "alpha": 5.0, "rounds": 2, "epochs": 1, "width": 0.25, "participation": 1.0,
    "method": "fedbn", "personalize": "linear", "head_curve": 10, "engine": "serial", "knn": 0,
}  # fmt: skip
DATA = make_dataset()
CASES = 10
"""Changed bytes per file."""


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A finished run in which every client keeps something for itself."""
    folder = tmp_path_factory.mktemp("verify") / "run"
    api.run(DATA, out=folder, **SETTINGS)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The same with another seed."""
    folder = tmp_path_factory.mktemp("verify") / "other"
    api.run(DATA, out=folder, **SETTINGS, seed=1)
    return folder


@pytest.fixture
def run(good, tmp_path):
    shutil.copytree(good, tmp_path / "run")
    return tmp_path / "run"


def shown(folder, capsys):
    """All that commands show of a run or compute from it, as text."""
    capsys.readouterr()
    run = api.open_run(folder)
    print_results(run)
    number, served = read_served(folder)
    kept = [run.private.read(client, number) for client in range(3)]
    parts = [
        run.config, run.result, run.rounds(), run.environment, run.curves(), run.client_names(),
        number, served, kept, [run.classifier(client) for client in range(3)],
    ]  # fmt: skip
    return capsys.readouterr().out + repr(parts)


def files_of(folder):
    return sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())


def changes(content, random, count):
    """The content with one bit, or one byte, changed at a random place."""
    for number in range(count):
        changed = bytearray(content)
        place = random.integers(len(content))
        by = 1 << random.integers(8) if number % 3 else random.integers(1, 256)
        changed[place] ^= int(by)
        yield int(place), bytes(changed)


def test_a_changed_byte_anywhere_in_a_run_is_told_or_changes_nothing(run, capsys):
    before, random = shown(run, capsys), np.random.default_rng(0)
    tried, sentences, silent = 0, list[str](), []
    for name in files_of(run):
        content = (run / name).read_bytes()
        if name.match("private/*/1.safetensors"):
            continue  # kept for a crash in the last round: nothing shows it
        for place, changed in changes(content, random, CASES if content else 0):
            (run / name).write_bytes(changed)
            tried += 1
            try:
                if shown(run, capsys) != before:
                    silent.append((str(name), place))
            except RepperError as error:
                sentences.append(str(error))
        (run / name).write_bytes(content)
    assert silent == []
    assert tried > 100
    assert len(sentences) > 0.9 * tried
    assert all("run" in sentence for sentence in sentences)
    assert shown(run, capsys) == before


def test_every_file_of_a_run_is_read_by_verify(run):
    """A bit of each file, flipped: `verify` names what is wrong, also in files that nothing shows."""
    random = np.random.default_rng(1)
    for name in files_of(run):
        content = (run / name).read_bytes()
        for _, changed in changes(content, random, 1 if content else 0):
            (run / name).write_bytes(changed)
            assert [one for one in api.verify(run, DATA) if one.status == WRONG], name
        (run / name).write_bytes(content)


def test_a_good_run_is_verified(repper, good):
    found = {one.kind: one for one in api.verify(good, DATA)}
    assert {one.status for one in found.values()} == {OK}
    assert found["scores"].said == "3 heads reproduce them on 30 test images"
    assert found["log"].said == "2 rounds"
    done = repper("verify", good, "--json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    told = json.loads(lines[-1])
    assert told["ok"]
    assert len(told["checks"]) == len(lines) - 1 == 10
    assert lines[-2].startswith("scores: not checked, the images are not here")


def test_scores_that_do_not_follow_from_the_heads_are_found(repper, run):
    """Somebody has counted digests and seals anew."""
    from repper.runs.result import SCORE_COLUMNS, _write_table, read_scores

    result = read_json(run / "result.json")
    columns = read_scores(run, result)
    columns["correct"][0] ^= 1
    rows = list(zip(*columns.values(), strict=True))
    result["digests"]["clients.parquet"] = _write_table(
        run / "clients.parquet", SCORE_COLUMNS, rows
    )
    write_json(run / "result.json", result)
    [wrong] = [one for one in api.verify(run, DATA) if one.status == WRONG]
    assert wrong.kind == "scores"
    assert "at least 1 of 30 predictions differ" in wrong.said


def swapped_heads(run, other):
    a, b = run / "heads" / "0.safetensors", run / "heads" / "1.safetensors"
    content = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(content)


def copied(name, to=None):
    return lambda run, other: shutil.copy(other / name, run / (to or name))


def within(name, to):
    return lambda run, other: shutil.copy(run / name, run / to)


MISPLACED = {
    "a checkpoint of another run": (copied("checkpoint/last.safetensors"), "checkpoint", "its run is"),
    "one client's own parameters in another's place": (
        within("private/0/2.safetensors", "private/1/2.safetensors"), "private", "its client is 0, not 1",
    ),
    "those of another round": (
        within("private/0/1.safetensors", "private/0/2.safetensors"), "private", "its round is 1, not 2",
    ),
    "those of another run": (copied("private/0/2.safetensors"), "private", "its run is"),
    "what clients of another run start from": (
        copied("private/initial.safetensors"), "private", "its run is",
    ),
    "heads in each other's place": (swapped_heads, "heads", "is undamaged, but not the file that this run has written"),
    "a head of another run": (copied("heads/0.safetensors"), "heads", "not the file that this run"),
    "the encoder of another run": (copied("encoder.safetensors"), "encoder", "not the file that this run"),
    "scores of another run": (copied("clients.parquet"), "scores", "missing or damaged"),
    "the log of another run": (copied("rounds.jsonl"), "log", "damaged in line 1"),
    "the manifest of another run": (copied("partition.json"), "partition", "not the partition of this"),
    "settings of another run": (copied("config.toml"), "settings", "undamaged, but of another run"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISPLACED)
def test_files_of_another_run_round_or_client_are_refused(case, run, other, capsys):
    misplace, kind, sentence = MISPLACED[case]
    misplace(run, other)
    wrong = {one.kind: one.said for one in api.verify(run, DATA) if one.status == WRONG}
    assert sentence in wrong[kind]
    if kind not in ("settings", "private"):
        with pytest.raises(RepperError, match=sentence):
            shown(run, capsys)


def test_going_on_refuses_what_is_of_another_run(run, other):
    (run / "result.json").unlink()
    shutil.copy(other / "checkpoint" / "last.safetensors", run / "checkpoint")
    with pytest.raises(RepperError, match=r"its run is .* restore it, or begin again"):
        api.run(DATA, out=run, resume=True, **SETTINGS)


def test_a_private_file_of_another_round_is_not_trained_on(run):
    (run / "result.json").unlink()
    shutil.copy(run / "private" / "0" / "1.safetensors", run / "private" / "0" / "2.safetensors")
    with pytest.raises(RepperError, match="its round is 1, not 2"):
        api.run(DATA, out=run, resume=True, **SETTINGS)


def test_equal_runs_have_equal_files(good, tmp_path):
    """To the byte, but for how long things took, and where they are."""
    again = tmp_path / "again"
    api.run(DATA, out=again, **{**SETTINGS, "engine": "pool", "workers": 2})
    names = files_of(good)
    assert files_of(again) == names
    timed = {"result.json", "rounds.jsonl", "config.toml", "environment.json"}
    for name in names:
        if str(name) not in timed:
            digests = [hashlib.sha256((f / name).read_bytes()).digest() for f in (good, again)]
            assert digests[0] == digests[1], name
    one, two = (api.open_run(folder) for folder in (good, again))
    timeless = [[{**r, "seconds": 0} for r in run.rounds()] for run in (one, two)]
    assert timeless[0] == timeless[1]
    results = [{**run.result, "seconds": 0, "run": ""} for run in (one, two)]
    for result in results:
        del result["digests"]["rounds.jsonl"]
    assert results[0] == results[1]
    assert one.config.identity() == two.config.identity()
    # Somebody may commit in between.
    made = [{**run.environment[0], "commit": None} for run in (one, two)]
    assert made[0] == made[1]


def test_a_log_that_a_crash_has_cut_off_is_one_round_short(run):
    (run / "result.json").unlink()
    content = (run / "rounds.jsonl").read_bytes()
    whole = read_rounds(run)
    second = content.index(b"\n") + 1
    for length in range(second, len(content) - 1, 7):
        (run / "rounds.jsonl").write_bytes(content[:length])
        assert read_rounds(run) == whole[:1]
    (run / "rounds.jsonl").write_bytes(content[:second] + content)
    with pytest.raises(RepperError, match="damaged in line 2"):
        read_rounds(run)


def test_an_unfinished_run_is_verified_as_far_as_it_is(run):
    for name in ("result.json", "encoder.safetensors", "clients.parquet"):
        (run / name).unlink()
    told = {one.kind: one.status for one in api.verify(run, DATA)}
    assert WRONG not in told.values()
    assert [told[kind] for kind in ("log", "checkpoint", "private")] == [OK] * 3
    assert [told[kind] for kind in ("encoder", "heads", "result", "scores")] == [SKIPPED] * 4


def test_a_line_of_the_log_without_all_figures_is_refused(run):
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seal"], line["bytes_up"]
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "result.json").unlink()
    with pytest.raises(RepperError, match=r"rounds\.jsonl is damaged in line 1"):
        api.run(DATA, out=run, resume=True, **SETTINGS)


def test_code_that_made_a_part_of_a_run_is_not_forgotten_when_it_is_resumed(run, monkeypatch):
    made = read_json(run / "environment.json")["code"]

    def found(rounds):
        api.run(DATA, out=run, resume=True, **{**SETTINGS, "rounds": rounds})
        environment = read_json(run / "environment.json")
        parts = [part["code"] for part in environment.get("earlier", [])]
        [code] = [one for one in api.verify(run, DATA) if one.kind == "code"]
        return environment["code"], parts, code.said

    monkeypatch.setattr("repper.runs.environment.code_digest", lambda: "0" * 64)
    monkeypatch.setattr("repper.checks.run.code_digest", lambda: "0" * 64)
    code, parts, said = found(SETTINGS["rounds"])
    assert (code, parts) == (made, [])  # nothing was left to do
    assert "made by another version of the code (" in said
    code, parts, said = found(SETTINGS["rounds"] + 1)
    assert (code, parts) == ("0" * 64, [made])
    assert said == "made in part by another version of the code, before it was resumed"


def test_a_finished_run_lacks_no_line_of_its_log(run):
    content = (run / "rounds.jsonl").read_bytes()
    (run / "rounds.jsonl").write_bytes(content[: content.index(b"\n") + 1])
    with pytest.raises(
        RepperError, match=r"is not the log that result.json beside it was written with"
    ):
        read_rounds(run)


def test_runs_of_older_versions_are_read_gone_on_with_and_not_called_sealed(run, capsys):
    for name in ("result.json", "environment.json", "partition.json"):
        found = read_json(run / name)
        found.pop("digests", None)
        (run / name).write_text(json.dumps(found))
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seal"]
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = (run / "config.toml").read_text().partition("\n")[2]
    (run / "config.toml").write_text(config)
    assert "accuracy" in shown(run, capsys)
    told = {one.kind: one for one in api.verify(run, DATA)}
    assert WRONG not in {one.status for one in told.values()}
    assert "without a seal" in told["settings"].said
    assert "without a seal" in told["result"].said
    more = api.run(DATA, out=run, resume=True, **{**SETTINGS, "rounds": 3})
    assert [record["round"] for record in more.rounds()] == [1, 2, 3]
    assert name_of(run)
    assert b'"seal"' in (run / "rounds.jsonl").read_bytes()


def test_what_a_killed_process_left_is_removed_by_the_next_one(run):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    (run / "result.json").unlink()
    left = [run / f".result.json.{dead}.tmp", run / "heads" / f".0.safetensors.{dead}.tmp"]
    alive = run / f".x.json.{os.getppid()}.tmp"
    for path in (*left, alive):
        path.write_text("half")
    api.run(DATA, out=run, resume=True, **SETTINGS)
    assert not any(path.exists() for path in left)
    assert alive.exists()
    clear_leftovers(run / "no such folder")


# Documents.

SEALED = {
    "json": (write_json, read_json),
    "toml": (write_toml, read_toml),
}
CONTENT = {
    "text": 'a "seal": "sha256:',
    "list": [1, 2.5, True],
    "seals": {"seal": "sha"},
    "é": "猫",
}


@pytest.mark.parametrize("kind", SEALED)
def test_a_changed_byte_in_a_document_is_found_or_changes_nothing(kind, tmp_path):
    write, read = SEALED[kind]
    path = tmp_path / f"a.{kind}"
    write(path, CONTENT)
    good, random = path.read_bytes(), np.random.default_rng(2)
    assert read(path) == CONTENT
    found = 0
    for place in range(len(good)):
        for by in (1 << place % 8, int(random.integers(1, 256))):
            changed = bytearray(good)
            changed[place] ^= by
            path.write_bytes(changed)
            try:
                assert read(path) == CONTENT, place
            except RepperError:
                found += 1
    assert found > 2 * len(good) - 10
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(RepperError):
            read(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested too deeply"), ('{"a":' * 100_000, "nested too deeply"),
        ("NaN", "it holds NaN"), ('{"a": [-Infinity]}', "it holds -Infinity"),
        ("1e400", "it holds 1e400"), ("9" * 5000, "integer string conversion"),
        ("", "Expecting value"), ("{}x", "Extra data"), ("\xff", "codec can't decode"),
    ],
)  # fmt: skip
def test_json_that_cannot_be_read_is_one_sentence(text, why, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(RepperError, match=f"damaged or not JSON .*{why}"):
        read_json(path)


def test_what_is_no_file_or_too_large_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(RepperError, match="it is not a file"):
        read_json(tmp_path / "pipe.json")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    for read in (read_json, read_toml):
        with pytest.raises(RepperError, match="bytes are more than"):
            read(tmp_path / "large.json")
    with pytest.raises(RepperError, match="there is no file"):
        read_json(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("result.json", {"rounds": "two"}), ("result.json", {"accuracy": {"mean": "high"}}),
        ("result.json", {"accuracy": []}), ("result.json", {"classes": 7}),
        ("result.json", {"digests": []}), ("result.json", {"groups": {"took_part": None}}),
        ("result.json", {"seconds": {}}), ("result.json", {"attack": None}),
        ("result.json", {"cost": {"images": 1}}),
        ("environment.json", {"training": {}}), ("environment.json", {"packages": []}), ("environment.json", {"digests": {"data": 1}}),
        ("partition.json", {"settings": []}), ("partition.json", {"hash": None}),
    ],
)  # fmt: skip
def test_values_of_the_wrong_kind_are_one_sentence(name, change, run, repper):
    found = read_json(run / name)
    (run / name).write_text(json.dumps({**found, **change}))
    done = repper("report", run, "--no-tsne")
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    assert name in line
    (run / name).write_text("[" * 100_000)
    assert repper("verify", run).returncode == 2


@pytest.mark.parametrize("name", ["environment.json", "partition.json"])
@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_run_that_lost_a_description_is_not_exported_as_another(name, change, run, repper):
    change(run / name)
    done = repper("export", run, "--client", 0, "--no-measure", "--out", run.parent / "model")
    assert done.returncode == 2, done.stdout
    [line] = done.stderr.splitlines()
    assert name in line
    assert not (run.parent / "model").exists()


def test_kinds_of_values(tmp_path):
    path = tmp_path / "a.json"
    check_kinds(
        path, {"a": 1, "b": {"x": None}}, {"a": float, "b": dict[str, int | None], "c": str}
    )
    line = dict.fromkeys(("images", "bytes_up", "bytes_down", "seconds"), 1.0)
    with pytest.raises(RepperError, match="it has no row"):
        build(Line, line, path)
    for kind, wrong in ((int, True), (int, 1.5), (list[int], [1, "a"]), (str, None)):
        with pytest.raises(RepperError, match="its a cannot be"):
            check_kinds(path, {"a": wrong}, {"a": kind})


def test_a_table_and_what_lies_beside_it_are_covered(tmp_path):
    nothing = dict.fromkeys(
        ("deviation", "spread", "head_classes", "tail_classes", "worst_tenth", "difference", "low",
         "high")
    )  # fmt: skip
    line = Line(
        "fedavg+keep", 71.25, **nothing, images=1.0, bytes_up=2.0, bytes_down=3.0, seconds=4.0
    )
    found = Comparison(tmp_path, "fedavg+keep", (0,), (line,), ("fedavg+keep",), 1)
    write_covered(tmp_path / "table.json", found.as_dict(), {"table.md": "71.25"})
    assert Comparison.open(tmp_path) == found
    assert check_covered(tmp_path / "table.json") == 1
    content = (tmp_path / "table.json").read_bytes()
    (tmp_path / "table.json").write_bytes(content.replace(b"71.25", b"77.25"))
    with pytest.raises(RepperError, match=r"table.json is damaged .* resume the comparison"):
        Comparison.open(tmp_path)
    (tmp_path / "table.json").write_bytes(content)
    (tmp_path / "table.md").write_text("77.25")
    with pytest.raises(RepperError, match=r"table.md is damaged, or was changed"):
        check_covered(tmp_path / "table.json")


def test_a_comparison_is_verified_with_its_runs(tmp_path, repper):
    data = make_dataset()
    settings = {
        key: value
        for key, value in SETTINGS.items()
        if key not in ("method", "personalize", "head_curve")
    }
    both = tmp_path / "both"
    api.compare("fedavg+keep,fedavg+finetune,repper", data, out=both, **settings)
    found = api.verify(both, data)
    assert {one.status for one in found} == {OK, SKIPPED}
    assert [str(one) for one in found[:2]][1] == "table: OK, follows from 3 runs"
    scores = [one for one in found if one.kind == "scores"]
    assert [one.folder for one in scores] == [
        f"cells/{name}-seed0" for name in ("fedavg+finetune", "fedavg+keep", "repper+linear")
    ]
    assert {one.status for one in scores} == {OK}
    for name in ("table.csv", "table.md", "table.tex"):
        whole = (both / name).read_bytes()
        (both / name).write_text("71")
        [wrong] = [one for one in api.verify(both, data) if one.status == WRONG]
        assert (wrong.kind, f"{name} is damaged" in wrong.said) == ("table", True)
        (both / name).write_bytes(whole)
    (both / "table.csv").write_text("71")
    done = repper("verify", both)
    assert done.returncode == 2
    assert "table: WRONG" in done.stdout
    assert done.stderr.startswith("repper: 1 of 44 checks of ")


def test_a_description_of_a_model_is_sealed(tmp_path):
    notes = ModelNotes(
        EncoderNotes("a" * 64, "b" * 64, "fp32", "small", 64, "shared in training"),
        InputNotes(8, 1), classes=("é", "b"), made_from={"code": "c"},
    )  # fmt: skip
    notes.write(tmp_path)
    content = (tmp_path / "model.json").read_bytes()
    assert read_model(tmp_path) == notes
    assert "é".encode() in content
    (tmp_path / "model.json").write_bytes(content.replace(b'"size": 8', b'"size": 9'))
    with pytest.raises(RepperError, match="do not match its seal.*copy the whole folder again"):
        read_model(tmp_path)


def test_a_store_of_another_run_is_refused(run):
    store = PrivateStore(run / "private", "f" * 64)
    with pytest.raises(RepperError, match="its run is"):
        store.read(0, 2)


def test_single_files_are_verified_and_what_is_not_ours_is_refused(repper, tmp_path, good):
    for path, sentence in (
        (tmp_path / "none", "there is no folder"), (tmp_path, "holds no run, comparison"),
    ):  # fmt: skip
        done = repper("verify", path)
        assert done.returncode == 2
        assert sentence in done.stderr
    assert SKIPPED not in {one.status for one in api.verify(good / "encoder.safetensors")}
    assert "parameters" in repper("verify", good / "encoder.safetensors").stdout
    assert "a head" in repper("verify", good / "heads" / "0.safetensors").stdout
    (tmp_path / "a.onnx").write_bytes(b"\x08")
    done = repper("verify", tmp_path / "a.onnx")
    assert done.returncode == 2
    assert "WRONG" in done.stdout
