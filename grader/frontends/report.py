"""The report of one grade, as HTML for a notebook, a feedback page or a file, and as text for the terminal.

Every word of a `Result` is untrusted: reasons quote the learner's code and the output is whatever it printed. So all of
it goes through `_clean` (no control or escape characters, no flood) and, in HTML, through `html.escape`.
Pictures are embedded as images, where neither markup nor styles can reach the page around them."""

from __future__ import annotations

import base64
import io
import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader.checks.throughput import interval_counts
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, CheckResult, Result, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe & Ito's palette, told apart with every common form of colour blindness. A colour never stands alone: a sign and
# a word always say the same.
BLACK, GREY, SKY, BLUE = "#1b1f23", "#6b7280", "#56B4E9", "#0072B2"
GREEN, ORANGE, VERMILLION, PURPLE = "#009E73", "#E69F00", "#D55E00", "#CC79A7"
SIGNS = {PASS: ("✓", GREEN, "32"), FAIL: ("✗", VERMILLION, "31"), INCONCLUSIVE: ("?", ORANGE, "33")}
PARTLY = ("◐", ORANGE, "33")  # how FAIL is shown where some of the points were earned
NO_SIGN = ("–", GREY, "90")

WHOLE = 3_000  # characters: what the course and honest code say is shorter, and shown whole; of a flood the cut is said
MOST_WARNINGS = 12
PRINTED_LINES = 14  # in a terminal, of the end of what the submission printed
PICTURE_BYTES = 90_000  # each of two pictures, as base64, so that the whole report stays under 300 KB
HINT_NAMES = ("Where to look", "What to do")  # of the deeper ones
EVIDENCE_CHARACTERS = 60_000  # of all checks together, after escaping
OUTPUT_CHARACTERS = 6_000  # the end of what the submission printed; escaping can make it six times as long


# ---- untrusted values -> safe text --------------------------------------------------------------------------------

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC and its kin: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]?"
)
# C0 and C1 controls, the signs that reorder text (a way to make a line read differently), and lone surrogates,
# which UTF-8 cannot encode.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def _clean(value: Any, limit: int = WHOLE, tail: bool = False) -> str:
    """Plain printable text. Of more than `limit` characters the beginning is kept (the end with `tail`), and it says so."""
    text = value if isinstance(value, str) else _inline(value)
    raw = 8 * limit + 4096  # bounds the work on a megabyte, and leaves room for what is taken out below
    size = len(text)
    cut = size > raw
    text = (text[-raw:] if tail else text[:raw]) if cut else text
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    # A progress bar rewrites its line: keep what was left standing.
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    text = _CONTROLS.sub("", text).expandtabs(4).strip("\n")
    if len(text) > limit or cut:
        return (
            f"[cut: the end of {size:,} characters]\n{text[-limit:]}"
            if tail
            else f"{text[:limit]} [cut: {size:,} characters]"
        )
    return text


def _number(value: float) -> str:
    """Four significant digits; integers stay whole."""
    if isinstance(value, int):
        return str(value) if abs(value) < 10**15 else "more than 1e15"
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.4g}")
    if rounded == 0 or 1e-3 <= abs(rounded) < 1e7:
        return f"{rounded:.10f}".rstrip("0").rstrip(".")
    return f"{rounded:.4g}"


def _digits(value: float, digits: int) -> str:
    return _number(float(f"{value:.{digits}g}"))


def _inline(value: Any, depth: int = 0) -> str:
    """A JSON value on one line, long and deep ones shortened."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, str):
        return _clean(value)
    if depth == 3:
        return "(more, in the result file)"
    items = 40 if depth == 0 else 10
    if isinstance(value, dict):
        parts = [f"{_name(k)} {_inline(v, depth + 1)}" for k, v in islice(value.items(), items)]
    elif isinstance(value, list | tuple):
        parts = [_inline(v, depth + 1) for v in value[:items]]
    else:
        return f"({type(value).__name__})"
    if len(value) > items:
        parts.append(f"{len(value) - items} more, in the result file")
    joined = ", ".join(parts)
    return f"({joined})" if depth else joined


def _name(key: Any) -> str:
    return str(key)[:80].replace("_", " ")


def _rows(value: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Evidence as (label, text) lines: nested dicts become "outer / inner", everything else one line."""
    for key, item in value.items():
        label = prefix + _name(key)
        if isinstance(item, dict) and item and depth < 3:
            yield from _rows(item, label + " / ", depth + 1)
        elif isinstance(item, list) and len(item) > 1 and all(isinstance(v, dict) for v in item):
            for index, entry in enumerate(item[:12]):
                yield f"{label} {index + 1}", _inline(entry)
            if len(item) > 12:
                yield label, f"{len(item) - 12} more, in the result file"
        else:
            yield label, _inline(item)


