"""What a grade finds out, chapter by chapter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from grader.grading.failure import WAIT


@dataclass
class AnyFindings:
    """What a grade of any kind of lab has found out so far."""

    lab: Any  # of the kind
    form_name: str
    allow_unconfined: bool = False
    confinement: dict[str, Any] = field(default_factory=dict)
    free_bytes: int = 0  # of GPU memory, before the grade
    submission_there: bool = True  # its processes have begun, and are not gone
    seed: int | None = None
    timelines: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    fatal: str = ""
    disturbed: str = ""
    advice: str = WAIT  # what to do where the grade was disturbed
    output: str = ""

    @property
    def form(self) -> Any:
        return self.lab.forms[self.form_name]

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        return getattr(self.form, "ranks", 1)
