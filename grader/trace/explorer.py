"""Look into a trace in a notebook: pick some steps, pick a gap, a kernel or an operation, and see what proves it.

Where a notebook is only read (nbconvert, no kernel), a picture and the costliest gaps and kernels are shown as plain HTML."""

from __future__ import annotations

import base64
import io
import uuid
from html import escape
from typing import Any

import IPython.display
import ipywidgets as widgets
import numpy as np

from grader.trace.analysis import Analysis
from grader.trace.catalogue import PARTS, STEP_PARTS
from grader.trace.events import ANNOTATION, CPU_OP
from grader.trace.lines import Lines
from grader.trace.picture import draw, draw_breakdown
from grader.trace.steps import Steps
from grader.trace.svg import called, svg
from grader.trace.timeline import timeline
from grader.trace.words import milliseconds, plain, plain_number, short_kernel

MOST_ROWS = 60  # of a list to choose from
CALLS = 6  # shown of a kernel
EXPLAINED = 3  # gaps and kernels explained where nothing can be selected


def explore(analysis: Analysis, other: Analysis | None = None) -> Explorer:
    """The explorer of one trace, or of two, before and after a change. Show it by making it a cell's last line."""
    return Explorer(analysis, other)


class Explorer(widgets.VBox):
    """Widgets over `View`s. `steps`, `what` and `choice` are what a reader sets; `evidence.value` is what is shown."""

    def __init__(self, analysis: Analysis, other: Analysis | None = None):
        self.views = [View(analysis)] + ([View(other)] if other else [])
        self._static = f"trace-{uuid.uuid4().hex[:12]}"
        self.which = widgets.ToggleButtons(options=[("before", 0), ("after", 1)] if other else [("trace", 0)])
        self.steps = widgets.IntRangeSlider(
            description="steps", continuous_update=False, layout={"width": "460px", "max_width": "100%"}
        )
        self.what = widgets.ToggleButtons(options=["gaps", "kernels", "operations"])
        self.choice = widgets.Select(description="show", options=[], rows=9, layout={"width": "98%"})
        self.choice.add_class("trace-choice")
        self.picture, self.evidence = widgets.HTML(), widgets.HTML()
        # The kernel is alive, so what stands in for this explorer is not needed.
        style = f"<style>.{self._static} {{ display: none }}</style>"
        hide = widgets.HTML(style, layout={"height": "0px", "margin": "0"})
        bar = [self.which, self.steps] if other else [self.steps]
        super().__init__(
            [
                hide,
                widgets.HBox(bar, layout={"flex_flow": "row wrap"}),
                self.picture,
                self.what,
                self.choice,
                self.evidence,
            ]
        )
        self._quiet = False
        self.which.observe(self._trace_changed, "value")
        self.steps.observe(self._steps_changed, "value")
        self.what.observe(self._steps_changed, "value")
        self.choice.observe(self._chosen, "value")
        self._trace_changed()

    @property
    def view(self) -> View:
        return self.views[self.which.value]

    def _trace_changed(self, _: Any = None) -> None:
        count = max(len(self.view.steps), 1)
        self._quiet = True  # moving the ends of a slider changes its value, too
        self.steps.min, self.steps.max = 1, max(count, self.steps.min + 1)
        self.steps.value = (1, min(2, count))
        self.steps.max = max(count, 1)
        self._quiet = False
        self._steps_changed()

    def _steps_changed(self, _: Any = None) -> None:
        if self._quiet:
            return
        first, last = self.steps.value
        rows = self.view.rows(self.what.value, first, last)
        self._quiet = True
        self.choice.options = rows
        self.choice.value = rows[0][1] if rows else None
        self._quiet = False
        self._chosen()

    def _chosen(self, _: Any = None) -> None:
        if self._quiet:
            return
        first, last = self.steps.value
        what, choice = self.what.value, self.choice.value
        self.picture.value = _paper(self.view.svg(what, choice, first, last))
        self.evidence.value = _paper(self.view.evidence(what, choice, first, last))

    def _ipython_display_(self, **_: Any) -> None:
        page = "".join(v.static(name) for (name, _), v in zip(self.which.options, self.views, strict=True))
        page = f'<div class="{self._static} tex2jax_ignore mathjax_ignore">{_paper(page)}</div>'
        IPython.display.display({"text/html": page, "text/plain": "A trace; run this cell to explore it."}, raw=True)
        widget = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        said = "(run this cell to explore the trace)"
        IPython.display.display({"application/vnd.jupyter.widget-view+json": widget, "text/plain": said}, raw=True)