def _cores(count: Any) -> str:
    return f"{count} core{'s' * (count != 1)}"


def _points(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _times(factor: float) -> str:
    digits = 2 if factor < 10 else 1 if factor < 100 else 0
    return f"{factor:.{digits}f}x"


def _earned(check: CheckResult) -> float:
    return 0.0 if check.status == NOT_MEASURED else check.points


def _share(check: CheckResult) -> float:
    return min(max(_earned(check) / check.max_points, 0.0), 1.0) if check.max_points > 0 else 0.0


# ---- what the numbers say -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Gain:
    """The throughput check's evidence, with everything that is no usable number taken out. Factors are speed-ups."""

    gain: float
    lower: float | None
    upper: float | None
    target: float | None
    reference: float | None
    certain: float | None
    ratios: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, check: CheckResult) -> _Gain | None:
        get = check.evidence.get
        gain = _positive(get("gain"))
        if gain is None or check.status == NOT_MEASURED:
            return None
        lower, upper = interval(check.evidence)
        target = _positive(get("target"))
        pairs = get("pairs") if isinstance(get("pairs"), list) else []
        ratios = [_ratio(pair) for pair in pairs[:200]]
        return cls(
            gain,
            lower,
            upper,
            target if target and target > 1 else None,
            _positive(get("reference_gain")),
            _positive(get("gain_certain")) or lower,
            [r for r in ratios if r is not None],
        )

    def span(self) -> tuple[float, float]:
        """The ends of a log axis that shows every mark, and the pairs as far as they do not squeeze the rest."""
        marks = [
            math.log(v) for v in (1, self.gain, self.lower, self.upper, self.certain, self.target, self.reference) if v
        ]
        low, high = min(marks), max(marks)
        size = max(high - low, math.log(1.2))
        inside = [math.log(r) for r in self.ratios]
        low = max(min([low, *inside]), low - 0.4 * size)
        high = min(max([high, *inside]), high + 0.4 * size)
        pad = 0.07 * max(high - low, math.log(1.2))
        return math.exp(low - pad), math.exp(high + pad)


def interval(evidence: dict[str, Any]) -> tuple[float, float] | tuple[None, None]:
    """The ends of the gain's 90% interval, where it is what the points are for."""
    lower, upper, certain = (_positive(evidence.get(name)) for name in ("gain_lower", "gain_upper", "gain_certain"))
    if lower is None or upper is None or lower > upper or (certain and not interval_counts(lower, certain)):
        return None, None
    return lower, upper


