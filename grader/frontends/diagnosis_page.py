"""The page of `grader diagnose`, of one trace or of two."""

from html import escape
from typing import Any

from grader import trace, web_page
from grader.frontends import diagnosis_facts as said
from grader.frontends import diagnosis_streams
from grader.safe_text import clean, prose_to_html, to_html
from grader.trace import Analysis, Trace, timeline
from grader.trace.catalogue import STEP_PARTS
from grader.trace.compare import compare
from grader.trace.words import milliseconds, plain_number
from grader.web_page import section

FOOT = (
    "Times are per step, and GPU work belongs to the step that launched it. Shares are of a step's length without the profiler, if you gave it. "
    "Known cases are traces with a planted or proven cause, and most of these are simulated. "
    "A trace lists the events and not their reasons, so take the cause as a lead and measure your change."
)
ROOFLINE_WORDS = (
    "The operations listed below by arithmetic intensity and FLOP per second, under what the GPU reaches at most"
)
MOST_EVENTS = MOST_KERNELS = 8  # of one piece of evidence, of one operation
_CSS = (
    web_page.TABLES
    + """
.speed-report .sp-ops { display: grid; grid-template-columns: max-content max-content max-content minmax(0, 1fr);
  gap: 7px 14px; margin: 8px 0; font-size: 13px; font-variant-numeric: tabular-nums; }
.speed-report .sp-ops > div { overflow-wrap: anywhere; }
.speed-report .sp-ops .sp-right { text-align: right; white-space: nowrap; }
.speed-report .sp-changes { display: grid; grid-template-columns: minmax(0, 1fr) repeat(3, 92px);
  gap: 2px 22px; margin: 10px 0; font-size: 13px; font-variant-numeric: tabular-nums; }
.speed-report .sp-changes > div:not(:nth-child(4n+1)) { text-align: right; }
.speed-report .sp-cause { border-left: 6px solid #0072B2; padding: 6px 12px; margin: 10px 0; background: #f3f8fc; }
.speed-report ul { margin: 4px 0; padding-left: 20px; }
"""
)


def page(names: list[str], analyses: list[Analysis], above: str = "") -> str:
    """One self-contained page: no scripts, nothing to load. Of two traces the first is the one before. above: HTML."""
    several = len(analyses) > 1
    labels = ["before", "after"] if several else [clean(names[0])]
    titles = [f"{label}: {name}" if several else name for label, name in zip(labels, names, strict=True)]
    first, *others = (_verdict_html(title, a) for title, a in zip(titles, analyses, strict=True))
    body = [above + first, *(section("", other) for other in others)]
    if several:
        body.append(_comparison_html(*analyses))
    by_label = dict(zip(labels, analyses, strict=True))
    if any(map(said.parts, analyses)):
        breakdown = web_page.image(lambda: trace.draw_breakdown(by_label), _breakdown_words(by_label))
        body.append(section("Where the time of a step goes", breakdown, _legend(analyses)))
    steps = web_page.image(lambda: trace.draw(_timelines(by_label)), f"Timeline of some steps: {', '.join(by_label)}")
    body.append(section("Some steps, one after another", steps))
    for label, a in by_label.items():
        which = f" ({label})" if several else ""
        if rows := said.facts(a.metrics):
            body.append(section(f"In numbers{which}", web_page.pairs(rows)))
        if device_use := diagnosis_streams.as_html(a):
            body.append(device_use)
        if a.operations:
            body.append(section(f"Operations that cost the GPU most{which}", _operations_html(a)))
    body.append(f'<div class="sp-foot">{FOOT}</div>')
    return web_page.page("Diagnosis of " + ", ".join(names), "\n".join(body), _CSS)


def _breakdown_words(by_label: dict[str, Analysis]) -> str:
    bars = (
        f"{label}: {', '.join(f'{STEP_PARTS[part].short} {milliseconds(ns)}' for part, ns, _ in said.parts(a))}"
        for label, a in by_label.items()
    )
    return f"A bar of the parts of a step. {'. '.join(bars)}."


