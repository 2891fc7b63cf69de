"""The judge of `make chaos`: what it must not let pass."""

from __future__ import annotations

import json
import runpy
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "chaos"))
from commands import Bad, Ended, check_alive, check_sentence, start
from damage import damaged
from tasks import check_equal, content_of

CAMPAIGN = runpy.run_path(str(Path(sys.path[0]) / "__main__.py"))
sys.path.pop(0)
REFUSED = Ended(2, "", "round 1/3  loss 5.1\nrepper: out/result.json is damaged: restore it\n", ())


def test_a_sentence_with_exit_code_2_is_one():
    check_sentence(REFUSED)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"code": None}, "hangs"),
        ({"code": 1}, "exit code 1"),
        ({"code": -11}, "exit code -11"),
        ({"left": ("python worker",)}, "left over"),
        ({"err": ""}, "0 sentences"),
        ({"err": REFUSED.err * 2}, "2 sentences"),
        ({"err": "Traceback (most recent call last):\n" + REFUSED.err}, "traceback"),
        ({"err": "repper: internal error, KeyError: 'round'\n"}, "internal error"),
        ({"err": "repper: [Errno 28] No space left on device\n"}, "no sentence for people"),
    ],
)
def test_anything_else_is_none(changes, why):
    with pytest.raises(Bad, match=why):
        check_sentence(replace(REFUSED, **changes))


def test_a_killed_command_may_say_nothing():
    check_alive(Ended(-9, "", "", ()))


def write(folder, accuracy=50.0, seconds=1.0):
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps({"accuracy": accuracy, "seconds": seconds}))
    (folder / "rounds.jsonl").write_text(json.dumps({"round": 1, "seconds": seconds}) + "\n")
    (folder / "encoder.safetensors").write_bytes(b"weights")
    return folder


def test_outcomes_differ_in_times_only(tmp_path):
    one, other = write(tmp_path / "a"), write(tmp_path / "b", seconds=2.0)
    check_equal(content_of(one), content_of(other), "run")
    (other / ".result.json.123.tmp").write_bytes(b"")
    with pytest.raises(Bad, match="files too many, .result.json.123.tmp"):
        check_equal(content_of(other), content_of(one), "run")
    with pytest.raises(Bad, match="files missing, .result.json.123.tmp"):
        check_equal(content_of(one), content_of(other), "run")
    changed = write(tmp_path / "c", accuracy=50.1)
    (changed / "encoder.safetensors").write_bytes(b"weightr")
    with pytest.raises(Bad, match=r"undisturbed, encoder.safetensors, result.json$"):
        check_equal(content_of(changed), content_of(one), "run")


def test_damage_is_that_of_its_seed(tmp_path):
    path, content = tmp_path / "file.json", b'{"round": 123}'

    def after(seed):
        path.write_bytes(content)
        what = damaged(path, Random(seed))
        return what, path.read_bytes() if path.exists() else None

    found = [after(seed) for seed in range(60)]
    assert found == [after(seed) for seed in range(60)]
    assert all(new != content for _, new in found)
    assert {"gone", "empty", "twice in one file", "of 100,000 brackets"} <= {
        what for what, _ in found
    }


def test_a_command_is_waited_for_and_killed(tmp_path):
    case = tmp_path / "case"
    case.mkdir()
    ended = start(case, ["predict", "nothing", "no.png"], fork=False).end()
    check_sentence(ended)
    assert ended.last == "repper: there is no model folder nothing"
    killed = start(case, ["--help"], fork=False)
    killed.kill()
    assert killed.end().code == -9


def test_a_campaign_that_tried_nothing_has_not_succeeded(capsys):
    options = Namespace(only="", minutes=0.0, seed=0)
    assert CAMPAIGN["_tell"]([], options) == 1
    assert "Nothing was tried" in capsys.readouterr().out
    assert CAMPAIGN["_tell"]([CAMPAIGN["Tried"](0, "kill run", "")], options) == 0
