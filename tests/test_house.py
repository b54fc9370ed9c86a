"""The structure of the grader: rooms, types, privacy, sizes, what the hash of a grade covers, what notebooks import; and that no
test draws."""

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import grader
from grader import version
from grader.paths import REPOSITORY

PACKAGE = REPOSITORY / "grader"
# a lab's starter is a text for learners; the script that is copied, and kernels' sources, are read as one piece
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "starter.py" and "scaffold" not in path.parts)
MOST = {ast.ClassDef: 250, ast.FunctionDef: 50, ast.AsyncFunctionDef: 50}  # lines


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def tool(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of this environment on the package in `folder`."""
    found = shutil.which(command[0], path=str(Path(sys.executable).parent))
    assert found, f"{command[0]} is missing: pip install '.[test]'"
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run([found, *command[1:]], cwd=folder, env=environment, capture_output=True, text=True)


# ---------------------------------------------------------------- the tools see a breach


@pytest.mark.parametrize(
    ("room", "line", "says"),
    [
        (
            "trace/lines.py",
            "from grader.frontends import cli",
            "grader.trace is not allowed to import grader.frontends",
        ),
        ("measure/blocks.py", "from grader.classroom import store", "grader.measure is not allowed to import"),
        ("nightly/parts.py", "import tests.adversaries", "grader is not allowed to import tests"),
        ("trace/words.py", "import torch", "grader.trace is not allowed to import torch"),
    ],
)
def test_an_import_that_points_up_is_found(tmp_path, room, line, says):
    shutil.copytree(PACKAGE, tmp_path / "grader", ignore=shutil.ignore_patterns("__pycache__", "[0-9]*"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    with open(tmp_path / "grader" / room, "a", encoding="utf-8") as file:
        file.write(f"\n\ndef breach():\n    {line}\n")  # an import inside a function hides nothing
    done = tool(tmp_path, "lint-imports", "--no-cache")
    assert done.returncode == 1 and says in " ".join(done.stdout.split()), done.stdout + done.stderr


@pytest.mark.parametrize(("line", "status"), [("", 0), ('LIMIT: int = "ten"\n', 1), ("errors.no_such()\n", 1)])
def test_a_wrong_type_is_found(tmp_path, line, status):
    (tmp_path / "grader").mkdir()
    (tmp_path / "grader" / "__init__.py").touch()
    for path in (PACKAGE / "errors.py", PACKAGE / "paths.py", REPOSITORY / "pyproject.toml"):
        shutil.copy(path, tmp_path / path.relative_to(REPOSITORY))
    with open(tmp_path / "grader" / "paths.py", "a", encoding="utf-8") as file:
        file.write("\nfrom grader import errors\n\nprint(errors)\n" + line)
    done = tool(tmp_path, "mypy")
    assert done.returncode == status, done.stdout + done.stderr


# ---------------------------------------------------------------- privacy and sizes


def borrowed(tree: ast.Module) -> Iterator[str]:
    """The private names of other modules that a file uses."""
    theirs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "grader":
            yield from (f"{node.module}.{each.name}" for each in node.names if private(each.name))
            theirs |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.Import):
            theirs |= {each.asname for each in node.names if each.asname and each.name.startswith("grader.")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and private(node.attr):
            yield from [f"{node.value.id}.{node.attr}"] * (node.value.id in theirs)


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from grader.trace import read\nread._fast(1)", ["read._fast"]),
        ("from grader.trace.read import _fast", ["grader.trace.read._fast"]),
        ("import grader.trace.read as reading\nreading._fast()", ["reading._fast"]),
        ("from grader.trace import read\nread.fast(1)\nself._own", []),
    ],
)
def test_a_borrowed_private_name_is_seen(source, found):
    assert list(borrowed(ast.parse(source))) == found


def test_no_module_uses_another_one_s_private_names():
    found = {name_of(path): names for path in FILES if (names := sorted(set(borrowed(parsed(path)))))}
    assert not found


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def too_long(path: Path) -> Iterator[str]:
    """What is longer than allowed and says no reason, a comment on the line of its `def` or above it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) > 500:
        yield f"{name_of(path)}: {len(lines)} lines"
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, tuple(MOST)):
            length = (node.end_lineno or 0) - node.lineno + 1
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            said = lines[first - 2].lstrip().startswith("#") or "  # " in lines[node.lineno - 1]
            if length > MOST[type(node)] and not (said and not isinstance(node, ast.ClassDef)):
                yield f"{name_of(path)}:{node.lineno} {node.name}: {length} lines"