def _positive(value: Any) -> float | None:
    """A speed-up or a time as a float, or None. Beyond a million either way it is nonsense, not a measurement."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 1e-6 < value < 1e6 else None


def _ratio(pair: Any) -> float | None:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return None
    starter, submission = _positive(pair[0]), _positive(pair[1])
    return starter / submission if starter and submission else None


def _throughput(result: Result) -> tuple[CheckResult, _Gain] | None:
    for check in result.checks:
        if check.name == "throughput" and (gain := _Gain.of(check)):
            return check, gain
    return None


def _gain_headline(check: CheckResult, g: _Gain) -> str:
    said = f"{_times(g.gain)} the starter's speed"
    if g.lower and g.upper:
        said += f" (90% interval {_times(g.lower)} to {_times(g.upper)})"
    if check.evidence.get("untouched"):
        said += ": this is the starter itself"
    elif g.upper and g.upper < 1:
        said += ": slower than the starter" if check.status != INCONCLUSIVE else ": undecided"
    elif g.certain and g.certain <= 1:
        said += ": cannot be told from no change"
    before, after = _positive(check.evidence.get("starter_ms")), _positive(check.evidence.get("submission_ms"))
    if before and after:
        said += f". A step took {_digits(before, 3)} ms and now takes {_digits(after, 3)} ms"
    return said + "."


def _gain_notes(check: CheckResult, g: _Gain, letters: bool = False) -> list[str]:
    """What the points, the target and the scatter mean, one sentence or two each; `letters` ties them to marks."""
    notes = []
    source = check.evidence.get("target_source")
    if g.target:
        whence = f" ({_clean(source)})" if isinstance(source, str) and source else ""
        note = f"{'T = target' if letters else 'Target'} for full points: {_times(g.target)}{whence}."
        if g.lower:
            note += f" The lower end of the interval counts: {_times(g.lower)}."
        elif g.certain:
            note += f" {_times(g.certain)} is certain, and that counts."
        if g.certain and g.certain >= g.target and check.points < check.max_points:
            note += " The speed alone would earn all points; the checks say why it does not."
        notes.append(note)
    if g.reference:
        notes.append(
            f"{'R = the' if letters else 'The'} reference solution reaches {_times(g.reference)} on this machine."
        )
    noise = _positive(check.evidence.get("noise"))
    if g.ratios:
        pairs = "1 pair" if len(g.ratios) == 1 else f"{len(g.ratios)} pairs"
        scatter = f"; one pair's ratio scatters by {_digits(100 * noise, 2)}%" if noise else ""
        notes.append(f"{pairs} of timed blocks, starter against submission{scatter}.")
    compile_s = _positive(check.evidence.get("compile_s"))
    if compile_s:
        note = f"Compiling took {_digits(compile_s, 2)} s, not counted in these times."
        saved_ms = (_positive(check.evidence.get("starter_ms")) or 0) - (
            _positive(check.evidence.get("submission_ms")) or 0
        )
        if saved_ms > 0:
            note += f" It pays for itself after {math.ceil(1e3 * compile_s / saved_ms):,} steps."
        notes.append(note)
    return notes


def _warnings(result: Result) -> list[str]:
    shown, more = result.warnings[:MOST_WARNINGS], len(result.warnings) - MOST_WARNINGS
    return [*shown, f"{more} more, in the result file."] if more > 0 else shown


def _headline(result: Result) -> tuple[str, list[str]]:
    """The score, and the sentences without which it would mislead."""
    if not result.checks:
        return "not graded", []
    score = min(result.score, result.measured_max)
    notes = []
    unjudged = 0 if result.fatal else _unjudged(result)
    missing = result.max_score - result.measured_max - unjudged
    if missing > 0:
        # A grade that ended early says why itself; then it need not be the machine's fault.
        how = "were not measured" if result.fatal else "could not be measured on this machine"
        notes.append(f"{_points(missing)} of {_points(result.max_score)} points {how}.")
    if unjudged:
        of = f"{_points(unjudged)} of {_points(result.max_score)} points"
        notes.append(f"{of}, for the prediction, were not judged: no gain was measured to compare it with.")
    undecided = sum(c.max_points - c.points for c in result.checks if c.status == INCONCLUSIVE)
    if undecided > 0:
        noisy = any(c.name == "throughput" and c.status == INCONCLUSIVE for c in result.checks)
        why = "the measurement was too noisy for a verdict" if noisy else "each of these checks says why"
        if result.disturbed:
            seed = any(c.name == "parity" and c.status == INCONCLUSIVE for c in result.checks)
            why = "the seed of this grade tells nothing" if seed else "the machine was not fit to measure on"
        notes.append(f"{_points(undecided)} points are undecided: {why}.")
    if result.quick and result.form != "traces":  # answers are judged as in a full grade
        notes.append("A quick look: fewer measurements than a full grade takes, so points may still change.")
    if not result.measured_max and not result.fatal:
        return "no points to be had here", notes
    return f"{_points(score)} of {_points(result.max_score)} points", notes


def _unjudged(result: Result) -> float:
    """Points of a prediction that had no gain to be compared with, though this machine can measure one."""
    of = {check.name: check for check in result.checks}
    prediction, speed = of.get("prediction"), of.get("throughput")
    if not prediction or not speed or prediction.status != NOT_MEASURED or speed.status == NOT_MEASURED:
        return 0.0
    return prediction.max_points


def _foot(result: Result) -> list[str]:
    form = {"cuda": "GPU form", "cpu": "CPU form", "traces": "recorded traces"}.get(result.form, _clean(result.form))
    facts = [
        ("machine:", _clean(_known(result.machine))),
        ("versions:", _clean(_known(result.versions))),
        ("lab:", f"{_clean(result.lab)}, {form}"),
        ("date:", _clean(result.date)),
        ("seed:", "" if result.seed is None else _clean(str(result.seed))),
        ("not confined:", _clean(", ".join(_name(k) for k, held in result.confinement.items() if held is False))),
        ("grading took", f"{_number(round(result.seconds, 1))} s" if result.seconds else ""),
    ]
    return [f"{name} {value}" for name, value in facts if value]


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None and value != ""}


def _status(check: CheckResult) -> tuple[str, str, str, str]:
    """Status word, sign, colour, terminal colour."""
    if check.status == FAIL and check.points > 0:
        return ("PARTLY", *PARTLY)
    return (_clean(check.status), *SIGNS.get(check.status, NO_SIGN))


def _points_of(check: CheckResult) -> str:
    earned = "–" if check.status == NOT_MEASURED else _points(check.points)
    return f"{earned} / {_points(check.max_points)}"


# ---- pictures -----------------------------------------------------------------------------------------------------


def _ticks(low: float, high: float) -> list[float]:
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


def _draw_gain(check: CheckResult, g: _Gain) -> Figure:
    """Speed-up on a log axis: the interval, the pairs it comes from (first on top), and the points it earned."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    figure = Figure(figsize=(7.8, 2.45), facecolor="white")
    axes = figure.add_axes((0.16, 0.14, 0.82, 0.64))
    low, high = g.span()
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(0, 4)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(low, high)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.4g}x"))
    axes.tick_params(axis="x", labelsize=9, colors=BLACK, length=3)
    axes.set_yticks(
        [3.25, 1.8, 0.45],
        ["speed-up,\n90% interval" if g.lower else "speed-up", "each pair", f"points\n{_points_of(check)}"],
        fontsize=9,
        color=BLACK,
    )
    axes.tick_params(axis="y", length=0)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)

    # The points run linearly along this axis, from none at 1x to all at the target.
    if g.target:
        axes.barh(0.45, g.target - 1, left=1, height=0.42, color="#e5e7eb", zorder=1)
        axes.barh(0.45, g.target ** _share(check) - 1, left=1, height=0.42, color=GREEN, zorder=2)

    def mark(x: float, words: str, height: float, colour: str, style: str) -> None:
        axes.plot([x, x], [0, 4 + height], color=colour, linestyle=style, linewidth=1.4, clip_on=False, zorder=3)
        right_half = math.log(x / low) > 0.5 * math.log(high / low)
        words = f"{words} " if right_half else f" {words}"
        axes.text(
            x, 4 + height, words, ha="right" if right_half else "left", va="center", fontsize=9, color=BLACK, zorder=6
        )

    mark(1, "starter 1x", 0.15, BLACK, "-")
    if g.target:
        mark(g.target, f"target {_times(g.target)}", 0.62, GREEN, "--")
    if g.reference:
        mark(g.reference, f"reference solution {_times(g.reference)}", 1.09, PURPLE, "-.")

    count = len(g.ratios)
    for index, ratio in enumerate(g.ratios):
        y = 1.8 + (0.65 - 1.3 * index / (count - 1) if count > 1 else 0)
        shape = "o" if low <= ratio <= high else "<" if ratio < low else ">"
        size = 16 if count <= 30 else 8
        axes.scatter(
            [min(max(ratio, low), high)], [y], s=size, marker=shape, color=SKY, edgecolor=BLUE, linewidth=0.6, zorder=4
        )
    if g.lower and g.upper:
        axes.axvspan(g.lower, g.upper, 0.27, 0.82, color=SKY, alpha=0.18, linewidth=0, zorder=0)
        axes.plot([g.lower, g.upper], [3.25, 3.25], color=BLUE, linewidth=3, solid_capstyle="butt", zorder=5)
        for end in (g.lower, g.upper):
            axes.plot([end, end], [3.05, 3.45], color=BLUE, linewidth=1.6, zorder=5)
    axes.scatter([g.gain], [3.25], s=40, color=BLUE, edgecolor="white", linewidth=1, zorder=6)
    return figure


