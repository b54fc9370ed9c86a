"""The notebook tools of the labs that are no training loops to make faster."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from grader import trace, web_page
from grader.errors import UserError
from grader.frontends import board, notebook
from grader.frontends.notebook import Below, Note, NotebookLab, Row
from grader.grade import grade
from grader.grading.failure import explain, with_details
from grader.kinds import annotate, costs, kernel, mystery, shared
from grader.kinds.annotate import AnnotateLab
from grader.kinds.answers import AnswersLab
from grader.kinds.costs import CostsLab
from grader.kinds.kernel import KernelLab
from grader.kinds.mystery import MysteryLab
from grader.kinds.shared import Recording
from grader.kinds.stopwatch import StopwatchLab, Timing
from grader.labs.lab import AnyLab
from grader.result import FAIL, Progress, write_json
from grader.sandbox.parent import ChildError
from grader.trace import catalogue
from grader.trace.events import CPU_OP
from grader.trace.lines import by_line
from grader.trace.metrics import PHASES
from grader.trace.words import counted, plain, plain_number, short_kernel

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
            data = (shared.TRACES / f"{self._question(name).trace}.json.gz").read_bytes()
            _saved(self._folder / f"trace-{name}.json.gz", data).show()

        self._of(name, copy)

    def _question(self, name: str) -> Any:
        found = next((question for question in self.lab.questions if question.name == name), None)
        if found is None:
            names = ", ".join(f'"{question.name}"' for question in self.lab.questions)
            raise UserError(f"There is no trace {name!r}. There are {names}.")
        return found

    def _of(self, name: str, show: Callable[[Recording], Any]) -> Any:
        return show(shared.recording(self._question(name).trace))


def _looked(name: str, found: Recording) -> Note:
    side, metrics = found.side, found.analysis.metrics
    lines = [
        f"{side['model']}, batch {side['batch']}, on {side['gpus']} {side['device']}, torch {side['torch']}. {metrics.steps} steps are "
        f"counted. Without the profiler a step takes {plain_number(found.step_ms)} ms, in this trace {plain_number(side['step_ms_traced'])} ms."
    ]
    values = {name: catalogue.value(metrics, name) for name in catalogue.RECORDED}
    rows = [notebook._row(metric, value) for metric, value in values.items() if value is not None]
    products = found.ms("tensor_core", "matmul")
    rows.append(("matmul", f"{plain_number(products)} ms", "of each step in matrix products and convolutions"))
    if metrics.comm_ns:
        exposed = f"{plain_number(metrics.comm_exposed_ns / 1e6)} ms with no kernel beside it"
        rows.append(
            ("communication", f"{plain_number(metrics.comm_ns / 1e6)} ms", f"of each step between GPUs, {exposed}")
        )
    rows += _copies(found)
    phases: list[Row] = [("phase", "host", "GPU, ms a step")]
    phases += [
        (phase, plain_number(spent["host_ns"] / 1e6), plain_number(spent["gpu_ns"] / 1e6))
        for phase, spent in (metrics.phases or {}).items()
    ]
    picture = web_page.image(lambda: _draw(name, found), f"Timeline of trace {name}")
    return Note(f"Trace {name}", lines, [rows, phases, _lines(found)], picture)


def _copies(found: Recording) -> list[Row]:
    copies = {kind: copy for kind, copy in (found.analysis.metrics.copies or {}).items() if copy["ns"]}
    rows = notebook._copies(replace(found.analysis.metrics, copies=copies))
    return [
        (name, f"{plain_number(copy['ns'] / 1e6)} ms", f"{words}: {count}")
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
    return trace.draw({f"trace {name}": without_causes(timeline)})


def without_causes(timeline: dict[str, Any]) -> dict[str, Any]:
    """A timeline that shows when the GPU is idle, and not why."""
    use = [
        each | {"share": {part: share for part, share in each["share"].items() if not part.startswith("idle_")}}
        for each in timeline["use"]
    ]
    return timeline | {"gaps": [], "use": use}


# ---------------------------------------------------------------- live loops

CLOCK = "mystery.json"  # in the current folder: {ticket: {"opened": seconds since 1970, "used_s", "profiles"}}
LIMIT_S = 600  # of machine time, for the four of them


class LiveLab(NotebookLab):
    """Live loops to be diagnosed. student: your name in the class, which decides which loops are yours; at home leave it
    empty, and the loops are drawn at random."""

    lab: MysteryLab
    steps = (
        ("lab.ticket", "which loops are yours; it belongs into your answers"),
        ("lab.profile(1)", "run loop 1 on this machine: its timeline and its numbers"),
        ("%%submission", "the cell with your answers; fill it in, and run it"),
        ("lab.check()", "the grade: the loops are made again and measured"),
    )

    def __init__(
        self,
        name: str,
        device: str = "auto",
        quick: bool = False,
        cores: int | str | None = None,
        student: str = "",
    ) -> None:
        super().__init__(name, device, quick, cores)
        student = student or os.environ.get("JUPYTERHUB_USER", "")
        kept = self._clocks()
        own = (ticket for ticket in kept if ticket.startswith(f"{self.device}-"))
        self.ticket = (
            mystery.new_ticket(self.device, student) if student else next(own, mystery.new_ticket(self.device))
        )
        self.lab = replace(self.lab, ticket=self.ticket)
        self._clock = kept.get(self.ticket) or {"opened": time.time(), "used_s": 0.0, "profiles": 0}
        self._keep()

    def _card(self) -> Note:
        return replace(super()._card(), after=[f'Your ticket: "{self.ticket}".'])

    def profile(self, loop: int) -> None:
        """Run one of the four loops: some steps timed, then some profiled."""
        drawn = mystery.draw(self.lab, self.ticket)
        if str(loop) not in drawn:
            Note("Which loop?", [f"There are {', '.join(drawn)}: lab.profile({next(iter(drawn))})."]).show()
            return
        self._work(lambda progress: self._profiled(str(loop), drawn[str(loop)], progress))

    def _profiled(self, name: str, drawn: mystery.Drawn, progress: Progress) -> Note:
        began = time.monotonic()
        try:
            seen = mystery.profile(self.lab, self.device, drawn, progress)
        except (ChildError, trace.TraceError) as error:
            return Note(
                f"Loop {name} could not be profiled", [str(error), "Free memory on this machine, and try again."]
            )
        self._clock["used_s"] += time.monotonic() - began
        self._clock["profiles"] += 1
        self._keep()
        rows = [
            (metric, f"{value:,.5g}" if catalogue.unit(metric) == catalogue.COUNT else f"{value:.2f}", TOLD[metric])
            for metric, value in seen.numbers.items()
        ]
        picture = web_page.image(
            lambda: trace.draw({f"loop {name}": without_causes(seen.timeline)}), f"Timeline of loop {name}"
        )
        lines = [f"A step takes {plain_number(1e3 * seen.step_s)} ms without the profiler."]
        return Note(
            f"Loop {name}",
            lines,
            [rows],
            picture,
            after=["Counts are of one step. Shares are of 1: 0.25 is 25%.", self._time()],
        )

    def _checked(self, progress: Progress, *where: Any) -> Note:
        note = super()._checked(progress, *where)
        note.after.append(self._time())
        return note

    def _time(self) -> str:
        used, since, profiles = self._clock["used_s"], time.time() - self._clock["opened"], self._clock["profiles"]
        said = (
            f"{_minutes(since)} since you first opened the lab; {counted(profiles, 'profile{s}')} took "
            f"{_minutes(used)} of machine time."
        )
        return said + (" The aim is less than ten minutes of it." if used > LIMIT_S else "")

    def _clocks(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads((self._folder / CLOCK).read_text(encoding="utf-8"))
            if isinstance(found, dict):
                return {ticket: clock for ticket, clock in found.items() if _is_clock(clock)}
        return {}

    def _keep(self) -> None:
        with contextlib.suppress(OSError):
            write_json(self._folder / CLOCK, self._clocks() | {self.ticket: self._clock})


# What a live loop's numbers are, in words; some are measured otherwise than those of a trace.
TOLD = {name: metric.words for name, metric in catalogue.METRICS.items()} | {
    "gpu_idle": "of the step the GPU had nothing to do",
    "copies": "of the step the GPU copied, with no kernel beside it",
    "matmul": "of the step went into matrix products and convolutions",
}


def _is_clock(clock: Any) -> bool:
    keys = ("opened", "used_s", "profiles")
    return isinstance(clock, dict) and all(isinstance(clock.get(key), int | float) for key in keys)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


# ---------------------------------------------------------------- the costliest operations of a loop


class OperationsLab(NotebookLab):
    """The costliest operations of a loop of the course's own."""

    lab: CostsLab
    steps = (
        ("lab.profile()", "what costs the GPU most, in a loop recorded now; without a GPU, in a recorded one"),
        ("lab.code()", "the functions that ask for that work, with their line numbers"),
        ("lab.save()", "the trace as a file, for ui.perfetto.dev: it has the lines, too"),
        ("%%submission", "the cell with your answers; fill it in, and run it"),
        ("lab.check()", "the grade"),
    )
    _seen: costs.Seen | None = None
    _which = ""

    def profile(self, which: str = "") -> None:
        """The operations with most GPU time. which: "live" or "recorded"; by itself live where that can be judged."""
        wanted = which or (costs.RECORDED if costs.unmeasured() else costs.LIVE)
        if wanted not in (costs.LIVE, costs.RECORDED) or (wanted == costs.LIVE and costs.unmeasured()):
            why = costs.unmeasured() if wanted == costs.LIVE else 'There are "live" and "recorded".'
            Note("That trace is not to be had", [why]).show()
            return
        self._work(lambda progress: self._profiled(wanted, progress))

    def _profiled(self, which: str, progress: Progress) -> Note:
        try:
            seen = costs.live(self.lab, progress) if which == costs.LIVE else costs.recorded(self.lab)
            rows = _operations(seen)
        except (ChildError, trace.TraceError) as error:
            return Note("The loop could not be recorded", [str(error), "Free memory on this machine, and try again."])
        self._seen, self._which = seen, which
        busy = seen.operations[0].gpu_ns / seen.operations[0].share / 1e6
        lines = [
            seen.about,
            f"A step takes {plain_number(1e3 * seen.step_s)} ms without the profiler; the GPU is busy for {plain_number(busy)} ms of it.",
        ]
        after = [
            "All numbers are for one step. GFLOP and MB: by the shapes, each input read and each output written once.",
            f'In your answers: "trace": "{which}".',
        ]
        return Note("What costs the GPU most", lines, [rows], after=after)

    def code(self) -> None:
        """Print the functions that ask for the GPU's work, with the numbers of their lines."""
        if self._seen is None:
            Note("No trace yet", ["Run lab.profile() first."]).show()
            return
        for place in costs.functions(self._seen.operations):
            print(place.file)
            print("".join(f"{number:>5}  {text}\n" for number, text in place.text()))

    def save(self) -> None:
        """Write the trace into this folder, for another viewer."""
        if self._seen is None:
            Note("No trace yet", ["Run lab.profile() first."]).show()
            return
        packed = self._seen.data[:2] == b"\x1f\x8b"
        _saved(self._folder / f"trace-{self._which}.json{'.gz' if packed else ''}", self._seen.data).show()