def test_everything_can_be_read_in_one_sitting():
    assert not [line for path in FILES for line in too_long(path)]


# ---------------------------------------------------------------- what decides a grade, what notebooks use


LOADED = """
import importlib, json, pathlib, pkgutil, sys
import grader.grade, grader.kinds
from grader import labs
for each in pkgutil.iter_modules(grader.kinds.__path__, "grader.kinds."):
    importlib.import_module(each.name)
for name in labs.NAMES:
    labs.get(name)
files = [m.__file__ for name, m in sys.modules.items() if name.partition(".")[0] == "grader" and m.__file__]
print(json.dumps(files))
"""


def test_the_hash_of_a_grade_covers_all_that_a_grade_loads():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    loaded = {Path(file).resolve() for file in json.loads(done.stdout)}
    own = {path for path in loaded if path.parent.parent == PACKAGE / "labs"}  # a lab's own: `version.definition`
    apart = {PACKAGE / name for name in version.APART}
    assert len(loaded) > 80 and not loaded - own - apart - version.deciding()
    child = {path for room in ("sandbox", "workloads") for path in (PACKAGE / room).rglob("*.py")}
    assert child <= version.deciding(), "what only a child loads"


def test_the_map_names_what_is_there():
    """`name` in `file`, as CONTRIBUTING.md has it."""
    named = re.findall(r"`(\w+)` in `([\w/]+\.py)`", (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    defined = {
        file: {node.name for node in ast.walk(parsed(REPOSITORY / file)) if isinstance(node, kinds)}
        for _, file in named
    }
    assert len(named) > 10 and not [(name, file) for name, file in named if name not in defined[file]]


def notebook_imports() -> set[tuple[str, str]]:
    """(module, name) of all that notebooks and solutions import from the grader; no name where it is the module."""
    found = set()
    for path in [*(REPOSITORY / "notebooks").rglob("*.ipynb"), *(REPOSITORY / "solutions").rglob("*.ipynb")]:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] != "code":
                continue
            tree = ast.parse(re.sub(r"(?m)^( *)[%!].*", r"\1pass", "".join(cell["source"])))  # magics are no Python
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "grader":
                    found |= {(node.module or "", each.name) for each in node.names}
                elif isinstance(node, ast.Import):
                    found |= {(each.name, "") for each in node.names if each.name.partition(".")[0] == "grader"}
    return found


def test_what_notebooks_import_is_there():
    everything = notebook_imports()
    assert len(everything) > 20
    promised = {(module, name) for module, names in grader.FOR_NOTEBOOKS.items() for name in names}
    assert everything - {("grader", "")} <= promised
    for module, name in sorted(everything):
        try:
            there = importlib.import_module(module)
            assert not name or hasattr(there, name) or importlib.import_module(f"{module}.{name}")
        except ImportError as missing:  # a lab's own packages need not be installed
            if not missing.name or missing.name.startswith("grader"):
                raise


def test_the_package_gives_what_it_promises():
    assert set(grader.__all__) >= {"lab", "load_ipython_extension"}
    assert all(hasattr(grader, name) for name in grader.__all__)


# ---------------------------------------------------------------- no test draws


def test_properties_are_tried_on_the_same_values_whatever_is_loaded(tmp_path, monkeypatch):
    """Constants of the modules that another test had imported were among them: a failure depended on the order of the tests."""
    values = []

    @given(st.floats(), st.integers())
    def tried(real, whole):
        values.append(repr((real, whole)))

    tried()
    alone = values.copy()
    values.clear()
    constants = [each for n in range(100) for each in (1_000 + 777 * n, n / 7)]
    (tmp_path / "loaded_meanwhile.py").write_text(f"CONSTANTS = {constants}")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("loaded_meanwhile")
    tried()
    assert values == alone
