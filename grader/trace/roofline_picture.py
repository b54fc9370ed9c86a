"""Draw how near the operations of a trace are to what the device can do."""

from math import cos, hypot, inf, log, pi, sin
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from grader.devices import Peaks
from grader.trace.analysis import Analysis, Operation
from grader.trace.picture import FONT, WIDTH, only_text
from grader.trace.roofline import peaks
from grader.trace.timeline import used_devices
from grader.trace.words import FAINT, GREEN, INK, ORANGE, SKY, milliseconds, plain, short_kernel

BOUNDS = {  # what bounds an operation: colour, marker, word
    "compute": (GREEN, "o", "compute"),
    "memory": (ORANGE, "s", "memory"),
    "launch": (SKY, "D", "launches"),
    None: ("#C8C8C8", "p", "?"),
}
NOTHING_PLACED = """No operation can be placed here. Arithmetic is
counted from the shapes of matmuls and
convolutions: a trace has them if it was recorded
with record_shapes=True, and not for what a CUDA
graph or a compiled kernel does."""
ROW = 0.245  # inches, of the table
ROOFS = {"half": "tensor cores, 16 bit:", "tf32": "tensor cores, TF32:", "fp32": "fp32:"}


Placed = tuple[int, Operation, float, float]  # number, and FLOP per byte, FLOP/s: its place in the picture


def draw_roofline(analysis: Analysis, top: int = 10) -> Figure:
    """The top operations by what they reach: FLOP/s over FLOP per byte, against what the device reaches at most, where known."""
    operations = analysis.operations[:top]
    if not operations:
        return only_text("no roofline: the trace shows no operations on a GPU")
    placed = [
        (n, o, o.intensity, o.flops / o.gpu_ns * 1e9)
        for n, o in enumerate(operations, 1)
        if o.flops and o.intensity and o.gpu_ns > 0
    ]
    height = max(3.9 if placed else 1.5, 0.8 + ROW * (len(operations) + 2))
    figure = Figure(figsize=(WIDTH, height))
    device = next((name for name in used_devices(analysis.trace) if name != "?"), None)
    reached = peaks(device)
    if reached is None or not reached.memory:
        reached, known = None, " (how much it can do is not known)"
    else:
        known = "" if reached.measured else " (roofs of its data sheet)"
    head = f"Roofline: {plain(device, 40) if device else 'the trace does not name the device'}{known}"
    look: dict[str, Any] = {"fontweight": "bold", "color": INK, "va": "center", "parse_math": False}
    figure.text(0.1 / WIDTH, 1 - 0.2 / height, head, fontsize=FONT + 1.5, **look)
    if placed:
        axes = figure.add_axes((0.62 / WIDTH, 0.5 / height, 3.85 / WIDTH, (height - 0.9) / height))
        _roofs(axes, placed, reached)
        figure.draw_without_rendering()  # fixes the scale
        _dots(axes, figure.dpi, placed)
    else:
        figure.text(2.3 / WIDTH, 0.5, NOTHING_PLACED, fontsize=FONT, color=INK, ha="center", va="center")
    _operations_table(figure, operations, {n for n, *_ in placed}, height, reached)
    return figure


def _dots(axes: Axes, dpi: float, placed: list[Placed]) -> None:
    """A dot for each operation, as large as its share, and its number where there is room: operations of one kind lie together."""
    taken: list[tuple[float, float]] = []
    for number, o, x, y in placed:
        colour, marker, _ = BOUNDS.get(o.bound, BOUNDS[None])
        size = 25 + 700 * min(max(o.share, 0), 1)
        axes.scatter([x], [y], s=size, color=colour, marker=marker, edgecolor=INK, linewidth=0.6, zorder=4)
        at = axes.transData.transform((x, y)) * 72 / dpi  # points
        left, bottom, right, top = np.array(axes.bbox.extents) * 72 / dpi
        spiral = [(r * cos(k * pi / 8), r * sin(k * pi / 8)) for r in range(16, 120, 7) for k in range(16)]
        for dx, dy in spiral:  # outwards, until no number that is there already is near
            px, py = at[0] + dx, at[1] + dy
            inside = left + 6 < px < right - 6 and bottom + 20 < py < top
            if inside and all(hypot(px - tx, py - ty) > 14 for tx, ty in taken):
                break
        taken += [(px, py), (at[0], at[1])]
        look: dict[str, Any] = {"fontsize": 8, "ha": "center", "va": "center", "color": "black", "zorder": 6}
        box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": colour, "linewidth": 1}
        line = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0}
        axes.annotate(str(number), (x, y), (dx, dy), textcoords="offset points", bbox=box, arrowprops=line, **look)