def _image(draw: Any, alt: str) -> str:
    """`draw()`'s figure as an <img>: SVG, or PNG where a crowded SVG would be too large.

    The learner's kernel may have a style of its own (dark backgrounds, other fonts), so the drawing starts from
    matplotlib's defaults. A picture that cannot be drawn costs the picture, never the report."""
    try:
        import matplotlib

        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams["svg.hashsalt"] = "report"  # the same result gives the same bytes
            matplotlib.rcParams["text.parse_math"] = False  # a dollar sign in a name is a dollar sign
            figure = draw()
            for kind, mime, dpi in (
                ("svg", "svg+xml", 72),
                ("png", "png", 150),
                ("png", "png", 100),
                ("png", "png", 60),
            ):
                buffer = io.BytesIO()
                metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
                figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
                if kind == "png":
                    buffer = with_palette(buffer, 64)  # nothing that one could see is lost
                data = base64.b64encode(buffer.getvalue()).decode()
                if len(data) <= PICTURE_BYTES:
                    source = f"data:image/{mime};base64,{data}"
                    return f'<img class="sp-picture" src="{source}" alt="{escape(alt)}">'
        return '<p class="sp-note">A picture was too large to show.</p>'
    except Exception as error:
        return f'<p class="sp-note">A picture could not be drawn: {_html(repr(error))}</p>'


