"""A few steps of a trace as compact data: enough to draw them, small enough to keep in a result file."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.trace import intervals
from grader.trace.metrics import data_waits
from grader.trace.read import COPY_LAUNCH, CPU_OP, GRAPH_LAUNCH, KERNEL, KERNEL_LAUNCH, MEMSET_LAUNCH, Trace
from grader.trace.steps import Steps

PIXELS = 3000  # a gap or a wait shorter than this part of the picture's width cannot be seen
MOST_INTERVALS = 600
MOST_STREAMS = 4  # lanes of their own; further streams share one


def timeline(trace: Trace, steps: int = 3, skip_first: int = 1, step_ns: float | None = None) -> dict[str, Any]:
    """The first `steps` steps after `skip_first`, JSON values only, times in integer ns.

    The window runs from the start of the first step to the end of the last or of the GPU work launched in it, whichever
    is later. step_ns: length of a step measured without the profiler; it is only passed on, to be written beside the
    picture ("step_ns", None when it was not given; "step_ns_traced" is the length in the trace).

    {"origin_ns", "span_ns", "steps": [[start, end], ...], "lanes": [{"name", "kind", "intervals": [[start, duration],
    ...]}, ...], "idle": [[start, duration], ...] (nothing ran on the busiest GPU), "complete", "reasons", "step_ns",
    "step_ns_traced"}; starts and ends are relative to origin_ns."""
    result: dict[str, Any] = {"origin_ns": 0, "span_ns": 0, "steps": [], "lanes": [], "idle": [], "step_ns": step_ns}
    result |= {"step_ns_traced": None, "complete": trace.complete, "reasons": list(trace.reasons)}
    step_of = Steps(trace, skip_first, steps)
    if not len(step_of):
        return result | {"complete": False, "reasons": [*trace.reasons, "it has no step after those left out"]}
    gpu, own = np.flatnonzero(trace.is_gpu), step_of.gpu
    low = int(step_of.starts[0])
    high = max(int(step_of.ends[-1]), int(trace.end[own].max()) if len(own) else low)
    shortest = (high - low) // PIXELS

    def visible(spans: intervals.Intervals) -> list[list[int]]:
        spans, gap = intervals.close_gaps(intervals.clip(spans, low, high), shortest), max(shortest, 1)
        while len(spans[0]) > MOST_INTERVALS:
            gap *= 2
            spans = intervals.close_gaps(spans, gap)
        return [[start - low, end - start] for start, end in zip(spans[0].tolist(), spans[1].tolist(), strict=True)]

    def lane(name: str, kind: str, spans: intervals.Intervals) -> None:
        shown = visible(spans)
        if shown:
            result["lanes"].append({"name": name, "kind": kind, "intervals": shown})

    def spans_of(mask: np.ndarray) -> intervals.Intervals:
        return intervals.union(trace.start[mask], trace.end[mask])

    waits = intervals.union(*data_waits(trace, step_of.thread))
    lane("data wait", "data_wait", waits)
    # Operators called within __next__ (collating, decoding in the main process) belong to the wait.
    lane("host", "host", intervals.difference(spans_of(trace.category == CPU_OP), waits))
    launches = trace.named(KERNEL_LAUNCH) | trace.named(GRAPH_LAUNCH) | trace.named(COPY_LAUNCH)
    launches |= trace.named(MEMSET_LAUNCH)
    lane("launches", "launches", spans_of(trace.is_call & launches))

    if len(gpu):
        gpu = gpu[(trace.end[gpu] > low) & (trace.start[gpu] < high)]
        kernel = gpu[trace.category[gpu] == KERNEL]
        streams: dict[tuple[int, int], list[int]] = {}
        keys = zip(trace.device[kernel].tolist(), trace.stream[kernel].tolist(), kernel.tolist(), strict=True)
        for device, stream, index in keys:
            streams.setdefault((device, stream), []).append(index)
        time = {key: int(trace.duration[own].sum(dtype=np.float64)) for key, own in streams.items()}
        ranked = sorted(streams, key=lambda key: -time[key])
        several = len({device for device, _ in streams}) > 1
        for device, stream in sorted(ranked[:MOST_STREAMS]):
            name = f"GPU {device} stream {stream}" if several else f"GPU stream {stream}"
            lane(name, "gpu", spans_of(np.array(streams[device, stream])))
        if rest := [index for key in ranked[MOST_STREAMS:] for index in streams[key]]:
            lane("GPU other streams", "gpu", spans_of(np.array(rest)))
        lane("copies", "copies", spans_of(gpu[trace.category[gpu] != KERNEL]))
        if len(gpu):
            devices, counts = np.unique(trace.device[gpu], return_counts=True)
            busiest = devices[counts.argmax()]
            busy = spans_of(gpu[trace.device[gpu] == busiest])
            gaps = intervals.complement(intervals.close_gaps(busy, shortest), low, high)
        else:
            gaps = (np.array([low]), np.array([high]))
        wide = gaps[1] - gaps[0] >= max(shortest, 1)
        result["idle"] = visible((gaps[0][wide], gaps[1][wide]))
    result["origin_ns"], result["span_ns"] = low, high - low
    result["steps"] = [[int(s) - low, int(e) - low] for s, e in zip(step_of.starts, step_of.ends, strict=True)]
    result["step_ns_traced"] = step_of.length
    return result
