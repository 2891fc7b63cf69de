"""`repper runs` says what is on the disk, and removes only what repper has written."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import repper as api
from basics.test_locks import HOLD
from conftest import last_json
from repper.basics.errors import RepperError
from repper.paper import findings as reproduction
from repper.paper import panels
from repper.runs import clearing, compare, folders, row, run_folder, sweep, tune
from repper.runs import comparison_table as comparison
from repper.runs.clearing import leftovers, remove
from repper.runs.folders import folder_at, folders_in, needing, whole_of

QUICK = {"clients": 5, "rounds": 2, "epochs": 1, "width": 0.25, "engine": "serial"}


@pytest.fixture(scope="module")
def joined(reported, digits, tmp_path_factory):
    """The folder of `reported`, with clients who joined its run, seen from the folder above."""
    home = tmp_path_factory.mktemp("shelf")
    shutil.copytree(reported, home / "runs", ignore=shutil.ignore_patterns("*.html"))
    before = Path.cwd()
    os.chdir(home)
    try:
        api.join(api.open_run("runs/run"), digits, clients=3, head_epochs=2, out="runs/later")
    finally:
        os.chdir(before)
    return home / "runs"


@pytest.fixture
def shelf(joined, tmp_path):
    return shutil.copytree(joined, tmp_path / "runs")


def files(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def in_use():
    """Holds a lock in another process."""
    started = []

    def hold(lock):
        command = [sys.executable, "-c", HOLD, str(lock)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert started[-1].stdout.readline() == b"held\n"

    yield hold
    for process in started:
        process.communicate(timeout=60)


def dead_process():
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_everything_on_the_disk_is_listed(shelf):
    both, later, run = folders_in(shelf)
    assert [one.path.name for one in (both, later, run)] == ["both", "later", "run"]
    assert [one.kind for one in (both, later, run)] == ["comparison", "joined", "run"]
    assert both.rows == ("repper+linear", "fedavg+keep", "fedavg+finetune")
    assert (both.done, both.asked, both.seeds, both.finished) == (6, 6, 2, True)
    assert (run.rows, run.data, run.done, run.asked) == (("repper+linear",), "digits", 2, 2)
    assert run.size == sum(p.stat().st_size for p in files(shelf / "run"))
    assert later.points_to == (shelf / "run",)
    assert [one.path for one in needing(shelf / "run", [both, later, run])] == [later.path]
    assert not any(one.in_use or one.damage for one in (both, later, run))
    # All that repper has written is known to be its own.
    assert both.strange == later.strange == run.strange == ()


def test_an_unfinished_run_says_how_far_it_is(shelf):
    run = shelf / "run"
    (run / "result.json").unlink()
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text(lines[0])
    found = folder_at(run)
    assert (found.done, found.asked, found.finished) == (1, 2, False)
    (shelf / "both" / "cells" / "fedavg+keep-seed1" / "result.json").unlink()
    both = folder_at(shelf / "both")
    assert (both.done, both.asked, both.finished) == (5, 6, False)


def test_age_and_size_are_those_of_the_files(shelf):
    run = shelf / "run"
    for path in files(run):
        os.utime(path, (10**9, 10**9))
    before = folder_at(run)
    assert before.age > 10**8
    os.link(run / "result.json", run / "heads" / "99.safetensors")
    assert folder_at(run).size == before.size  # one file with two names
    (run / "heads" / "98.safetensors").write_bytes(bytes(1000))
    after = folder_at(run)
    assert (after.size, after.age < 100) == (before.size + 1000, True)


def test_names_are_those_that_are_written():
    assert set(folders.MARKS) == {
        compare.SETTINGS, f"{sweep.SWEEP}.json", reproduction.SETTINGS, run_folder.CONFIG, "model.json",
    }  # fmt: skip
    for name in (
        compare.SETTINGS, compare.TUNED, comparison.OVER_ROUNDS, f"{comparison.TABLE}.md",
        f"{tune.TUNING}/{row.CELLS}/fedavg+keep-seed0/result.json", "joined/repper/heads/3.safetensors",
    ):  # fmt: skip
        assert re.fullmatch(folders._COMPARISON, name), name
    for name in (
        reproduction.FOUND,
        f"{panels.PANELS}/digits/{compare.SETTINGS}",
        "figures/new-clients.svg",
    ):
        assert re.fullmatch(folders._OWN["reproduction"], name), name
    for name in ("notes.txt", "heads/a.safetensors", "private/x", "cells/x/notes", "results.csv"):
        assert not any(re.fullmatch(pattern, name) for pattern in folders._OWN.values()), name


def test_a_folder_that_is_needed_stays(shelf):
    before, size = files(shelf), folder_at(shelf / "run").size
    with pytest.raises(RepperError, match=r"run is needed by .*later: remove these too"):
        list(remove([shelf / "run"]))
    with pytest.raises(RepperError, match=r"is part of the comparison .*both"):
        list(remove([shelf / "both" / "cells" / "fedavg+keep-seed0"]))
    assert files(shelf) == before
    [gone] = remove([shelf / "run"], force=True)
    assert not (shelf / "run").exists()
    assert (gone.kept, gone.size) == ((), size)


def test_what_needs_each_other_goes_together(shelf):
    both = files(shelf / "both")
    assert [one.path.name for one in remove([shelf / "run", shelf / "later"])] == ["run", "later"]
    assert files(shelf) == both
    list(remove([shelf / "both"]))
    assert list(shelf.iterdir()) == []


def test_what_others_have_put_there_stays(shelf):
    mine = [shelf / "later" / "notes.txt", shelf / "later" / "heads" / "my-head.safetensors"]
    for path in mine:
        path.write_text("mine")
    outside = shelf.parent / "outside"
    outside.mkdir()
    (outside / "result.json").write_text("{}")
    links = [shelf / "later" / "private", shelf / "later" / "curves.parquet"]
    links[1].unlink()
    links[0].symlink_to(outside)
    links[1].symlink_to(outside / "result.json")
    [gone] = remove([shelf / "later"])
    assert sorted(gone.kept) == sorted([*mine, *links])
    assert files(shelf / "later") == sorted([*mine, links[1]])
    assert (outside / "result.json").is_file()


def test_what_is_not_known_to_be_ours_stays(shelf, tmp_path):
    project = tmp_path / "project"
    (project / "heads").mkdir(parents=True)
    (project / "config.toml").write_text('name = "of something else"\n')
    (project / "heads" / "1.safetensors").write_text("mine")
    (shelf / "link").symlink_to(shelf / "later")
    (shelf / "later" / "config.toml").write_text("[")
    before = files(tmp_path)
    for path, why in (
        (project, "holds no run"), (tmp_path, "holds no run"), (tmp_path / "none", "there is no folder"),
        (shelf / "link", "is a link"), (shelf / "later", "its kind is unknown"),
    ):  # fmt: skip
        with pytest.raises(RepperError, match=why):
            list(remove([path], force=True))
    assert files(tmp_path) == before
    assert [one.path.name for one in folders_in(tmp_path) if one.damage] == ["later"]
    assert project not in [one.path for one in folders_in(tmp_path)]


def test_the_part_of_a_site_stays(shelf):
    """Its ledger says what its images have spent of a privacy budget."""
    for name in ("environment.json", "partition.json"):
        (shelf / "later" / name).unlink()
    assert folder_at(shelf / "later").kind == "site"
    with pytest.raises(RepperError, match="only record of the privacy budget"):
        list(remove([shelf / "later"], force=True))


@pytest.mark.parametrize("lock", ["later/.lock", "both/cells/fedavg+keep-seed0/.lock"])
def test_what_a_process_is_writing_to_stays(shelf, in_use, lock):
    in_use(shelf / lock)
    left = (shelf / lock).with_name(f".result.json.{dead_process()}.tmp")
    left.touch()
    before = files(shelf)
    folder = shelf / Path(lock).parts[0]
    assert folder_at(folder).in_use
    with pytest.raises(RepperError, match="a process is running in"):
        list(remove([folder], force=True))
    assert files(shelf) == before
    assert list(leftovers(shelf)) == []


def test_a_removal_that_was_broken_off_is_repeated(shelf, monkeypatch):
    unlink, count = Path.unlink, [0]

    def failing(path, missing_ok=False):
        count[0] += 1
        if count[0] == 4:
            raise OSError(5, "Input/output error", str(path))
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", failing)
        with pytest.raises(RepperError, match="cannot remove .*: Input/output error"):
            list(remove([shelf / "both"]))
    left = folder_at(shelf / "both")
    assert (left.kind, left.finished) == ("comparison", False)  # results went first
    list(remove([shelf / "both"]))
    assert not (shelf / "both").exists()


def test_what_killed_processes_have_left_is_cleared(shelf):
    pid = dead_process()
    cells = shelf / "both" / "cells"
    dead = cells / "fedavg+keep-seed0" / "heads" / f".3.safetensors.{pid}.tmp"
    alive = shelf / "run" / f".result.json.{os.getppid()}.tmp"
    other = shelf / "run" / f".notes.{pid}.tmp"  # not of a file of ours
    for path in (dead, alive, other):
        path.write_bytes(bytes(100))
    shutil.copytree(
        cells / "fedavg+keep-seed0" / "heads", cells / ".fedavg+svm-seed0.tmp" / "heads"
    )
    begun = shelf / "begun"
    for name in ("heads", "checkpoint", "private"):
        (begun / name).mkdir(parents=True)
    (begun / ".lock").touch()
    (begun / "private" / "initial.safetensors").touch()
    before = set(files(shelf))
    found = {one.path: one for one in leftovers(shelf)}
    assert set(found) == {dead, cells / ".fedavg+svm-seed0.tmp", begun}
    assert found[dead].size == 100
    assert set(files(shelf)) == before  # until now, it was only listed
    clearing.clear(found.values())
    assert before - set(files(shelf)) == {path for one in found.values() for path in one.files}
    assert not begun.exists()
    assert list(leftovers(shelf)) == []


def test_a_folder_of_a_stranger_is_no_leftover(shelf):
    (shelf / "mine" / "heads").mkdir(parents=True)
    (shelf / "mine" / "checkpoint").mkdir()
    (shelf / "mine" / ".lock").touch()
    (shelf / "mine" / "heads" / "thesis.txt").write_text("mine")
    assert list(leftovers(shelf)) == []


def test_a_run_within_a_run_is_another_one(shelf):
    shutil.move(shelf / "later", shelf / "run" / "later")
    assert [one.path.name for one in folders_in(shelf)] == ["both", "run", "later"]
    assert whole_of(shelf / "run" / "later") is None
    assert shelf / "run" / "later" / "result.json" in folder_at(shelf / "run").strange


def test_the_command_lists_shows_and_removes(repper, shelf):
    listed = repper("runs", "list", env={"COLUMNS": "200"})
    assert listed.returncode == 0
    assert [line.split()[:2] for line in listed.stdout.splitlines()[2:5]] == [
        ["both", "comparison"], ["later", "joined"], ["run", "run"],
    ]  # fmt: skip
    for cell in ("3 rows", "6 runs", "2 rounds", "runs/run"):
        assert cell in listed.stdout
    found = last_json(repper("runs", "list", "runs", "--json"))
    assert [one["points_to"] for one in found["folders"]] == [[], [str(shelf / "run")], []]
    shown = repper("runs", "show", "runs/run").stdout
    assert re.search(r"needed by +runs/later\n", shown)
    assert last_json(repper("runs", "show", "runs/run", "--json"))["parts"]["heads"]["files"] == 5
    refused = repper("runs", "rm", "runs/run")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "is needed by" in refused.stderr
    (shelf / "run" / f".result.json.{dead_process()}.tmp").touch()
    assert "1 leftover, 0 B: --yes removes them" in repper("runs", "gc").stdout
    assert last_json(repper("runs", "gc", "--yes", "--json"))["removed"]
    assert repper("runs", "gc").stdout == "nothing in runs can go\n"
    assert (
        last_json(repper("runs", "rm", "runs/run", "runs/later", "--json"))["removed"][0]["kept"]
        == []
    )
    assert os.listdir(shelf) == ["both"]
    wrong = repper("runs", "list", "nowhere")
    assert (wrong.returncode, wrong.stderr) == (2, "repper: there is no folder nowhere\n")
    assert "did you mean --json?" in repper("runs", "list", "--jso").stderr


def test_the_list_needs_no_torch(shelf):
    code = (
        "import sys; from repper.cli import main; main(['runs', 'list']); main(['runs', 'gc'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=shelf.parent, check=True, capture_output=True)
