"""Pictures of gains on a log axis: that of one grade, and the ladder of all attempts. They need matplotlib."""

import math
import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from grader.frontends.attempts import SHOWN, Attempt, counted_gain
from grader.frontends.gain import Gain, interval
from grader.safe_text import times
from grader.trace.picture import HALO
from grader.trace.words import BLUE, FAINT, GREEN, INK, PURPLE, SKY, VERMILION
from grader.web_page import BLACK

# ---------------------------------------------------------------- the axis


def _gain_axes(figure: Figure, place: tuple[float, float, float, float], low: float, high: float, ink: str) -> Axes:
    """Axes at `place` whose horizontal one is a factor on a log scale, with nothing around them but that line."""
    axes = figure.add_axes(place)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}x"))
    axes.tick_params(axis="x", labelsize=9, colors=ink)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "right", "top"]].set_visible(False)
    return axes


def log_ticks(low: float, high: float) -> list[float]:
    """Up to twelve round factors between `low` < 1 and `high` > 1: 1, and on both sides of it what keeps its distance."""
    rows = [
        [m * 10.0**e for e in range(-6, 7) for m in row] for row in ([1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8])
    ]
    rows += [[round(n * step, 2) for n in range(1, math.ceil(10 / step))] for step in (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)]
    ticks: list[float] = []
    for row in rows:
        ticks = [tick for tick in row if low <= tick <= high]
        if len(ticks) >= 5:
            break
    size = math.log(high / low)
    below = _apart([tick for tick in reversed(ticks) if tick <= 1], size)
    return below[:0:-1] + _apart([tick for tick in ticks if tick >= 1], size)


def _apart(ticks: list[float], size: float) -> list[float]:
    """The first, and each whose label leaves that of the one before it alone, on a log axis of this size."""
    kept = ticks[:1]
    for tick in ticks[1:]:
        letters = len(f"{tick:.4g}x{kept[-1]:.4g}x")
        if abs(math.log(tick / kept[-1])) >= (0.03 + 0.0065 * letters) * size:
            kept.append(tick)
    return kept


# ---------------------------------------------------------------- one grade


def draw_gain(gain: Gain, points: str, share: float) -> Figure:
    """Speed-up on a log axis: the interval, its pairs (first on top), and its points, in words and as a share."""
    figure = Figure(figsize=(7.8, 2.45), facecolor="white")
    low, high = gain.span()
    axes = _gain_axes(figure, (0.16, 0.14, 0.82, 0.64), low, high, BLACK)
    axes.xaxis.set_major_locator(FixedLocator(log_ticks(low, high)))
    axes.tick_params(axis="x", length=3)
    axes.set_ylim(0, 4)
    name = "speed-up,\n90% interval" if gain.lower else "speed-up"
    axes.set_yticks([3.25, 1.8, 0.45], [name, "each pair", f"points\n{points}"], fontsize=9, color=BLACK)
    # The points run linearly along this axis, from none at 1x to all at the target.
    if gain.target:
        axes.barh(0.45, gain.target - 1, left=1, height=0.42, color="#e5e7eb", zorder=1)
        axes.barh(0.45, gain.target**share - 1, left=1, height=0.42, color=GREEN, zorder=2)
    _mark(axes, 1, "starter 1x", 0.15, BLACK, "-")
    if gain.target:
        _mark(axes, gain.target, f"target {times(gain.target)}", 0.62, GREEN, "--")
    if gain.reference:
        _mark(axes, gain.reference, f"reference solution {times(gain.reference)}", 1.09, PURPLE, "-.")
    _draw_pairs(axes, gain.ratios)
    if gain.lower and gain.upper:
        axes.axvspan(gain.lower, gain.upper, 0.27, 0.82, color=SKY, alpha=0.18, linewidth=0, zorder=0)
        axes.plot([gain.lower, gain.upper], [3.25, 3.25], color=BLUE, linewidth=3, solid_capstyle="butt", zorder=5)
        for end in (gain.lower, gain.upper):
            axes.plot([end, end], [3.05, 3.45], color=BLUE, linewidth=1.6, zorder=5)
    axes.scatter([gain.gain], [3.25], s=40, color=BLUE, edgecolor="white", linewidth=1, zorder=6)
    return figure


def _mark(axes: Axes, x: float, words: str, above: float, colour: str, style: str) -> None:
    """A line across all of the axes, with words so far above them, on the side where there is room."""
    axes.plot([x, x], [0, 4 + above], color=colour, linestyle=style, linewidth=1.4, clip_on=False, zorder=3)
    low, high = axes.get_xlim()
    right_half = math.log(x / low) > 0.5 * math.log(high / low)
    words, side = (f"{words} ", "right") if right_half else (f" {words}", "left")
    axes.text(x, 4 + above, words, ha=side, va="center", fontsize=9, color=BLACK, zorder=6)


