"""The notebook tools of a loop that records a trace of itself."""

from __future__ import annotations

from typing import Any

from grader import trace, web_page
from grader.frontends.notebook.base import NEEDS_GPU, NotebookLab
from grader.frontends.notebook.note import Note
from grader.grading.failure import explain, with_details
from grader.kinds import annotate
from grader.kinds.annotate import AnnotateLab
from grader.result import FAIL, Progress
from grader.sandbox.child_error import ChildError
from grader.trace.metrics import PHASES


class RecordingLab(NotebookLab):
    """A loop that records a trace of itself."""

    lab: AnnotateLab
    steps = (
        ("%%submission", "the cell with train(job); change it, and run it"),
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
        found = annotate.Findings(self.lab, self.device)
        try:
            annotate.look(found, submission, progress)
        except ChildError as error:
            return Note(
                "Your loop failed", [explain(error, submission)], printed=with_details(found.output, error, submission)
            )
        rows = [(c.title, c.status, c.reason) for c in (annotate.judge_window(found), annotate.judge_phases(found))]
        if found.goes_on:
            cost = self.lab.cost
            rows.append((cost.title, FAIL, "The recording goes on: some steps later the profiler was on again."))
        timeline = found.timelines.get("after")
        picture = ""
        if timeline and found.recorded is not None:
            shown = _with_phases(timeline, found.recorded)
            picture = web_page.image(lambda: trace.draw({"your trace": shown}), "Timeline of your trace")
        return Note("What your loop recorded of itself", [], [rows], picture, printed=found.output)


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
