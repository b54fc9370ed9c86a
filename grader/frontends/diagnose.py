"""`grader diagnose`: what a trace of anybody's training job shows, as text for a terminal, as JSON, and as a page.

Every name in a trace is untrusted: it goes through `safe_text.clean` (no control characters, no endless text) and, in
HTML, through `html.escape`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from grader import trace, web_page
from grader.errors import UserError
from grader.frontends.options import add_json
from grader.result import check_writable, json_value, write_json, write_text
from grader.safe_text import clean, prose_to_html, rounded, times, to_html, wrap
from grader.trace import Analysis, Metrics, Trace, TraceError, analyse, catalogue, read, timeline
from grader.trace.catalogue import IDLE, PARTS, STEP_PARTS, short_name
from grader.trace.compare import Change, compare
from grader.trace.diagnosis import INCOMPLETE as NO_DIAGNOSIS
from grader.trace.timeline import used_devices
from grader.trace.words import milliseconds, plain_number, short_kernel
from grader.trace.work import devices_of, union_length

SCREEN = 38  # lines
TOP = 10  # operations looked into; the terminal shows as many of them as fit a screen
MOST_GAPS = 20
MOST_EVENTS = 5  # of each operation, in the JSON
INCOMPLETE = 3  # exit status
# a step without the profiler that is shorter than this share of its kernels' time, or so many times as long as under the
# profiler, is not of that trace
SHORTEST, LONGEST = 0.8, 5
DOUBTFUL = 1.2  # times as long as under the profiler, which makes no step shorter: that is worth a sentence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.epilog = "Exit status: 0, 3 for an incomplete trace, 2 for a file that is no trace."
    parser.add_argument("trace", help="a .json or .json.gz that torch.profiler wrote")
    parser.add_argument("other", nargs="?", help="a second one, to compare with: the same loop after a change")
    parser.add_argument(
        "--step-ms",
        metavar="X",
        action="append",
        default=[],
        help="length of a step measured without the profiler, ms; give it twice for two traces",
    )
    add_json(parser, "everything")
    parser.add_argument("--html", metavar="FILE", help="write a page with pictures")
    parser.add_argument("--top", metavar="N", help="operations to look into (default: 10; on the screen what fits)")


def run(options: argparse.Namespace) -> int:
    """Exit status: 0, or 3 where a trace is incomplete. Raises UserError for what is no trace."""
    steps_ms = [_step_ms(value) for value in options.step_ms]
    paths = [path for path in (options.trace, options.other) if path is not None]
    if len(steps_ms) > len(paths):
        raise UserError("--step-ms is given more often than there are traces.")
    if 0 < len(steps_ms) < len(paths):
        raise UserError(
            "--step-ms is given for one of two traces, and a step under the profiler is longer than one without it. Give it "
            "for both, first the one before: --step-ms 195 --step-ms 32.6."
        )
    top = TOP if options.top is None else _top(options.top)
    check_targets(options)
    analyses = []
    for number, path in enumerate(paths):
        step_ms = steps_ms[number] if number < len(steps_ms) else None
        analyses.append(analyse(_read(path), step_ms and step_ms * 1e6, top))
        _check_step(analyses[-1], path)
    names = names_of(paths)
    most = None if options.top is None else top
    deliver(
        options,
        page=lambda: page(names, analyses),
        data=lambda: as_json(names, analyses),
        text=lambda width, colour: text(names, analyses, width, colour, most),
    )
    return 0 if all(a.metrics.complete for a in analyses) else INCOMPLETE


def names_of(paths: Sequence[str | Path]) -> list[str]:
    """What the files are called: by their name, or as folder/name or the whole path where that says no more than one thing."""
    wholes = [Path(path) for path in paths]
    for made in (lambda path: path.name, lambda path: f"{path.absolute().parent.name}/{path.name}"):
        names = [made(path) or str(path) for path in wholes]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in wholes]


def check_targets(options: argparse.Namespace) -> None:
    """Raises UserError where --json or --html names what cannot be written: said before anything is measured."""
    for target in (options.json, options.html):
        if target not in (None, "-"):
            check_writable(target)
    if options.html == "-":
        raise UserError("--html needs the name of a file.")


def deliver(
    options: argparse.Namespace,
    page: Callable[[], str],
    data: Callable[[], dict[str, Any]],
    text: Callable[[int, bool], str],
) -> None:
    """A report in the forms that --html and --json ask for, and as text(columns, coloured) on the terminal, unless the JSON goes
    there."""
    if options.html:
        write_text(options.html, page())
    if options.json == "-":
        print(json.dumps(data(), indent=1, allow_nan=False))
        return
    if options.json:
        write_json(options.json, data())
    print(text(min(100, shutil.get_terminal_size((100, 40)).columns), sys.stdout.isatty()))


def _read(path: str) -> Trace:
    try:
        # A link of the user's own is followed; `read` follows none, since elsewhere a stranger may have made it.
        return read(Path(path).resolve())
    except TraceError as error:
        said, name = clean(str(error)), clean(path)
        raise UserError(said if Path(path).name in str(error) else f"{name}: {said}") from None
    except (OSError, ValueError, RuntimeError) as error:  # a name that no file can have, links that go in circles
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{clean(path)} cannot be read: {clean(str(why))}.") from None


def _step_ms(value: str) -> float:
    try:
        ms = float(value)
    except ValueError:
        ms = math.nan
    if not 1e-3 <= ms <= 3.6e6:
        raise UserError(f"--step-ms {clean(value)}: give the length of a step in milliseconds, such as 12.5.")
    return ms


def _check_step(a: Analysis, path: str) -> None:
    """Raises UserError for a --step-ms that is not of this trace: kernels take as long without the profiler, and the profiler
    does not make a step shorter by much."""
    if not a.step_ns or not len(a.trace.steps):
        return
    m, traced = a.metrics, a.metrics.step_ns_traced
    kernels = m.events.get("kernels", ())
    busy = 0.0
    if len(kernels):  # not copies, which may be of later steps, nor kernels that wait for another GPU
        busy = union_length(a.trace, kernels) / len(devices_of(a.trace, kernels)) / m.steps - (m.comm_exposed_ns or 0)
    said = ""
    if a.step_ns < SHORTEST * busy:
        said = f"the GPU's kernels took {milliseconds(busy)} a step"
    elif traced and a.step_ns > LONGEST * traced:
        said = f"a step took {milliseconds(traced)} under the profiler"
    if said:
        name = clean(Path(path).name)
        raise UserError(f"--step-ms {a.step_ns / 1e6:.6g}: in {name} {said}. Is it in milliseconds, of the same loop?")


def _top(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value[:6]) <= 1000:
        raise UserError(f"--top {clean(value)}: give a whole number from 1 to 1000.")
    return int(value)


# ---- JSON ---------------------------------------------------------------------------------------------------------


def as_json(names: list[str], analyses: list[Analysis]) -> dict[str, Any]:
    """The first trace at the top; a second one under "other", and what changed under "comparison".

    Names that end in _ns and _ms are times, bytes are bytes, everything else is a count per step or a share from 0 to
    1. Values that a trace cannot tell are null; NaN and infinity do not occur."""
    data = _one(names[0], analyses[0])
    if len(analyses) > 1:
        data["other"] = _one(names[1], analyses[1])
        data["comparison"] = dataclasses.asdict(compare(*analyses))
    return json_value(data)


def _one(name: str, a: Analysis) -> dict[str, Any]:
    m, d = a.metrics, a.diagnosis
    diagnosis = dataclasses.asdict(d)
    for shown, evidence in zip(diagnosis["evidence"], d.evidence, strict=True):
        shown["events"] = _events(a.trace, evidence.events)
    operations = [dataclasses.asdict(o) | {"events": _events(a.trace, o.events[:MOST_EVENTS])} for o in a.operations]
    return {
        "trace": name,
        "complete": m.complete,
        "reasons": m.reasons,
        "steps": len(a.trace.steps),
        "steps_counted": m.steps,
        "device": next((name for name in used_devices(a.trace) if name != "?"), None),
        "devices": used_devices(a.trace),
        "step_ms": a.step_ns and a.step_ns / 1e6,
        "step_ms_traced": m.step_ns_traced and m.step_ns_traced / 1e6,
        "diagnosis": diagnosis,
        "breakdown_ms": {part: ns / 1e6 for part, ns in a.breakdown.items()},
        "metrics": m.to_dict()
        | {"gap_cause": {part[5:] + "_ns": a.breakdown[part] for part in IDLE if part in a.breakdown}},
        "top_operations": operations,
        "longest_gaps": _gaps(a),
    }


def _events(trace: Trace, events: list[int]) -> list[dict[str, Any]]:
    """As they stand in the file, so that they can be found in a viewer: microseconds, `ts` and `dur`."""
    return [
        {
            "name": trace.names[trace.name[e]],
            "ts": int(trace.start[e]) / 1000,
            "dur": int(trace.duration[e]) / 1000,
        }
        for e in events
    ]


def _gaps(a: Analysis) -> list[dict[str, Any]]:
    if a.gaps is None:
        return []
    length = a.gaps.end - a.gaps.start
    rows = []
    for i in (-length).argsort(kind="stable")[:MOST_GAPS].tolist():
        row = {"device": int(a.gaps.device[i]), "cause": PARTS[a.gaps.cause[i]]}
        row |= {"ts": int(a.gaps.start[i]) / 1000, "dur": int(length[i]) / 1000}
        for side in ("before", "after"):
            event = int(getattr(a.gaps, side)[i])
            row[side] = a.trace.names[a.trace.name[event]] if event >= 0 else None
        rows.append(row)
    return rows


# ---- what the numbers say -----------------------------------------------------------------------------------------


def _step_ns(a: Analysis) -> float | None:
    return a.step_ns or a.metrics.step_ns_traced


def _verdict(a: Analysis) -> str:
    d = a.diagnosis
    if not d.cause:
        return d.text
    runner_up = f" Next: {d.runner_up}." if d.runner_up else ""
    return f"{d.text}{runner_up} (confidence {d.confidence:.0%})"


def _step(a: Analysis) -> str:
    """How long a step takes, and how that is known."""
    traced = a.metrics.step_ns_traced
    if a.step_ns:
        length = milliseconds(a.step_ns)
        said = f"{length}, measured without the profiler" + (f"; {milliseconds(traced)} under it" if traced else "")
        if traced and a.step_ns > DOUBTFUL * traced:
            said += (
                f". The profiler makes no step shorter: either the {length} are of another job, or batches were ready while it "
                "recorded. What is missing is booked as waiting"
            )
        return said
    if traced:
        return (
            f"{milliseconds(traced)} under the profiler, which makes steps longer: measure without it, give --step-ms"
        )
    return "length unknown"


def _what_ifs(a: Analysis) -> list[str]:
    """ "input 6.3 ms (3.4x)", the largest gain first."""
    step = _step_ns(a)
    most, why = ("", "") if len(a.trace.gpu) else ("at most ", ": workers take cores from the training itself")
    found = sorted((a.diagnosis.what_if or {}).items(), key=lambda item: item[1])
    return [
        f"{cause} {plain_number(ms)} ms ({most}{times(step / 1e6 / ms)}{why})" for cause, ms in found if step and ms > 0
    ]


def _facts(m: Metrics) -> list[tuple[str, str]]:
    """The metrics in words, (about what, numbers); what the trace cannot tell is left out."""

    def some(*parts: str | None) -> str:
        return ", ".join(part for part in parts if part)

    def share(value: float | None, words: str) -> str | None:
        return None if value is None else f"{value:.0%} {words}"

    def count(value: float | None, words: str, one: str = "") -> str | None:
        if value is None:
            return None
        return f"{rounded(value, 3)} {words if value != 1 else one or words.removesuffix('s')}"

    def time(value: float | None, words: str) -> str | None:
        return None if value is None else f"{milliseconds(value)} {words}"

    copies = m.copies or {}
    sizes = [copy["bytes"] for kind, copy in copies.items() if kind.startswith("HtoD")]
    to_gpu = sum(size for size in sizes if size)
    exposed = m.comm_exposed_ns if m.comm_ns else None
    memory = None if m.peak_memory is None else f"{_size(m.peak_memory)} at the peak"
    growth = f"{_size(m.memory_growth)} more each step" if m.memory_growth and m.memory_growth > 0 else None
    idle_step, of_step = m.gpu_idle_unprofiled, "of a step without the profiler"
    if idle_step is None and m.gpu_busy_ns is not None and m.step_ns_traced:
        idle_step, of_step = max(0.0, 1 - m.gpu_busy_ns / m.step_ns_traced), "of a step under the profiler"
    # Two shares: the recording has steps that are not counted, and its steps are longer than those without the profiler.
    idle = some(share(idle_step, of_step), share(m.gpu_idle, "of the whole recording"))
    rows = [
        (
            "GPU",
            some(time(m.gpu_busy_ns, "busy a step"), f"idle {idle}" if idle else None),
        ),
        (
            "host",
            some(
                share(m.data_wait, "waiting for data" + (" under the profiler" if m.step_ns else "")),
                count(m.launches, "launches", "launch"),
                count(m.syncs, "syncs"),
                time(m.sync_ns or None, "in them"),
            ),
        ),
        ("syncs", ", ".join(f"{count:g} at {line}" for line, count in list((m.sync_lines or {}).items())[:2])),
        (
            "kernels",
            some(
                count(m.kernels, "a step"),
                share(m.tiny_kernel_share, "under 10 µs"),
                count(m.copy_kernels or None, "that only copy or cast"),
            ),
        ),
        (
            "matmul",
            some(
                share((m.tensor_core_share or {}).get("yes"), "on tensor cores"),
                share((m.tensor_core_share or {}).get("unknown") or None, "unknown"),
                share(m.half_share, "with 16-bit inputs"),
            ),
        ),
        (
            "copies",
            some(
                f"{rounded(to_gpu / 1e6, 3)} MB to the GPU" if to_gpu else None,
                share(m.h2d_pinned, "pinned"),
                share(m.h2d_overlap, "beside kernels"),
            ),
        ),
        ("comm", some(time(m.comm_ns or None, "a step"), time(exposed, "with nothing beside it"))),
        ("memory", some(memory, growth)),
    ]
    return [(name, said) for name, said in rows if said]


def _operation_name(o: Any) -> str:
    name = o.name if o.name.startswith("aten::") else short_kernel(o.name, 200)
    return f"{name} {o.shapes}".strip()


def _line(o: Any) -> str:
    where = o.line or ""
    return f"{where} in {o.function}" if where and o.function else where


def _parts(a: Analysis) -> list[tuple[str, float, float]]:
    """Parts of the step of at least half a percent, in their order: (part, ns, share)."""
    total = sum(a.breakdown.values())
    return [(part, ns, ns / total) for part, ns in a.breakdown.items() if total and ns >= 0.005 * total]


# ---- text ---------------------------------------------------------------------------------------------------------


def text(
    names: list[str], analyses: list[Analysis], width: int = 100, colour: bool = False, top: int | None = None
) -> str:
    """The report for a terminal of `width` columns; without `top` as many operations as fit a screen."""
    width = max(width, 60)

    def paint(words: str, code: str) -> str:
        return f"\x1b[{code}m{words}\x1b[0m" if colour else words

    lines: list[str] = []
    for number, (name, a) in enumerate(zip(names, analyses, strict=True)):
        name = f"{('before: ', 'after: ')[number]}{name}" if len(analyses) > 1 else name
        device = f"{_device(a)}, {a.metrics.steps} steps counted"
        lines += [*(paint(line, "1") for line in _apart(name, device, width)), "─" * width]
        if not a.metrics.complete:
            said = "incomplete: " + "; ".join(a.metrics.reasons)
            lines += [paint(line, "33") for line in wrap(said, width)]
        if not a.diagnosis.text.startswith(NO_DIAGNOSIS):  # that is said above
            lines += [paint(line, "1") for line in wrap(_verdict(a), width)]
        lines += wrap(f"A step: {_step(a)}.", width)
        if (what_ifs := _what_ifs(a)) and len(analyses) == 1:
            lines += wrap(f"A step without what costs it time: {', '.join(what_ifs)}.", width)
        lines.append("")
    if len(analyses) > 1:
        return "\n".join([*lines, *_comparison_text(*analyses, width, paint)])
    (a,) = analyses
    lines += _parts_text(a, width, paint)
    facts = _facts(a.metrics)
    lines += [f"{'' if n else name:<8} {said}" for name, fact in facts for n, said in enumerate(wrap(fact, width - 9))]
    advice = [paint("What to try", "1")]
    for said in [*a.diagnosis.what_to_try, *_learn(a)]:
        advice += [f"{'  ' if n else '- '}{part}" for n, part in enumerate(wrap(said, width - 2))]
    advice = advice if len(advice) > 1 else []
    room = SCREEN - len(lines) - len(advice) - 3
    lines += ["", *_operations_text(a, width, paint, room, top)] if a.operations else []
    lines += ["", *advice] if advice else []
    return "\n".join(line.rstrip() for line in lines)


def _apart(left: str, right: str, width: int) -> list[str]:
    """Two texts at both ends of a line, or on lines of their own where they do not fit."""
    left, right = (" ".join(clean(text).split()) for text in (left, right))
    if len(left) + 2 + len(right) <= width:
        return [left.ljust(width - len(right)) + right]
    return [*wrap(left, width), *(line.rjust(width) for line in wrap(right, width))]


def _learn(a: Analysis) -> list[str]:
    """Where the course teaches this cause: a line, or none."""
    lesson, lab = a.diagnosis.lesson, a.diagnosis.teaches
    ways = [f"read `notebooks/{lesson}.ipynb`"] if lesson else []
    ways += [f"do lab `{lab}` (`grader start {lab}`)"] if lab else []
    return [f"To learn it: {', '.join(ways)}."] if ways else []


def _device(a: Analysis) -> str:
    if not len(a.trace.gpu):
        return "no GPU work"
    names = used_devices(a.trace)
    name = clean(names[0]) if names and names[0] != "?" else "device not named"
    return f"{len(names)} x {name}" if len(names) > 1 else name


def _parts_text(a: Analysis, width: int, paint: Any) -> list[str]:
    """A bar for each part of the step: solid for work, shaded for idle time."""
    rows = _parts(a)
    room = width - 36
    lines = []
    for part, ns, share in rows:
        bar = ("░" if part.startswith("idle") else "█") * max(1, round(room * share))
        lines.append(f"{STEP_PARTS[part].short:<14} {bar:<{room}} {milliseconds(ns):>10} {share:>5.0%}")
    return [paint("Where the time of a step goes", "1"), *lines, ""] if lines else []


def _operations_text(a: Analysis, width: int, paint: Any, room: int, top: int | None) -> list[str]:
    """The first `top` of them; without it the first one, and as many as fit `room` lines."""
    lines, shown = [paint("Operations that cost the GPU most, a step", "1")], 0
    for o in a.operations[:top]:
        numbers = f"{milliseconds(o.gpu_ns):>8} {o.share:>4.0%} {f'{plain_number(o.count)}x':>6}  "
        first, *rest = _apart(_operation_name(o), _line(o), width - len(numbers))
        block = [numbers + first, *(" " * len(numbers) + line for line in rest), *wrap(o.why, width, " " * 10)]
        if top is None and shown and len(lines) + len(block) > room + 1:
            break
        lines, shown = lines + block, shown + 1
    if len(a.operations) > shown:
        lines[0] += f" ({shown} of {len(a.operations)}{'; more: --top, --html, --json' if width > 80 else ''})"
    return lines


def _comparison_text(before: Analysis, after: Analysis, width: int, paint: Any) -> list[str]:
    compared = compare(before, after)
    lines = [paint(line, "1") for line in wrap(compared.text, width)]
    room = SCREEN - 14
    for title, rows in _changes(before, after):
        rows = rows[: max(2, min(len(rows), room - 2))]
        room -= len(rows) + 2
        if rows:
            lines += ["", paint(f"{title:<{width - 46}} {'before':>14} {'after':>14} {'change':>14}", "1")]
            for name, *cells in rows:
                first, *rest = wrap(name, width - 47)
                lines += [f"{first:<{width - 46}} " + " ".join(f"{cell:>14}" for cell in cells), *rest]
    return lines


def _changes(before: Analysis, after: Analysis) -> list[tuple[str, list[tuple[str, str, str, str]]]]:
    """Tables of (name, before, after, change), what did not change left out."""
    compared = compare(before, after)
    if not compared.step.before or not compared.step.after:
        return []
    step = max(compared.step.before, compared.step.after)

    def row(change: Change, name: str, kind: catalogue.Unit) -> tuple[str, str, str, str]:
        before, after = (_written(v, kind) for v in (change.before, change.after))
        if kind == "share" and change.difference is not None:  # of what is shown, so that it adds up
            return name, before, after, f"{int(after[:-1]) - int(before[:-1]):+d} points"
        return name, before, after, _written(change.difference, kind, "+")

    parts = [row(c, short_name(c.name), "time") for c in compared.parts if abs(c.difference or 0) > step / 100]
    known = {c.name: c for c in compared.metrics if c.before != c.after}
    metrics = [row(known[name], about.short, about.unit) for name, about in catalogue.COMPARED.items() if name in known]
    metrics = [cells for cells in metrics if cells[1] != cells[2]]
    families = [row(c, c.name, "time") for c in compared.families[:8] if abs(c.difference or 0) > step / 100]
    return [("Parts of a step", parts), ("In numbers", metrics), ("Kernels by family, a step", families)]


def _written(value: float | None, kind: catalogue.Unit, sign: str = "") -> str:
    if value is None:
        return "not known"
    plus = sign if value > 0 else ""
    if kind == "share":
        return f"{100 * value:.0f}%"
    if kind == "time":
        return plus + milliseconds(value)
    return plus + (_size(value) if kind == "bytes" else rounded(value, 4))


def _size(size: float) -> str:
    """ "12.3 GB" """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if abs(size) >= 0.9995 * unit:  # what three digits round to it
            return f"{size / unit:.3g} {name}"
    return f"{size:.3g} bytes"


# ---- HTML ---------------------------------------------------------------------------------------------------------


def page(names: list[str], analyses: list[Analysis]) -> str:
    """One self-contained page: no scripts, nothing to load."""
    labels = ["before", "after"] if len(analyses) > 1 else [clean(names[0])]
    by_label = dict(zip(labels, analyses, strict=True))
    parts = []
    for name, label, a in zip(names, labels, analyses, strict=True):
        title = to_html(f"{label}: {name}" if len(analyses) > 1 else name)
        parts.append(
            _verdict_html(title, a) if not parts else f'<div class="sp-section">{_verdict_html(title, a)}</div>'
        )
    if len(analyses) > 1:
        parts.append(_comparison_html(*analyses))
    parts.append(
        _section(
            "Where the time of a step goes",
            web_page.image(lambda: trace.draw_breakdown(by_label), "Parts of the step time"),
            *(f'<p class="sp-note">{escape(said)}</p>' for said in _legend(analyses)),
        )
    )
    parts.append(
        _section(
            "Some steps, one after another",
            web_page.image(
                lambda: trace.draw(
                    {name: timeline(a.trace, step_ns=a.step_ns, gaps=a.gaps) for name, a in by_label.items()}
                ),
                "Timeline of some steps",
            ),
        )
    )
    for label, a in by_label.items():
        which = f" ({escape(label)})" if len(analyses) > 1 else ""
        if _facts(a.metrics):
            parts.append(_section(f"In numbers{which}", _facts_html(a.metrics)))
        if a.operations:
            parts.append(
                _section(
                    f"Operations that cost the GPU most{which}",
                    web_page.image(lambda a=a: trace.draw_roofline(a), "Roofline"),
                    _operations_html(a),
                )
            )
    foot = "Shares of a step are of its length without the profiler where that was given. Times are per step; GPU work belongs to the step that launched it. A trace lists what ran, not why: take the cause as a lead and measure the change."  # fmt: skip
    parts.append(f'<div class="sp-foot">{foot}</div>')
    return web_page.page("Diagnosis of " + ", ".join(names), "\n".join(parts), _CSS)


_CSS = """
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


