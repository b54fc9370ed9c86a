"""The environment in which nbgrader runs, also where the virtual environment was not activated."""

import os
import sys
from pathlib import Path


def environment(**others: str) -> dict[str, str]:
    """This process's, with its Python's own scripts first on the PATH, and `others`: nbgrader starts alembic, and looks for
    it on the PATH only."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | others
