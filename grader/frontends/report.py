"""The report of one grade, as HTML for a notebook, a feedback page or a file, and as text for the terminal.

Every word of a `Result` is untrusted: reasons quote the learner's code and the output is whatever it printed. So all of
it goes through `safe_text.clean` (no control or escape characters, no flood) and, in HTML, through `html.escape`.
Pictures are embedded as images, where neither markup nor styles can reach the page around them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader import web_page
from grader.checks.throughput import interval_counts
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, CheckResult, Result, write_text
from grader.safe_text import (
    WHOLE,
    clean,
    inline,
    key_words,
    number,
    plausible,
    prose_to_html,
    rounded,
    times,
    to_html,
    wrap,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe & Ito's palette, told apart with every common form of colour blindness. A colour never stands alone: a sign and
# a word always say the same.
BLACK, GREY, SKY, BLUE = "#1b1f23", "#6b7280", "#56B4E9", "#0072B2"
GREEN, ORANGE, VERMILLION, PURPLE = "#009E73", "#E69F00", "#D55E00", "#CC79A7"
SIGNS = {PASS: ("✓", GREEN, "32"), FAIL: ("✗", VERMILLION, "31"), INCONCLUSIVE: ("?", ORANGE, "33")}
PARTLY = ("◐", ORANGE, "33")  # how FAIL is shown where some of the points were earned
NO_SIGN = ("–", GREY, "90")

MOST_WARNINGS = 12
PRINTED_LINES = 14  # in a terminal, of the end of what the submission printed
HINT_NAMES = ("Where to look", "What to do")  # of the deeper ones
EVIDENCE_CHARACTERS = 60_000  # of all checks together, after escaping
OUTPUT_CHARACTERS = 6_000  # the end of what the submission printed; escaping can make it six times as long


def _rows(value: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Evidence as (label, text) lines: nested dicts become "outer / inner", everything else one line."""
    for key, item in value.items():
        label = prefix + key_words(key)
        if isinstance(item, dict) and item and depth < 3:
            yield from _rows(item, label + " / ", depth + 1)
        elif isinstance(item, list) and len(item) > 1 and all(isinstance(v, dict) for v in item):
            for index, entry in enumerate(item[:12]):
                yield f"{label} {index + 1}", inline(entry)
            if len(item) > 12:
                yield label, f"{len(item) - 12} more, in the result file"
        else:
            yield label, inline(item)


def _points(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


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
        gain = plausible(get("gain"))
        if gain is None or check.status == NOT_MEASURED:
            return None
        lower, upper = interval(check.evidence)
        target = plausible(get("target"))
        pairs = get("pairs") if isinstance(get("pairs"), list) else []
        ratios = [_ratio(pair) for pair in pairs[:200]]
        return cls(
            gain,
            lower,
            upper,
            target if target and target > 1 else None,
            plausible(get("reference_gain")),
            plausible(get("gain_certain")) or lower,
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
    lower, upper, certain = (plausible(evidence.get(name)) for name in ("gain_lower", "gain_upper", "gain_certain"))
    if lower is None or upper is None or lower > upper or (certain and not interval_counts(lower, certain)):
        return None, None
    return lower, upper


def _ratio(pair: Any) -> float | None:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return None
    starter, submission = plausible(pair[0]), plausible(pair[1])
    return starter / submission if starter and submission else None


def _throughput(result: Result) -> tuple[CheckResult, _Gain] | None:
    for check in result.checks:
        if check.name == "throughput" and (gain := _Gain.of(check)):
            return check, gain
    return None


def _gain_headline(check: CheckResult, g: _Gain) -> str:
    said = f"{times(g.gain)} the starter's speed"
    if g.lower and g.upper:
        said += f" (90% interval {times(g.lower)} to {times(g.upper)})"
    if check.evidence.get("untouched"):
        said += ": this is the starter itself"
    elif g.upper and g.upper < 1:
        said += ": slower than the starter" if check.status != INCONCLUSIVE else ": undecided"
    elif g.certain and g.certain <= 1:
        said += ": cannot be told from no change"
    before, after = plausible(check.evidence.get("starter_ms")), plausible(check.evidence.get("submission_ms"))
    if before and after:
        said += f". A step took {rounded(before, 3)} ms and now takes {rounded(after, 3)} ms"
    return said + "."


def _gain_notes(check: CheckResult, g: _Gain, letters: bool = False) -> list[str]:
    """What the points, the target and the scatter mean, one sentence or two each; `letters` ties them to marks."""
    notes = []
    source = check.evidence.get("target_source")
    if g.target:
        whence = f" ({clean(source)})" if isinstance(source, str) and source else ""
        note = f"{'T = target' if letters else 'Target'} for full points: {times(g.target)}{whence}."
        if g.lower:
            note += f" The lower end of the interval counts: {times(g.lower)}."
        elif g.certain:
            note += f" {times(g.certain)} is certain, and that counts."
        if g.certain and g.certain >= g.target and check.points < check.max_points:
            note += " The speed alone would earn all points; the checks say why it does not."
        notes.append(note)
    if g.reference:
        notes.append(
            f"{'R = the' if letters else 'The'} reference solution reaches {times(g.reference)} on this machine."
        )
    noise = plausible(check.evidence.get("noise"))
    if g.ratios:
        pairs = "1 pair" if len(g.ratios) == 1 else f"{len(g.ratios)} pairs"
        scatter = f"; one pair's ratio scatters by {rounded(100 * noise, 2)}%" if noise else ""
        notes.append(f"{pairs} of timed blocks, starter against submission{scatter}.")
    compile_s = plausible(check.evidence.get("compile_s"))
    if compile_s:
        note = f"Compiling took {rounded(compile_s, 2)} s, not counted in these times."
        saved_ms = (plausible(check.evidence.get("starter_ms")) or 0) - (
            plausible(check.evidence.get("submission_ms")) or 0
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
    form = {"cuda": "GPU form", "cpu": "CPU form", "traces": "recorded traces"}.get(result.form, clean(result.form))
    facts = [
        ("machine:", clean(_known(result.machine))),
        ("versions:", clean(_known(result.versions))),
        ("lab:", f"{clean(result.lab)}, {form}"),
        ("date:", clean(result.date)),
        ("seed:", "" if result.seed is None else clean(str(result.seed))),
        ("not confined:", clean(", ".join(key_words(k) for k, held in result.confinement.items() if held is False))),
        ("grading took", f"{number(round(result.seconds, 1))} s" if result.seconds else ""),
    ]
    return [f"{name} {value}" for name, value in facts if value]


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None and value != ""}


def _status(check: CheckResult) -> tuple[str, str, str, str]:
    """Status word, sign, colour, terminal colour."""
    if check.status == FAIL and check.points > 0:
        return ("PARTLY", *PARTLY)
    return (clean(check.status), *SIGNS.get(check.status, NO_SIGN))


def points_of(check: CheckResult) -> str:
    earned = "–" if check.status == NOT_MEASURED else _points(check.points)
    return f"{earned} / {_points(check.max_points)}"


# ---- pictures -----------------------------------------------------------------------------------------------------


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
    axes.xaxis.set_major_locator(FixedLocator(log_ticks(low, high)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.4g}x"))
    axes.tick_params(axis="x", labelsize=9, colors=BLACK, length=3)
    axes.set_yticks(
        [3.25, 1.8, 0.45],
        ["speed-up,\n90% interval" if g.lower else "speed-up", "each pair", f"points\n{points_of(check)}"],
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
        mark(g.target, f"target {times(g.target)}", 0.62, GREEN, "--")
    if g.reference:
        mark(g.reference, f"reference solution {times(g.reference)}", 1.09, PURPLE, "-.")

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


def _draw_timelines(result: Result) -> Figure:
    from grader.trace.picture import draw

    # a lab whose loop records itself has one only, and nothing before it
    return draw({"your trace": result.timelines["after"]} if [*result.timelines] == ["after"] else result.timelines)


# ---- HTML ---------------------------------------------------------------------------------------------------------


def _evidence_html(evidence: dict[str, Any], limit: int) -> str:
    if not evidence:
        return ""
    cells: list[str] = []
    if interval(evidence) == (None, None):
        evidence = {name: value for name, value in evidence.items() if name not in ("gain_lower", "gain_upper")}
    for label, value in _rows(evidence):
        cell = f"<span>{to_html(label)}</span><span>{to_html(value)}</span>"
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
        inner = f"<details{' open' if open_all else ''}><summary>{name}</summary><p>{prose_to_html(hint)}</p>{inner}</details>"
    return f'<div class="sp-hint"><p><b>Try next:</b> {prose_to_html(check.hint)}</p>{inner}</div>'


def _check_html(check: CheckResult, evidence_limit: int, all_hints: bool = False) -> str:
    word, sign, colour, _ = _status(check)
    return (
        f'<div class="sp-check" style="border-left-color: {colour}">'
        f'<div class="sp-status"><span style="background: {colour}">{sign}</span>{escape(word)}</div>'
        f'<div class="sp-body"><div class="sp-name"><div>{prose_to_html(check.title)}</div>'
        f'<div class="sp-points">{points_of(check)}</div></div>'
        f"<p>{prose_to_html(check.reason)}</p>{_hints_html(check, all_hints)}{_evidence_html(check.evidence, evidence_limit)}</div></div>"
    )


def row_html(check: CheckResult) -> str:
    """One check alone, as in the report."""
    return _check_html(check, EVIDENCE_CHARACTERS)


def row_text(check: CheckResult) -> str:
    """One check alone, in a line."""
    return f"{check.title}: {_status(check)[0]}, {points_of(check)} points. {check.reason}"


def _bar_html(checks: list[CheckResult]) -> str:
    """One segment a check, as wide as its points; hatched where nothing was measured."""
    segments = []
    for check in checks:
        if check.max_points <= 0:
            continue
        hatch = ' class="sp-hatch"' if check.status == NOT_MEASURED else ""
        fill = f'<i style="width: {100 * _share(check):.1f}%; background: {_status(check)[2]}"></i>'
        title = escape(f"{clean(check.title)}: {points_of(check)}")
        segments.append(f'<span{hatch} style="flex: {check.max_points:g}" title="{title}">{fill}</span>')
    return f'<div class="sp-bar">{"".join(segments)}</div>' if segments else ""


def _output_html(result: Result, opened: bool) -> str:
    if not result.output:
        return ""
    return (
        f"<details{' open' if opened else ''}><summary>What the submission printed</summary>"
        f"<pre>{to_html(result.output, OUTPUT_CHARACTERS, tail=True)}</pre></details>"
    )


def html(result: Result, standalone: bool = False, all_hints: bool = False) -> str:
    """The report as one self-contained piece of HTML (no scripts, nothing to load; under 300 KB, but for floods
    of text, which are cut).

    `standalone` puts a page around it, for a file; without, it fits an output cell of a notebook. `all_hints` opens the
    deeper hints at once, for feedback: there a grade is final, and was made on another machine."""
    title = prose_to_html(result.title)
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
            f'<div class="sp-what">{prose_to_html(result.fatal, 2 * WHOLE)}</div>{_output_html(result, opened=True)}</div>'
        )
    parts += [f'<p class="sp-warning"><b>Note:</b> {prose_to_html(warning)}</p>' for warning in _warnings(result)]
    if found := _throughput(result):
        check, gain = found
        said = _gain_headline(check, gain)
        parts.append(f'<div class="sp-section"><p class="sp-big">{escape(said)}</p>')
        parts.append(web_page.image(lambda: _draw_gain(check, gain), f"Speed-up on a logarithmic axis: {said}"))
        parts.append(f'<p class="sp-note">{prose_to_html(" ".join(_gain_notes(check, gain)))}</p></div>')
    if result.timelines:
        parts.append('<div class="sp-section"><p class="sp-big">Where the time of a step goes</p>')
        parts.append(web_page.image(lambda: _draw_timelines(result), "Timelines of the starter and of the submission"))
        parts.append("</div>")
    if result.checks:
        each = EVIDENCE_CHARACTERS // len(result.checks)
        parts.append('<div class="sp-section">')
        parts += [_check_html(check, each, all_hints) for check in result.checks]
        parts.append("</div>")
    if not result.fatal:
        parts.append(_output_html(result, opened=False))
    parts.append(f'<div class="sp-foot">{" · ".join(escape(fact) for fact in _foot(result))}</div>')
    body = "\n".join(parts)
    return web_page.page(result.title, body) if standalone else web_page.paper(body)


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
    title, *more = wrap(result.title, width - len(score) - 2)
    lines = [paint(title + " " * (width - len(title) - len(score)) + score, "1")]
    lines += [*(paint(line, "1") for line in more), "─" * width]
    for note in notes:
        lines += wrap(note, width)
    if result.fatal:
        lines += [paint("✗ The grade ended early", "1;31"), *wrap(clean(result.fatal, 2 * WHOLE), width, "  ")]
        printed = clean(result.output, OUTPUT_CHARACTERS, tail=True).splitlines()[-PRINTED_LINES:]
        printed = [part for line in printed for part in textwrap.wrap(line, width - 4, drop_whitespace=False)]
        if printed:
            lines += ["  The end of what it printed:", *(f"  │ {line}" for line in printed[-PRINTED_LINES:])]
    for warning in _warnings(result):
        lines += wrap(f"Note: {warning}", width)
    if found := _throughput(result):
        check, gain = found
        lines += ["", *wrap(_gain_headline(check, gain), width), *_gain_bar(gain, width)]
        lines += wrap(" ".join(_gain_notes(check, gain, letters=True)), width)
    lines.append("")
    for check in result.checks:
        word, sign, _, code = _status(check)
        points = points_of(check)
        name = wrap(check.title, width - 18 - len(points))
        lines.append(
            f"{paint(f'{sign} {word:<14}', code)}{paint(name[0].ljust(width - 16 - len(points)) + points, '1')}"
        )
        lines += [paint(" " * 16 + more, "1") for more in name[1:]]
        lines += wrap(check.reason, width, "    ")
        if check.hint:
            lines += wrap(f"→ {check.hint}", width, "    ")
            if check.more_hints:
                lines += wrap(f"More: grader hint {result.lab} {check.name} --depth 2", width, "      ")
    lines += ["─" * width, *wrap(" · ".join(_foot(result)), width)]
    return "\n".join(line.rstrip() for line in lines)


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
