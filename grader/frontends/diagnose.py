"""`grader diagnose`: what a trace of anybody's training job shows, as text for a terminal, as JSON, and as a page.

Every name in a trace is untrusted: it goes through `safe_text` (no control characters, no endless text, no markup)."""

import argparse
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grader.errors import UserError
from grader.frontends import diagnose_job, diagnosis_page, diagnosis_streams
from grader.frontends import diagnosis_facts as said
from grader.frontends.delivery import check_targets, deliver, names_of
from grader.result import check_writable, json_value
from grader.safe_text import at_both_ends, clean, hanging, painter, wrap
from grader.trace import Analysis, Trace, TraceError, analyse, portion, read
from grader.trace.annotate import annotate
from grader.trace.catalogue import IDLE, PARTS, STEP_PARTS
from grader.trace.compare import compare
from grader.trace.diagnosis import INCOMPLETE as NO_DIAGNOSIS
from grader.trace.timeline import used_devices
from grader.trace.words import milliseconds, plain_number
from grader.trace.work import busy_devices, union_length

SCREEN = 38  # lines
TOP = 10  # operations looked into; the terminal shows as many of them as fit a screen
MOST_GAPS = 20
MOST_EVENTS = 5  # of each operation, in the JSON
INCOMPLETE = 3  # exit status
# a step without the profiler that is shorter than this share of its kernels' time, or so many times as long as under the
# profiler, is not of that trace
SHORTEST, LONGEST = 0.8, 5


def run(options: argparse.Namespace) -> int:
    """Exit status: 0, or 3 where a trace is incomplete. Raises UserError for what is no trace."""
    steps_ms: list[float | None] = [_step_ms(value) for value in options.step_ms]
    top = TOP if options.top is None else _top(options.top)
    paths = diagnose_job.traces_of(options.trace)
    check_targets(options)
    if options.before_after and len(paths) != 2:
        raise UserError(f"--before-after compares two traces, and here are {len(paths)}.")
    wanted = None if options.steps is None else _steps(options.steps)
    traces = [read_trace(path, wanted) for path in paths] if len(paths) == 2 and not options.job else []
    as_job = (
        options.job
        or len(paths) > 2
        or (bool(traces) and not options.before_after and diagnose_job.are_ranks(traces[0], traces[1], paths))
    )
    if as_job:
        return _run_job(options, paths, traces, steps_ms)
    if len(steps_ms) > len(paths):
        raise UserError("--step-ms is given more often than there are traces.")
    if 0 < len(steps_ms) < len(paths):
        raise UserError(
            "--step-ms is given for one of two traces, and a step under the profiler is longer than one without it. Give it "
            "for both, first the one before: --step-ms 195 --step-ms 32.6."
        )
    if options.annotate is not None:
        check_copy(options.annotate, paths)
    analyses = []
    for i, (path, step_ms) in enumerate(zip(paths, steps_ms or [None] * len(paths), strict=True)):
        trace = traces[i] if traces else read_trace(path, wanted)
        analyses.append(_analysis(trace, path, step_ms and step_ms * 1e6, top, wanted))
        check_step(analyses[-1], path)
    if options.annotate is not None:
        annotate(Path(paths[0]).resolve(), Path(options.annotate), analyses[0])
    names = names_of(paths)
    most = None if options.top is None else top
    assumed = (
        [diagnose_job.TWO[False], ""] if any(t.rank is not None for t in traces) and not options.before_after else []
    )
    deliver(
        options,
        page=lambda: diagnosis_page.page(names, analyses),
        data=lambda: as_json(names, analyses),
        text=lambda width, colour: "\n".join([*assumed, text(names, analyses, width, colour, most)]),
    )
    return 0 if all(a.metrics.complete for a in analyses) else INCOMPLETE