def with_palette(png: io.BytesIO, colors: int) -> io.BytesIO:
    """The same picture with so many colours at most, up to 256: a third of the bytes. One that has no more keeps each pixel."""
    from PIL import Image

    smaller = io.BytesIO()
    with Image.open(png) as image:
        image.convert("RGB").quantize(colors).save(smaller, "png", optimize=True)
    return smaller


def _draw_timelines(result: Result) -> Figure:
    from grader.trace.picture import draw

    # a lab whose loop records itself has one only, and nothing before it
    return draw({"your trace": result.timelines["after"]} if [*result.timelines] == ["after"] else result.timelines)


# ---- HTML ---------------------------------------------------------------------------------------------------------

# No tables, and every rule behind the report's own class: JupyterLab's themes colour tables, code and pre of outputs
# (with ":not(pre) > code", which only the class named twice outranks); nbgrader's pages take the triangle of a summary
# away and frame every picture in red. The report keeps its light paper in dark themes, where its pictures would otherwise be
# unreadable.
_CSS = """
.speed-report { color-scheme: light; background: #fff; color: #1b1f23; border: 1px solid #d0d7de; border-radius: 6px;
  padding: 16px 20px 10px; max-width: 880px; box-sizing: border-box; text-align: left;
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
.speed-report * { box-sizing: border-box; }
.speed-report div, .speed-report span, .speed-report p, .speed-report summary { color: #1b1f23; }
.speed-report p { margin: 2px 0; padding: 0; }
.speed-report.speed-report code, .speed-report.speed-report pre { color: #1b1f23;
  font: 12.5px/1.4 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  background: rgba(27, 31, 35, .07); border: 0; border-radius: 3px; padding: 0 2px; }
.speed-report.speed-report pre { padding: 8px 10px; margin: 6px 0; max-height: 24em; overflow: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; word-break: normal; }
.speed-report .sp-head { display: flex; flex-wrap: wrap; justify-content: space-between; align-items: baseline;
  gap: 0 20px; }
.speed-report .sp-title { font-size: 20px; font-weight: 600; overflow-wrap: anywhere; }
.speed-report .sp-score { font-size: 20px; font-weight: 600; white-space: nowrap; }
.speed-report .sp-bar { display: flex; gap: 3px; height: 8px; margin: 8px 0 6px; }
.speed-report .sp-bar span { display: block; background: #e5e7eb; border-radius: 2px; min-width: 3px;
  overflow: hidden; }
.speed-report .sp-bar span.sp-hatch { background: repeating-linear-gradient(135deg, #c3c9d0 0 3px, #fff 3px 7px); }
.speed-report .sp-bar i { display: block; height: 100%; }
.speed-report .sp-say { border-left: 3px solid #6b7280; padding-left: 9px; margin: 5px 0; font-weight: 600; }
.speed-report .sp-fatal { border: 1px solid #D55E00; border-left-width: 6px; border-radius: 4px; background: #fdf3ec;
  padding: 9px 12px; margin: 10px 0; }
.speed-report .sp-fatal .sp-what { white-space: pre-wrap; overflow-wrap: anywhere; }
.speed-report .sp-warning { border-left: 3px solid #E69F00; padding-left: 9px; margin: 5px 0; overflow-wrap: anywhere; }
.speed-report .sp-section { margin: 14px 0 4px; padding-top: 10px; border-top: 1px solid #e5e7eb; }
.speed-report .sp-big { font-weight: 600; }
.speed-report .sp-note { color: #4b5563; font-size: 13px; }
.speed-report img.sp-picture { display: block; width: 100%; max-width: 780px; height: auto; margin: 6px 0;
  background: #fff; border: 0; }
.speed-report .sp-check { display: flex; flex-wrap: wrap; gap: 2px 14px; padding: 9px 0 9px 10px;
  margin: 6px 0; border-left: 4px solid; }
.speed-report .sp-status { flex: 0 0 150px; font-weight: 600; white-space: nowrap; font-size: 13px; line-height: 20px; }
.speed-report .sp-status span { display: inline-block; width: 20px; height: 20px; line-height: 20px;
  border-radius: 10px; margin-right: 7px; text-align: center; color: #fff; font-weight: 700; }
.speed-report .sp-points { white-space: nowrap; text-align: right;
  font-variant-numeric: tabular-nums; }
.speed-report .sp-body { flex: 1 1 340px; min-width: 0; overflow-wrap: anywhere; }
.speed-report .sp-name { display: flex; justify-content: space-between; gap: 14px; font-weight: 600; }
.speed-report .sp-hint { background: #eef6fb; border-radius: 4px; padding: 4px 9px; margin: 5px 0; }
.speed-report details { margin: 4px 0 0; padding: 0; background: none; border: 0; }
.speed-report summary { display: list-item; cursor: pointer; color: #0072B2; font-size: 13px;
  font-weight: normal; background: none; }
.speed-report .sp-rows { display: grid; grid-template-columns: minmax(90px, max-content) 1fr; gap: 2px 14px;
  margin: 5px 0; font-size: 12.5px; }
.speed-report .sp-rows span { overflow-wrap: anywhere; white-space: pre-wrap; font-variant-numeric: tabular-nums; }
.speed-report .sp-rows span:nth-child(odd) { color: #4b5563; max-width: 230px; }
.speed-report .sp-foot { margin-top: 12px; padding-top: 7px; border-top: 1px solid #e5e7eb; color: #4b5563;
  font-size: 12px; overflow-wrap: anywhere; }
@media print { .speed-report pre { max-height: none; } }
"""