def _draw_pairs(axes: Axes, ratios: tuple[float, ...]) -> None:
    """A dot for each; an arrow at the edge for one that lies outside."""
    low, high = axes.get_xlim()
    for index, ratio in enumerate(ratios):
        y = 1.8 + (0.65 - 1.3 * index / (len(ratios) - 1) if len(ratios) > 1 else 0)
        shape = "o" if low <= ratio <= high else "<" if ratio < low else ">"
        x, size = min(max(ratio, low), high), 16 if len(ratios) <= 30 else 8
        axes.scatter([x], [y], s=size, marker=shape, color=SKY, edgecolor=BLUE, linewidth=0.6, zorder=4)


# ---------------------------------------------------------------- all attempts


def draw_ladder(attempts: list[Attempt]) -> Figure:
    """Gain over the starter by attempt, oldest on top. What does not count is a cross, a quick one hollow; a line follows the best."""
    shown = attempts[-SHOWN:]
    target = next((attempt["target"] for attempt in reversed(shown) if attempt["target"]), None)
    low, high, pad = _ladder_span(shown, target)
    height = 0.27 * len(shown) + 0.95
    figure = Figure(figsize=(8.4, height), facecolor="white")
    axes = _gain_axes(figure, (0.3, 0.5 / height, 0.66, 1 - 0.85 / height), low / pad, high * pad**2, INK)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    width = math.log(high * pad**3 / low)
    clear = width / 16  # of the mark at 1
    ticks = [x for x in log_ticks(low / pad, high * pad**2) if x == 1 or abs(math.log(x)) > clear]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    # by their time, which the table has too: its numbers are places
    names = [
        f"{textwrap.shorten(attempt['note'], 26, placeholder=' …')}  {attempt['when'][5:16].replace('T', ' ')}"
        for attempt in shown
    ]
    axes.set_yticks(range(len(shown)), names, fontsize=9, color=INK)
    axes.set_xlabel("times as fast as the starter (log scale)", fontsize=9, color=INK)
    axes.axvline(1, color=INK, linewidth=1)
    side_by_side = target is not None and math.log(target) < 0.15 * width  # centred, the two words would touch
    ends_at, begins_at = ("right", "left") if side_by_side else ("center", "center")
    axes.text(1, -0.72, "starter", ha=ends_at, va="bottom", fontsize=9, color=INK)
    if target:
        axes.axvline(target, color=GREEN, linestyle="--", linewidth=1.4, zorder=0)
        axes.text(target, -0.72, f"target {times(target)}", ha=begins_at, va="bottom", fontsize=9, color=INK)
    best = [max([1.0, *(counted_gain(attempt) for attempt in shown[: n + 1])]) for n in range(len(shown))]
    axes.step(best, range(len(shown)), where="pre", color=FAINT, linewidth=1, zorder=1)
    for y, attempt in enumerate(shown):
        _draw_rung(axes, y, attempt, low, high, pad)
    return figure


def _ladder_span(shown: list[Attempt], target: float | None) -> tuple[float, float, float]:
    """The lowest and the highest mark, and the factor that is left free beside them."""
    marks = [1.0]
    for attempt in shown:
        if attempt["gain"]:
            marks += [mark for mark in (*interval(attempt), attempt["gain"]) if mark]
    low, high = min(marks), max([*marks, target or 1.0, 1.2])
    return low, high, (high / low) ** 0.06


def _draw_rung(axes: Axes, y: int, attempt: Attempt, low: float, high: float, pad: float) -> None:
    lower, upper = interval(attempt) if attempt["gain"] else (None, None)
    if lower and upper:
        axes.plot([lower, upper], [y, y], color=BLUE if attempt["counts"] else VERMILION, linewidth=2)
    x = attempt["gain"] or 1.0
    if attempt["counts"] and attempt["gain"]:
        words = times(x)
        axes.plot([x], [y], "o", color=BLUE, markerfacecolor="white" if attempt["quick"] else BLUE, markersize=6)
    else:
        words = attempt["said"]
        axes.plot([x], [y], "x", color=VERMILION, markersize=7, markeredgewidth=2)
    right = max(x, upper or x)
    near_end = math.log(right / low) > (0.95 if attempt["counts"] else 0.7) * math.log(high * pad / low)
    at, side = ((lower or x) / pad**0.3, "right") if near_end else (right * pad**0.3, "left")
    axes.text(at, y, words, ha=side, va="center", fontsize=9, color=INK, path_effects=HALO)
