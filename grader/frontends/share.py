"""A grade as a picture to show to others: 1200 x 630 pixels, what chats and pages show of a link. It says nothing of the code."""

from __future__ import annotations

import io
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from grader.errors import UserError
from grader.frontends.gain import Gain
from grader.frontends.report import headline
from grader.result import NOT_MEASURED, PASS, Result, write_bytes
from grader.safe_text import one_line, times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE, DPI = (12.0, 6.3), 100
EMPTY = "#e5e7eb"  # of a bar, what is not earned
SIGNS = {PASS: "✓", NOT_MEASURED: "–"}


def save(result: Result, path: Path) -> str:
    """Write the picture as PNG; returns its words. Raises UserError for a grade that says nothing, OSError."""
    if result.disturbed or result.fatal or not result.measured_max:
        raise UserError("There is nothing to show yet. A picture needs a grade that ran, so run lab.check() first.")
    figure, buffer = _draw(result), io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None, "Description": words(result)})
    write_bytes(path, buffer.getvalue())
    return words(result)


def words(result: Result) -> str:
    """The picture in a sentence."""
    gain, points = _gain(result), headline(result)[0]
    faster = f"{times(gain)} as fast as the starter, " if gain else ""
    quick = " (a quick look)" if result.quick else ""
    return f"{one_line(result.title)}: {faster}{points}{quick}, on {_machine(result)}."


def _gain(result: Result) -> float | None:
    gain = Gain.in_result(result)
    return gain.gain if gain and gain.check.points > 0 else None


def _machine(result: Result) -> str:
    device = result.machine.get("gpu" if result.form == "cuda" else "cpu") or "recorded traces"
    torch = result.versions.get("torch", "").split("+")[0]
    return one_line(f"{device}, torch {torch}" if torch and result.form != "traces" else str(device))


def _short(title: str) -> str:
    """On two lines at most."""
    first, *more = textwrap.wrap(title, 30)
    return "\n".join([first, textwrap.shorten(" ".join(more), 30, placeholder=" …")]) if more else first


def _draw(result: Result) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure

    from grader.trace.words import BLUE, GREEN, INK

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["text.parse_math"] = False
        figure = Figure(figsize=SIZE, facecolor="white")
        gain, checks = _gain(result), [check for check in result.checks if check.max_points > 0][:7]
        title = one_line(result.title)
        figure.text(0.05, 0.88, title, fontsize=26 if len(title) < 48 else 19, color=INK, weight="bold")
        figure.text(0.05, 0.66, times(gain) if gain else headline(result)[0], fontsize=64, color=BLUE, weight="bold")
        said = f"as fast as the starter, {headline(result)[0]}" if gain else _machine(result)
        figure.text(0.05, 0.57, said, fontsize=20, color=INK)
        axes = figure.add_axes((0.32, 0.14, 0.50, 0.36))
        size = 13 if len(checks) < 6 else 10  # two lines of a name fit
        for place, check in enumerate(checks):
            share = check.points / check.max_points
            axes.barh(place, 1, color=EMPTY, height=0.55)
            axes.barh(place, share, color=GREEN if check.status == PASS else BLUE, height=0.55)
            sign = SIGNS.get(check.status, "")
            label = (
                "not measured here"
                if check.status == NOT_MEASURED
                else f"{round(check.points, 1):g} of {check.max_points:g}"
            )
            axes.text(1.02, place, f"{sign} {label}".strip(), va="center", fontsize=size, color=INK)
            axes.text(-0.02, place, _short(one_line(check.title)), va="center", ha="right", fontsize=size, color=INK)
        axes.set_xlim(0, 1)
        axes.set_ylim(len(checks) - 0.5, -0.5)
        axes.set_axis_off()
        quick = "A quick look, not a full grade. " if result.quick else ""
        figure.text(
            0.05, 0.05, f"{quick}Measured on {_machine(result)}, {result.date}".strip(", "), fontsize=13, color=INK
        )
        return figure
