"""Draw who worked when, and where the time of a step goes: Figures that belong to no window."""

import math
from functools import lru_cache
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.textpath import TextPath

from grader.trace.analysis import Analysis
from grader.trace.catalogue import IDLE, STEP_PARTS, Part, short_name
from grader.trace.words import FAINT, INK, LANE_COLOURS, milliseconds, plain, plain_number

LANES = {
    "data_wait": "waiting for data",
    "host": "operators on the host",
    "launches": "launches",
    "gpu": "kernels",
    "communication": "communication",
    "copies": "copies, memsets",
}
REST = "the rest"
LOOKS = STEP_PARTS | {"idle": Part("idle", "", "", FAINT, "////"), REST: Part(REST, "", "", "#D9D9D9")}
WIDTH = 9.0  # inches; a notebook's column
LANE = 0.30  # inches
USE = 0.55  # inches, the lane that shows shares
HALO = [withStroke(linewidth=2.5, foreground="white")]  # keeps text legible on top of lines
LEFT = 1.25  # inches for the lanes' names, at least
FONT = 9.5


# ---- timeline -----------------------------------------------------------------------------------------------------


def draw(timelines: dict[str, dict[str, Any]]) -> Figure:
    """One panel for each of {"before": timeline(...), "after": ...}, on one scale of milliseconds, so faster steps are shorter."""
    panels = {title: t for title, t in timelines.items() if t.get("steps")}
    if not panels:
        reasons = "; ".join(reason for t in timelines.values() for reason in t.get("reasons", []))
        return only_text("no timeline: " + (reasons or "no steps were recorded"))
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
    handles = [Patch(facecolor=LANE_COLOURS[kind], label=label) for kind, label in LANES.items() if kind in kinds]
    names = {cause: f"GPU {STEP_PARTS[cause].short}" for cause in IDLE if cause in causes}
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
        colour = LANE_COLOURS.get(lane["kind"], FAINT)
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
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    if last:
        axes.set_xlabel("milliseconds", fontsize=FONT, color=INK, labelpad=1)
    pad = 5 if t["complete"] else 20
    axes.set_title(headline(title, t), loc="left", fontsize=FONT + 1.5, color=INK, fontweight="bold", pad=pad)
    axes.title.set_parse_math(False)
    if not t["complete"]:
        reasons = plain("; ".join(t["reasons"]) or "no reason given", 105)
        place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "parse_math": False}
        axes.annotate(f"incomplete: {reasons}", (0, 1), (0, 5), fontsize=9, color=INK, **place)


def _shares(axes: Axes, share: dict[str, list[int]], span_ms: float, floor: float, height: float) -> None:
    """The parts of each bin, stacked: work from below, idle time by its cause on top of it."""
    below = [0] * max(map(len, share.values()), default=0)
    edges = [span_ms * i / max(len(below), 1) for i in range(len(below) + 1)]
    for part, permille in share.items():
        above = [b + p for b, p in zip(below, permille, strict=True)]
        low, high = ([floor - height * v / 1000 for v in values] for values in (below, above))
        axes.stairs(high, edges, baseline=low, fill=True, linewidth=0, zorder=3, **_look(part))
        below = above


def headline(title: str, t: dict[str, Any]) -> str:
    """ "before: 164 ms per step (as recorded: 171 ms)": without the profiler where that is known, and always that of the picture."""
    length, traced = t.get("step_ns"), t.get("step_ns_traced")
    recorded = f" (as recorded: {milliseconds(traced)})" if length and traced else " (as recorded)"
    length = length or traced
    return f"{title}: {plain_number(length / 1e6)} ms per step{recorded}" if length else title


def _idle_patch(cause: str = "idle", label: str = "") -> Rectangle:
    return Rectangle((0, 0), 1, 1, zorder=2, label=label, linewidth=0, **_look(cause))


def _look(name: str, edge: float = 0.55) -> dict[str, Any]:
    """Of a part of the step, or of a kind of lane: idle time is light and hatched. edge: how strong the hatch is."""
    if name in LANE_COLOURS:
        return {"facecolor": LANE_COLOURS[name]}
    about = LOOKS[name]
    if not about.hatch:
        return {"facecolor": about.colour}
    return {"facecolor": tint(about.colour), "edgecolor": tint(about.colour, edge), "hatch": about.hatch}


def tint(colour: str, strength: float = 0.13) -> str:
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


def only_text(text: str) -> Figure:
    figure = Figure(figsize=(WIDTH, 0.9))
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
        return only_text("where the time goes is not known: " + (reasons or "no GPU work was recorded"))
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
            how += f", {milliseconds(a.metrics.step_ns_traced)} under it"
        head = f"{plain(title, 40)}: {milliseconds(sum(a.breakdown.values()))} per step"
        axes.text(0, top + 0.2, head, fontsize=FONT + 1.5, fontweight="bold", color=INK, va="center", parse_math=False)
        axes.text(width, top + 0.2, how, fontsize=FONT, color=INK, ha="right", va="center")
        at = 0.0
        for name, ns in _grouped(a.breakdown, SMALL * longest):
            size = ns / longest * width
            axes.add_patch(_segment(name, at, top + 0.34, size, 0.34))
            if _fits(label := _label(name, ns), size):
                paper: dict[str, Any] | None = (
                    {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if LOOKS[name].hatch else None
                )
                middle = at + size / 2
                axes.text(
                    middle, top + 0.515, label, color="black", bbox=paper, ha="center", va="center", fontsize=FONT
                )
            at += size
        near, rows = _labels_below(a.breakdown, longest, width)
        for row, labels in enumerate(rows):
            y = top + 0.88 + 0.2 * row
            for name, label, middle, x in labels:
                if near:
                    end = min(max(middle, x + 0.05), x + _long(label) - 0.05)
                    axes.plot([middle, end], [top + 0.68, y - 0.09], color=FAINT, linewidth=0.7, zorder=0)
                else:  # lines to a lower row would run through the labels above it
                    axes.add_patch(_segment(name, x, y - 0.06, SWATCH - 0.06, 0.12))
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
    rows, x = [row[:0]], 0.0
    for name, label, middle in labels:
        if x + SWATCH + _long(label) > width:
            rows, x = [*rows, []], 0.0
        rows[-1].append((name, label, middle, x))
        x += SWATCH + _long(label) + 0.2
    return False, rows


def _label(name: str, ns: float) -> str:
    return f"{short_name(name)} {milliseconds(ns)}"


def _fits(label: str, size: float) -> bool:
    return _long(label) + 0.1 < size


def _segment(part: str, x: float, y: float, width: float, height: float) -> Rectangle:
    look: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.8} | _look(part, edge=0.6)
    return Rectangle((x, y), width, height, **look)


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
        small = [(REST, sum(ns for _, ns in small))]
    return [*large, *small]
