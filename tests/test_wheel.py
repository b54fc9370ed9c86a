"""The wheel: built, installed into a folder of its own, and used outside of any checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from grader.paths import DATA, REPOSITORY

pytestmark = pytest.mark.slow
LEFT_OUT = {"README.md"}
JOB = """import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4000):
    optimizer.zero_grad(); model(torch.randn(64, 8)).sum().backward(); optimizer.step()"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy: a build leaves its folders behind."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    for name in ("grader", "data"):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "nights"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", str(copy), "--no-deps", "--no-build-isolation", "-w", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert not done.returncode, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def grader(wheel, tmp_path_factory):
    """`grader` from the wheel, in a folder that knows of no checkout, with what this Python has installed besides."""
    target, here = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("elsewhere")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    environment = os.environ | {"PYTHONPATH": str(target), "XDG_CACHE_HOME": str(here / "cache")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "grader", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=here, env=environment, timeout=600)

    code = "import grader, grader.data.cache as cache; print(grader.__file__, cache.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=here, env=environment, timeout=60
    )
    assert [Path(path).is_relative_to(target) for path in found.stdout.split()] == [True, True], found
    return run


def test_the_wheel_has_every_file_of_the_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in (REPOSITORY / "grader").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    own = {path.relative_to(REPOSITORY).as_posix() for path in files if path.name not in LEFT_OUT}
    assert own and not own - names
    data = {
        f"grader/data/{path.relative_to(DATA).as_posix()}" for path in (*DATA.glob("*.py"), *DATA.glob("traces/*.gz"))
    }
    assert len(data) > 20 and not data - names
    assert "grader/data/measured/calibration.json" in names


def test_a_trace_is_diagnosed(grader):
    done = grader("diagnose", str(DATA / "traces" / "gpt_sync_stacks.json.gz"))
    assert not done.returncode and "sync-bound" in done.stdout, done


def test_a_command_is_run(grader):
    done = grader("run", "--", sys.executable, "-c", JOB)
    said = done.stdout + done.stderr
    assert not done.returncode and "optimizer" in said and "% of a step" in said and "Traceback" not in said, done


@pytest.mark.parametrize(
    "words", [("doctor",), ("labs",), ("scaffold", "mine"), ("try", "--help"), ("compare", "--help")]
)
def test_other_commands_find_what_they_need(grader, words):
    done = grader(*words)
    assert done.stdout and "Traceback" not in done.stderr and done.returncode in (0, words == ("doctor",)), done
