"""What the walk through docs/deploy.md leads to."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .conftest import SITES, USER

WALK_SETTINGS = ("--rounds", 2, "--epochs", 1, "--participation", 1, "--width", 0.5)


def test_the_walk_ends_with_the_encoder_of_one_machine(fleet, walked, serial):
    for name in SITES:
        assert re.search(rf"^{name} +online\b", walked["5 server"], re.MULTILINE)
    expected = serial(*WALK_SETTINGS)["encoder_digest"]
    [shown] = re.findall(r"^encoder (\w+)", walked["5 server"], re.MULTILINE)
    assert expected.startswith(shown)
    result = json.loads(fleet.server.path("/srv/repper/run-a/result.json").read_text())
    assert result["encoder_digest"] == expected
    assert result["rounds_without"] == {}


def test_a_site_predicts_with_its_own_head(fleet, walked):
    predictions = [line.split("\t") for line in walked["6 hospital-a"].splitlines()]
    images = list(fleet["hospital-a"].path("/srv/images").glob("*/*"))
    assert len(predictions) == len(images)
    right = sum(image.split("/")[3] == label.strip() for image, label in predictions)
    assert right > len(images) / 5


def test_everything_runs_as_a_user_who_cannot_read_other_users_secrets(fleet, walked):
    key = fleet.server.path("/srv/repper/server/server.key")
    assert key.stat().st_mode & 0o077 == 0
    refused = fleet.server.run("cat", "/srv/repper/server/server.key", user=65534, check=False)
    assert "Permission denied" in refused.stderr
    for pid in fleet["hospital-a"].pids("flower-superexec"):
        assert Path(f"/proc/{pid}").stat().st_uid == USER
