"""What a trace tells, as words and numbers in words: for the terminal and for the page of `grader diagnose`."""

from grader.safe_text import clean, rounded, size_text, times
from grader.trace import Analysis, Metrics, Trace, catalogue
from grader.trace.analysis import Operation
from grader.trace.compare import Change, Comparison
from grader.trace.diagnosis import Diagnosis
from grader.trace.job import Job
from grader.trace.timeline import used_devices
from grader.trace.words import counted, milliseconds, plain_number, short_kernel

DOUBTFUL = 1.2  # times as long as under the profiler, which makes no step shorter: that is worth a sentence
# Least confidence -> verdicts that were right, and all, on traces with a known cause: data/measured/reliability.md.
RIGHT = ((0.9, (238, 238)), (0.8, (31, 31)), (0.7, (45, 45)), (0.6, (30, 31)), (0.5, (76, 95)), (0.0, (9, 12)))
MOST_PLACES = 2
MOST_FAMILIES = 8  # of kernels, in a comparison

# ---------------------------------------------------------------- one trace


def device(analysis: Analysis) -> str:
    """What the trace was recorded on, and how many steps count."""
    names = used_devices(analysis.trace)
    name = clean(names[0]) if names and names[0] != "?" else "device not named"
    if not len(analysis.trace.gpu):
        name = "no GPU work"
    elif len(names) > 1:
        name = f"{len(names)} x {name}"
    return f"{name}, {counted(analysis.metrics.steps, 'step{s}')} counted"


def verdict(analysis: Analysis) -> str:
    """The cause in words, the runner-up, and how sure that is."""
    diagnosis = analysis.diagnosis
    if not diagnosis.cause:
        return diagnosis.text
    runner_up = f" Next: {diagnosis.runner_up}." if diagnosis.runner_up else ""
    seen = where(analysis)
    sure = f" Confidence {diagnosis.confidence:.0%}, {how_often_right(diagnosis.confidence)}."
    return f"{diagnosis.text}{runner_up}{sure}{f' See it {seen}.' if seen else ''}"


def how_often_right(confidence: float) -> str:
    """What a confidence has meant so far, as the end of a sentence."""
    right, cases = next(seen for least, seen in RIGHT if confidence >= least)
    return f"right in {right} of {cases} known cases"


def step_length(analysis: Analysis) -> str:
    """How long a step takes, and how that is known: a sentence."""
    step, traced = analysis.step_ns, analysis.metrics.step_ns_traced
    if not step and not traced:
        return "A step: length unknown."
    if not step:
        known = "under the profiler, which makes it longer. Give the real length with --step-ms"
        return f"A step: {milliseconds(traced or 0)} {known}."
    said = f"A step: {milliseconds(step)}, measured without the profiler"
    if traced:
        said += f", {milliseconds(traced)} under it"
        if step > DOUBTFUL * traced:
            said += f". The profiler makes no step shorter. {_missing(analysis)}"
    return f"{said}."


def _missing(analysis: Analysis) -> str:
    """What the time is by which the recorded steps are too short, without its full stop."""
    wait, length = analysis.metrics.wait_ns, milliseconds(analysis.step_ns or 0)
    if wait is not None:
        return f"The recorded steps were quicker than the others, which waited for data for {milliseconds(wait)} each"
    if analysis.metrics.data_wait is None:
        return f"Some steps are longer than the recorded ones, or the {length} are of another job"
    return (
        f"Batches were ready while it recorded, or the {length} are of another job. The missing time counts as waiting"
    )


def what_ifs(analysis: Analysis) -> str:
    """How long a step would be without each cause, "input 6.3 ms (3.4x)", the largest gain first: a sentence, or ""."""
    step = analysis.step_ns or analysis.metrics.step_ns_traced
    most, why = ("", "") if len(analysis.trace.gpu) else ("at most ", ", as workers take cores from the training")
    without = sorted((analysis.diagnosis.what_if or {}).items(), key=lambda item: item[1])
    said = [
        f"{cause} {plain_number(ms)} ms ({most}{times(step / 1e6 / ms)}{why})"
        for cause, ms in without
        if step and ms > 0
    ]
    return f"Step time if a single cause were gone: {', '.join(said)}." if said else ""


def advice(found: Diagnosis | Job) -> list[str]:
    """What to try, and where the course teaches this cause."""
    ways = [f"read `notebooks/{found.lesson}.ipynb`"] if found.lesson else []
    ways += [f"do lab `{found.teaches}` (`grader start {found.teaches}`)"] if found.teaches else []
    return [*found.what_to_try, *([f"To learn it: {', '.join(ways)}."] if ways else [])]


def at(trace: Trace, time: int) -> str:
    """When it is, as Perfetto shows it."""
    return f"{(time - trace.begin) / 1e6:,.3f} ms"


def where(analysis: Analysis) -> str:
    """Times to jump to in Perfetto: the longest events of the evidence, of each fact the first two. "" without any."""
    t = analysis.trace
    times: dict[int, str] = {}
    for evidence in analysis.diagnosis.evidence:
        for e in evidence.events[:2]:
            times.setdefault(int(t.start[e]), at(t, int(t.start[e])))
    return f"at {', '.join(list(times.values())[:MOST_PLACES])} in Perfetto" if times else ""


def parts(analysis: Analysis) -> list[tuple[str, float, float]]:
    """Parts of the step of at least half a percent, in their order: (part, ns, share)."""
    total = sum(analysis.breakdown.values())
    return [(part, ns, ns / total) for part, ns in analysis.breakdown.items() if total and ns >= 0.005 * total]


