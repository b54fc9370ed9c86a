"""The notebook tools of labs in which one writes something else: a benchmark, a kernel, a loop that records a trace of itself."""

from dataclasses import replace
from typing import Any

from grader import trace, web_page
from grader.frontends.notebook.base import NEEDS_GPU, NotebookLab
from grader.frontends.notebook.note import Head, Note, Row
from grader.grade import grade
from grader.grading.failure import explain, with_details
from grader.kinds import annotate, kernel
from grader.kinds.annotate import AnnotateLab
from grader.kinds.kernel import KernelLab
from grader.kinds.stopwatch import StopwatchLab, Timing
from grader.result import FAIL, Progress
from grader.sandbox.child_error import ChildError
from grader.submission import Submission
from grader.trace.metrics import PHASES


class BenchmarkLab(NotebookLab):
    """A benchmark to repair."""

    lab: StopwatchLab
    steps = (
        ("%%submission", "the cell with benchmark(job). Change it and run it"),
        ('lab.compare("loading")', "one of the jobs: what your benchmark says, and what the grader measures"),
        ("lab.check()", "the grade, on all jobs, with sizes drawn anew"),
    )

    def compare(self, name: str = "") -> None:
        """Time one of the jobs with your benchmark, and beside it."""
        timing = next((timing for timing in self.lab.timings if timing.name == name), None)
        if timing is None:
            names = ", ".join(f'"{timing.name}"' for timing in self.lab.timings)
            Note(f"There is no job {name!r}" if name else "Which job?", [f"There are {names}."]).show()
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


class OwnKernelLab(NotebookLab):
    """A function to be written as one kernel."""

    lab: KernelLab
    steps = (
        ("%%submission", "the cell with your function and its kernel. Change it and run it"),
        ("lab.cases()", "is it right? All cases, with sizes drawn anew. Nothing is timed"),
        ("lab.check()", "the grade: the cases, and on a GPU the function's share of the bandwidth roof"),
    )

    def cases(self) -> None:
        """Call your function on all cases and compare with float64."""
        self._work(self._tried)

    def _tried(self, progress: Progress) -> Note:
        submission = self._submission()
        if self.device not in self.lab.forms:
            return Note("Not measured", [NEEDS_GPU])
        findings = kernel.Findings(self.lab, self.device, allow_unconfined=True)
        try:
            kernel.look(findings, submission, progress)
        except ChildError as error:
            return _failed("function", error, submission, findings.output)
        rows: list[Row] = [Head(("case", "off, 1 is allowed", "what it is"))]
        for check in findings.lab.cases:  # as this GPU has them
            for name, case in kernel.drawn(check, findings.seed).items():
                seen = findings.seen[name]
                said = "" if seen.wrong else "not finite" if seen.largest_error is None else f"{seen.largest_error:.2g}"
                sizes = ", ".join(f"{key} {value}" for key, value in case.items())
                right = seen.largest_error is not None and seen.largest_error <= 1
                rows.append((name, said, seen.wrong or (right and seen.elsewhere) or sizes))
        why = kernel.foreign(findings)
        lines = [f"These results do not count yet: {why}."] if why else []
        return Note("Is it right?", lines, [rows], printed=findings.output)


class RecordingLab(NotebookLab):
    """A loop that records a trace of itself."""

    lab: AnnotateLab
    steps = (
        ("%%submission", "the cell with train(job). Change it and run it"),
        ("lab.look()", "run the first steps, and see what the trace at job.trace holds"),
        ("lab.check()", "the grade: the trace, and what the loop loses beside the plain one"),
    )

    def look(self) -> None:
        """Run the first steps of your loop: what its own trace holds."""
        self._work(self._looked)

    def _looked(self, progress: Progress) -> Note:
        submission = self._submission()
        if self.device not in self.lab.forms:
            return Note("Not measured", [NEEDS_GPU])
        findings = annotate.Findings(self.lab, self.device)
        try:
            annotate.look(findings, submission, progress)
        except ChildError as error:
            return _failed("loop", error, submission, findings.output)
        rows = [
            (c.title, c.status, c.reason) for c in (annotate.judge_window(findings), annotate.judge_phases(findings))
        ]
        if findings.goes_on:
            cost = self.lab.cost
            rows.append((cost.title, FAIL, "The recording goes on: some steps later the profiler was on again."))
        timeline = findings.timelines.get("after")
        picture = ""
        if timeline and findings.recorded is not None:
            shown = _with_phases(timeline, findings.recorded)
            picture = web_page.image(lambda: trace.draw({"your trace": shown}), "Timeline of your trace")
        return Note("What your loop recorded of itself", [], [rows], picture, printed=findings.output)


def _with_phases(timeline: dict[str, Any], recorded: trace.Trace) -> dict[str, Any]:
    """A timeline with a lane above the others for each phase that the trace names."""
    low, high = timeline["origin_ns"], timeline["origin_ns"] + timeline["span_ns"]
    lanes = []
    for phase in PHASES if len(recorded.steps) else ():
        spans = annotate.phase_spans(recorded, phase)
        starts, ends = recorded.start[spans].tolist(), recorded.end[spans].tolist()
        inside = [
            [start - low, min(end, high) - start]
            for start, end in zip(starts, ends, strict=True)
            if low <= start < high
        ]
        if inside:
            lanes.append({"name": f"phase {phase}", "kind": "phase", "device": None, "intervals": inside})
    return timeline | {"lanes": [*lanes, *timeline["lanes"]]}


def _failed(what: str, error: ChildError, submission: Submission, output: str) -> Note:
    return Note(f"Your {what} failed", [explain(error, submission)], printed=with_details(output, error, submission))
