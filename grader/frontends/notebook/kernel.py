"""The notebook tools of a function to be written as one kernel."""

from __future__ import annotations

from grader.frontends.notebook.base import NEEDS_GPU, NotebookLab
from grader.frontends.notebook.note import Note, Row
from grader.grading.failure import explain, with_details
from grader.kinds import kernel
from grader.kinds.kernel import KernelLab
from grader.result import Progress
from grader.sandbox.child_error import ChildError


class OwnKernelLab(NotebookLab):
    """A function to be written as one kernel."""

    lab: KernelLab
    steps = (
        ("%%submission", "the cell with your function and its kernel; change it, and run it"),
        ("lab.cases()", "is it right? All cases, with sizes drawn anew; nothing is timed"),
        ("lab.check()", "the grade: the cases, and on a GPU the function's share of the bandwidth roof"),
    )

    def cases(self) -> None:
        """Call your function on all cases and compare with float64."""
        self._work(self._tried)

    def _tried(self, progress: Progress) -> Note:
        submission = self._submission()
        if self.device not in self.lab.forms:
            return Note("Not measured", [NEEDS_GPU])
        found = kernel.Findings(self.lab, self.device, allow_unconfined=True)
        try:
            kernel.look(found, submission, progress)
        except ChildError as error:
            printed = with_details(found.output, error, submission)
            return Note("Your function failed", [explain(error, submission)], printed=printed)
        rows: list[Row] = [("case", "off, 1 is allowed", "what it is")]
        for check in self.lab.cases:
            for name, case in kernel.drawn(check, found.seed).items():
                seen = found.seen[name]
                said = "" if seen.wrong else "not finite" if seen.off is None else f"{seen.off:.2g}"
                sizes = ", ".join(f"{key} {value}" for key, value in case.items())
                right = seen.off is not None and seen.off <= 1
                rows.append((name, said, seen.wrong or (right and seen.elsewhere) or sizes))
        why = kernel.foreign(found)
        lines = [f"These results do not count yet: {why}."] if why else []
        return Note("Is it right?", lines, [rows], printed=found.output)