def _run_job(options: argparse.Namespace, paths: list[str], traces: list[Trace], steps_ms: list[float | None]) -> int:
    """All ranks at once."""
    if options.steps is not None:
        raise UserError("--steps is for one trace, and these are ranks of one job. Give one of them.")
    if len(steps_ms) not in (0, 1, len(paths)):
        raise UserError(
            f"--step-ms is given {len(steps_ms)} times for {len(paths)} ranks. Give it once, or once for each."
        )
    lengths = [
        ms and ms * 1e6 for ms in (steps_ms if len(steps_ms) == len(paths) else (steps_ms or [None]) * len(paths))
    ]
    in_folder = any(Path(path).is_dir() for path in options.trace)
    found = diagnose_job.job_of(paths, lengths, traces, lenient=in_folder, check=check_step)
    if options.annotate is not None:
        diagnose_job.annotate_all(paths, found, Path(options.annotate))
    name = options.trace[0] if len(options.trace) == 1 else ", ".join(names_of(paths[:3])) + ", ..." * (len(paths) > 3)
    assumed = [diagnose_job.TWO[True], ""] if traces else []
    deliver(
        options,
        page=lambda: diagnose_job.page(name, found),
        data=lambda: diagnose_job.as_json(name, found),
        text=lambda width, colour: "\n".join([*assumed, diagnose_job.text(name, found, width, colour)]),
    )
    return 0 if all(rank.complete for rank in found.ranks) else INCOMPLETE


def _analysis(recorded: Trace, path: str, step_ns: float | None, top: int, wanted: portion.Wanted | None) -> Analysis:
    skip, count = 1, None
    if wanted:
        try:
            skip, end = portion.positions(recorded, wanted)
        except portion.Unfit as error:
            raise UserError(f"--steps: of {clean(Path(path).name)}, {error}.") from None
        count = end - skip
    return analyse(recorded, step_ns, top, skip, count)


def read_trace(path: str, steps: portion.Wanted | None = None, expect_gpu: bool = True) -> Trace:
    """Raises UserError for what is no trace. steps, expect_gpu: see `read`."""
    try:
        # A link of the user's own is followed; `read` follows none, since elsewhere a stranger may have made it.
        return read(Path(path).resolve(), steps=steps, expect_gpu=expect_gpu)
    except TraceError as error:
        why = clean(str(error))
        raise UserError(why if Path(path).name in str(error) else f"{clean(path)}: {why}") from None
    except (OSError, ValueError, RuntimeError) as error:  # a name that no file can have, links that go in circles
        why = clean(str(getattr(error, "strerror", None) or error))
        raise UserError(f"{clean(path)} cannot be read: {why}.") from None


def _steps(value: str) -> portion.Wanted:
    first, colon, last = value.partition(":")
    if not all(not number or (number.isdecimal() and len(number) < 19) for number in (first, last)) or not (
        first or last
    ):
        raise UserError(f"--steps {clean(value)}: give the numbers of the first and the last step, such as 3:5.")
    low, high = (int(number) if number else None for number in (first, last if colon else first))
    if low is not None and high is not None and low > high:
        raise UserError(f"--steps {clean(value)}: the first one comes after the last.")
    return low, high


def check_copy(target: str, paths: list[str]) -> None:
    """Raises UserError where --annotate cannot write, or would write over a trace."""
    if len(paths) > 1:
        raise UserError("--annotate takes one trace.")
    check_writable(target)
    if target == "-" or Path(target).resolve() == Path(paths[0]).resolve():
        raise UserError("--annotate needs the name of another file than the trace.")


def _step_ms(value: str) -> float:
    try:
        ms = float(value)
    except ValueError:
        ms = math.nan
    if not 1e-3 <= ms <= 3.6e6:
        raise UserError(f"--step-ms {clean(value)}: give the length of a step in milliseconds, such as 12.5.")
    return ms


def check_step(a: Analysis, path: str) -> None:
    """Raises UserError for a --step-ms that is not of this trace: kernels take as long without the profiler, steps not much longer."""
    if not a.step_ns or (not len(a.trace.steps) and len(a.trace.windows) < 2):
        return
    m, traced = a.metrics, a.metrics.step_ns_traced
    kernels, busy = m.events.get("kernels"), 0.0
    if kernels is not None and len(kernels):
        # not copies, which may be of later steps, nor kernels that wait for another GPU
        busy = union_length(a.trace, kernels) / len(busy_devices(a.trace, kernels)) / m.steps - (m.comm_exposed_ns or 0)
    if a.step_ns < SHORTEST * busy:
        seen = f"the GPU's kernels took {milliseconds(busy)} per step"
    elif traced and a.step_ns > LONGEST * traced:
        seen = f"a step took {milliseconds(traced)} under the profiler"
    else:
        return
    name = clean(Path(path).name)
    raise UserError(f"--step-ms {a.step_ns / 1e6:.6g}: in {name} {seen}. Is it in milliseconds, of the same loop?")