def _roofs(axes: Axes, placed: list[Placed], reached: Peaks | None) -> None:
    """The scales, so that all of it is in the picture, and the roofs of the device."""
    found = {words: getattr(reached, name, None) for name, words in ROOFS.items()}
    roofs = {words: roof for words, roof in found.items() if roof}
    slope = reached.memory if reached else None
    ridges = [roof / slope for roof in roofs.values()] if slope else []
    xs, ys = [x for *_, x, _ in placed] + ridges, [y for *_, y in placed] + list(roofs.values())
    low, high = min([x / 3 for *_, x, _ in placed] + [ridge / 20 for ridge in ridges]), max(xs) * 3
    low, high = (low, high) if high / low > 100 else (low / 5, high * 5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    bottom, top = min(ys) / 4, max(ys) * 2.5
    axes.set_ylim(bottom, top if top / bottom > 100 else bottom * 100)
    bottom, top = axes.get_ylim()
    if slope:
        end = max(ridges)
        axes.plot([low, end], [low * slope, end * slope], color=INK, linewidth=1.4, zorder=2)
        # Below the slope's foot, where it crosses no roof and, as dots end well above, covers none.
        x = max(low, bottom / slope) * 1.1
        said = f"memory: {slope / 1e12:.3g} TB/s"
        look: dict[str, Any] = {"fontsize": 8.5, "color": INK, "zorder": 3}
        axes.annotate(said, (x, bottom), (8, 3), textcoords="offset points", va="bottom", **look)
    frame = axes.get_window_extent()
    points = frame.height / axes.figure.dpi * 72 / log(top / bottom)  # of a factor e in y
    run = frame.width / log(high / low) / (frame.height / log(top / bottom))  # of the slope, for each point it rises
    beside = inf
    for (name, roof), ridge in sorted(zip(roofs.items(), ridges, strict=True), key=lambda pair: -pair[1]):
        axes.plot([ridge, high], [roof, roof], color=INK, linewidth=1.4, zorder=2)
        # Left of the ridge, above the slope, no operation can be. Roofs that are near each other keep a line's distance.
        beside = min(log(roof) * points, beside - 11)
        said, down = f"{name} {roof / 1e12:.3g} TFLOP/s", log(roof) * points - beside
        place: dict[str, Any] = {
            "xytext": (-3 - (6 + down) * run, -down),
            "textcoords": "offset points",
            "ha": "right",
            "va": "center",
        }
        axes.annotate(said, (ridge, roof), fontsize=8.5, color=INK, **place)
    axes.set_xlabel("arithmetic intensity, FLOP per byte", fontsize=FONT, color=INK, labelpad=1)
    axes.set_ylabel("TFLOP/s", fontsize=FONT, color=INK, labelpad=1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e12:g}"))
    axes.tick_params(labelsize=8.5, labelcolor=INK, color=FAINT)
    axes.grid(color="#EDEDED", linewidth=0.6, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)


def _operations_table(
    figure: Figure, operations: list[Operation], placed: set[int], height: float, reached: Peaks | None
) -> None:
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, WIDTH)  # inches
    axes.set_ylim(height, 0)
    columns = {"operation": 4.98, "share": 7.12, "per step": 7.8, "bound by": 7.92}

    def write(y: float, cells: list[str], colour: str, weight: str = "normal", style: str = "normal") -> None:
        for x, name, text in zip(columns.values(), columns, cells, strict=True):
            look: dict[str, Any] = {"ha": "right" if name in ("share", "per step") else "left", "parse_math": False}
            look |= {"fontweight": weight, "fontstyle": style}
            axes.text(x, y, text, fontsize=8.5, color=colour, va="center", **look)

    write(0.5, list(columns), INK, "bold")
    for number, o in enumerate(operations, 1):
        y = 0.5 + ROW * number
        name = plain(o.name, 24) if o.name.startswith("aten::") else short_kernel(o.name, 24)
        colour, marker, bound = BOUNDS.get(o.bound, BOUNDS[None])
        axes.scatter([4.8], [y], s=130, color=colour, marker=marker, edgecolor=INK, linewidth=0.6)
        axes.text(4.8, y, str(number), fontsize=8, ha="center", va="center_baseline")
        if o.bound == "memory" and o.bytes_moved and o.gpu_ns and reached and reached.memory:
            bound += f" {o.bytes_moved / o.gpu_ns * 1e9 / reached.memory:.0%}"
        shown = (INK, "normal", "normal") if number in placed else (FAINT, "normal", "italic")
        write(y, [name, f"{100 * o.share:.0f}%", milliseconds(o.gpu_ns), bound], *shown)
    notes = []
    if placed and len(placed) < len(operations):
        notes.append("italic: arithmetic not known, not in the picture")
    if reached and any(o.bound == "memory" and o.bytes_moved for o in operations):
        notes.append("%: of the memory's peak, if each input and output moves once")
    for row, note in enumerate(notes, len(operations) + 1):
        axes.text(4.98, 0.5 + ROW * row, note, fontsize=8.5, color=FAINT, va="center")
