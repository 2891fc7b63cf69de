"""What a site installs is pinned with hashes, in the versions that are tested."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()


def test_the_lock_file_has_the_versions_of_the_constraints():
    pinned = (ROOT / "constraints.txt").read_text().split()
    locked = re.findall(r"^([\w.-]+==\S+)", LOCK, re.M)
    assert {*locked} <= {*pinned}
    names = {one.split("==")[0].lower() for one in locked}
    assert {"numpy", "pillow", "safetensors", "scikit-learn", "pyarrow", "flwr"} <= names
    assert "torch" not in names  # docs/trust.md says why


def test_each_line_of_the_lock_file_has_hashes_and_only_wheels_are_taken():
    assert "\n--only-binary :all:\n" in LOCK
    assert "://" not in LOCK
    for entry in re.findall(r"^[\w.-]+==.*(?:\n .*)*", LOCK, re.M):
        assert re.fullmatch(r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+", entry), entry
