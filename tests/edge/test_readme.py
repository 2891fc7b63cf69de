"""What the README and docs/python.md tell an edge developer to type works."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def block(page, heading, language):
    """The first block of a language in the section with this heading."""
    _, section = (ROOT / page).read_text().split(f"## {heading}")
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.M | re.S)[0]


def test_the_three_commands_and_the_python_work(place, tmp_path):
    (tmp_path / "shared").mkdir()
    shutil.copy(place / "encoder.onnx", tmp_path / "shared")
    shutil.copytree(place / "photos", tmp_path / "my-photos")
    photo = shutil.copy(min((place / "tests").glob("4/*")), tmp_path / "photo.jpg")
    export, personalize, play = block("README.md", "For edge developers", "").splitlines()
    assert export.startswith("repper export runs/a --out shared ")
    done = command(personalize, tmp_path)
    assert done.returncode == 0, done.stderr
    play = play.split("#")[0]
    assert command("repper predict my-model photo.jpg", tmp_path).stdout.split()[:2] == [
        "photo.jpg",
        "4",
    ]
    with subprocess.Popen(
        words(play), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE
    ) as page:
        assert b"http://127.0.0.1:" in page.stdout.readline()
        page.terminate()
    code = block("docs/python.md", "A classifier on a device", "python")
    done = subprocess.run(
        [sys.executable, "-c", f"{given(tmp_path / 'my-photos')}{code}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['4']\n"
    assert Path(photo).is_file()


def given(photos):
    """The photos and labels that the Python example takes for granted."""
    found = sorted(photos.glob("*/*"))
    return f"photos = {list(map(str, found))}\nlabels = {[path.parent.name for path in found]}\n"


def command(line, folder):
    return subprocess.run(
        words(line), cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )


def words(line):
    return [sys.executable, "-m", *shlex.split(line.strip())]


def environment():
    return {**os.environ, "PYTHONUNBUFFERED": "1", "BROWSER": "true"}
