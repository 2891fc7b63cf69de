"""What commands answer, and what folders hold."""

from __future__ import annotations

import json
import re


def answer(process):
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def refused(process, *words):
    """One sentence, exit code 2, and no traceback."""
    assert process.returncode == 2, (process.stdout, process.stderr)
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1, process.stderr
    assert process.stderr.startswith("repper: ")
    assert "\x1b" not in process.stderr
    for word in words:
        assert word in process.stderr
    return process.stderr


def content(folder):
    """All files and their bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def files(folder):
    return sorted(folder.glob("*/*.png"))


def model_in(page):
    [data] = re.findall(r'<script id="model" type="application/json">(.*?)</script>', page)
    return json.loads(data)
