"""The report of one grade, as HTML for a notebook, a feedback page or a file, and as text for the terminal.

Every word of a `Result` is untrusted: reasons quote the learner's code. So all of it goes through `safe_text.clean` and, in HTML,
through `html.escape`; pictures are images, where neither markup nor styles can reach the page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader import trace, web_page
from grader.frontends import evidence_words
from grader.frontends import gain as gains
from grader.frontends.gain import Gain
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, CheckResult, Result, write_text
from grader.safe_text import WHOLE, clean, inline, key_words, number, painter, plausible, prose_to_html, to_html, wrap
from grader.web_page import GREEN, GREY, ORANGE, VERMILION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIGNS = {PASS: ("✓", GREEN, "32"), FAIL: ("✗", VERMILION, "31"), INCONCLUSIVE: ("?", ORANGE, "33")}
PARTLY = ("◐", ORANGE, "33")  # how a check is shown that earned some of its points and not all
NO_SIGN = ("–", GREY, "90")
FORMS = {"cuda": "GPU form", "cpu": "CPU form", "traces": "recorded traces"}

# how a report's last lines say what is known of the machine, and of the software
MACHINE = {"gpu": "{}", "gpu_memory_gb": "{} GB", "driver": "driver {}", "cpu": "{}", "cores": "{}", "os": "{}"}  # fmt: skip
MOST_FACTS = 40  # without words of their own
VERSIONS = {"python": "Python {}", "torch": "torch {}"}

FASTER_RECORDED = 0.9  # a recorded step that takes less of a timed one has waited less
MOST_WARNINGS = 12
PRINTED_LINES = 14  # in a terminal, of the end of what the submission printed
HINT_NAMES = ("Where to look", "What to do")  # of the deeper ones
EVIDENCE_CHARACTERS = 60_000  # of all checks together, after escaping
MOST_EVIDENCE = 80  # lines of a check
TRACEBACK = "Traceback (most recent call last)"
OUTPUT_CHARACTERS = 6_000  # the end of what the submission printed; escaping can make it six times as long
REQUIRED = "required"
TOO_EARLY = "✗ The grade ended early"


# ---------------------------------------------------------------- what the numbers say


def _points(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _share(check: CheckResult) -> float:
    """Of a check's points, from 0 to 1."""
    if check.status == NOT_MEASURED or check.max_points <= 0:
        return 0.0
    return min(max(check.points / check.max_points, 0.0), 1.0)


def _warnings(result: Result) -> list[str]:
    shown, more = result.warnings[:MOST_WARNINGS], len(result.warnings) - MOST_WARNINGS
    return [*shown, f"{more} more, in the result file."] if more > 0 else shown


def headline(result: Result) -> tuple[str, list[str]]:
    """The score, and the sentences without which it would mislead."""
    if not result.checks:
        return "not graded", []
    most, notes = _points(result.max_score), []
    unjudged = 0.0 if result.fatal else _unjudged(result)
    missing = result.max_score - result.measured_max - unjudged
    if missing > 0:
        # A grade that ended early says why itself; then it need not be the machine's fault.
        how = "were not measured" if result.fatal else "could not be measured on this machine"
        notes.append(f"{_points(missing)} of {most} points {how}.")
    if unjudged:
        why = "no gain was measured to compare it with"
        notes.append(
            f"{_points(unjudged)} of {most} points are for the prediction. They were not judged, because {why}."
        )
    undecided = [check for check in result.checks if check.status == INCONCLUSIVE]
    if (points := sum(check.max_points - check.points for check in undecided)) > 0:
        why = _why_undecided(result, {check.name for check in undecided})
        notes.append(f"{_points(points)} points are undecided, because {why}.")
    if result.quick and result.form != "traces":  # answers are judged as in a full grade
        notes.append("This was a quick look with fewer measurements than a full grade, so points may still change.")
    if result.size_why:
        notes.append(clean(result.size_why))
    if not result.measured_max and not result.fatal:
        return "no points on this machine", notes
    return f"{_points(min(result.score, result.measured_max))} of {most} points", notes


def _why_undecided(result: Result, names: set[str]) -> str:
    if result.disturbed:
        return "this grade's seed can't tell" if "parity" in names else "the machine wasn't fit to measure on"
    noisy = "the measurement was too noisy for a verdict"
    return noisy if "throughput" in names else "of the reasons that these checks give"


def _unjudged(result: Result) -> float:
    """Points of a prediction that had no gain to be compared with, though this machine can measure one."""
    checks = {check.name: check for check in result.checks}
    prediction, speed = checks.get("prediction"), checks.get("throughput")
    if not prediction or not speed or prediction.status != NOT_MEASURED or speed.status == NOT_MEASURED:
        return 0.0
    return prediction.max_points


