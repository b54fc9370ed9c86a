"""Everything that can be said of one trace, in one object: what `grader diagnose`, the pictures and the lessons use."""

from __future__ import annotations

from dataclasses import dataclass

from grader.trace.breakdown import PARTS, Breakdown, Gaps, breakdown
from grader.trace.diagnosis import CAUSES, Diagnosis, Evidence, diagnose
from grader.trace.metrics import Metrics, metrics
from grader.trace.read import Trace
from grader.trace.steps import Steps

__all__ = ["CAUSES", "PARTS", "Analysis", "Breakdown", "Diagnosis", "Evidence", "Gaps", "Operation", "analyse"]


@dataclass(frozen=True)
class Operation:
    """All calls of one operation with one set of shapes from one line, in the counted steps."""

    name: str  # "aten::mm", or the kernel's name where no operator launched it (a compiled kernel, a graph)
    shapes: str  # its inputs', "[64, 3, 7, 7] [512]"; "" when they were not recorded
    line: str | None  # "train.py:41", the innermost line outside of torch; None without stacks
    function: str | None  # the function that line is in
    phase: str  # "forward", "backward", "optimizer" or ""
    count: float  # calls per step
    gpu_ns: float  # per step, kernels and copies
    share: float  # of the GPU's busy time
    kernels: list[str]  # names, the longest time first
    tensor_cores: bool | None
    flops: float | None  # per step, by the shapes; None where they do not tell
    bytes_moved: float | None  # per step, least possible: each input and output once
    intensity: float | None  # flops / bytes_moved
    bound: str | None  # "compute", "memory", "launch" (tiny kernels) or None (not known)
    why: str  # why it costs what it costs, one sentence
    events: list[int]  # its longest GPU events, at most 20


@dataclass(frozen=True)
class Analysis:
    trace: Trace
    metrics: Metrics
    breakdown: dict[str, float]  # PARTS -> ns per step, sums to the step time; empty without steps or GPU events
    gaps: Gaps
    operations: list[Operation]
    diagnosis: Diagnosis
    step_ns: float | None  # the unprofiled step time, if it was given


def analyse(trace: Trace, step_ns: float | None = None, top: int = 10, skip_first: int = 1) -> Analysis:
    """Measure and diagnose a trace. step_ns: length of a step measured without the profiler, ns. top: how many
    operations to look into. Never raises for a trace that `read` returned: what it cannot tell is None or empty."""
    steps = Steps(trace, skip_first)
    m = metrics(trace, step_ns, skip_first, steps)
    b = breakdown(trace, steps, step_ns)
    return Analysis(trace, m, b.parts, b.gaps, [], diagnose(trace, m, b), step_ns)
