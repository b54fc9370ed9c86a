"""nbgrader's own commands on a class of one, whose notebook was tampered with."""

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat

from grader import machine
from grader.classroom.store import Store
from grader.classroom.submissions import Job, read_class
from grader.grading.forms import choose_form
from grader.labs.lab import Lab
from tests import scripts

REPOSITORY = Path(__file__).resolve().parents[2]
STUDENT = "student"


@functools.cache
def _shared() -> Path:
    """A folder, until `forget` or for as long as this process lives: what these notebooks have in common is made once."""
    folder = Path(tempfile.mkdtemp(prefix="adversaries-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _released(lab: str) -> Path:
    """A course that has released the lab."""
    course = _shared() / lab
    course.mkdir()
    shutil.copy(REPOSITORY / "nbgrader_config.py", course)
    shutil.copytree(REPOSITORY / "solutions" / lab, course / "solutions" / lab)
    log = _nbgrader(course, "generate_assignment", lab)
    if not (course / "labs" / lab).is_dir():
        raise RuntimeError(f"nbgrader could not release {lab}: {log[-2000:]}")
    return course


def grade_tampered(lab: Lab, device: str, tamper: Callable[[Any], None]) -> dict[str, Any]:
    """Let `tamper` edit the released notebook of the lab, grade it; what the gradebook then holds. As in a class, what is
    measured of one submission stands for all notebooks with the same one."""
    from nbgrader.api import Gradebook

    with tempfile.TemporaryDirectory(prefix="adversary-") as folder:
        course, name = Path(folder, "course"), lab.name
        shutil.copytree(_released(name), course)
        notebook = nbformat.read(course / "labs" / name / f"{name}.ipynb", as_version=4)
        tamper(notebook)
        submitted = course / "submitted" / STUDENT / name
        submitted.mkdir(parents=True)
        nbformat.write(notebook, submitted / f"{name}.ipynb")
        options = {"device": device, "quick": True, "results": _shared() / "measured"}
        log = _nbgrader(course, "autograde", name, *(f"--MeasuredGrade.{k}={v}" for k, v in options.items()))
        _keep(lab, device, course)
        with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
            grades = gradebook.find_submission_notebook(name, name, STUDENT).grades
            scores = {grade.name: grade.auto_score for grade in grades}
        if any(course.rglob("kernel-ran")):
            raise AssertionError("a kernel ran a student's code")
    measured = [scores.get(name) or 0.0 for name in scores if name not in ("prediction", "explanation")]
    return {"points": sum(measured), "reason": f"the gradebook holds {scores}", "output": log[-500:]}


def forget() -> None:
    """Remove what notebooks had in common. A pool's worker is killed in the end, so nothing would do it at its exit."""
    shutil.rmtree(_shared(), ignore_errors=True)
    _shared.cache_clear()
    _released.cache_clear()


def _keep(lab: Lab, device: str, course: Path) -> None:
    """What was just measured, for the next notebook with this submission."""
    (handed_in,) = read_class(course / "labs", course / "submitted", [lab.name])
    result = course / "autograded" / STUDENT / lab.name / f"{lab.name}.result.json"
    if handed_in.submission and result.exists():
        record = {
            "result": json.loads(result.read_text(encoding="utf-8")),
            "machine": machine.key(choose_form(lab, device)),
        }
        Store(_shared() / "measured").put(Job(lab.name, handed_in.submission, quick=True), record)


def _nbgrader(course: Path, *arguments: str) -> str:
    modules = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    environment = scripts.environment(PYTHONPATH=modules)
    command = [sys.executable, "-m", "nbgrader", *arguments]
    done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True)
    return done.stderr if done.returncode == 0 else f"failed: {done.stderr}"
