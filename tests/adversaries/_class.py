"""nbgrader's own commands on a class of one, whose notebook was tampered with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat

from grader.labs.lab import Lab

REPOSITORY = Path(__file__).resolve().parents[2]
STUDENT = "student"


def grade_tampered(lab: Lab, device: str, tamper: Callable[[Any], None]) -> dict[str, Any]:
    """Release the lab, let `tamper` edit the notebook that was released, grade it; what the gradebook then holds."""
    from nbgrader.api import Gradebook

    with tempfile.TemporaryDirectory(prefix="adversary-") as folder:
        course = Path(folder)
        shutil.copy(REPOSITORY / "nbgrader_config.py", course)
        shutil.copytree(REPOSITORY / "solutions" / lab.name, course / "solutions" / lab.name)
        _nbgrader(course, "generate_assignment", lab.name)
        notebook = nbformat.read(course / "labs" / lab.name / f"{lab.name}.ipynb", as_version=4)
        tamper(notebook)
        submitted = course / "submitted" / STUDENT / lab.name
        submitted.mkdir(parents=True)
        nbformat.write(notebook, submitted / f"{lab.name}.ipynb")
        log = _nbgrader(course, "autograde", lab.name, f"--MeasuredGrade.device={device}", "--MeasuredGrade.quick=True")
        with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
            grades = gradebook.find_submission_notebook(lab.name, lab.name, STUDENT).grades
            scores = {grade.name: grade.auto_score for grade in grades}
        if any(course.rglob("kernel-ran")):
            raise AssertionError("a kernel ran a student's code")
    measured = [scores.get(name) or 0.0 for name in scores if name not in ("prediction", "explanation")]
    return {"points": sum(measured), "reason": f"the gradebook holds {scores}", "output": log[-500:]}


def _nbgrader(course: Path, *arguments: str) -> str:
    # nbgrader starts alembic, and looks for it on the PATH only
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "nbgrader", *arguments]
    done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True)
    return done.stderr if done.returncode == 0 else f"failed: {done.stderr}"