def _foot(result: Result) -> list[str]:
    form = " ".join(filter(None, (clean(result.size), FORMS.get(result.form) or clean(result.form))))
    facts = [
        ("", clean(", ".join(_facts(_with_cores(result.machine), MACHINE)))),
        ("", clean(", ".join(_facts(result.versions, VERSIONS)))),
        ("lab:", f"{clean(result.lab)}, {form}"),
        ("date:", clean(result.date)),
        ("seed:", "" if result.seed is None else clean(str(result.seed))),
        ("not confined:", clean(", ".join(key_words(k) for k, held in result.confinement.items() if held is False))),
        ("grading took", f"{number(round(result.seconds, 1))} s" if result.seconds else ""),
    ]
    return [f"{name} {value}".strip() for name, value in facts if value]


def _facts(facts: dict[str, Any], words: dict[str, str]) -> list[str]:
    """What is known, in the order of its words; behind it what has none."""
    names = [*words, *islice((name for name in facts if name not in words), MOST_FACTS)]
    known = [(name, inline(facts[name])) for name in names if facts.get(name) not in (None, "")]
    return [words.get(name, f"{key_words(name)} {{}}").replace("{}", value) for name, value in known]


def _with_cores(machine: dict[str, Any]) -> dict[str, Any]:
    """The same facts, with how many cores there are, which and why in one phrase: "2 cores (0-1, some of 8)"."""
    count, listed, why = (machine.get(name) or "" for name in ("cores", "core_list", "cores_are"))
    which = ", ".join(inline(each) for each in (listed, "all that it may use" if why == "all" else why) if each)
    counted = "1 core" if count == 1 else f"{inline(count)} cores" if count else ""
    others = {name: value for name, value in machine.items() if name not in ("core_list", "cores_are")}
    return others | {"cores": f"{counted} ({which})" if counted and which else counted or which}


def _status(check: CheckResult) -> tuple[str, str, str, str]:
    """Status word, sign, colour, terminal colour."""
    if check.status in (PASS, FAIL) and 0 < check.points < check.max_points:
        return ("PARTLY", *PARTLY)
    return (clean(check.status), *SIGNS.get(check.status, NO_SIGN))


def points_of(check: CheckResult) -> str:
    """ "12.5 / 20"; a gate has no points to give: everything else needs it."""
    if check.max_points <= 0:
        return REQUIRED
    earned = "–" if check.status == NOT_MEASURED else _points(check.points)
    return f"{earned} / {_points(check.max_points)}"


# ---------------------------------------------------------------- pictures, whose module brings matplotlib


def _draw_gain(gain: Gain) -> Figure:
    from grader.frontends.gain_pictures import draw_gain

    return draw_gain(gain, points_of(gain.check), _share(gain.check))


def _length(timeline: Any, name: str) -> float:
    """Milliseconds; 0 where it is not known."""
    length = timeline.get(name) if isinstance(timeline, dict) else None
    known = isinstance(length, int | float) and not isinstance(length, bool)
    return plausible(length / 1e6) or 0.0 if known else 0.0  # type: ignore[operator]  # `known` says that it is a number


def timeline_note(timelines: dict[str, Any]) -> str:
    """What the two lengths over a picture are, and why a recorded step may be the shorter one."""
    both = {
        name: lengths
        for name, t in timelines.items()
        if all(lengths := (_length(t, "step_ns"), _length(t, "step_ns_traced")))
    }
    if not both:
        return ""
    said = ["The first length was timed without the profiler. The picture shows steps that the profiler recorded."]
    for name, (timed, traced) in both.items():
        if traced < FASTER_RECORDED * timed:
            said.append(
                f'In "{clean(name)}" the recorded steps are shorter, because their batches were ready before. '
                "The picture lacks the time in which the timed steps waited."
            )
    return " ".join(said)


# ---------------------------------------------------------------- HTML


def _rows(value: dict[str, Any], prefix: str = "", depth: int = 0, within: str = "") -> Iterator[tuple[str, str]]:
    """Evidence as (label, text) lines: nested dicts become "outer / inner", everything else one line."""
    for key, item in value.items():
        label = prefix + evidence_words.label(key, within)
        if isinstance(item, dict) and item and depth < 3:
            yield from _rows(item, label + " / ", depth + 1, str(key))
        elif isinstance(item, list) and len(item) > 1 and all(isinstance(v, dict) for v in item):
            for index, entry in enumerate(item[:12]):
                yield f"{label} {index + 1}", inline(entry)
            if len(item) > 12:
                yield label, f"{len(item) - 12} more, in the result file"
        else:
            yield label, evidence_words.shown(key, item)


def _evidence_html(evidence: dict[str, Any], limit: int, title: str) -> str:
    if not evidence:
        return ""
    cells: list[str] = []
    if gains.interval(evidence) == (None, None):
        evidence = {name: value for name, value in evidence.items() if name not in ("gain_lower", "gain_upper")}
    for label, value in _rows(evidence):
        cell = f"<dt>{to_html(label)}</dt><dd>{to_html(value)}</dd>"
        limit -= len(cell)
        if limit < 0 or len(cells) == MOST_EVIDENCE:
            cells.append("<dt>more</dt><dd>in the result file</dd>")
            break
        cells.append(cell)
    return web_page.folded("Evidence", f'<dl class="sp-rows">{"".join(cells)}</dl>', of=title)


def _hints_html(check: CheckResult, open_all: bool) -> str:
    """The first hint; each deeper one opens within the one before, so that nobody reads more than they ask for."""
    if not check.hint:
        return ""
    inner = ""
    for depth, hint in reversed(list(enumerate(check.more_hints))):
        name = HINT_NAMES[min(depth, len(HINT_NAMES) - 1)]
        inner = web_page.folded(name, f"<p>{prose_to_html(hint)}</p>{inner}", open_all, of=check.title)
    return f'<div class="sp-hint"><p><b>Try next:</b> {prose_to_html(check.hint)}</p>{inner}</div>'


def _check_html(check: CheckResult, evidence_limit: int, above: int, all_hints: bool = False) -> str:
    """above: see `web_page.heading`."""
    word, sign, colour, _ = _status(check)
    ink = "#fff" if colour == web_page.GREY else "#000"  # what can be read on the colour: at least 4.5 to 1
    details = _hints_html(check, all_hints) + _evidence_html(check.evidence, evidence_limit, check.title)
    return (
        f'<div class="sp-check" style="border-left-color: {colour}">'
        f'<div class="sp-status"><span aria-hidden="true" style="background: {colour}; color: {ink}">{sign}</span>'
        f'{escape(word)}</div><div class="sp-body"><div class="sp-name">{web_page.sub_heading(prose_to_html(check.title), above)}'
        f'<div class="sp-points">{points_of(check)}</div></div>'
        f"<p>{prose_to_html(check.reason)}</p>{details}</div></div>"
    )


def row_html(check: CheckResult) -> str:
    """One check alone, as in a notebook's report."""
    return _check_html(check, EVIDENCE_CHARACTERS, web_page.IN_NOTEBOOK)


def row_text(check: CheckResult) -> str:
    """One check alone, in a line."""
    points = points_of(check) + (" points" if check.max_points > 0 else "")
    return f"{check.title}: {_status(check)[0]}, {points}. {check.reason}"


def _bar_html(checks: list[CheckResult]) -> str:
    """One segment a check, as wide as its points; hatched where nothing was measured."""
    segments, said = [], []
    for check in checks:
        if check.max_points <= 0:
            continue
        said.append(f"{clean(check.title)} {points_of(check)}")
        hatch = ' class="sp-hatch"' if check.status == NOT_MEASURED else ""
        fill = f'<i style="width: {100 * _share(check):.1f}%; background: {_status(check)[2]}"></i>'
        title = escape(said[-1])
        segments.append(f'<span{hatch} style="flex: {check.max_points:g}" title="{title}">{fill}</span>')
    label = escape(f"Points: {', '.join(said)}")
    return f'<div class="sp-bar" role="img" aria-label="{label}">{"".join(segments)}</div>' if segments else ""


def output_title(output: str) -> str:
    """What stands above the end of what a submission printed."""
    return "Where it stopped, and what it printed before" if TRACEBACK in output else "What the submission printed"


def output_html(output: str, opened: bool = False) -> str:
    """The end of what a submission printed; "" where that is nothing."""
    if not output:
        return ""
    printed = f"<pre>{to_html(output, OUTPUT_CHARACTERS, tail=True)}</pre>"
    return web_page.folded(output_title(output), printed, opened)