def _section(title: str, *parts: str) -> str:
    return f'<div class="sp-section"><p class="sp-big">{title}</p>{"".join(parts)}</div>'


def _verdict_html(title: str, a: Analysis) -> str:
    d = a.diagnosis
    device = to_html(f"{_device(a)}, {a.metrics.steps} steps counted")
    cause = to_html(d.cause or "no cause named")
    parts = [f'<div class="sp-head"><div class="sp-title">{title}</div><div class="sp-score">{cause}</div></div>']
    parts.append(f'<p class="sp-note">{device}</p>')
    for reason in a.metrics.reasons if not a.metrics.complete else ():
        parts.append(f'<p class="sp-warning"><b>Incomplete:</b> {to_html(reason)}</p>')
    parts.append(f'<div class="sp-cause"><p class="sp-big">{to_html(_verdict(a))}</p>')
    parts.append(f"<p>A step: {to_html(_step(a))}.</p>")
    if what_ifs := _what_ifs(a):
        parts.append(f"<p>A step without what costs it time: {to_html(', '.join(what_ifs))}.</p>")
    parts.append("</div>")
    if d.evidence:
        items = "".join(f"<li>{to_html(e.text)}{_events_html(a.trace, e.events)}</li>" for e in d.evidence)
        parts.append(f"<p><b>Evidence</b></p><ul>{items}</ul>")
    if d.what_to_try:
        items = [prose_to_html(said) for said in d.what_to_try]
        items += [prose_to_html(said) for said in _learn(a)]
        parts.append(f"<p><b>What to try</b></p><ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>")
    return "".join(parts)


