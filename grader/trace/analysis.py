"""Everything that can be said of one trace, in one object: what `grader diagnose`, the pictures and the lessons use."""

from dataclasses import dataclass

from grader.trace.breakdown import Breakdown, Gaps, breakdown
from grader.trace.catalogue import PARTS, Metrics
from grader.trace.causes import CAUSES
from grader.trace.columns import Trace
from grader.trace.diagnosis import Diagnosis, Evidence, diagnose
from grader.trace.metrics import metrics
from grader.trace.operations import Operation, operations
from grader.trace.steps import Steps

__all__ = ["CAUSES", "PARTS", "Analysis", "Breakdown", "Diagnosis", "Evidence", "Gaps", "Operation", "analyse"]


@dataclass(frozen=True)
class Analysis:
    trace: Trace
    metrics: Metrics
    breakdown: dict[str, float]  # PARTS -> ns per step, sums to the step time; empty without steps or GPU events
    gaps: Gaps
    operations: list[Operation]
    diagnosis: Diagnosis
    step_ns: float | None  # the unprofiled step time, if it was given
    left_out: int  # steps before those that are counted
    steps: Steps  # those that are counted


def analyse(
    trace: Trace,
    step_ns: float | None = None,
    top: int = 10,
    skip_first: int = 1,
    count: int | None = None,
    wait_ns: float | None = None,
) -> Analysis:
    """Measure and diagnose a trace, whatever `read` returned. step_ns: length of a step without the profiler, ns; wait_ns: how long it
    waits for data, where that was measured. top: how many operations to look into. skip_first, count: which steps are counted."""
    warm = trace.windows.warm if skip_first else 0
    left_out = max(0, min(max(skip_first, warm), len(trace.windows) - 1))  # a lone step is better than none
    if (run := trace.loss.run) and count is None and skip_first:
        left_out, count = run
    turn = trace.windows.turn
    whole = (len(trace.windows) - left_out) // turn * turn
    if turn > 1 and whole and count is None and skip_first:
        left_out = len(trace.windows) - whole
    steps = Steps(trace, left_out, count)
    m = metrics(trace, step_ns, skip_first, steps, wait_ns=wait_ns)
    if turn > 1 and len(steps) == whole:
        m.notes.insert(0, f"its steps come in turns of {turn}, so a whole number of turns is counted")
    if warm > skip_first:
        m.notes.append(f"its first {warm} steps took many times as long as the others, and are not counted")
    b = breakdown(trace, steps, m.step_ns, m.wait_ns)
    costly = operations(trace, top, steps=steps)
    return Analysis(trace, m, b.parts, b.gaps, costly, diagnose(trace, m, b, steps, costly), step_ns, left_out, steps)