def html(
    result: Result, standalone: bool = False, all_hints: bool = False, said: Sequence[str] = (), below: str = ""
) -> str:
    """The report as one self-contained piece of HTML (no scripts, nothing to load; under 300 KB, but for floods of text, which are cut).

    said: lines above all; below: HTML at the end. `standalone` puts a page around it; without, it fits an output cell of a notebook.
    `all_hints` opens the deeper hints at once, for feedback: there a grade is final, and was made on another machine."""
    above = 0 if standalone else web_page.IN_NOTEBOOK
    score, notes = headline(result)
    if all_hints and any(check.status == INCONCLUSIVE for check in result.checks):
        notes.append("A machine of your class measured this, not yours. Your instructor can have it measured again.")
    parts = [
        web_page.heading(prose_to_html(result.title), score, above),
        _bar_html(result.checks),
        *(f'<p class="sp-say">{escape(note)}</p>' for note in (*said, *notes)),
    ]
    if result.fatal:
        what = f'<div class="sp-what">{prose_to_html(result.fatal, 2 * WHOLE)}</div>'
        printed = output_html(result.output, opened=True)
        parts.append(f'<div class="sp-fatal"><div class="sp-big">{TOO_EARLY}</div>{what}{printed}</div>')
    parts += [f'<p class="sp-warning"><b>Note:</b> {prose_to_html(warning)}</p>' for warning in _warnings(result)]
    if gain := Gain.in_result(result):
        said = gains.headline(gain)
        picture = web_page.image(partial(_draw_gain, gain), f"Speed-up on a logarithmic axis: {said}")
        note = f'<p class="sp-note">{prose_to_html(gains.notes(gain))}</p>'
        parts.append(web_page.section(said, picture, note, above=above))
    if result.timelines:
        # a lab whose loop records itself has one only, and nothing before it
        shown = {"your trace": result.timelines["after"]} if [*result.timelines] == ["after"] else result.timelines
        picture = web_page.image(lambda: trace.draw(shown), "Timelines of the starter and of the submission")
        note = timeline_note(result.timelines)
        told = f'<p class="sp-note">{escape(note)}</p>' if note else ""
        parts.append(web_page.section("Where the time of a step goes", picture, told, above=above))
    limit = EVIDENCE_CHARACTERS // max(1, len(result.checks))
    parts.append(web_page.section("", *(_check_html(check, limit, above, all_hints) for check in result.checks)))
    if not result.fatal:
        parts.append(output_html(result.output))
    parts.append(f'<div class="sp-foot">{" · ".join(escape(fact) for fact in _foot(result))}</div>')
    body = "\n".join([*parts, below])
    return web_page.page(result.title, body) if standalone else web_page.paper(body)


def write_html(result: Result, path: str | Path) -> None:
    """Write the standalone page to `path`, whole or not at all."""
    write_text(path, html(result, standalone=True))


# ---------------------------------------------------------------- text


def text(result: Result, width: int = 80, colour: bool = False) -> str:
    """The report for a terminal of `width` columns; escape codes only with `colour`."""
    width, paint = max(width, 50), painter(colour)
    score, notes = headline(result)
    title, *more = wrap(result.title, width - len(score) - 2)
    lines = [paint(title + " " * (width - len(title) - len(score)) + score, "1")]
    lines += [*(paint(line, "1") for line in more), "─" * width]
    for note in notes:
        lines += wrap(note, width)
    if result.fatal:
        lines += [paint(TOO_EARLY, "1;31"), *wrap(clean(result.fatal, 2 * WHOLE), width, "  ")]
        lines += _output_text(result.output, width)
    for warning in _warnings(result):
        lines += wrap(f"Note: {warning}", width)
    if gain := Gain.in_result(result):
        lines += ["", *wrap(gains.headline(gain), width), *gains.bar(gain, width)]
        lines += wrap(gains.notes(gain, letters=True), width)
    lines.append("")
    for check in result.checks:
        lines += _check_text(check, result.lab, width, paint)
    lines += ["─" * width, *wrap(" · ".join(_foot(result)), width)]
    return "\n".join(line.rstrip() for line in lines)


def _output_text(output: str, width: int) -> list[str]:
    printed = clean(output, OUTPUT_CHARACTERS, tail=True).splitlines()[-PRINTED_LINES:]
    printed = [part for line in printed for part in textwrap.wrap(line, width - 4, drop_whitespace=False)]
    lines = [f"  │ {line}" for line in printed[-PRINTED_LINES:]]
    return [f"  {output_title(output)}:", *lines] if lines else []


def _check_text(check: CheckResult, lab: str, width: int, paint: Callable[[str, str], str]) -> list[str]:
    word, sign, _, code = _status(check)
    points = points_of(check)
    name, *more = wrap(check.title, width - 18 - len(points))
    lines = [paint(f"{sign} {word:<14}", code) + paint(name.ljust(width - 16 - len(points)) + points, "1")]
    lines += [paint(" " * 16 + line, "1") for line in more]
    lines += wrap(check.reason, width, "    ")
    if check.hint:
        lines += wrap(f"→ {check.hint}", width, "    ")
        if check.more_hints:
            lines += wrap(f"More: grader hint {lab} {check.name} --depth 2", width, "      ")
    return lines
