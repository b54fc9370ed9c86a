"""The notebook tools of a benchmark to repair."""

from __future__ import annotations

from dataclasses import replace

from grader.frontends.notebook.base import NotebookLab
from grader.frontends.notebook.note import Note
from grader.grade import grade
from grader.kinds.stopwatch import StopwatchLab, Timing
from grader.result import Progress


class BenchmarkLab(NotebookLab):
    """A benchmark to repair."""

    lab: StopwatchLab
    steps = (
        ("%%submission", "the cell with benchmark(job); change it, and run it"),
        ('lab.compare("loading")', "one of the jobs: what your benchmark says, and what the grader measures"),
        ("lab.check()", "the grade, on all jobs, with sizes drawn anew"),
    )

    def compare(self, name: str) -> None:
        """Time one of the jobs with your benchmark, and beside it."""
        timing = next((timing for timing in self.lab.timings if timing.name == name), None)
        if timing is None:
            names = ", ".join(f'"{timing.name}"' for timing in self.lab.timings)
            Note(f"There is no job {name!r}", [f"There are {names}."]).show()
        elif not self.lab.measures(timing, self.device):
            Note(timing.title, ["NOT MEASURED: only a GPU can show it."]).show()
        else:
            self._work(lambda progress: self._compared(timing, progress))

    def _compared(self, timing: Timing, progress: Progress) -> Note:
        progress(0.1, f"timing the job {timing.name!r}")
        only = replace(self.lab, timings=(timing,))
        result = grade(
            self._submission(), only, device=self.device, quick=True, allow_unconfined=True, progress=progress
        )
        check = result.checks[0]
        if result.fatal or result.disturbed:
            return Note("The benchmark did not run", [result.fatal or result.disturbed], printed=result.output)
        sizes = check.evidence.get("sizes", {})
        drawn = ", ".join(f"{name} {value}" for name, value in sizes.items())
        return Note(timing.title, [check.reason], after=[f"Drawn for this run: {drawn}."], printed=result.output)
