"""Look into a trace in a notebook: pick some steps, pick a gap, a kernel or an operation, and see what proves it.

`explore` needs ipywidgets. Where a notebook is only read (nbconvert, a viewer, no kernel), a picture and the costliest
gaps and kernels are shown instead, as plain HTML."""

from __future__ import annotations

import base64
import io
import uuid
from html import escape
from typing import Any

import ipywidgets as widgets
import numpy as np

from grader.trace.analysis import Analysis
from grader.trace.breakdown import PARTS
from grader.trace.diagnosis import WORDS
from grader.trace.events import ANNOTATION, CPU_OP, KERNEL
from grader.trace.lines import Lines
from grader.trace.steps import Steps
from grader.trace.timeline import timeline
from grader.trace.words import (
    GREEN,
    INK,
    ORANGE,
    PART_COLOURS,
    PART_NAMES,
    PURPLE,
    milliseconds,
    plain,
    plain_number,
    short_kernel,
)

MOST_ROWS = 60  # of a list to choose from
MOST_SHAPES = 900  # of each kind in the picture; a browser becomes slow beyond some thousands
CALLS = 6  # shown of a kernel
HATCHES = {  # of 8 x 8 pixels
    "idle_data": "M-2 6L6 -2M2 10L10 2",
    "idle_transfer": "M-2 2L6 10M2 -2L10 6",
    "idle_sync": "M0 0L8 8M0 8L8 0",
    "idle_launch": "M1 4h2M5 0h2M5 8h2",
    "idle_other": "M0 4H8",
    "idle_between": "M4 0V8",
}
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
        self.steps = widgets.IntRangeSlider(description="steps", continuous_update=False, layout={"width": "460px"})
        self.what = widgets.ToggleButtons(options=["gaps", "kernels", "operations"])
        self.choice = widgets.Select(options=[], rows=9, layout={"width": "98%"})
        self.choice.add_class("trace-choice")
        self.picture, self.evidence = widgets.HTML(), widgets.HTML()
        # The kernel is alive, so what stands in for this explorer is not needed.
        hide = widgets.HTML(
            f"<style>.{self._static} {{ display: none }}</style>", layout={"height": "0px", "margin": "0"}
        )
        bar = [self.which, self.steps] if other else [self.steps]
        super().__init__([hide, widgets.HBox(bar), self.picture, self.what, self.choice, self.evidence])
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
        self.picture.value = _paper(self.view.svg(first, last, self.view.events_of(what, choice, first, last)))
        self.evidence.value = _paper(self.view.evidence(what, choice, first, last))

    def _ipython_display_(self, **_: Any) -> None:
        from IPython.display import display

        page = "".join(v.static(name) for (name, _), v in zip(self.which.options, self.views, strict=True))
        page = f'<div class="{self._static} tex2jax_ignore mathjax_ignore">{_paper(page)}</div>'
        display({"text/html": page, "text/plain": "A trace; run this cell to explore it."}, raw=True)
        bundle = {
            "application/vnd.jupyter.widget-view+json": {
                "version_major": 2,
                "version_minor": 0,
                "model_id": self.model_id,
            }
        }
        display(bundle | {"text/plain": "(run this cell to explore the trace)"}, raw=True)


