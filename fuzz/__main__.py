"""Fuzz one parser of foreign bytes with atheris, by hand and for as long as you like.

    pip install atheris     (needs Python 3.11 to 3.13 on Linux)
    python fuzz head -max_total_time=60

The parsers are those of `tests/foreign.py`, and what follows the name is for libFuzzer. It begins
with the files in `fuzz/corpus/NAME`, keeps what it finds in `fuzz/found/NAME`, which is not in git,
and stops at the first input that is neither read nor refused: put that one into the corpus, where
`tests/test_foreign.py` reads it from then on. `python fuzz --corpus` writes the samples of all
parsers, for one that is new.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests")]


def main() -> None:
    if sys.argv[1:] == ["--corpus"]:
        write_corpus()
        return
    import atheris

    with atheris.instrument_imports(include=["repper", "foreign"]):
        from foreign import PARSERS, SEALED, resealed
        from repper.basics.errors import RepperError
    if len(sys.argv) < 2 or sys.argv[1] not in PARSERS:
        sys.exit(f"usage: fuzz PARSER [libFuzzer's options], with one of {', '.join(PARSERS)}")
    name = sys.argv.pop(1)
    parse, folder = PARSERS[name], Path(tempfile.mkdtemp())

    def once(data: bytes) -> None:
        for given in (data, resealed(data)) if name in SEALED else (data,):
            try:
                parse(given, folder)
            except RepperError:
                pass
            finally:
                for path in folder.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    found = HERE / "found" / name
    found.mkdir(parents=True, exist_ok=True)
    inputs = [path for path in (found, HERE / "corpus" / name) if path.is_dir()]
    atheris.Setup([*sys.argv, *map(str, inputs), f"-artifact_prefix={found}/bad-"], once)
    atheris.Fuzz()


def write_corpus() -> None:
    """Write the samples of every parser into the corpus."""
    from foreign import samples

    folder = Path(tempfile.mkdtemp())
    for name, contents in samples(folder).items():
        (HERE / "corpus" / name).mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(contents):
            (HERE / "corpus" / name / f"sample-{number}").write_bytes(content)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
