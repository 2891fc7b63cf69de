"""The systemd units of a server and of a site."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from repper.cli.commands import _parser

DEPLOY = Path(__file__).parent.parent / "deploy"
UNITS = ("repper-node.service", "repper-server.service")


def settings(unit: str) -> dict[str, list[str]]:
    """What stands in a unit, by name."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / unit).read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_starts_a_command_that_there_is(unit):
    given = settings(unit)
    [line] = given["ExecStart"]
    program, *arguments = shlex.split(line)
    assert program == "/opt/repper/bin/repper"
    options = _parser()[0].parse_args(arguments)
    assert str(options.home).startswith(given["WorkingDirectory"][0])
    assert given["ReadWritePaths"] == given["WorkingDirectory"]
    assert given["Restart"] == ["always"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="units need systemd-analyze")
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_finds_nothing_wrong_with_a_unit(unit, tmp_path):
    """Where repper is installed as docs/deploy.md says."""
    program = tmp_path / "opt/repper/bin/repper"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)

    def verify(text: str) -> str:
        (folder / unit).write_text(text)
        command = ["systemd-analyze", "verify", f"--root={tmp_path}", "--recursive-errors=no"]
        done = subprocess.run([*command, folder / unit], capture_output=True, text=True)
        return done.stderr + (f"exit code {done.returncode}" if done.returncode else "")

    text = (DEPLOY / unit).read_text()
    assert verify(text) == ""
    assert "Failed to parse" in verify(text.replace("Restart=always", "Restart=alway"))
    assert "not executable" in verify(text.replace("/opt/repper/bin", "/opt/repper"))
