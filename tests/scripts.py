"""nbgrader's commands, and the environment in which they run, also where the virtual environment was not activated."""

import os
import subprocess
import sys
from pathlib import Path


def environment(**others: str) -> dict[str, str]:
    """This process's, with its Python's own scripts first on the PATH, and `others`: nbgrader starts alembic, and looks for
    it on the PATH only."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | others


def nbgrader(course: Path, *arguments: str) -> str:
    """Run a command in the course folder; returns its log."""
    command = [sys.executable, "-m", "nbgrader", *arguments]
    done = subprocess.run(command, cwd=course, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr
