"""Everything that can be said of one trace, in one object: what `grader diagnose`, the pictures and the lessons use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grader.trace.metrics import Metrics
from grader.trace.read import Trace

# What the time of a step is made of. The parts are disjoint and add up to the step time: kernels first (a copy or a
# collective that runs beside a kernel costs nothing), then what else kept the GPU busy, then its idle time by cause.
PARTS = (
    "tensor_core",  # matrix products and convolutions on tensor cores
    "matmul",  # matrix products and convolutions on the ordinary units, or on nobody knows which
    "memory",  # every other kernel: elementwise, normalisation, reduction, layout, optimizer
    "communication",  # NCCL kernels while no other kernel ran
    "copies",  # copies and memsets while no kernel ran
    "idle_data",  # idle: the host waited for data
    "idle_transfer",  # idle: the host was held by a blocking copy
    "idle_sync",  # idle: the host had waited for the GPU, which so ran dry
    "idle_launch",  # idle: the host did not launch fast enough
    "idle_other",  # idle: the host did something the trace does not show
)
CAUSES = ("input", "transfer", "sync", "launch", "communication", "memory", "compute")  # "-bound"


@dataclass(frozen=True)
class Gaps:
    """Idle times of the GPUs in the counted steps, cut at changes of cause, in order of device and start."""

    device: np.ndarray
    start: np.ndarray  # ns
    end: np.ndarray
    cause: np.ndarray  # index into PARTS, one of the idle_ ones
    before: np.ndarray  # index of the last GPU event before the gap, -1 without one
    after: np.ndarray  # and of the first after it


@dataclass(frozen=True)
class Evidence:
    """One fact that speaks for the diagnosis."""

    text: str  # a sentence with its numbers, "The GPU idled 61% of the step while the host waited for data."
    metric: str  # the name of the metric, or of the part of the step time, that it rests on
    value: float
    events: list[int]  # indices of trace events that prove it, the longest first; at most 20


@dataclass(frozen=True)
class Diagnosis:
    cause: str | None  # "input-bound", ...: one of CAUSES with "-bound"; None when the trace cannot tell
    confidence: float  # 0 to 1
    evidence: list[Evidence]
    runner_up: str | None
    what_if_step_ms: float | None  # the step time if the cause vanished: the most that a fix of it can win
    what_if: dict[str, float]  # the same in ms for every cause that costs anything
    what_to_try: list[str]
    teaches: str | None  # the lesson or lab that teaches it
    text: str  # one or two sentences: the cause, how sure, why


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
    breakdown: dict[str, float]  # PARTS -> ns per step; empty when there are no steps or no GPU events
    gaps: Gaps
    operations: list[Operation]
    diagnosis: Diagnosis
    step_ns: float | None  # the unprofiled step time, if it was given


def analyse(trace: Trace, step_ns: float | None = None, top: int = 10, skip_first: int = 1) -> Analysis:
    """Measure and diagnose a trace. step_ns: length of a step measured without the profiler, ns. top: how many
    operations to look into. Never raises for a trace that `read` returned: what it cannot tell is None or empty."""
    raise NotImplementedError
