"""A timeline as SVG whose shapes say what they are when the pointer rests on them."""

from html import escape
from typing import Any

import numpy as np

from grader.trace.analysis import Analysis
from grader.trace.catalogue import IDLE, PARTS, STEP_PARTS
from grader.trace.columns import Trace
from grader.trace.events import CPU_OP, KERNEL
from grader.trace.timeline import timeline
from grader.trace.words import INK, LANE_COLOURS, milliseconds, plain, short_kernel

LEFT, WIDTH, ROW = 120, 860, 26  # pixels: the lanes' names, the picture beside them, a lane
MOST_SHAPES = 900  # of each kind; a browser becomes slow beyond some thousands
FINEST = 2000  # what is shorter than this part of the picture gets no shape of its own
THIN_EDGE = ' stroke="#fff" stroke-opacity="0.35" stroke-width="0.5"'
MARK = ' fill-opacity="0" stroke="#000" stroke-width="1.6" pointer-events="none" class="trace-marked"'


def svg(analysis: Analysis, first: int, last: int, marked: list[tuple[int, int]]) -> str:
    """The counted steps `first` to `last`, from 1 on. marked: (start, end) of what gets a frame, ns."""
    skipped = analysis.left_out + first - 1
    line = timeline(analysis.trace, last - first + 1, skip_first=skipped, gaps=analysis.gaps, exactly=True)
    if not line["span_ns"]:
        return f"<p>No timeline: {escape(plain('; '.join(line['reasons']), 600))}.</p>"
    drawing = _Drawing(analysis, line)
    for n, name in enumerate(drawing.rows):
        drawing.text(LEFT - 8, ROW * n + 30, name)
    drawing.gaps()
    drawing.lanes()
    drawing.kernels()
    drawing.operators()
    drawing.marks(marked)
    drawing.steps(first)
    return "".join([*drawing.parts, "</svg>"])


def called(trace: Trace, event: int) -> str:
    return trace.names[trace.name[event]] if event >= 0 else "nothing recorded"


