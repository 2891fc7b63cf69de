"""The shape of the code: who may import whom, and what must never be there."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from repper.basics.errors import install_hint

ROOT = Path(__file__).parents[1] / "src" / "repper"

LAYERS = [
    "basics", "edge", "privacy", "data", "encoders", "heads", "personal", "methods", "updates", "engines", "server",
    "settings", "runs", "export", "flower", "figures", "report", "checks", "api", "__init__", "paper", "cli", "__main__",
]  # fmt: skip
"""Files and packages; each imports only from itself and from those above it."""


def modules():
    return sorted(ROOT.rglob("*.py"))


def is_module(path):
    return path.is_dir() or path.with_suffix(".py").is_file()


def layer(name):
    """The position of `repper.a.b`."""
    return LAYERS.index(name.removeprefix("repper").strip(".").split(".")[0] or "__init__")


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


def test_the_layers_are_what_the_tree_shows():
    shown = {p.stem for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()}
    assert shown == set(LAYERS)


def test_settings_end_where_the_plan_begins():
    """Below it, nobody knows the command line, a TOML file, or that they exist."""
    below = LAYERS[: LAYERS.index("settings")]
    for path in modules():
        if path.relative_to(ROOT).parts[0].removesuffix(".py") in below:
            assert not {n for n in imports(path) if n.startswith("repper.settings")}, path


def test_no_file_of_a_package_imports_one_that_imports_it():
    files = {".".join(("repper", *p.relative_to(ROOT).with_suffix("").parts)): p for p in modules()}
    graph = {
        name: {found for found in imports(path) if found in files and found != name}
        for name, path in files.items()
    }
    done = set()

    def visit(name, way):
        assert name not in way, f"a circle of imports: {' '.join([*way, name])}"
        if name not in done:
            for other in graph[name]:
                visit(other, [*way, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_the_edge_needs_no_torch():
    for path in (ROOT / "edge").glob("*.py"):
        assert not any(name.split(".")[0] == "torch" for name in imports(path))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_unpickled(path):
    # One file may, and tests/data/test_cifar.py shows what it refuses; another one takes values to
    # processes that we have started ourselves.
    allowed = {
        ROOT / "data" / "unpickle.py": {"pickle"},
        ROOT / "engines" / "by_value.py": {"cloudpickle"},
    }
    names = set(imports(path)) - allowed.get(path, set())
    assert not names & {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    text = path.read_text()
    # Others' weights come as pickles, too: of these, tensors are read and nothing else.
    places = text.count("torch.load(")
    assert places == (1 if path == ROOT / "encoders" / "published.py" else 0)
    assert text.count("weights_only=True") == places
    assert "allow_pickle" not in text


def python(code, **env):
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, **env}, timeout=60,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.mark.parametrize(
    "module", ["repper", "repper.edge", "repper.cli", "repper.settings.config"]
)
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
    assert python(code) == f"2 repper: repper run needs torch: {install_hint('train')}"


@pytest.mark.parametrize(
    ("origin", "hint"),
    [
        (None, "pip install 'repper[train]'"),
        (
            '{"url": "file:///somewhere/repper.whl", "archive_info": {}}',
            "pip install 'repper[train]'",
        ),
        ('{"url": "file://HERE", "dir_info": {"editable": true}}', "pip install -e 'HERE[train]'"),
        ('{"url": "file://HERE", "dir_info": {}}', "pip install 'HERE[train]'"),
        ('{"url": "file:///gone", "dir_info": {}}', "pip install 'repper[train]'"),
        ("damaged", "pip install 'repper[train]'"),
    ],
)
def test_hints_name_what_works_from_where_it_was_installed(origin, hint, tmp_path, monkeypatch):
    info = tmp_path / "repper-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: repper\nVersion: 9\n")
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").touch()
    if origin is not None:
        (info / "direct_url.json").write_text(origin.replace("HERE", quote(str(checkout))))
    monkeypatch.syspath_prepend(tmp_path)
    assert install_hint("train") == hint.replace("HERE", str(checkout))


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
