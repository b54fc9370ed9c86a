"""The notebook tools of the labs that are no training loops to make faster."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from grader import answers, trace
from grader.answers import Recording
from grader.errors import UserError
from grader.frontends import notebook, report
from grader.frontends.notebook import Note, NotebookLab, Row
from grader.labs.kinds import AnswersLab
from grader.labs.lab import AnyLab
from grader.trace.lines import by_line
from grader.trace.read import CPU_OP

SEEN = (
    "data_wait",
    "gpu_busy_ns",
    "syncs",
    "h2d_pinned",
    "h2d_overlap",
    "launches",
    "kernels",
    "tiny_kernel_share",
    "tensor_core_share",
    "half_share",
)
MOST_LINES = 8


class TracesLab(NotebookLab):
    """Recorded traces, known by letters, and questions about them."""

    lab: AnswersLab
    steps = (
        ('lab.look("a")', "the timeline of trace a, and what can be counted in it"),
        ('lab.explore("a")', "the same to click through: gaps, kernels, operations"),
        ('lab.save("a")', "the trace as a file, for ui.perfetto.dev or chrome://tracing"),
        ("%%submission", "the cell with your answers; fill it in, and run it"),
        ("lab.check()", "the grade"),
    )

    def look(self, name: str) -> None:
        """The timeline of a trace, and what can be counted in it."""
        self._of(name, lambda found: _looked(name, found).show())

    def explore(self, name: str) -> Any:
        """The explorer of a trace: make it the last line of a cell."""
        return self._of(name, lambda found: trace.explore(found.analysis))

    def save(self, name: str) -> None:
        """Write the trace into this folder, for another viewer."""

        def copy(_: Recording) -> None:
            target = self._folder / f"trace-{name}.json.gz"
            shutil.copyfile(answers.TRACES / f"{self._question(name).trace}.json.gz", target)
            Note("Saved", [f"{target.name} is in this folder. Open it at https://ui.perfetto.dev."]).show()

        self._of(name, copy)

    def _question(self, name: str) -> Any:
        found = next((question for question in self.lab.questions if question.name == name), None)
        if found is None:
            names = ", ".join(f'"{question.name}"' for question in self.lab.questions)
            raise UserError(f"There is no trace {name!r}. There are {names}.")
        return found

    def _of(self, name: str, show: Callable[[Recording], Any]) -> Any:
        return show(answers.recording(self._question(name).trace))


def _looked(name: str, found: Recording) -> Note:
    side, metrics = found.side, found.analysis.metrics
    lines = [
        f"{side['model']}, batch {side['batch']}, on one {side['device']}, torch {side['torch']}. {metrics.steps} steps are "
        f"counted. Without the profiler a step takes {found.step_ms:.3g} ms, in this trace {side['step_ms_traced']:.3g} ms."
    ]
    values = {metric: getattr(metrics, metric) for metric in SEEN}
    values["tensor_core_share"] = (metrics.tensor_core_share or {}).get("yes")
    rows = [notebook._row(metric, value) for metric, value in values.items() if value is not None]
    products = found.ms("tensor_core", "matmul")
    rows.append(("matmul", f"{products:.3g} ms", "of each step in matrix products and convolutions"))
    rows += _copies(found)
    phases: list[Row] = [("phase", "host", "GPU, ms a step")]
    phases += [
        (phase, f"{spent['host_ns'] / 1e6:.3g}", f"{spent['gpu_ns'] / 1e6:.3g}")
        for phase, spent in (metrics.phases or {}).items()
    ]
    picture = report._image(lambda: _draw(name, found), f"Timeline of trace {name}")
    return Note(f"Trace {name}", lines, [rows, phases, _lines(found)], picture)


def _copies(found: Recording) -> list[Row]:
    copies = {kind: copy for kind, copy in (found.analysis.metrics.copies or {}).items() if copy["ns"]}
    rows = notebook._copies(replace(found.analysis.metrics, copies=copies))
    return [
        (name, f"{copy['ns'] / 1e6:.3g} ms", f"{words}: {count}")
        for (name, count, words), copy in zip(rows, copies.values(), strict=True)
    ]


def _lines(found: Recording) -> list[Row]:
    """Source lines, where the trace recorded them: what was called there, and how often that waited for the GPU."""
    recorded, metrics = found.analysis.trace, found.analysis.metrics
    called = by_line(recorded, (recorded.category == CPU_OP).nonzero()[0])
    if not called:
        return []
    rows: list[Row] = [("source line", "waits a step", "operators called there, in the whole trace")]
    return rows + [
        (line, f"{(metrics.sync_lines or {}).get(line, 0):g}", f"{count}")
        for line, count in list(called.items())[:MOST_LINES]
    ]


def _draw(name: str, found: Recording) -> Any:
    """The timeline without the cause of each gap: to find that is what is asked."""
    timeline = trace.timeline(found.analysis.trace, step_ns=found.step_ms * 1e6)
    timeline["gaps"] = []
    for use in timeline["use"]:
        use["share"] = {part: share for part, share in use["share"].items() if not part.startswith("idle_")}
    return trace.draw({f"trace {name}": timeline})


TOOLS: dict[type[AnyLab], type[NotebookLab]] = {AnswersLab: TracesLab}