def _top(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value[:6]) <= 1000:
        raise UserError(f"--top {clean(value)}: give a whole number from 1 to 1000.")
    return int(value)


# ---------------------------------------------------------------- JSON


def as_json(names: list[str], analyses: list[Analysis]) -> dict[str, Any]:
    """The first trace at the top; a second one under "other", and what changed under "comparison". _ns and _ms are times, bytes are
    bytes, all else is a count per step or a share from 0 to 1. What a trace cannot tell is null; NaN and infinity do not occur."""
    data = _trace_json(names[0], analyses[0])
    if len(analyses) > 1:
        data["other"] = _trace_json(names[1], analyses[1])
        data["comparison"] = dataclasses.asdict(compare(*analyses))
    return json_value(data)


def _trace_json(name: str, a: Analysis) -> dict[str, Any]:
    m, diagnosis = a.metrics, dataclasses.asdict(a.diagnosis)
    for shown in diagnosis["evidence"]:
        shown["events"] = _events_json(a.trace, shown["events"])
    operations = [dataclasses.asdict(operation) for operation in a.operations]
    for shown in operations:
        shown["events"] = _events_json(a.trace, shown["events"][:MOST_EVENTS])
        # of what flops and bytes need at the device's peaks: 1 is on the roof
        shown["roof_share"] = shown["least_ns"] and shown["least_ns"] / shown["gpu_ns"]
    gaps = {part[5:] + "_ns": a.breakdown[part] for part in IDLE if part in a.breakdown}
    return {
        "trace": name,
        "complete": m.complete,
        "reasons": m.reasons,
        "notes": m.notes,
        "steps": len(a.trace.windows) + a.trace.windows.cut,
        "steps_counted": m.steps,
        "device": next((name for name in used_devices(a.trace) if name != "?"), None),
        "devices": used_devices(a.trace),
        "step_ms": a.step_ns and a.step_ns / 1e6,
        "step_ms_traced": m.step_ns_traced and m.step_ns_traced / 1e6,
        "diagnosis": diagnosis,
        "breakdown_ms": {part: ns / 1e6 for part, ns in a.breakdown.items()},
        "metrics": {**m.to_dict(), "gap_cause": gaps},
        "top_operations": operations,
        "longest_gaps": _gaps_json(a),
        **diagnosis_streams.as_json(a),
    }


def _events_json(trace: Trace, events: list[int]) -> list[dict[str, Any]]:
    """As they stand in the file, so that they can be found in a viewer: microseconds, `ts` and `dur`."""
    return [{"name": trace.names[trace.name[e]], **_times(trace, trace.start[e], trace.duration[e])} for e in events]


def _times(trace: Trace, start: int, duration: int) -> dict[str, float]:
    """As in the file, and where Perfetto shows it: ms from the beginning of the trace."""
    return {"ts": int(start) / 1000, "dur": int(duration) / 1000, "at_ms": (int(start) - trace.begin) / 1e6}


def _gaps_json(a: Analysis) -> list[dict[str, Any]]:
    length = a.gaps.end - a.gaps.start
    rows = []
    for i in (-length).argsort(kind="stable")[:MOST_GAPS].tolist():
        row: dict[str, Any] = {"device": int(a.gaps.device[i]), "cause": PARTS[a.gaps.cause[i]]}
        row |= _times(a.trace, a.gaps.start[i], length[i])
        for side in ("before", "after"):
            event = int(getattr(a.gaps, side)[i])
            row[side] = a.trace.names[a.trace.name[event]] if event >= 0 else None
        rows.append(row)
    return rows


# ---------------------------------------------------------------- text

Paint = Callable[[str, str], str]