class View:
    """What the explorer shows of one trace. Steps are numbered from 1, the first that is counted."""

    def __init__(self, analysis: Analysis):
        self.analysis, self.trace = analysis, analysis.trace
        self.left_out = analysis.left_out
        self.steps = Steps(self.trace, self.left_out, analysis.metrics.steps)
        self.lines = Lines(self.trace)

    # ---- what there is to choose

    def window(self, first: int, last: int) -> tuple[int, int]:
        """The time of these steps on the host and on the GPU, ns."""
        if not len(self.steps):
            return 0, 0
        chosen = (self.steps.step >= first - 1) & (self.steps.step < last)
        low = int(self.steps.starts[first - 1])
        ends = self.trace.end[self.steps.gpu[chosen]]
        return low, max(int(self.steps.ends[min(last, len(self.steps)) - 1]), int(ends.max()) if len(ends) else low)

    def rows(self, what: str, first: int, last: int) -> list[tuple[str, int]]:
        """(text, value) of what can be chosen, the costliest first."""
        if what == "operations":
            rows = self.analysis.operations
            return [
                (f"{milliseconds(o.gpu_ns):>9}  {o.share:>4.0%}  {plain(f'{o.name} {o.shapes}', 90)}", i)
                for i, o in enumerate(rows)
            ]
        if what == "gaps":
            return [self._gap_row(i) for i in self.gaps(first, last)[:MOST_ROWS].tolist()]
        events = self._kernels(first, last)
        codes, of = np.unique(self.trace.name[events], return_inverse=True)
        time, count = np.bincount(of, self.trace.duration[events]), np.bincount(of)
        order = np.argsort(-time, kind="stable")[:MOST_ROWS]
        return [
            (
                f"{milliseconds(time[i]):>9}  {count[i]:>5} x  {short_kernel(self.trace.names[codes[i]], 100)}",
                int(codes[i]),
            )
            for i in order.tolist()
        ]

    def gaps(self, first: int, last: int) -> np.ndarray:
        """Positions in `Analysis.gaps` of those in these steps, the longest first."""
        gaps = self.analysis.gaps
        if gaps is None:
            return np.empty(0, int)
        low, high = self.window(first, last)
        inside = np.flatnonzero((gaps.end > low) & (gaps.start < high))
        return inside[np.argsort(gaps.start[inside] - gaps.end[inside], kind="stable")]

    def _gap_row(self, i: int) -> tuple[str, int]:
        gaps = self.analysis.gaps
        after = self._name(int(gaps.after[i]))
        cause = PART_NAMES[PARTS[gaps.cause[i]]]
        step = int(np.searchsorted(self.steps.starts, gaps.start[i], side="right"))
        return (
            f"{milliseconds(int(gaps.end[i] - gaps.start[i])):>9}  {cause:<13} step {step}, before {short_kernel(after, 80)}",
            i,
        )

    def _kernels(self, first: int, last: int) -> np.ndarray:
        return (
            self.steps.gpu[(self.steps.step >= first - 1) & (self.steps.step < last)]
            if len(self.steps)
            else self.trace.gpu
        )

    def _name(self, event: int) -> str:
        return self.trace.names[self.trace.name[event]] if event >= 0 else "nothing recorded"

    # ---- evidence

    def evidence(self, what: str, choice: int | None, first: int, last: int) -> str:
        if choice is None:
            why = "; ".join(self.analysis.metrics.reasons) or "these steps have none"
            return f"<p>Nothing to choose: {escape(plain(why, 600))}.</p>"
        if what == "gaps":
            return self._gap(choice)
        return self._kernel(choice, first, last) if what == "kernels" else self._operation(choice)

    def events_of(self, what: str, choice: int | None, first: int, last: int) -> list[tuple[int, int]]:
        """When the chosen thing happened, (start, end), to be marked in the picture."""
        if choice is None:
            return []
        if what == "gaps":
            return [(int(self.analysis.gaps.start[choice]), int(self.analysis.gaps.end[choice]))]
        if what == "kernels":
            events = self._kernels(first, last)
            events = events[self.trace.name[events] == choice]
        else:
            events = np.array(self.analysis.operations[choice].events, int)
        events = events[np.argsort(-self.trace.duration[events], kind="stable")[:100]]
        return list(zip(self.trace.start[events].tolist(), self.trace.end[events].tolist(), strict=True))

    def _gap(self, i: int) -> str:
        gaps, t = self.analysis.gaps, self.trace
        start, end, after = int(gaps.start[i]), int(gaps.end[i]), int(gaps.after[i])
        cause = PARTS[gaps.cause[i]]
        rows = [("the GPU idled", f"{milliseconds(end - start)}, GPU {int(gaps.device[i])}, {self._when(start)}")]
        rows.append(("cause", f"{PART_NAMES[cause]}: {WORDS[cause]}"))
        rows.append(("before it ran", self._name(int(gaps.before[i]))))
        rows.append(("after it ran", self._name(after)))
        launch = int(t.launch_of(np.array([after]))[0]) if after >= 0 else -1
        if launch >= 0:
            late = int(t.start[launch]) - start
            when = f"{milliseconds(late)} into the gap" if late > 0 else f"{milliseconds(-late)} before the gap began"
            rows.append(("which was launched", f"{when}, by {self._name(launch)}{self._within(launch)}"))
            rows += self._line(launch)
        host = self._host(int(t.thread[launch]) if launch >= 0 else self.steps.thread, start, end)
        rows += [("the host meanwhile" if n == 0 else "", said) for n, said in enumerate(host)]
        return _table(rows)

    def _kernel(self, code: int, first: int, last: int) -> str:
        t = self.trace
        events = self._kernels(first, last)
        events = events[t.name[events] == code]
        if not len(events):
            return "<p>It does not run in these steps.</p>"
        events = events[np.argsort(-t.duration[events], kind="stable")]
        time = t.duration[events]
        rows = [("kernel", t.names[code])]
        total = f"{milliseconds(time.sum())} in {len(events)} calls"
        rows.append(
            (
                "time",
                f"{total}: {milliseconds(time.min())} to {milliseconds(time.max())}, {milliseconds(time.mean())} in the mean",
            )
        )
        launch = t.launch_of(events)
        for n, (event, call) in enumerate(zip(events[:CALLS].tolist(), launch[:CALLS].tolist(), strict=True)):
            said = f"{milliseconds(int(t.duration[event]))}, {self._when(int(t.start[event]))}"
            if call >= 0:
                said += f", {milliseconds(int(t.start[event] - t.start[call]))} after its launch{self._within(call)}"
                said += "".join(f", {line}" for _, line in self._line(call))
            rows.append(("the longest calls" if n == 0 else "", said))
        return _table(rows)

    def _operation(self, i: int) -> str:
        o = self.analysis.operations[i]
        rows = [("operation", f"{o.name} {o.shapes}"), ("why", o.why)]
        rows.append(
            (
                "time",
                f"{milliseconds(o.gpu_ns)} a step, {o.share:.0%} of the GPU's busy time, {plain_number(o.count)} calls a step",
            )
        )
        if o.line:
            rows.append(("line", f"{o.line} {f'in {o.function}' if o.function else ''} {o.phase}"))
        if o.flops and o.gpu_ns:
            rows.append(("rate", f"{plain_number(o.flops / o.gpu_ns / 1e3)} TFLOP/s"))
        if o.bytes_moved and o.gpu_ns:
            rows.append(
                (
                    "moves",
                    f"at least {plain_number(o.bytes_moved / 1e6)} MB a step, {plain_number(o.bytes_moved / o.gpu_ns)} GB/s",
                )
            )
        rows += [("kernels" if n == 0 else "", name) for n, name in enumerate(o.kernels[:CALLS])]
        return _table(rows)

    def _when(self, time: int) -> str:
        at = int(np.searchsorted(self.steps.starts, time, side="right")) - 1
        if at < 0:
            return "before the counted steps"
        return f"{milliseconds(time - int(self.steps.starts[at]))} after step {at + 1} began on the host"

    def _within(self, call: int) -> str:
        op = int(self.trace.operator[call])
        return f" within {self._name(op)}" if op >= 0 else ""

    def _line(self, event: int) -> list[tuple[str, str]]:
        number = int(self.lines.of(np.array([event]))[0])
        if number < 0:
            return []
        line, function = list(self.lines.known)[number]
        return [("line", f"{line} in {function}" if function else line)]

    def _host(self, thread: int, start: int, end: int) -> list[str]:
        """What this thread did between two times: the events with most of that time, each name once."""
        t = self.trace
        kinds = (t.category == CPU_OP) | (t.category == ANNOTATION) | t.is_call
        kinds[t.steps] = False
        own = np.flatnonzero(kinds & (t.thread == thread) & (t.end > start) & (t.start < end))
        overlap = np.minimum(t.end[own], end) - np.maximum(t.start[own], start)
        time: dict[str, int] = {}
        for event, ns in sorted(zip(own.tolist(), overlap.tolist(), strict=True), key=lambda item: -item[1])[:2000]:
            time[self._name(event)] = time.get(self._name(event), 0) + ns
        rows = [f"{milliseconds(ns)} in {name}" for name, ns in sorted(time.items(), key=lambda item: -item[1])[:5]]
        return rows or ["nothing that the trace shows: plain Python, or another thread"]

    # ---- pictures

    def svg(self, first: int, last: int, marked: list[tuple[int, int]] = ()) -> str:
        """A timeline whose shapes say what they are when the pointer rests on them."""
        line = timeline(self.trace, last - first + 1, skip_first=self.left_out + first - 1, gaps=self.analysis.gaps)
        low, span = line["origin_ns"], line["span_ns"]
        if not span:
            return f"<p>No timeline: {escape(plain('; '.join(line['reasons']), 600))}.</p>"
        left, width, row = 120, 860, 26
        rows = list(dict.fromkeys(lane["name"] for lane in line["lanes"]))
        height = row * len(rows) + 42
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 10} {height}" style="width: 100%; max-width: 990px; font: 12px sans-serif">'
        ]

        parts.append("<defs>" + "".join(map(_hatch, HATCHES)) + "</defs>")

        def shape(
            y: float, tall: float, start: float, length: float, colour: str, title: str = "", more: str = ""
        ) -> None:
            x, w = left + (start - low) / span * width, max(length / span * width, 0.7)
            said = f"<title>{escape(title)}</title>" if title else ""
            parts.append(
                f'<rect x="{x:.2f}" y="{y:.1f}" width="{w:.2f}" height="{tall:.1f}" fill="{colour}"{more}>{said}</rect>'
            )

        def text(x: float, y: float, said: str, anchor: str = "end") -> None:
            parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}">{escape(said)}</text>')

        for n, name in enumerate(rows):
            text(left - 8, row * n + 30, name)
        on_gpu = [
            n
            for n, name in enumerate(rows)
            if any(lane["name"] == name and lane["device"] is not None for lane in line["lanes"])
        ]
        self._gap_shapes(shape, rows, line, row)
        colours = {
            "gpu": GREEN,
            "communication": PURPLE,
            "copies": ORANGE,
            "data_wait": PART_COLOURS["idle_data"],
            "host": "#56B4E9",
            "launches": "#0072B2",
        }
        for lane in line["lanes"]:
            y = row * rows.index(lane["name"]) + 17
            for start, duration in lane["intervals"]:
                shape(
                    y,
                    row - 8,
                    low + start,
                    duration,
                    colours[lane["kind"]],
                    f"{lane['name']}: {milliseconds(duration)}, too fine to tell apart"
                    if lane["device"] is not None
                    else f"{lane['name']}: {milliseconds(duration)}",
                )
        self._named_shapes(shape, rows, line, row, colours)
        for start, end in marked:
            if end > low and start < low + span and on_gpu:
                start, end = max(start, low), min(end, low + span)
                more = ' fill-opacity="0" stroke="#000" stroke-width="1.6" pointer-events="none" class="trace-marked"'
                shape(row * on_gpu[0] + 14, row * len(on_gpu) - 2, start, end - start, "#000", "", more)
        for n, (start, _) in enumerate(line["steps"]):
            x = left + start / span * width
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="12" y2="{height - 26}" stroke="{INK}" stroke-dasharray="4 3"/>'
            )
            text(x + 3, 10, f"step {first + n}", "start")
        text(left, height - 8, "0", "start")
        text(left + width, height - 8, milliseconds(span))
        text(left + width / 2, height - 8, "rest the pointer on a shape to see what it is", "middle")
        return "".join([*parts, "</svg>"])

    def _gap_shapes(self, shape: Any, rows: list[str], line: dict[str, Any], row: int) -> None:
        gaps, low, span = self.analysis.gaps, line["origin_ns"], line["span_ns"]
        if gaps is None:
            return
        inside = np.flatnonzero((gaps.end > low) & (gaps.start < low + span) & (gaps.end - gaps.start >= span // 2000))
        inside = inside[np.argsort(gaps.start[inside] - gaps.end[inside], kind="stable")[:MOST_SHAPES]]
        own: dict[int, list[int]] = {}
        for lane in line["lanes"]:
            if lane["device"] is not None:
                own.setdefault(lane["device"], []).append(rows.index(lane["name"]))
        for i in inside.tolist():
            places = own.get(int(gaps.device[i]))
            if places:
                start, end = max(int(gaps.start[i]), low), min(int(gaps.end[i]), low + span)
                cause = PARTS[gaps.cause[i]]
                title = f"{milliseconds(int(gaps.end[i] - gaps.start[i]))}: {WORDS[cause]}; then ran {short_kernel(self._name(int(gaps.after[i])), 120)}"
                y, tall = row * min(places) + 14, row * (max(places) - min(places) + 1) - 2
                shape(y, tall, start, end - start, f"url(#trace-{cause})", title)

    def _named_shapes(
        self, shape: Any, rows: list[str], line: dict[str, Any], row: int, colours: dict[str, str]
    ) -> None:
        """Kernels, copies and operators that are long enough to point at, each with its name."""
        t, low, span = self.trace, line["origin_ns"], line["span_ns"]
        seen = (t.end > low) & (t.start < low + span) & (t.duration >= span // 2000)
        gpu = t.gpu[seen[t.gpu]]
        gpu = gpu[np.argsort(-t.duration[gpu], kind="stable")[:MOST_SHAPES]]
        call = t.launch_of(gpu)
        op = t.operator[call]
        for event, by in zip(gpu.tolist(), op.tolist(), strict=True):
            kind = "gpu" if t.category[event] == KERNEL else "copies"
            stream, device = int(t.stream[event]), int(t.device[event])
            names = (
                (f"GPU stream {stream}", f"GPU {device} stream {stream}")
                if kind == "gpu"
                else ("copies", f"GPU {device} copies")
            )
            name = next((n for n in rows if n in names), None)
            if name:
                title = f"{milliseconds(int(t.duration[event]))}: {short_kernel(self._name(event), 160)}" + (
                    f", launched by {self._name(by)}" if by >= 0 else ""
                )
                self._clipped(shape, row * rows.index(name) + 17, row - 8, event, low, span, "transparent", title)
        host = np.flatnonzero(seen & (t.category == CPU_OP))
        host = host[np.argsort(-t.duration[host], kind="stable")[:MOST_SHAPES]]
        if "host" in rows:
            for event in np.sort(host).tolist():  # outer before inner, so that the inner one is on top
                title = f"{milliseconds(int(t.duration[event]))}: {plain(self._name(event), 160)}"
                self._clipped(shape, row * rows.index("host") + 17, row - 8, event, low, span, "transparent", title)

    def _clipped(
        self, shape: Any, y: float, tall: float, event: int, low: int, span: int, colour: str, title: str
    ) -> None:
        start, end = max(int(self.trace.start[event]), low), min(int(self.trace.end[event]), low + span)
        shape(y, tall, start, end - start, colour, title, ' stroke="#fff" stroke-opacity="0.35" stroke-width="0.5"')

    def static(self, name: str = "trace") -> str:
        """What a reader sees who has no kernel: the verdict, pictures as images, and what costs most."""
        from grader.trace.picture import draw, draw_breakdown

        a = self.analysis
        parts = [f"<p><b>{escape(plain(a.diagnosis.text, 600))}</b></p>"]
        line = timeline(self.trace, step_ns=a.step_ns, gaps=a.gaps)
        figures = {"Where the time of a step goes": draw_breakdown({name: a}), "Some steps": draw({name: line})}
        for alt, figure in figures.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=100)
            parts.append(
                f'<img alt="{alt}" style="max-width: 100%" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
            )
        last = len(self.steps)
        for what in ("gaps", "kernels"):
            rows = self.rows(what, 1, last)[:EXPLAINED] if last else []
            parts += [self.evidence(what, value, 1, last) for _, value in rows]
        return "".join(parts)


def _hatch(cause: str) -> str:
    """An SVG pattern in the colour of a cause: a colour never stands alone."""
    colour = PART_COLOURS[cause]
    return (
        f'<pattern id="trace-{cause}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" fill="{colour}" fill-opacity="0.13"/>'
        f'<path d="{HATCHES[cause]}" stroke="{colour}" stroke-opacity="0.6" fill="none"/></pattern>'
    )


def _table(rows: list[tuple[str, str]]) -> str:
    cells = "".join(
        f'<div style="color: #4b5563; white-space: nowrap">{escape(plain(name))}</div>'
        f'<div style="overflow-wrap: break-word">{escape(plain(said, 400))}</div>'
        for name, said in rows
    )
    style = "display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 2px 14px; margin: 8px 0"
    return f'<div class="trace-evidence" style="{style}">{cells}</div>'


def _paper(body: str) -> str:
    """Light paper in dark themes too: the pictures are made for it."""
    style = (
        "background: #fff; color: #1b1f23; padding: 6px 10px; border-radius: 4px; font: 13px/1.45 system-ui, sans-serif"
    )
    return f'<div style="{style}">{body}</div>'
