"""Shell completion: bash offers what the command line takes."""

import shutil
import subprocess

import pytest

from repper.cli.completion import SHELLS
from repper.methods import METHODS
from repper.paper import EXPERIMENTS


@pytest.fixture
def offered(repper, tmp_path):
    """What bash offers for the last of these words."""
    (tmp_path / "repper.bash").write_text(repper("completion", "bash").stdout)

    def offer(*words):
        code = (
            "source repper.bash; COMP_WORDS=(" + " ".join(f"'{word}'" for word in words) + "); "
            "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
            "function=$(complete -p repper | sed 's/.*-F \\([^ ]*\\).*/\\1/'); "
            '$function repper "${COMP_WORDS[-1]}"; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    return offer


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_flags_values_and_files(offered, tmp_path):
    assert offered("repper", "com") == ["compare", "completion"]
    assert offered("repper", "run", "--enc") == ["--encoder"]
    assert sorted(offered("repper", "run", "--method", "fed")) == sorted(
        name for name in METHODS if name.startswith("fed")
    )
    assert offered("repper", "run", "--engine", "") == ["serial", "pool", "flower"]
    assert sorted(offered("repper", "reproduce", "")) == sorted(EXPERIMENTS)
    (tmp_path / "my.toml").touch()
    assert offered("repper", "run", "--config", "my") == ["my.toml"]
    assert offered("repper", "completion", "f") == ["fish"]
    assert sorted(offered("repper", "runs", "")) == ["gc", "list", "rm", "show"]
    assert offered("repper", "runs", "gc", "--y") == ["--yes"]
    assert offered("repper", "runs", "show", "my") == ["my.toml"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_a_script_that_it_can_read(shell, repper, tmp_path):
    done = repper("completion", shell)
    assert done.returncode == 0
    assert "federate" in done.stdout
    assert "calibrated" in done.stdout
    if shutil.which(shell):
        (tmp_path / "script").write_text(done.stdout)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True)


def test_an_unknown_shell_is_refused(repper):
    done = repper("completion", "zhs")
    assert (done.returncode, "did you mean 'zsh'?" in done.stderr) == (2, True)
