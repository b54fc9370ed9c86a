"""The notebook tools of recorded traces with questions about them."""

from dataclasses import replace
from typing import Any

from grader import trace, web_page
from grader.errors import UserError
from grader.frontends.notebook.base import NotebookLab
from grader.frontends.notebook.metric_rows import copy_rows, metric_row, ms
from grader.frontends.notebook.note import Head, Note, Row
from grader.kinds.answers import AnswersLab
from grader.kinds.shared import TRACES, Recording, recording
from grader.trace import Metrics, catalogue
from grader.trace.events import CPU_OP
from grader.trace.lines import by_line
from grader.trace.words import plain_number

MOST_LINES = 8


class TracesLab(NotebookLab):
    """Recorded traces, known by letters, and questions about them."""

    lab: AnswersLab
    steps = (
        ('lab.look("a")', "the timeline of trace a, and what can be counted in it"),
        ('lab.explore("a")', "the same to click through: gaps, kernels, operations"),
        ('lab.save("a")', "the trace as a file, for ui.perfetto.dev or chrome://tracing"),
        ("%%submission", "the cell with your answers. Fill it in and run it"),
        ("lab.check()", "the grade"),
    )

    def look(self, name: str = "") -> None:
        """The timeline of a trace, and what can be counted in it."""
        _trace_note(name, recording(self._file_of(name))).show()

    def explore(self, name: str = "") -> Any:
        """The explorer of a trace: make it the last line of a cell."""
        return trace.explore(recording(self._file_of(name)).analysis)

    def save(self, name: str = "") -> None:
        """Write the trace into this folder, for another viewer."""
        data = (TRACES / f"{self._file_of(name)}.json.gz").read_bytes()
        self._save_trace(f"trace-{name}.json.gz", data).show()

    def _file_of(self, name: str) -> str:
        """What a trace is called in `TRACES`."""
        files = {question.name: question.trace for question in self.lab.questions}
        if name not in files:
            known = ", ".join(f'"{name}"' for name in files)
            asked = f"There is no trace {name!r}." if name else "Which trace?"
            raise UserError(f"{asked} There are {known}.")
        return files[name]


def _trace_note(name: str, recorded: Recording) -> Note:
    side, metrics = recorded.side, recorded.analysis.metrics
    lines = [
        f"{side['model']}, batch {side['batch']}, on {side['gpus']} {side['device']}, torch {side['torch']}. {metrics.steps} steps are "
        f"counted. Without the profiler a step takes {plain_number(recorded.step_ms)} ms, in this trace {plain_number(side['step_ms_traced'])} ms."
    ]
    values = {name: catalogue.value(metrics, name) for name in catalogue.RECORDED}
    rows: list[Row] = [metric_row(metric, value) for metric, value in values.items() if value is not None]
    products = recorded.ms("tensor_core", "matmul")
    rows.append(("matmul", f"{plain_number(products)} ms", "of each step in matmuls and convolutions"))
    if metrics.comm_ns:
        exposed = f"{ms(metrics.comm_exposed_ns)} with no kernel beside it"
        rows.append(("communication", ms(metrics.comm_ns), f"of each step between GPUs, {exposed}"))
    rows += _copies(metrics)
    phases: list[Row] = [Head(("phase", "host", "GPU, ms per step"))]
    phases += [
        (phase, plain_number(spent["host_ns"] / 1e6), plain_number(spent["gpu_ns"] / 1e6))
        for phase, spent in (metrics.phases or {}).items()
    ]
    picture = web_page.image(lambda: _draw(name, recorded), f"Timeline of trace {name}")
    return Note(f"Trace {name}", lines, [rows, phases, _lines(recorded)], picture)


def _copies(metrics: Metrics) -> list[Row]:
    """With the time that they took; those that took none are left out."""
    copies = {kind: copy for kind, copy in (metrics.copies or {}).items() if copy["ns"]}
    rows = copy_rows(replace(metrics, copies=copies))
    return [
        (name, ms(copy["ns"]), f"{words}: {count}")
        for (name, count, words), copy in zip(rows, copies.values(), strict=True)
    ]


def _lines(recorded: Recording) -> list[Row]:
    """Source lines, where the trace recorded them: what was called there, and how often that waited for the GPU."""
    raw, metrics = recorded.analysis.trace, recorded.analysis.metrics
    called = by_line(raw, (raw.category == CPU_OP).nonzero()[0])
    if not called:
        return []
    rows: list[Row] = [Head(("source line", "waits per step", "operators called there, in the whole trace"))]
    return rows + [
        (line, f"{(metrics.sync_lines or {}).get(line, 0):g}", f"{count}")
        for line, count in list(called.items())[:MOST_LINES]
    ]


def _draw(name: str, recorded: Recording) -> Any:
    """The timeline without the cause of each gap: to find that is what is asked."""
    timeline = trace.timeline(recorded.analysis.trace, step_ns=recorded.step_ms * 1e6)
    return trace.draw({f"trace {name}": without_causes(timeline)})


def without_causes(timeline: dict[str, Any]) -> dict[str, Any]:
    """A timeline that shows when the GPU is idle, and not why."""
    use = [
        lane | {"share": {part: share for part, share in lane["share"].items() if not part.startswith("idle_")}}
        for lane in timeline["use"]
    ]
    return timeline | {"gaps": [], "use": use}