def operation_name(operation: Operation) -> str:
    """With the shapes of its inputs; a kernel's without what all of them have in common."""
    name = operation.name if operation.name.startswith("aten::") else short_kernel(operation.name, 200)
    return f"{name} {operation.shapes}".strip()


def source_line(operation: Operation) -> str:
    """ "train.py:41 in forward"; "" where the trace has no stacks."""
    where = operation.line or ""
    return f"{where} in {operation.function}" if where and operation.function else where


# ---------------------------------------------------------------- its metrics


def facts(m: Metrics) -> list[tuple[str, str]]:
    """The metrics in words, (about what, numbers); what the trace cannot tell is left out."""
    matmul = m.tensor_core_share or {}
    to_gpu = sum(copy["bytes"] or 0 for kind, copy in (m.copies or {}).items() if kind.startswith("HtoD"))
    growth = m.memory_growth if m.memory_growth and m.memory_growth > 0 else None
    under = " under the profiler" if m.step_ns else ""
    rows = {
        "GPU": (_time(m.gpu_busy_ns, "busy per step"), _idle(m)),
        "host": (
            _share(m.data_wait, f"waiting for data{under}"),
            _count(m.launches, "launches", "launch"),
            _count(m.syncs, "syncs"),
            _time(m.sync_ns or None, "in them"),
        ),
        "syncs": [f"{plain_number(count)} at {line}" for line, count in list((m.sync_lines or {}).items())[:2]],
        "kernels": (
            _count(m.kernels, "per step"),
            _share(m.tiny_kernel_share, "under 10 µs"),
            _count(m.copy_kernels or None, "that only copy or cast"),
            _share(
                m.unknown_kernel_share if (m.unknown_kernel_share or 0) >= 0.005 else None,
                "of the GPU's time in unknown ones",
            ),
        ),
        "matmul": (
            _share(matmul.get("yes"), "on tensor cores"),
            _share(matmul.get("unknown") or None, "unknown"),
            _share(m.half_share, "with 16-bit inputs"),
        ),
        "copies": (
            f"{rounded(to_gpu / 1e6, 3)} MB to the GPU" if to_gpu else "",
            _share(m.h2d_pinned, "pinned"),
            _share(m.h2d_overlap, "beside kernels"),
        ),
        "comm": (
            _time(m.comm_ns or None, "per step"),
            _time(m.comm_exposed_ns if m.comm_ns else None, "with nothing beside it"),
        ),
        "memory": (
            f"{size_text(m.peak_memory)} at the peak" if m.peak_memory is not None else "",
            f"{size_text(growth)} more each step" if growth else "",
        ),
    }
    said = {name: ", ".join(filter(None, numbers)) for name, numbers in rows.items()}
    return [(name, numbers) for name, numbers in said.items() if numbers]


def _idle(m: Metrics) -> str:
    """Two shares: the recording has steps that are not counted, and its steps are longer than those without the profiler."""
    idle, of_step = m.gpu_idle_unprofiled, "of a step without the profiler"
    if idle is None and m.gpu_busy_ns is not None and m.step_ns_traced:
        idle, of_step = max(0.0, 1 - m.gpu_busy_ns / m.step_ns_traced), "of a step under the profiler"
    shares = ", ".join(filter(None, (_share(idle, of_step), _share(m.gpu_idle, "of the whole recording"))))
    return f"idle {shares}" if shares else ""


def _share(value: float | None, words: str) -> str:
    return "" if value is None else f"{value:.0%} {words}"


def _time(value: float | None, words: str) -> str:
    return "" if value is None else f"{milliseconds(value)} {words}"


def _count(value: float | None, words: str, one: str = "") -> str:
    if value is None:
        return ""
    return f"{rounded(value, 3)} {words if value != 1 else one or words.removesuffix('s')}"


# ---------------------------------------------------------------- two traces

Cells = tuple[str, str, str, str]  # name, before, after, change


def changes(compared: Comparison) -> list[tuple[str, list[Cells]]]:
    """Tables with their titles, what did not change left out."""
    if not compared.step.before or not compared.step.after:
        return []
    least = max(compared.step.before, compared.step.after) / 100
    parts = [c for c in compared.parts if abs(c.difference or 0) > least]
    families = [c for c in compared.families[:MOST_FAMILIES] if abs(c.difference or 0) > least]
    changed = {c.name: c for c in compared.metrics if c.before != c.after}
    metrics = [
        _cells(changed[name], about.short, about.unit) for name, about in catalogue.COMPARED.items() if name in changed
    ]
    return [
        ("Parts of a step", [_cells(c, catalogue.short_name(c.name), catalogue.TIME) for c in parts]),
        ("In numbers", [cells for cells in metrics if cells[1] != cells[2]]),
        ("Kernels by family, per step", [_cells(c, c.name, catalogue.TIME) for c in families]),
    ]


def _cells(change: Change, name: str, unit: catalogue.Unit) -> Cells:
    before, after = (_written(value, unit) for value in (change.before, change.after))
    if unit == catalogue.SHARE and change.difference is not None:  # of what is shown, so that it adds up
        return name, before, after, f"{int(after[:-1]) - int(before[:-1]):+d} points"
    return name, before, after, _written(change.difference, unit, "+")


def _written(value: float | None, unit: catalogue.Unit, sign: str = "") -> str:
    if value is None:
        return "not known"
    if unit == catalogue.SHARE:
        return f"{100 * value:.0f}%"
    words = {catalogue.TIME: milliseconds, catalogue.BYTES: size_text}.get(unit, lambda count: rounded(count, 4))
    return (sign if value > 0 else "") + words(value)
