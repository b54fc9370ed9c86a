"""The kinds of labs that are no training loop to make faster, each in one file: declaration, Findings, measure, judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from grader.grading.evidence import AnyFindings
    from grader.kinds import annotate, answers, costs, kernel, mystery, stopwatch
    from grader.measure.blocks import Plan
    from grader.result import CheckResult, Progress
    from grader.sandbox.setting import Limits
    from grader.submission import Submission


class Kind(Protocol):
    """What the module has that a lab names as `graded_by`. findings: the module's own."""

    @property
    def Findings(self) -> Callable[..., AnyFindings]: ...

    def measure(
        self, findings: Any, submission: Submission, plan: Plan, limits: Limits | None, progress: Progress
    ) -> None: ...

    def judge(self, findings: Any, submission: Submission) -> list[CheckResult]: ...


if TYPE_CHECKING:  # each has these signatures
    KINDS: tuple[Kind, ...] = (annotate, answers, costs, kernel, mystery, stopwatch)