def _saved(target: Path, data: bytes) -> Note:
    """Write a trace for another viewer, whole or not at all, and say so."""
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        return Note("Not saved", [f"The trace is not kept: {board.unwritten(error)}"])
    return Note("Saved", [f"{target.name} is in this folder. Open it at https://ui.perfetto.dev."])


def _operations(seen: costs.Seen) -> list[Row | Below]:
    """The table of the operations, without what is asked."""
    rows: list[Row | Below] = [("operation", "shapes", "in", "ms", "kernels", "us each", "GFLOP", "MB")]
    for o in seen.operations:
        rows.append(
            (
                plain(o.name, 60),
                plain(o.shapes, 120),
                o.phase,
                plain_number(o.gpu_ns / 1e6),
                f"{o.launched:g}",
                plain_number(o.gpu_ns / 1e3 / o.launched),
                plain_number(o.flops / 1e9) if o.flops else "",
                plain_number(o.bytes_moved / 1e6) if o.bytes_moved else "",
            )
        )
        if o.kernels:
            rows.append(Below(f"longest kernel: {short_kernel(o.kernels[0], 200)}", o.kernels[0]))
    return rows


# ---------------------------------------------------------------- a benchmark to repair


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


# ---------------------------------------------------------------- a kernel to be written


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
            return Note("Not measured", [notebook.NEEDS_GPU])
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


# ---------------------------------------------------------------- a loop that records itself


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
            return Note("Not measured", [notebook.NEEDS_GPU])
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
    for phase in PHASES:
        spans = annotate.phase_spans(recorded, phase) if len(recorded.steps) else []
        starts, ends = recorded.start[spans].tolist(), recorded.end[spans].tolist()
        inside = [
            [start - low, min(end, high) - start]
            for start, end in zip(starts, ends, strict=True)
            if low <= start < high
        ]
        if inside:
            lanes.append({"name": f"phase {phase}", "kind": "phase", "device": None, "intervals": inside})
    return timeline | {"lanes": [*lanes, *timeline["lanes"]]}


TOOLS: dict[type[AnyLab], type[NotebookLab]] = {
    AnswersLab: TracesLab,
    MysteryLab: LiveLab,
    CostsLab: OperationsLab,
    StopwatchLab: BenchmarkLab,
    KernelLab: OwnKernelLab,
    AnnotateLab: RecordingLab,
}
