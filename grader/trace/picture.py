"""Draw timelines: who worked when, and where the GPU had nothing to do."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

# Okabe and Ito's palette, told apart with every common form of colour blindness. https://jfly.uni-koeln.de/color/
ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
COLOURS = {"data_wait": VERMILION, "host": SKY, "launches": BLUE, "gpu": GREEN, "copies": ORANGE}
WIDTH = 9.0  # inches; a notebook's column
LANE = 0.30  # inches
FONT = 9.5
INK, FAINT = "#333333", "#8A8A8A"


def draw(timelines: dict[str, dict[str, Any]]) -> Figure:
    """One panel for each of {"before": timeline(...), "after": ...}, all on the same time scale (milliseconds), so that
    of equally many steps the faster ones are visibly shorter. Returns a Figure that belongs to no window."""
    panels = {title: t for title, t in timelines.items() if t.get("steps")}
    if not panels:
        figure = Figure(figsize=(WIDTH, 0.9))
        reasons = "; ".join(reason for t in timelines.values() for reason in t.get("reasons", []))
        text = "no timeline: " + (reasons or "no steps were recorded")
        figure.text(0.02, 0.5, text, fontsize=FONT, color=INK, va="center", wrap=True)
        return figure
    heights = [LANE * max(len(t["lanes"]), 1) for t in panels.values()]
    foot, key = 0.16, 0.62  # inches below each panel, and below all for axis title and key
    heads = [0.42 if t["complete"] else 0.62 for t in panels.values()]  # headline, and a line that says what is missing
    total = sum(heights) + sum(heads) + len(panels) * foot + key
    figure = Figure(figsize=(WIDTH, total))
    longest = max(t["span_ns"] for t in panels.values()) or 1
    top = total
    for (title, t), head, height in zip(panels.items(), heads, heights, strict=True):
        top -= head + height
        axes = figure.add_axes((1.25 / WIDTH, top / total, (WIDTH - 1.25 - 0.15) / WIDTH, height / total))
        _panel(axes, title, t, longest, last=title == list(panels)[-1])
        top -= foot
    kinds = {lane["kind"] for t in panels.values() for lane in t["lanes"]}
    names = {"data_wait": "waiting for data", "host": "operators on the host", "launches": "launches"}
    names |= {"gpu": "kernels", "copies": "copies, memsets"}
    handles = [Patch(facecolor=COLOURS[kind], label=label) for kind, label in names.items() if kind in kinds]
    if any(t["idle"] for t in panels.values()):
        handles.append(_idle_patch(label="GPU idle"))
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(1.25 / WIDTH, 0),
        bbox_transform=figure.transFigure,
        ncols=len(handles),
        fontsize=FONT,
        frameon=False,
        handlelength=1.1,
        handletextpad=0.5,
        columnspacing=1.5,
        borderaxespad=0.1,
    )
    return figure


def _panel(axes: Axes, title: str, t: dict[str, Any], longest: int, last: bool) -> None:
    ms = 1e-6
    lanes = t["lanes"]
    on_gpu = [row for row, lane in enumerate(lanes) if lane["kind"] in ("gpu", "copies")]
    for row, lane in enumerate(lanes):
        bars = [(start * ms, duration * ms) for start, duration in lane["intervals"]]
        # A thin edge of the same colour keeps an interval visible that is narrower than a pixel.
        colour = COLOURS.get(lane["kind"], FAINT)
        axes.broken_barh(bars, (row + 0.14, 0.72), facecolor=colour, edgecolor=colour, linewidth=0.3, zorder=3)
    if on_gpu:
        for start, duration in t["idle"]:
            patch = _idle_patch()
            patch.set_bounds(start * ms, on_gpu[0], duration * ms, len(on_gpu))
            axes.add_patch(patch)
    for row in range(1, len(lanes)):
        axes.axhline(row, color="#E4E4E4", linewidth=0.6, zorder=1)
    for start, _ in t["steps"]:
        axes.axvline(start * ms, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=4)
    axes.axvline(t["steps"][-1][1] * ms, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=4)
    axes.set_xlim(-0.004 * longest * ms, 1.004 * longest * ms)
    axes.set_ylim(max(len(lanes), 1), 0)
    axes.set_yticks(
        [row + 0.5 for row in range(len(lanes))], [lane["name"] for lane in lanes], fontsize=FONT, color=INK
    )
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=FONT, labelcolor=INK, color=FAINT, labelbottom=last)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    if last:
        axes.set_xlabel("milliseconds", fontsize=FONT, color=INK, labelpad=1)
    pad = 5 if t["complete"] else 20
    axes.set_title(headline(title, t), loc="left", fontsize=FONT + 1.5, color=INK, fontweight="bold", pad=pad)
    if not t["complete"]:
        reasons = "; ".join(t["reasons"]) or "no reason given"
        reasons = reasons if len(reasons) <= 105 else reasons[:104] + "…"
        place = {"xy": (0, 1), "xycoords": "axes fraction", "xytext": (0, 5), "textcoords": "offset points"}
        axes.annotate(f"incomplete: {reasons}", **place, fontsize=9, color=VERMILION)


def headline(title: str, t: dict[str, Any]) -> str:
    """ "before: 164 ms a step", with the length measured without the profiler where it is known."""
    length = t.get("step_ns")
    under = "" if length else " (under the profiler)"
    length = length or t.get("step_ns_traced")
    return f"{title}: {length / 1e6:.3g} ms a step{under}" if length else title


def _idle_patch(label: str = "") -> Rectangle:
    return Rectangle(
        (0, 0), 1, 1, facecolor="#F3F3F3", edgecolor="#C4C4C4", hatch="////", linewidth=0, zorder=2, label=label
    )