class View:
    """What the explorer shows of one trace. Steps are numbered from 1, the first that is counted."""

    def __init__(self, analysis: Analysis):
        self.analysis, self.trace = analysis, analysis.trace
        self.steps = Steps(self.trace, analysis.left_out, analysis.metrics.steps)
        self.lines = Lines(self.trace)

    def rows(self, what: str, first: int, last: int) -> list[tuple[str, int]]:
        """(text, value) of what can be chosen, the costliest first."""
        if what == "operations":
            return [
                (f"{milliseconds(o.gpu_ns):>9}  {o.share:>4.0%}  {plain(f'{o.name} {o.shapes}', 90)}", i)
                for i, o in enumerate(self.analysis.operations)
            ]
        if what == "gaps":
            return [self._gap_row(i) for i in self._gaps(first, last)[:MOST_ROWS].tolist()]
        events = self._gpu(first, last)
        codes, of = np.unique(self.trace.name[events], return_inverse=True)
        time, count = np.bincount(of, self.trace.duration[events]), np.bincount(of)
        rows = []
        for i in np.argsort(-time, kind="stable")[:MOST_ROWS].tolist():
            name = short_kernel(self.trace.names[codes[i]], 100)
            rows.append((f"{milliseconds(time[i]):>9}  {count[i]:>5} x  {name}", int(codes[i])))
        return rows

    def _gaps(self, first: int, last: int) -> np.ndarray:
        """Positions in `Analysis.gaps` of those in these steps, the longest first."""
        if not len(self.steps):
            return np.empty(0, int)
        gaps, low = self.analysis.gaps, self.steps.starts[first - 1]
        ends = self.trace.end[self._gpu(first, last)]
        high = max(self.steps.ends[min(last, len(self.steps)) - 1], ends.max(initial=low))
        inside = np.flatnonzero((gaps.end > low) & (gaps.start < high))
        return inside[np.argsort(gaps.start[inside] - gaps.end[inside], kind="stable")]

    def _gap_row(self, i: int) -> tuple[str, int]:
        gaps = self.analysis.gaps
        cause = STEP_PARTS[PARTS[gaps.cause[i]]].short
        step = int(np.searchsorted(self.steps.starts, gaps.start[i], side="right"))
        after = short_kernel(called(self.trace, int(gaps.after[i])), 80)
        return f"{milliseconds(int(gaps.end[i] - gaps.start[i])):>9}  {cause:<13} step {step}, before {after}", i

    def _gpu(self, first: int, last: int) -> np.ndarray:
        """The GPU work (indices) of these steps; without any steps, all."""
        if not len(self.steps):
            return self.trace.gpu
        return self.steps.gpu[(self.steps.step >= first - 1) & (self.steps.step < last)]

    def _of_kernel(self, code: int, first: int, last: int) -> np.ndarray:
        """The GPU work of this name in these steps, the longest first."""
        events = self._gpu(first, last)
        events = events[self.trace.name[events] == code]
        return events[np.argsort(-self.trace.duration[events], kind="stable")]

    def svg(self, what: str, choice: int | None, first: int, last: int) -> str:
        """The timeline of these steps, with what was chosen marked."""
        gaps = self.analysis.gaps
        marked = []
        if choice is not None and what == "gaps":
            marked = [(int(gaps.start[choice]), int(gaps.end[choice]))]
        elif choice is not None:
            if what == "kernels":
                events = self._of_kernel(choice, first, last)
            else:
                events = np.array(self.analysis.operations[choice].events, int)
            events = events[:100]
            marked = list(zip(self.trace.start[events].tolist(), self.trace.end[events].tolist(), strict=True))
        return svg(self.analysis, first, last, marked)

    # ---- evidence

    def evidence(self, what: str, choice: int | None, first: int, last: int) -> str:
        if choice is None:
            why = "; ".join(self.analysis.metrics.reasons) or "these steps have none"
            return f"<p>Nothing to choose: {escape(plain(why, 600))}.</p>"
        if what == "gaps":
            return _table(self._gap(choice))
        return _table(self._kernel(choice, first, last) if what == "kernels" else self._operation(choice))

    def _gap(self, i: int) -> list[tuple[str, str]]:
        gaps, t = self.analysis.gaps, self.trace
        start, end, after = int(gaps.start[i]), int(gaps.end[i]), int(gaps.after[i])
        cause = STEP_PARTS[PARTS[gaps.cause[i]]]
        rows = [
            ("the GPU idled", f"{milliseconds(end - start)}, GPU {int(gaps.device[i])}, {self._when(start)}"),
            ("cause", f"{cause.short}: {cause.words}"),
            ("before it ran", called(t, int(gaps.before[i]))),
            ("after it ran", called(t, after)),
        ]
        launch = int(t.launch_of(np.array([after]))[0]) if after >= 0 else -1
        if launch >= 0:
            late = int(t.start[launch]) - start
            when = f"{milliseconds(late)} into the gap" if late > 0 else f"{milliseconds(-late)} before the gap began"
            rows.append(("which was launched", f"{when}, by {called(t, launch)}{self._within(launch)}"))
            rows += [("line", line) for line in self._line(launch)]
        host = self._host(int(t.thread[launch]) if launch >= 0 else self.steps.thread, start, end)
        return rows + _listed("the host meanwhile", host)

    def _kernel(self, code: int, first: int, last: int) -> list[tuple[str, str]]:
        t, events = self.trace, self._of_kernel(code, first, last)
        time = t.duration[events]
        total = f"{milliseconds(time.sum())} in {len(events)} calls"
        times = f"{milliseconds(time.min())} to {milliseconds(time.max())}, {milliseconds(time.mean())} in the mean"
        longest = []
        for event, launch in zip(events[:CALLS].tolist(), t.launch_of(events)[:CALLS].tolist(), strict=True):
            said = f"{milliseconds(int(t.duration[event]))}, {self._when(int(t.start[event]))}"
            if launch >= 0:
                waited = int(t.start[event] - t.start[launch])
                said += f", {milliseconds(waited)} after its launch{self._within(launch)}"
                said += "".join(f", {line}" for line in self._line(launch))
            longest.append(said)
        return [("kernel", t.names[code]), ("time", f"{total}: {times}"), *_listed("the longest calls", longest)]

    def _operation(self, i: int) -> list[tuple[str, str]]:
        o = self.analysis.operations[i]
        calls = f"{o.share:.0%} of the GPU's busy time, {plain_number(o.count)} calls per step"
        rows = [("operation", f"{o.name} {o.shapes}"), ("why", o.why)]
        rows.append(("time", f"{milliseconds(o.gpu_ns)} per step, {calls}"))
        if o.line:
            rows.append(("line", f"{o.line} {f'in {o.function}' if o.function else ''} {o.phase}"))
        if o.flops and o.gpu_ns:
            rows.append(("rate", f"{plain_number(o.flops / o.gpu_ns / 1e3)} TFLOP/s"))
        if o.bytes_moved and o.gpu_ns:
            size, rate = plain_number(o.bytes_moved / 1e6), plain_number(o.bytes_moved / o.gpu_ns)
            rows.append(("moves", f"at least {size} MB per step, {rate} GB/s"))
        return rows + _listed("kernels", o.kernels[:CALLS])

    def _when(self, time: int) -> str:
        at = int(np.searchsorted(self.steps.starts, time, side="right")) - 1
        if at < 0:
            return "before the counted steps"
        return f"{milliseconds(time - int(self.steps.starts[at]))} after step {at + 1} began on the host"

    def _within(self, launch: int) -> str:
        op = int(self.trace.operator[launch])
        return f" within {called(self.trace, op)}" if op >= 0 else ""

    def _line(self, event: int) -> list[str]:
        """The source line of an event, where it is known."""
        number = int(self.lines.of(np.array([event]))[0])
        if number < 0:
            return []
        line, function = list(self.lines.known)[number]
        return [f"{line} in {function}" if function else line]

    def _host(self, thread: int, start: int, end: int) -> list[str]:
        """What this thread did between two times: the events with most of that time, each name once."""
        t = self.trace
        kinds = (t.category == CPU_OP) | (t.category == ANNOTATION) | t.is_call
        kinds[t.steps] = False
        own = np.flatnonzero(kinds & (t.thread == thread) & (t.end > start) & (t.start < end))
        overlap = np.minimum(t.end[own], end) - np.maximum(t.start[own], start)
        time: dict[str, int] = {}
        for event, ns in sorted(zip(own.tolist(), overlap.tolist(), strict=True), key=lambda item: -item[1])[:2000]:
            time[called(t, event)] = time.get(called(t, event), 0) + ns
        rows = [f"{milliseconds(ns)} in {name}" for name, ns in sorted(time.items(), key=lambda item: -item[1])[:5]]
        return rows or ["nothing that the trace shows: plain Python, or another thread"]

    def static(self, name: str = "trace") -> str:
        """What a reader sees who has no kernel: the verdict, pictures as images, and what costs most."""
        a = self.analysis
        parts = [f"<p><b>{escape(plain(a.diagnosis.text, 600))}</b></p>"]
        line = timeline(self.trace, step_ns=a.step_ns, gaps=a.gaps)
        figures = {"Where the time of a step goes": draw_breakdown({name: a}), "Some steps": draw({name: line})}
        for alt, figure in figures.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=100)
            data = base64.b64encode(buffer.getvalue()).decode()
            parts.append(f'<img alt="{alt}" style="max-width: 100%" src="data:image/png;base64,{data}">')
        last = len(self.steps)
        for what in ("gaps", "kernels"):
            rows = self.rows(what, 1, last)[:EXPLAINED] if last else []
            parts += [self.evidence(what, value, 1, last) for _, value in rows]
        return "".join(parts)


def _listed(name: str, lines: list[str]) -> list[tuple[str, str]]:
    return [(name if n == 0 else "", line) for n, line in enumerate(lines)]


def _table(rows: list[tuple[str, str]]) -> str:
    cells = "".join(
        f'<div style="color: #4b5563; white-space: nowrap">{escape(plain(name))}</div>'
        f'<div style="overflow-wrap: break-word">{escape(plain(said, 400))}</div>'
        for name, said in rows
    )
    style = "display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 2px 14px; margin: 8px 0"
    return f'<div class="trace-evidence" role="status" style="{style}">{cells}</div>'


def _paper(body: str) -> str:
    """Light paper in dark themes too: the pictures are made for it."""
    style = (
        "background: #fff; color: #1b1f23; padding: 6px 10px; border-radius: 4px; font: 13px/1.45 system-ui, sans-serif"
    )
    return f'<div style="{style}">{body}</div>'
