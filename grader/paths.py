"""Where the course lies on this machine."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def working_copy(lab: str) -> Path:
    """The learner's own notebook of a lab; it need not be there yet."""
    return REPOSITORY / "work" / lab / f"{lab}.ipynb"
