"""A small table, run to the end."""

import pytest

from paper.small import TINY, TWO
from repper.paper.reproduce import reproduce


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduction") / "out"
    how = {"data_dir": str(folder / "nothing"), "engine": "serial"}
    return folder, how, list(reproduce(TWO, TINY, folder, how=how))