# Belt and braces: should anything slip through the escaping, a standalone page still runs no script and loads nothing.
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title></head>
<body style="margin: 24px auto; max-width: 880px; padding: 0 8px; background: #f6f8fa">
{body}
</body></html>
"""


def _html(value: Any, limit: int = WHOLE, tail: bool = False) -> str:
    return escape(_clean(value, limit, tail))


def _prose(value: Any, limit: int = WHOLE) -> str:
    """Escaped text in which `backticks` show as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", _html(value, limit))


def _evidence_html(evidence: dict[str, Any], limit: int) -> str:
    if not evidence:
        return ""
    cells: list[str] = []
    if interval(evidence) == (None, None):
        evidence = {name: value for name, value in evidence.items() if name not in ("gain_lower", "gain_upper")}
    for label, value in _rows(evidence):
        cell = f"<span>{_html(label)}</span><span>{_html(value)}</span>"
        limit -= len(cell)
        if limit < 0 or len(cells) == 80:
            cells.append("<span>more</span><span>in the result file</span>")
            break
        cells.append(cell)
    return f'<details><summary>Evidence</summary><div class="sp-rows">{"".join(cells)}</div></details>'


def _hints_html(check: CheckResult, open_all: bool) -> str:
    """The first hint; each deeper one opens within the one before, so that nobody reads more than they ask for."""
    if not check.hint:
        return ""
    inner = ""
    for depth, hint in reversed(list(enumerate(check.more_hints))):
        name = HINT_NAMES[min(depth, len(HINT_NAMES) - 1)]
        inner = f"<details{' open' if open_all else ''}><summary>{name}</summary><p>{_prose(hint)}</p>{inner}</details>"
    return f'<div class="sp-hint"><p><b>Try next:</b> {_prose(check.hint)}</p>{inner}</div>'


def _check_html(check: CheckResult, evidence_limit: int, all_hints: bool = False) -> str:
    word, sign, colour, _ = _status(check)
    return (
        f'<div class="sp-check" style="border-left-color: {colour}">'
        f'<div class="sp-status"><span style="background: {colour}">{sign}</span>{escape(word)}</div>'
        f'<div class="sp-body"><div class="sp-name"><div>{_prose(check.title)}</div>'
        f'<div class="sp-points">{_points_of(check)}</div></div>'
        f"<p>{_prose(check.reason)}</p>{_hints_html(check, all_hints)}{_evidence_html(check.evidence, evidence_limit)}</div></div>"
    )


def _bar_html(checks: list[CheckResult]) -> str:
    """One segment a check, as wide as its points; hatched where nothing was measured."""
    segments = []
    for check in checks:
        if check.max_points <= 0:
            continue
        hatch = ' class="sp-hatch"' if check.status == NOT_MEASURED else ""
        fill = f'<i style="width: {100 * _share(check):.1f}%; background: {_status(check)[2]}"></i>'
        title = escape(f"{_clean(check.title)}: {_points_of(check)}")
        segments.append(f'<span{hatch} style="flex: {check.max_points:g}" title="{title}">{fill}</span>')
    return f'<div class="sp-bar">{"".join(segments)}</div>' if segments else ""


def _output_html(result: Result, opened: bool) -> str:
    if not result.output:
        return ""
    return (
        f"<details{' open' if opened else ''}><summary>What the submission printed</summary>"
        f"<pre>{_html(result.output, OUTPUT_CHARACTERS, tail=True)}</pre></details>"
    )


def html(result: Result, standalone: bool = False, all_hints: bool = False) -> str:
    """The report as one self-contained piece of HTML (no scripts, nothing to load; under 300 KB, but for floods
    of text, which are cut).

    `standalone` puts a page around it, for a file; without, it fits an output cell of a notebook. `all_hints` opens the
    deeper hints at once, for feedback: there a grade is final, and was made on another machine."""
    title = _prose(result.title)
    score, notes = _headline(result)
    if all_hints and any(check.status == INCONCLUSIVE for check in result.checks):
        notes.append("A class's machine measured this, not yours: your instructor can have it measured again.")
    parts = [
        f'<div class="sp-head"><div class="sp-title">{title}</div><div class="sp-score">{score}</div></div>',
        _bar_html(result.checks),
        *(f'<p class="sp-say">{escape(note)}</p>' for note in notes),
    ]
    if result.fatal:
        parts.append(
            '<div class="sp-fatal"><div class="sp-big">✗ The grade ended early</div>'
            f'<div class="sp-what">{_prose(result.fatal, 2 * WHOLE)}</div>{_output_html(result, opened=True)}</div>'
        )
    parts += [f'<p class="sp-warning"><b>Note:</b> {_prose(warning)}</p>' for warning in _warnings(result)]
    if found := _throughput(result):
        check, gain = found
        said = _gain_headline(check, gain)
        parts.append(f'<div class="sp-section"><p class="sp-big">{escape(said)}</p>')
        parts.append(_image(lambda: _draw_gain(check, gain), f"Speed-up on a logarithmic axis: {said}"))
        parts.append(f'<p class="sp-note">{_prose(" ".join(_gain_notes(check, gain)))}</p></div>')
    if result.timelines:
        parts.append('<div class="sp-section"><p class="sp-big">Where the time of a step goes</p>')
        parts.append(_image(lambda: _draw_timelines(result), "Timelines of the starter and of the submission"))
        parts.append("</div>")
    if result.checks:
        each = EVIDENCE_CHARACTERS // len(result.checks)
        parts.append('<div class="sp-section">')
        parts += [_check_html(check, each, all_hints) for check in result.checks]
        parts.append("</div>")
    if not result.fatal:
        parts.append(_output_html(result, opened=False))
    parts.append(f'<div class="sp-foot">{" · ".join(escape(fact) for fact in _foot(result))}</div>')
    # The two "ignore" classes keep MathJax, which JupyterLab and nbconvert run over outputs, away from dollar signs.
    body = (
        f'<div class="speed-report tex2jax_ignore mathjax_ignore"><style>{_CSS}</style>\n' + "\n".join(parts) + "</div>"
    )
    return _PAGE.format(title=_html(result.title), body=body) if standalone else body