def _timelines(by_label: dict[str, Analysis]) -> dict[str, Any]:
    return {
        label: timeline(a.trace, skip_first=a.left_out, step_ns=a.step_ns, gaps=a.gaps) for label, a in by_label.items()
    }


def _verdict_html(title: str, a: Analysis) -> str:
    parts = [
        web_page.heading(to_html(title), to_html(a.diagnosis.cause or "no cause named")),
        f'<p class="sp-note">{to_html(said.device(a))}</p>',
    ]
    for reason in a.metrics.reasons if not a.metrics.complete else ():
        parts.append(f'<p class="sp-warning"><b>Incomplete:</b> {to_html(reason)}</p>')
    parts += [f'<p class="sp-note">{to_html(note)}</p>' for note in a.metrics.notes]
    parts.append(f'<div class="sp-cause"><p class="sp-big">{to_html(said.verdict(a))}</p>')
    parts += [f"<p>{to_html(line)}</p>" for line in (said.step_length(a), said.what_ifs(a)) if line]
    parts.append("</div>")
    if a.diagnosis.evidence:
        evidence = (to_html(e.text) + _events_html(a.trace, e.events) for e in a.diagnosis.evidence)
        parts.append(f"<p><b>Evidence</b></p>{web_page.items(evidence)}")
    if a.diagnosis.what_to_try:
        parts.append(f"<p><b>What to try</b></p>{web_page.items(map(prose_to_html, said.advice(a.diagnosis)))}")
    return "".join(parts)


def _events_html(recorded: Trace, events: list[int]) -> str:
    if not events:
        return ""
    rows = (
        (
            f"{milliseconds(int(recorded.duration[e]))} at {said.at(recorded, int(recorded.start[e]))}",
            recorded.names[recorded.name[e]],
        )
        for e in events[:MOST_EVENTS]
    )
    return web_page.folded("the longest events, in Perfetto", web_page.pairs(rows))


def _legend(analyses: list[Analysis]) -> str:
    shown = {part for a in analyses for part, _, _ in said.parts(a)}
    words = "; ".join(f"{about.short}: {about.words}" for part, about in STEP_PARTS.items() if part in shown)
    return f'<p class="sp-note">{escape(words)}.</p>' if words else ""


def _operations_html(a: Analysis) -> str:
    cells = []
    for number, operation in enumerate(a.operations, 1):
        line = said.source_line(operation)
        where = f"<div><code>{to_html(line)}</code></div>" if line else ""
        kernels = "".join(f"<div>{to_html(name)}</div>" for name in operation.kernels[:MOST_KERNELS])
        cells += [
            f'<div class="sp-right">{number}</div>',
            f'<div class="sp-right">{milliseconds(operation.gpu_ns)}<br>{operation.share:.0%}</div>',
            f'<div class="sp-right">{plain_number(operation.count)}x</div>',
            f"<div><b>{to_html(said.operation_name(operation))}</b>{where}<div>{to_html(operation.why)}</div>"
            f'{web_page.folded("kernels", f"""<div class="sp-note">{kernels}</div>""")}</div>',
        ]
    roofline = web_page.image(lambda: trace.draw_roofline(a), ROOFLINE_WORDS)
    return f'{roofline}<div class="sp-ops">{"".join(cells)}</div>'


def _comparison_html(before: Analysis, after: Analysis) -> str:
    compared = compare(before, after)
    parts = [f"<p>{to_html(compared.text)}</p>"]
    for title, rows in said.changes(compared):
        if rows:
            cells = [f"<div><b>{escape(title)}</b></div>", *(f"<div>{c}</div>" for c in ("before", "after", "change"))]
            cells += [f"<div>{to_html(cell)}</div>" for row in rows for cell in row]
            parts.append(f'<div class="sp-changes">{"".join(cells)}</div>')
    return section("What changed", *parts)
