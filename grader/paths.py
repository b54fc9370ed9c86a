"""Where the course lies on this machine."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
REPOSITORY = PACKAGE.parent
# Beside the package in a checkout, inside it where it was installed from a wheel (setup.py).
DATA = PACKAGE / "data" if (PACKAGE / "data").is_dir() else REPOSITORY / "data"


def working_copy(lab: str) -> Path:
    """The learner's own notebook of a lab; it need not be there yet."""
    return REPOSITORY / "work" / lab / f"{lab}.ipynb"
