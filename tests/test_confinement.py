"""What the grader says of this machine's confinement, and what it refuses where files cannot be confined."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest
import scripts
from helpers import IS_ROOT

from grader.frontends import report
from grader.result import Result
from grader.sandbox import confine, probe

REPOSITORY = Path(__file__).resolve().parents[1]
NAME = "2a_workers"


def test_all_that_is_tried_would_work_if_nothing_were_confined():
    """Else "holds" would say nothing."""
    with probe._trial() as spec:
        program = "import json, sys; from grader.sandbox import probe; print(json.dumps(probe._try_all(json.load(sys.stdin))))"
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=REPOSITORY, input=json.dumps(spec), capture_output=True, text=True
        )
    through = json.loads(done.stdout)
    assert len(through) == 12 and all(through.values()), through


def test_each_barrier_is_named():
    found = probe.confinement()
    assert found.files and found.landlock == confine.landlock_abi()
    assert list(found.to_dict()) == ["landlock", "files", "network", "sockets", "others", "user", "processes", "memory"]
    if IS_ROOT:
        assert all(barrier.holds for barrier in found.barriers), found.lines()
    assert [line.split()[0] for line in found.lines()] == list(found.to_dict())[1:]


def test_a_temporary_folder_with_a_long_path(tmp_path, monkeypatch):
    """A socket's path has 107 bytes at most."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    for path in (folder, *folder.parents[:3]):  # open to the trial's own user
        path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with probe._trial() as spec:
        assert not probe._tried(spec)["read"]


def test_a_trial_that_fails_is_no_confinement():
    with probe._trial() as spec, pytest.raises(RuntimeError, match=r"could not be tried out .* No such file"):
        probe._tried(spec | {"home": "/nowhere"})


# ---------------------------------------------------------------- a kernel without Landlock


def without_landlock(*arguments: str | Path, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess:
    python = [sys.executable, REPOSITORY / "tests/without_landlock.py", sys.executable, "-m"]
    return subprocess.run(
        [*map(str, [*python, *arguments])],
        cwd=cwd,
        env=scripts.environment(PYTHONPATH=f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"),
        capture_output=True,
        text=True,
        timeout=240,
    )


def grader(*arguments: str | Path) -> subprocess.CompletedProcess:
    return without_landlock("grader.frontends.cli", *arguments)


def test_doctor_says_that_files_are_open():
    done = grader("doctor")
    assert done.returncode == 1, done.stderr
    assert "files      OPEN" in done.stdout and "read, write, create went through" in done.stdout
    assert "no marks" in done.stdout


@pytest.mark.slow
def test_no_mark_without_confined_files_unless_allowed(tmp_path):
    notebook = REPOSITORY / "labs" / NAME / f"{NAME}.ipynb"
    command = ("grade", NAME, notebook, "--device", "cpu", "--quick")
    done = grader(*command)
    assert done.returncode == 1 and not done.stdout
    assert "no marks are given here" in done.stderr and "--allow-unconfined" in done.stderr
    done = grader(*command, "--allow-unconfined", "--json", tmp_path / "result.json")
    assert done.returncode == 0, done.stderr
    assert "Graded without confined files" in done.stdout
    result = Result.from_dict(json.loads((tmp_path / "result.json").read_text()))
    assert result.confinement["files"] is False and result.confinement["landlock"] == 0
    assert not result.fatal and result.check("parity").status == "PASS"
    assert "Graded without confined files" in report.html(result) and "not confined: files" in report.html(result)


def test_a_class_is_not_graded_without_confined_files(tmp_path):
    shutil.copytree(REPOSITORY / "labs" / NAME, tmp_path / "ann" / NAME)
    done = grader("class", REPOSITORY / "labs", tmp_path, "--lab", NAME, "--device", "cpu", "--quick")
    assert done.returncode == 1 and "no marks are given here" in done.stderr, done.stderr
    assert "confinement  files      OPEN" in done.stderr
    assert not list(tmp_path.glob("**/*.json"))


@pytest.mark.slow
def test_nbgrader_gives_no_mark_without_confined_files_unless_allowed(tmp_path):
    shutil.copy(REPOSITORY / "nbgrader_config.py", tmp_path)
    shutil.copytree(REPOSITORY / "solutions" / NAME, tmp_path / "solutions" / NAME)
    done = without_landlock("nbgrader", "generate_assignment", NAME, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    handed_in = tmp_path / "submitted" / "ann" / NAME
    handed_in.mkdir(parents=True)
    nb = nbformat.read(tmp_path / "labs" / NAME / f"{NAME}.ipynb", as_version=4)
    next(cell for cell in nb.cells if cell.id == "submission").source = "%%submission\nraise SystemExit"
    nbformat.write(nb, handed_in / f"{NAME}.ipynb")
    autograde = ("nbgrader", "autograde", NAME, "--MeasuredGrade.device=cpu")
    done = without_landlock(*autograde, cwd=tmp_path)
    assert done.returncode and "no marks are given here" in done.stderr, done.stderr
    assert "Confinement: files      OPEN" in done.stderr
    assert not list(tmp_path.glob("autograded/ann/*/*.result.json"))
    done = without_landlock(*autograde, "--MeasuredGrade.allow_unconfined=True", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.glob("autograded/ann/*/*.result.json")
    result = json.loads(path.read_text())
    assert result["confinement"]["files"] is False and result["score"] == 0
    assert any("Graded without confined files" in warning for warning in result["warnings"])