def text(
    names: list[str], analyses: list[Analysis], width: int = 100, colour: bool = False, top: int | None = None
) -> str:
    """The report for a terminal of `width` columns; without `top` as many operations as fit a screen."""
    width, paint = max(width, 60), painter(colour)
    if len(analyses) > 1:
        before, after = analyses
        lines = _head_text(f"before: {names[0]}", before, width, paint)
        lines += ["", *_head_text(f"after: {names[1]}", after, width, paint), ""]
        return "\n".join([*lines, *_comparison_text(before, after, width, paint)])
    (a,) = analyses
    lines = _head_text(names[0], a, width, paint)
    if what_ifs := said.what_ifs(a):
        lines += wrap(what_ifs, width)
    lines += ["", *_parts_text(a, width, paint)]
    for name, fact in said.facts(a.metrics):
        lines += hanging(f"{name:<8} ", fact, width)
    advice = [line for way in said.advice(a.diagnosis) for line in hanging("- ", way, width)]
    advice = [paint("What to try", "1"), *advice] if advice else []
    room = SCREEN - len(lines) - len(advice) - 3
    lines += ["", *_operations_text(a, width, paint, room, top)] if a.operations else []
    lines += ["", *advice] if advice else []
    return "\n".join(line.rstrip() for line in lines)


def _head_text(name: str, a: Analysis, width: int, paint: Paint) -> list[str]:
    """What was read, the verdict, and how long a step takes."""
    lines = [*(paint(line, "1") for line in at_both_ends(name, said.device(a), width)), "─" * width]
    if not a.metrics.complete:
        lines += [paint(line, "33") for line in wrap("incomplete: " + "; ".join(a.metrics.reasons), width)]
    if a.metrics.notes:
        lines += wrap("note: " + "; ".join(a.metrics.notes), width)
    if not a.diagnosis.text.startswith(NO_DIAGNOSIS):  # that is said above
        lines += [paint(line, "1") for line in wrap(said.verdict(a), width)]
    return lines + wrap(said.step_length(a), width)


def _parts_text(a: Analysis, width: int, paint: Paint) -> list[str]:
    """A bar for each part of the step: solid for work, shaded for idle time."""
    room, lines = width - 36, []
    for part, ns, share in said.parts(a):
        bar = ("░" if part.startswith("idle") else "█") * max(1, round(room * share))
        lines.append(f"{STEP_PARTS[part].short:<14} {bar:<{room}} {milliseconds(ns):>10} {share:>5.0%}")
    return [paint("Where the time of a step goes", "1"), *lines, ""] if lines else []


def _operations_text(a: Analysis, width: int, paint: Paint, room: int, top: int | None) -> list[str]:
    """The first `top` of them; without it the first one, and as many as fit `room` lines."""
    lines, shown = [paint("Operations that cost the GPU most, per step", "1")], 0
    for o in a.operations[:top]:
        numbers = f"{milliseconds(o.gpu_ns):>8} {o.share:>4.0%} {f'{plain_number(o.count)}x':>6}  "
        first, *rest = at_both_ends(said.operation_name(o), said.source_line(o), width - len(numbers))
        block = [
            numbers + first,
            *(" " * len(numbers) + line for line in rest if line.strip()),
            *wrap(o.why, width, " " * 10),
        ]
        if top is None and shown and len(lines) + len(block) > room + 1:
            break
        lines, shown = lines + block, shown + 1
    if len(a.operations) > shown:
        lines[0] += f" ({shown} of {len(a.operations)}{'; more: --top, --html, --json' if width > 80 else ''})"
    return lines


def _comparison_text(before: Analysis, after: Analysis, width: int, paint: Paint) -> list[str]:
    compared = compare(before, after)
    lines = [paint(line, "1") for line in wrap(compared.text, width)]
    room = SCREEN - 14
    for title, rows in said.changes(compared):
        rows = rows[: max(2, min(len(rows), room - 2))]
        room -= len(rows) + 2
        if rows:
            lines += ["", paint(f"{title:<{width - 46}} {'before':>14} {'after':>14} {'change':>14}", "1")]
            for name, *cells in rows:
                first, *rest = wrap(name, width - 47)
                lines += [f"{first:<{width - 46}} " + " ".join(f"{cell:>14}" for cell in cells), *rest]
    return lines