class _Drawing:
    def __init__(self, analysis: Analysis, line: dict[str, Any]):
        self.trace, self.idle, self.line = analysis.trace, analysis.gaps, line
        self.low, self.span = line["origin_ns"], line["span_ns"]
        self.rows = list(dict.fromkeys(lane["name"] for lane in line["lanes"]))
        self.height = ROW * len(self.rows) + 42
        box, look = f"0 0 {LEFT + WIDTH + 10} {self.height}", "width: 100%; max-width: 990px; font: 12px sans-serif"
        named = 'role="img" aria-label="Timeline of the chosen steps. The list has its parts in words"'
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" style="{look}" {named}>']
        self.parts.append("<defs>" + "".join(map(_hatch, IDLE)) + "</defs>")

    def shape(self, y: float, tall: float, start: int, end: int, colour: str, title: str, more: str = "") -> None:
        """start, end: ns on the trace's clock."""
        x, width = LEFT + (start - self.low) / self.span * WIDTH, max((end - start) / self.span * WIDTH, 0.7)
        place = f'x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{tall:.1f}"'
        said = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(f'<rect {place} fill="{colour}"{more}>{said}</rect>')

    def clipped(self, y: float, tall: float, start: int, end: int, colour: str, title: str, more: str = "") -> None:
        """A `shape` of the part that lies within the picture."""
        self.shape(y, tall, max(start, self.low), min(end, self.low + self.span), colour, title, more)

    def text(self, x: float, y: float, said: str, anchor: str = "end") -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}">{escape(said)}</text>')

    def gaps(self) -> None:
        idle, low, span = self.idle, self.low, self.span
        long = (idle.end > low) & (idle.start < low + span) & (idle.end - idle.start >= span // FINEST)
        inside = np.flatnonzero(long)
        inside = inside[np.argsort(idle.start[inside] - idle.end[inside], kind="stable")[:MOST_SHAPES]]
        rows_of: dict[int, list[int]] = {}  # device -> its lanes
        for lane in self.line["lanes"]:
            if lane["device"] is not None:
                rows_of.setdefault(lane["device"], []).append(self.rows.index(lane["name"]))
        for i in inside.tolist():
            if rows := rows_of.get(int(idle.device[i])):
                start, end, cause = int(idle.start[i]), int(idle.end[i]), PARTS[idle.cause[i]]
                then = short_kernel(called(self.trace, int(idle.after[i])), 120)
                title = f"{milliseconds(end - start)}: {STEP_PARTS[cause].words}; then ran {then}"
                y, tall = ROW * min(rows) + 14, ROW * (max(rows) - min(rows) + 1) - 2
                self.clipped(y, tall, start, end, f"url(#trace-{cause})", title)

    def lanes(self) -> None:
        for lane in self.line["lanes"]:
            y, colour = ROW * self.rows.index(lane["name"]) + 17, LANE_COLOURS[lane["kind"]]
            why = "" if lane["device"] is None else ", too fine to tell apart"
            for start, duration in lane["intervals"]:
                start += self.low
                self.shape(
                    y, ROW - 8, start, start + duration, colour, f"{lane['name']}: {milliseconds(duration)}{why}"
                )

    def kernels(self) -> None:
        """Kernels and copies that are long enough to point at, each with its name."""
        t = self.trace
        gpu = self._longest(t.gpu)
        for event, by in zip(gpu.tolist(), t.operator[t.launch_of(gpu)].tolist(), strict=True):
            stream, device = int(t.stream[event]), int(t.device[event])
            what = f"stream {stream}" if t.category[event] == KERNEL else "copies"
            names = (f"GPU {what}", what, f"GPU {device} {what}")
            row = next((n for n, name in enumerate(self.rows) if name in names), None)
            if row is not None:
                title = short_kernel(called(t, event), 160) + (f", launched by {called(t, by)}" if by >= 0 else "")
                self._event(row, event, title)

    def operators(self) -> None:
        if "host" in self.rows:
            host = self._longest(np.flatnonzero(self.trace.category == CPU_OP))
            for event in np.sort(host).tolist():  # outer before inner, so that the inner one is on top
                self._event(self.rows.index("host"), event, plain(called(self.trace, event), 160))

    def _longest(self, events: np.ndarray) -> np.ndarray:
        t, low, span = self.trace, self.low, self.span
        events = events[(t.end[events] > low) & (t.start[events] < low + span) & (t.duration[events] >= span // FINEST)]
        return events[np.argsort(-t.duration[events], kind="stable")[:MOST_SHAPES]]

    def _event(self, row: int, event: int, title: str) -> None:
        start, end = int(self.trace.start[event]), int(self.trace.end[event])
        title = f"{milliseconds(int(self.trace.duration[event]))}: {title}"
        self.clipped(ROW * row + 17, ROW - 8, start, end, "transparent", title, THIN_EDGE)

    def marks(self, marked: list[tuple[int, int]]) -> None:
        of_gpus = {lane["name"] for lane in self.line["lanes"] if lane["device"] is not None}
        rows = [n for n, name in enumerate(self.rows) if name in of_gpus]
        for start, end in marked if rows else ():
            if end > self.low and start < self.low + self.span:
                self.clipped(ROW * rows[0] + 14, ROW * len(rows) - 2, start, end, "#000", "", MARK)

    def steps(self, first: int) -> None:
        bottom = self.height - 26
        for n, (start, _) in enumerate(self.line["steps"]):
            x = LEFT + start / self.span * WIDTH
            place = f'x1="{x:.1f}" x2="{x:.1f}" y1="12" y2="{bottom}"'
            self.parts.append(f'<line {place} stroke="{INK}" stroke-dasharray="4 3"/>')
            self.text(x + 3, 10, f"step {first + n}", "start")
        self.text(LEFT, self.height - 8, "0", "start")
        self.text(LEFT + WIDTH, self.height - 8, milliseconds(self.span))
        self.text(LEFT + WIDTH / 2, self.height - 8, "rest the pointer on a shape to see what it is", "middle")


# Matplotlib's hatches on 8 x 8 pixels.
HATCHES = {
    "////": "M-2 6L6 -2M2 10L10 2",
    r"\\\\": "M-2 2L6 10M2 -2L10 6",
    "xxxx": "M0 0L8 8M0 8L8 0",
    "....": "M1 4h2M5 0h2M5 8h2",
    "----": "M0 4H8",
    "||||": "M4 0V8",
    "++++": "M0 4H8M4 0V8",
}


def _hatch(cause: str) -> str:
    """An SVG pattern in the colour of a cause."""
    part = STEP_PARTS[cause]
    return (
        f'<pattern id="trace-{cause}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" fill="{part.colour}" fill-opacity="0.13"/>'
        f'<path d="{HATCHES[part.hatch]}" stroke="{part.colour}" stroke-opacity="0.6" fill="none"/></pattern>'
    )
