"""Draw what a trace shows: who worked when, where the time of a step goes, and how near its operations are to what
the device can do. All return Figures that belong to no window."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter

from grader.devices import PEAKS, Peaks
from grader.trace.timeline import used_devices
from grader.trace.words import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PART_COLOURS,
    PART_NAMES,
    PURPLE,
    SKY,
    VERMILION,
    milliseconds,
    plain,
    plain_number,
    short_kernel,
)

if TYPE_CHECKING:
    from grader.trace.analysis import Analysis, Operation

COLOURS = {"data_wait": VERMILION, "host": SKY, "launches": BLUE, "gpu": GREEN, "copies": ORANGE}
COLOURS["communication"] = PURPLE
LANES = {
    "data_wait": "waiting for data",
    "host": "operators on the host",
    "launches": "launches",
    "gpu": "kernels",
    "communication": "communication",
    "copies": "copies, memsets",
}
HATCHES = {
    "idle": "////",
    "idle_data": "////",
    "idle_transfer": "\\\\\\\\",
    "idle_sync": "xxxx",
    "idle_launch": "....",
    "idle_other": "----",
    "idle_between": "||||",
}
WIDTH = 9.0  # inches; a notebook's column
LANE = 0.30  # inches
USE = 0.55  # inches, the lane that shows shares
HALO = [withStroke(linewidth=2.5, foreground="white")]  # keeps text legible on top of lines
LEFT = 1.25  # inches for the lanes' names, at least
FONT = 9.5


# ---- timeline -----------------------------------------------------------------------------------------------------


def draw(timelines: dict[str, dict[str, Any]]) -> Figure:
    """One panel for each of {"before": timeline(...), "after": ...}, all on the same time scale (milliseconds), so that
    of equally many steps the faster ones are visibly shorter."""
    panels = {title: t for title, t in timelines.items() if t.get("steps")}
    if not panels:
        reasons = "; ".join(reason for t in timelines.values() for reason in t.get("reasons", []))
        return _only_text("no timeline: " + (reasons or "no steps were recorded"))
    heights = [LANE * max(len(_rows(t)), 1) + USE * len(_use(t)) for t in panels.values()]
    handles = _timeline_key(list(panels.values()))
    columns = 4
    foot, key = 0.16, 0.45 + 0.19 * math.ceil(len(handles) / columns)  # inches below each panel, and below all
    heads = [0.42 if t["complete"] else 0.62 for t in panels.values()]  # headline, and a line that says what is missing
    total = sum(heights) + sum(heads) + len(panels) * foot + key
    figure = Figure(figsize=(WIDTH, total))
    longest = max(t["span_ns"] for t in panels.values()) or 1
    left = max([LEFT, *(_long(name) + 0.12 for t in panels.values() for name in _rows(t))])
    top = total
    for (title, t), head, height in zip(panels.items(), heads, heights, strict=True):
        top -= head + height
        axes = figure.add_axes((left / WIDTH, top / total, (WIDTH - left - 0.15) / WIDTH, height / total))
        _panel(axes, title, t, longest, last=title == list(panels)[-1])
        top -= foot
    _key(figure, handles, columns, left)
    return figure


def _rows(t: dict[str, Any]) -> list[str]:
    """The names of the lanes from top to bottom; kernels and collectives of one stream share theirs."""
    return list(dict.fromkeys(lane["name"] for lane in t["lanes"]))


def _use(t: dict[str, Any]) -> list[dict[str, Any]]:
    return t.get("use", [])  # timelines in results of earlier versions have none


def _timeline_key(timelines: list[dict[str, Any]]) -> list[Any]:
    kinds = {lane["kind"] for t in timelines for lane in t["lanes"]}
    shares = [share for t in timelines for use in _use(t) for share in use["share"].items()]
    causes = {cause for cause, share in shares if cause.startswith("idle_") and sum(share) > 5 * len(share)}
    handles = [Patch(facecolor=COLOURS[kind], label=label) for kind, label in LANES.items() if kind in kinds]
    names = {cause: f"GPU {PART_NAMES[cause]}" for cause in HATCHES if cause in causes}
    if any(t["idle"] for t in timelines) and not causes:
        names = {"idle": "GPU idle"}
    return handles + [_idle_patch(cause, label=name) for cause, name in names.items()]


def _panel(axes: Axes, title: str, t: dict[str, Any], longest: int, last: bool) -> None:
    ms = 1e-6
    rows, use = _rows(t), _use(t)
    bottom = len(rows) + len(use) * USE / LANE
    for lane in t["lanes"]:
        row = rows.index(lane["name"])
        bars = [(start * ms, duration * ms) for start, duration in lane["intervals"]]
        # A thin edge of the same colour keeps an interval visible that is narrower than a pixel.
        colour = COLOURS.get(lane["kind"], FAINT)
        axes.broken_barh(bars, (row + 0.14, 0.72), facecolor=colour, edgecolor=colour, linewidth=0.3, zorder=3)
    for start, duration, cause, *device in [*([*idle, "idle"] for idle in t["idle"]), *t.get("gaps", [])]:
        lanes = [lane for lane in t["lanes"] if lane["kind"] in ("gpu", "communication", "copies")]
        own = {rows.index(lane["name"]) for lane in lanes if not device or lane["device"] == device[0]}
        if own and not (cause == "idle" and t.get("gaps")):
            patch = _idle_patch(cause)
            patch.set_bounds(start * ms, min(own), duration * ms, max(own) + 1 - min(own))
            axes.add_patch(patch)
    edges = []
    for number, one in enumerate(use):
        floor = len(rows) + (number + 1) * USE / LANE - 0.1
        edges.append(floor)
        _shares(axes, one["share"], t["span_ns"] * ms, floor, USE / LANE - 0.25)
    for row in range(1, len(rows) + (1 if use else 0)):
        axes.axhline(row, color="#E4E4E4", linewidth=0.6, zorder=1)
    for start, _ in t["steps"]:
        axes.axvline(start * ms, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=4)
    axes.axvline(t["steps"][-1][1] * ms, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=4)
    axes.set_xlim(-0.004 * longest * ms, 1.004 * longest * ms)
    axes.set_ylim(max(bottom, 1), 0)
    names = [*rows, *(f"GPU {one['device']} use" if len(use) > 1 else "GPU use" for one in use)]
    places = [*(row + 0.5 for row in range(len(rows))), *(floor - 0.5 * USE / LANE + 0.15 for floor in edges)]
    axes.set_yticks(places, names, fontsize=FONT, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=FONT, labelcolor=INK, color=FAINT, labelbottom=last)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    if last:
        axes.set_xlabel("milliseconds", fontsize=FONT, color=INK, labelpad=1)
    pad = 5 if t["complete"] else 20
    axes.set_title(headline(title, t), loc="left", fontsize=FONT + 1.5, color=INK, fontweight="bold", pad=pad)
    axes.title.set_parse_math(False)
    if not t["complete"]:
        reasons = plain("; ".join(t["reasons"]) or "no reason given", 105)
        place = {"xy": (0, 1), "xycoords": "axes fraction", "xytext": (0, 5), "textcoords": "offset points"}
        axes.annotate(f"incomplete: {reasons}", **place, fontsize=9, color=VERMILION, parse_math=False)


def _shares(axes: Axes, share: dict[str, list[int]], span_ms: float, floor: float, height: float) -> None:
    """The parts of each bin, stacked: work from below, idle time by its cause on top of it."""
    below = [0] * max(map(len, share.values()), default=0)
    edges = [span_ms * i / max(len(below), 1) for i in range(len(below) + 1)]
    for part, permille in share.items():
        above = [b + p for b, p in zip(below, permille, strict=True)]
        low, high = ([floor - height * v / 1000 for v in values] for values in (below, above))
        colour = COLOURS.get(part) or PART_COLOURS.get(part, FAINT)
        look = {"facecolor": colour}
        if part in HATCHES:
            look = {"facecolor": _tint(colour), "edgecolor": _tint(colour, 0.55), "hatch": HATCHES[part]}
        axes.stairs(high, edges, baseline=low, fill=True, linewidth=0, zorder=3, **look)
        below = above


def headline(title: str, t: dict[str, Any]) -> str:
    """ "before: 164 ms a step (drawn under the profiler: 171 ms)": the length measured without the profiler where it is
    known, and always that of the picture, which is often longer."""
    length, traced = t.get("step_ns"), t.get("step_ns_traced")
    drawn = f": {milliseconds(traced)}" if length and traced else ""
    under = f" ({'drawn ' if length else ''}under the profiler{drawn})"
    length = length or traced
    return f"{title}: {plain_number(length / 1e6)} ms a step{under}" if length else title


def _idle_patch(cause: str = "idle", label: str = "") -> Rectangle:
    colour = PART_COLOURS[cause]
    look = {"facecolor": _tint(colour), "edgecolor": _tint(colour, 0.55), "hatch": HATCHES[cause], "linewidth": 0}
    return Rectangle((0, 0), 1, 1, zorder=2, label=label, **look)


def _tint(colour: str, strength: float = 0.13) -> str:
    """The colour on white, so much of it: light, and without the transparency that some viewers draw badly."""
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - strength * (255 - channel)):02x}" for channel in channels)


def _key(figure: Figure, handles: list[Any], columns: int, left: float) -> None:
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(left / WIDTH, 0),
        bbox_transform=figure.transFigure,
        ncols=min(columns, max(len(handles), 1)),
        fontsize=FONT,
        frameon=False,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.5,
        borderaxespad=0.1,
    )


def _only_text(text: str, height: float = 0.9) -> Figure:
    figure = Figure(figsize=(WIDTH, height))
    figure.text(0.02, 0.5, plain(text, 400), fontsize=FONT, color=INK, va="center", wrap=True, parse_math=False)
    return figure


# ---- where the time of a step goes --------------------------------------------------------------------------------

SMALL = 0.02  # of the longest bar: parts below are shown as one
FAR = 1.5  # inches from a segment to its label, at most
SWATCH = 0.26  # inches for a patch of the part's colour before its label


def draw_breakdown(analyses: dict[str, Analysis]) -> Figure:
    """One stacked bar for each of {"before": analysis, "after": ...}: the parts of a step in ms, on one scale."""
    bars = {title: a for title, a in analyses.items() if sum(a.breakdown.values()) > 0}
    if not bars:
        reasons = "; ".join(reason for a in analyses.values() for reason in a.metrics.reasons)
        return _only_text("where the time goes is not known: " + (reasons or "no GPU work was recorded"))
    longest = max(sum(a.breakdown.values()) for a in bars.values())
    width = WIDTH - 0.3
    # Heights in inches: a headline, the bar, and below it as many lines as its labels need.
    tops, total = [], 0.0
    for a in bars.values():
        tops.append(total)
        total += 0.86 + 0.2 * len(_labels_below(a.breakdown, longest, width)[1])
    figure = Figure(figsize=(WIDTH, total))
    axes = figure.add_axes((0.15 / WIDTH, 0, width / WIDTH, 1))
    axes.set_axis_off()
    axes.set_xlim(-0.01, width + 0.02)  # inches, so that labels can be fitted
    axes.set_ylim(total, 0)
    for top, (title, a) in zip(tops, bars.items(), strict=True):
        how = "measured without the profiler" if a.step_ns else "under the profiler"
        if a.step_ns and a.metrics.step_ns_traced:
            how += f"; {milliseconds(a.metrics.step_ns_traced)} under it"
        head = f"{plain(title, 40)}: {milliseconds(sum(a.breakdown.values()))} a step"
        axes.text(0, top + 0.2, head, fontsize=FONT + 1.5, fontweight="bold", color=INK, va="center", parse_math=False)
        axes.text(width, top + 0.2, how, fontsize=FONT, color=INK, ha="right", va="center")
        at = 0.0
        for name, ns in _grouped(a.breakdown, SMALL * longest):
            size = ns / longest * width
            axes.add_patch(Rectangle((at, top + 0.34), size, 0.34, **_look(name)))
            if _fits(label := _label(name, ns), size):
                paper = {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if name in HATCHES else None
                place = {"ha": "center", "va": "center", "fontsize": FONT}
                axes.text(at + size / 2, top + 0.515, label, color="black", bbox=paper, **place)
            at += size
        near, rows = _labels_below(a.breakdown, longest, width)
        for row, labels in enumerate(rows):
            y = top + 0.88 + 0.2 * row
            for name, label, middle, x in labels:
                if near:
                    end = min(max(middle, x + 0.05), x + _long(label) - 0.05)
                    axes.plot([middle, end], [top + 0.68, y - 0.09], color=FAINT, linewidth=0.7, zorder=0)
                else:  # lines to a lower row would run through the labels above it
                    axes.add_patch(Rectangle((x, y - 0.06), SWATCH - 0.06, 0.12, **_look(name)))
                    x += SWATCH
                axes.text(x, y, label, fontsize=FONT, color=INK, va="center", path_effects=HALO)
    return figure


def _labels_below(
    breakdown: dict[str, float], longest: float, width: float
) -> tuple[bool, list[list[tuple[str, str, float, float]]]]:
    """The labels that do not fit into their segments, as rows of (part, label, middle of its segment, where it begins), and whether
    they are near their segments, in one row; else they take as many as they need, with a swatch before each."""
    labels, at = [], 0.0
    for name, ns in _grouped(breakdown, SMALL * longest):
        size = ns / longest * width
        if not _fits(label := _label(name, ns), size) and ns > 0.005 * longest:
            labels.append((name, label, at + size / 2))
        at += size
    starts = _spread([(middle, label) for _, label, middle in labels], width)
    row = [(*label, x) for label, x in zip(labels, starts, strict=True)]
    if all(x >= 0 and abs(x + _long(label) / 2 - middle) < FAR for _, label, middle, x in row):
        return True, [row] if row else []
    rows, x = [[]], 0.0
    for name, label, middle in labels:
        if x + SWATCH + _long(label) > width:
            rows, x = [*rows, []], 0.0
        rows[-1].append((name, label, middle, x))
        x += SWATCH + _long(label) + 0.2
    return False, rows


def _label(name: str, ns: float) -> str:
    return f"{PART_NAMES.get(name, name)} {milliseconds(ns)}"


def _fits(label: str, size: float) -> bool:
    return _long(label) + 0.1 < size


def _look(part: str) -> dict[str, Any]:
    colour = PART_COLOURS.get(part, "#D9D9D9")
    if part not in HATCHES:
        return {"facecolor": colour, "edgecolor": "white", "linewidth": 0.8}
    return {"facecolor": _tint(colour), "edgecolor": _tint(colour, 0.6), "hatch": HATCHES[part], "linewidth": 0.8}


@lru_cache(1000)
def _long(text: str) -> float:
    """How long a text is, inches."""
    return TextPath((0, 0), text, size=FONT, usetex=False).get_extents().width / 72 + 0.04


def _spread(labels: list[tuple[float, str]], width: float) -> list[float]:
    """Where labels begin that want to be centred at these places, so that none covers another."""
    starts, free = [], 0.0
    for middle, label in labels:
        starts.append(max(middle - _long(label) / 2, free))
        free = starts[-1] + _long(label) + 0.12
    limit = width
    for i in range(len(labels) - 1, -1, -1):
        starts[i] = min(starts[i], limit - _long(labels[i][1]))
        limit = starts[i] - 0.12
    return starts


def _grouped(breakdown: dict[str, float], least: float) -> list[tuple[str, float]]:
    """The parts in their order; two or more that are too small to be labelled become one at the end."""
    large = [(name, ns) for name, ns in breakdown.items() if ns >= least]
    small = [(name, ns) for name, ns in breakdown.items() if 0 < ns < least]
    if len(small) > 1:
        small = [("the rest", sum(ns for _, ns in small))]
    return [*large, *small]


# ---- roofline -----------------------------------------------------------------------------------------------------

BOUNDS = {  # what bounds an operation: colour, marker, word
    "compute": (GREEN, "o", "compute"),
    "memory": (ORANGE, "s", "memory"),
    "launch": (SKY, "D", "launches"),
    None: ("#C8C8C8", "p", "?"),
}
ROW = 0.245  # inches, of the table
ROOFS = {"half": "tensor cores, 16 bit:", "tf32": "tensor cores, TF32:", "fp32": "fp32:"}


def draw_roofline(analysis: Analysis, top: int = 10) -> Figure:
    """The top operations by what they reach: FLOP/s over FLOP per byte, against what the device reaches at most.

    Of a device whose peaks nobody measured the operations are shown without roofs, and the picture says so."""
    operations = analysis.operations[:top]
    if not operations:
        return _only_text("no roofline: the trace shows no operations on a GPU")
    placed = [(n, o) for n, o in enumerate(operations, 1) if o.flops and o.intensity and o.gpu_ns > 0]
    height = max(3.9 if placed else 1.5, 0.8 + ROW * (len(operations) + 2))
    figure = Figure(figsize=(WIDTH, height))
    device = next((name for name in used_devices(analysis.trace) if name != "?"), None)
    peaks = PEAKS.get(device or "")
    known = "" if peaks else " (how much it can do is not known)"
    head = f"Roofline: {plain(device, 40) if device else 'the trace does not name the device'}{known}"
    look = {"fontsize": FONT + 1.5, "fontweight": "bold", "color": INK, "va": "center", "parse_math": False}
    figure.text(0.1 / WIDTH, 1 - 0.2 / height, head, **look)
    if placed:
        axes = figure.add_axes((0.62 / WIDTH, 0.5 / height, 3.85 / WIDTH, (height - 0.9) / height))
        _roofs(axes, [(o.intensity, o.flops / o.gpu_ns * 1e9) for _, o in placed], peaks)
        _dots(axes, placed)
    else:
        why = "No operation can be placed here. Arithmetic is\ncounted from the shapes of matrix products and\nconvolutions: a trace has them if it was recorded\nwith record_shapes=True, and not for what a CUDA\ngraph or a compiled kernel does."
        figure.text(2.3 / WIDTH, 0.5, why, fontsize=FONT, color=INK, ha="center", va="center")
    _operations_table(figure, operations, {n for n, _ in placed}, height, peaks)
    return figure


def _dots(axes: Axes, placed: list[tuple[int, Operation]]) -> None:
    """A dot for each operation, as large as its share; beside it, where there is room, its number on a line to the dot.
    Operations of one kind reach much the same, so their numbers would cover each other."""
    axes.figure.draw_without_rendering()  # fixes the scale
    taken: list[tuple[float, float]] = []
    for number, o in placed:
        x, y = o.intensity, o.flops / o.gpu_ns * 1e9
        colour, marker, _ = BOUNDS.get(o.bound, BOUNDS[None])
        size = 25 + 700 * min(max(o.share, 0), 1)
        axes.scatter([x], [y], s=size, color=colour, marker=marker, edgecolor=INK, linewidth=0.6, zorder=4)
        at = axes.transData.transform((x, y)) * 72 / axes.figure.dpi  # points
        left, bottom, right, top = axes.bbox.extents * 72 / axes.figure.dpi
        spiral = [
            (r * math.cos(k * math.pi / 8), r * math.sin(k * math.pi / 8)) for r in range(16, 120, 7) for k in range(16)
        ]
        for dx, dy in spiral:  # outwards, until no number that is there already is near
            px, py = at[0] + dx, at[1] + dy
            inside = left + 6 < px < right - 6 and bottom + 6 < py < top
            if inside and all(math.hypot(px - tx, py - ty) > 14 for tx, ty in taken):
                break
        taken += [(px, py), tuple(at)]
        look = {"fontsize": 8, "ha": "center", "va": "center", "color": "black", "zorder": 6}
        box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": colour, "linewidth": 1}
        line = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0}
        axes.annotate(str(number), (x, y), (dx, dy), textcoords="offset points", bbox=box, arrowprops=line, **look)


def _roofs(axes: Axes, points: list[tuple[float, float]], peaks: Peaks | None) -> None:
    roofs = {words: getattr(peaks, name) for name, words in ROOFS.items()} if peaks else {}
    ridges = [roof / peaks.memory for roof in roofs.values()]
    xs, ys = [x for x, _ in points] + ridges, [y for _, y in points] + list(roofs.values())
    low, high = min([x / 3 for x, _ in points] + [ridge / 20 for ridge in ridges]), max(xs) * 3
    low, high = (low, high) if high / low > 100 else (low / 5, high * 5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    bottom, top = min(ys) / 4, max(ys) * 2.5
    axes.set_ylim(bottom, top if top / bottom > 100 else bottom * 100)
    bottom, top = axes.get_ylim()
    if peaks:
        slope, end = peaks.memory, max(ridges)
        axes.plot([low, end], [low * slope, end * slope], color=INK, linewidth=1.4, zorder=2)
        # Written along the slope: the angle on screen is that of a line of slope 1 on these log axes.
        width, height = axes.get_window_extent().width, axes.get_window_extent().height
        angle = math.degrees(math.atan2(height / math.log(top / bottom), width / math.log(high / low)))
        x = max(low, bottom / slope) * 1.6
        axes.text(x, x * slope * 0.85, f"memory: {slope / 1e12:.3g} TB/s", rotation=angle, rotation_mode="anchor", va="top", fontsize=8.5, color=INK, path_effects=HALO, zorder=3)  # fmt: skip
    for name, roof in roofs.items():
        ridge = roof / peaks.memory
        axes.plot([ridge, high], [roof, roof], color=INK, linewidth=1.4, zorder=2)
        # Left of the ridge, above the slope, no operation can be.
        axes.text(ridge * 0.9, roof, f"{name} {roof / 1e12:.3g} TFLOP/s", fontsize=8.5, color=INK, ha="right", va="center")  # fmt: skip
    axes.set_xlabel("arithmetic intensity, FLOP per byte", fontsize=FONT, color=INK, labelpad=1)
    axes.set_ylabel("TFLOP/s", fontsize=FONT, color=INK, labelpad=1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e12:g}"))
    axes.tick_params(labelsize=8.5, labelcolor=INK, color=FAINT)
    axes.grid(color="#EDEDED", linewidth=0.6, zorder=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _operations_table(
    figure: Figure, operations: list[Operation], placed: set[int], height: float, peaks: Peaks | None
) -> None:
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, WIDTH)  # inches
    axes.set_ylim(height, 0)
    columns = {
        "operation": (4.98, "left"),
        "share": (7.12, "right"),
        "a step": (7.8, "right"),
        "bound by": (7.92, "left"),
    }

    def write(y: float, cells: list[str], colour: str, weight: str = "normal") -> None:
        for (x, ha), text in zip(columns.values(), cells, strict=True):
            axes.text(x, y, text, fontsize=8.5, color=colour, ha=ha, va="center", fontweight=weight, parse_math=False)

    write(0.5, list(columns), INK, "bold")
    for number, o in enumerate(operations, 1):
        y = 0.5 + ROW * number
        name = plain(o.name, 26) if o.name.startswith("aten::") else short_kernel(o.name, 26)
        colour, marker, bound = BOUNDS.get(o.bound, BOUNDS[None])
        axes.scatter([4.8], [y], s=130, color=colour, marker=marker, edgecolor=INK, linewidth=0.6)
        axes.text(4.8, y, str(number), fontsize=8, ha="center", va="center_baseline")
        if o.bound == "memory" and o.bytes_moved and o.gpu_ns and peaks:
            bound += f" {o.bytes_moved / o.gpu_ns * 1e9 / peaks.memory:.0%}"
        write(y, [name, f"{100 * o.share:.0f}%", milliseconds(o.gpu_ns), bound], INK if number in placed else FAINT)
    notes = []
    if placed and len(placed) < len(operations):
        notes.append("grey: arithmetic not known, not in the picture")
    if peaks and any(o.bound == "memory" and o.bytes_moved for o in operations):
        notes.append("%: of the memory's speed, each input and output moved once")
    for row, note in enumerate(notes, len(operations) + 1):
        axes.text(4.98, 0.5 + ROW * row, note, fontsize=8.5, color=FAINT, va="center")