def _events_html(trace: Trace, events: list[int]) -> str:
    if not events:
        return ""
    rows = "".join(
        f"<span>{milliseconds(int(trace.duration[e]))} at {int(trace.start[e]) / 1000:.3f} µs</span>"
        f"<span>{to_html(trace.names[trace.name[e]])}</span>"
        for e in events[:8]
    )
    return f'<details><summary>the longest events</summary><div class="sp-rows">{rows}</div></details>'


def _legend(analyses: list[Analysis]) -> list[str]:
    shown = {part for a in analyses for part, _, _ in _parts(a)}
    return (
        ["; ".join(f"{about.short}: {about.words}" for part, about in STEP_PARTS.items() if part in shown) + "."]
        if shown
        else []
    )


def _facts_html(m: Metrics) -> str:
    rows = "".join(f"<span>{escape(name)}</span><span>{to_html(said)}</span>" for name, said in _facts(m))
    return f'<div class="sp-rows">{rows}</div>'


def _operations_html(a: Analysis) -> str:
    cells = []
    for number, o in enumerate(a.operations, 1):
        where = f"<div><code>{to_html(_line(o))}</code></div>" if o.line else ""
        kernels = "".join(f"<div>{to_html(name)}</div>" for name in o.kernels[:8])
        cells += [
            f'<div class="sp-right">{number}</div>',
            f'<div class="sp-right">{milliseconds(o.gpu_ns)}<br>{o.share:.0%}</div>',
            f'<div class="sp-right">{plain_number(o.count)}x</div>',
            f"<div><b>{to_html(_operation_name(o))}</b>{where}<div>{to_html(o.why)}</div>"
            f'<details><summary>kernels</summary><div class="sp-note">{kernels}</div></details></div>',
        ]
    return f'<div class="sp-ops">{"".join(cells)}</div>'


def _comparison_html(before: Analysis, after: Analysis) -> str:
    parts = [f"<p>{to_html(compare(before, after).text)}</p>"]
    for title, rows in _changes(before, after):
        if rows:
            cells = [f"<div><b>{escape(title)}</b></div>", *(f"<div>{c}</div>" for c in ("before", "after", "change"))]
            cells += [f"<div>{to_html(cell)}</div>" for row in rows for cell in row]
            parts.append(f'<div class="sp-changes">{"".join(cells)}</div>')
    return _section("What changed", *parts)