def write_html(result: Result, path: str | Path) -> None:
    """Write the standalone page to `path`, whole or not at all."""
    write_text(path, html(result, standalone=True))


# ---- text ---------------------------------------------------------------------------------------------------------


def text(result: Result, width: int = 80, colour: bool = False) -> str:
    """The report for a terminal of `width` columns; escape codes only with `colour`."""
    width = max(width, 50)

    def paint(words: str, code: str) -> str:
        return f"\x1b[{code}m{words}\x1b[0m" if colour else words

    score, notes = _headline(result)
    title, *more = _wrap(result.title, width - len(score) - 2)
    lines = [paint(title + " " * (width - len(title) - len(score)) + score, "1")]
    lines += [*(paint(line, "1") for line in more), "─" * width]
    for note in notes:
        lines += _wrap(note, width)
    if result.fatal:
        lines += [paint("✗ The grade ended early", "1;31"), *_wrap(_clean(result.fatal, 2 * WHOLE), width, "  ")]
        printed = _clean(result.output, OUTPUT_CHARACTERS, tail=True).splitlines()[-PRINTED_LINES:]
        printed = [part for line in printed for part in textwrap.wrap(line, width - 4, drop_whitespace=False)]
        if printed:
            lines += ["  The end of what it printed:", *(f"  │ {line}" for line in printed[-PRINTED_LINES:])]
    for warning in _warnings(result):
        lines += _wrap(f"Note: {warning}", width)
    if found := _throughput(result):
        check, gain = found
        lines += ["", *_wrap(_gain_headline(check, gain), width), *_gain_bar(gain, width)]
        lines += _wrap(" ".join(_gain_notes(check, gain, letters=True)), width)
    lines.append("")
    for check in result.checks:
        word, sign, _, code = _status(check)
        points = _points_of(check)
        name = _wrap(check.title, width - 18 - len(points))
        lines.append(
            f"{paint(f'{sign} {word:<14}', code)}{paint(name[0].ljust(width - 16 - len(points)) + points, '1')}"
        )
        lines += [paint(" " * 16 + more, "1") for more in name[1:]]
        lines += _wrap(check.reason, width, "    ")
        if check.hint:
            lines += _wrap(f"→ {check.hint}", width, "    ")
            if check.more_hints:
                lines += _wrap(f"More: grader hint {result.lab} {check.name} --depth 2", width, "      ")
    lines += ["─" * width, *_wrap(" · ".join(_foot(result)), width)]
    return "\n".join(line.rstrip() for line in lines)


def _wrap(value: Any, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width` columns, the text's own line breaks kept; at least one, so that a title can be taken from it."""
    wrapped: list[str] = []
    for line in _clean(value, 2 * WHOLE).splitlines():
        wrapped += textwrap.wrap(line, width, initial_indent=indent, subsequent_indent=indent)
    return wrapped or [""]


def _gain_bar(g: _Gain, width: int) -> list[str]:
    """The interval on a log axis, and below it where the starter (1x), the target (T) and the reference (R) lie."""
    low, high = g.span()

    def column(factor: float) -> int:
        return round((width - 1) * math.log(factor / low) / math.log(high / low))

    bar = ["─"] * width
    if g.lower and g.upper:
        middle = min(max(column(g.gain), 1), width - 2)
        left, right = min(column(g.lower), middle - 1), max(column(g.upper), middle + 1)
        bar[left : right + 1] = "━" * (right - left + 1)
        bar[left], bar[right] = "┣", "┫"
    bar[column(g.gain)] = "●"
    marks = [" "] * width
    start = min(column(1), width - 2)
    marks[start : start + 2] = "1x"
    for letter, factor in (("T", g.target), ("R", g.reference)):
        if factor:  # where the place is taken, the nearest free one beside it
            at = min((i for i in range(width) if marks[i] == " "), key=lambda i: abs(i - column(factor)))
            marks[at] = letter
    return ["".join(bar), "".join(marks)]
