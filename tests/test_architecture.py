"""The shape of the code: who may import whom, and what must never be there."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "repper"

LAYERS = [
    "errors", "files", "options", "registry", "seeds", "client_list", "text_table", "edge", "params", "private", "batches",
    "losses", "datasets", "partition", "augment", "compiler", "encoders", "heads", "methods",
    "personalize", "evaluate", "engines/__init__", "config", "config_file", "engines", "federate",
    "runs/environment", "runs/tensorboard", "runs/run_folder", "runs/rounds", "runs/result", "runs/run", "runs/plan",
    "runs/execute", "runs/newcomers", "runs/reuse", "runs/row", "runs/comparison", "runs/compare", "runs",
    "flower", "palette", "plots", "embedding",
    "paper/experiment", "paper/tables", "paper/claims", "paper/__init__", "paper/events",
    "paper/panels", "paper/beside", "paper/reproduction", "paper/gradients", "paper/figures",
    "paper/measures", "paper/estimate", "paper/work", "paper/reproduce",
    "report", "__init__", "cli", "__main__",
]  # fmt: skip
"""Each file imports only from itself and from those above it."""


def modules():
    return sorted(ROOT.rglob("*.py"))


def is_module(path):
    return path.is_dir() or path.with_suffix(".py").is_file()


def layer(name):
    """The position of `repper.a.b`, or of a path relative to the package."""
    path = name.removeprefix("repper").strip(".").replace(".", "/") or "__init__"
    for known in (f"{path}/__init__", path, path.split("/")[0]):
        if known in LAYERS:
            return LAYERS.index(known)
    raise ValueError(f"{name} has no layer")


def imports(path):
    """Names of the modules that a file imports, leaving out those for type checkers only."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            own = ROOT.joinpath(*node.module.split(".")[1:])
            modules = [a.name for a in node.names if is_module(own / a.name)]
            if node.module.split(".")[0] == "repper" and modules:
                yield from (f"{node.module}.{name}" for name in modules)
            else:
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_files_import_only_from_those_above_them(path):
    own = layer("repper." + str(path.relative_to(ROOT).with_suffix("")).replace("/", "."))
    if path == ROOT / "__init__.py":
        return
    for name in imports(path):
        if name == "repper" or name.startswith("repper."):
            assert layer(name) <= own, f"{path.name} imports {name}"


def test_the_edge_needs_no_torch():
    for path in (ROOT / "edge").glob("*.py"):
        assert not any(name.split(".")[0] == "torch" for name in imports(path))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_unpickled(path):
    # One file may, and tests/test_cifar.py shows what it refuses.
    allowed = {"pickle"} if path == ROOT / "datasets" / "unpickle.py" else set()
    names = set(imports(path)) - allowed
    assert not names & {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal"}
    text = path.read_text()
    assert "torch.load" not in text
    assert "allow_pickle" not in text


def python(code, **env):
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, **env}, timeout=60,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.mark.parametrize("module", ["repper", "repper.edge", "repper.cli", "repper.config"])
def test_importing_does_not_load_torch(module):
    code = f"import sys, {module}; print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    assert python(code) == "False False"


def test_help_loads_neither_torch_nor_scikit_learn():
    code = (
        "import sys, contextlib, io\n"
        "from repper.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main(['run', '--help'])\n"
        "print([m for m in ('torch', 'sklearn', 'pyarrow', 'matplotlib', 'rich') if m in sys.modules])"
    )
    assert python(code) == "[]"


WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name="torch")
sys.meta_path.insert(0, Absent())
"""


def test_without_torch_the_sentence_says_what_to_install():
    code = WITHOUT_TORCH + (
        "import contextlib, io\n"
        "from repper.cli import main\n"
        "with contextlib.redirect_stderr(io.StringIO()) as said:\n"
        "    code = main(['run'])\n"
        "print(code, said.getvalue())"
    )
    assert python(code) == "2 repper: repper run needs torch: pip install 'repper[train]'"


def test_without_torch_a_saved_head_predicts(tmp_path):
    from repper.heads import HEADS

    x = [[0.0, 1.0], [1.0, 0.0], [0.1, 0.9], [0.9, 0.1]]
    HEADS["linear"]().fit(x, [0, 1, 0, 1]).saved(("a", "b"), "e", False).save(tmp_path / "h")
    code = WITHOUT_TORCH + (
        "import numpy, pathlib, repper.edge\n"
        f"head = repper.edge.read_head(pathlib.Path({str(tmp_path / 'h')!r}))\n"
        f"print(head.predict(numpy.array({x})))"
    )
    assert python(code) == "[0 1 0 1]"
