"""A few steps of a trace as compact data: enough to draw them, small enough to keep in a result file."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.trace import intervals
from grader.trace.breakdown import Gaps, breakdown
from grader.trace.catalogue import PARTS
from grader.trace.columns import Trace
from grader.trace.events import COPY_LAUNCH, CPU_OP, GRAPH_LAUNCH, KERNEL, KERNEL_LAUNCH, MEMSET_LAUNCH
from grader.trace.host import data_waits
from grader.trace.kernels import is_communication
from grader.trace.steps import Steps
from grader.trace.work import by_name, devices_of

PIXELS = 3000  # a gap or a wait shorter than this part of the picture's width cannot be seen
MOST_INTERVALS = 600
MOST_STREAMS = 4  # of a device with a lane of their own; further streams share one
MOST_DEVICES = 4  # the busiest; further ones are named and not shown
BINS = 480  # of the share of the time that a GPU works: kernels of microseconds are no bars that one could see


def timeline(
    trace: Trace, steps: int = 3, skip_first: int = 1, step_ns: float | None = None, gaps: Gaps | None = None
) -> dict[str, Any]:
    """The first `steps` steps after `skip_first`, JSON values only, times in integer ns.

    The window runs from the start of the first step to the end of the last or of the GPU work launched in it, whichever
    is later. step_ns: length of a step measured without the profiler; it is only passed on, to be written beside the
    picture ("step_ns", None when it was not given; "step_ns_traced" is the length in the trace). gaps: `Analysis.gaps`
    if it is there already.

    {"origin_ns", "span_ns", "steps": [[start, end], ...],
    "lanes": [{"name", "kind", "device" (None for the host's), "intervals": [[start, duration], ...]}, ...], of which two
    may share a name: kernels and collectives of one stream,
    "idle": [[start, duration], ...] (nothing ran on the busiest GPU),
    "gaps": [[start, duration, cause, device], ...] (cause: one of PARTS, "idle_..."; what is too short to see left out),
    "use": [{"device", "share": {"gpu" | "communication" | "copies" | cause | "idle": [permille of each of BINS equal
    parts of the window]}}, ...] (disjoint, adds up to 1000),
    "complete", "reasons", "step_ns", "step_ns_traced"}; starts and ends are relative to origin_ns."""
    result: dict[str, Any] = {"origin_ns": 0, "span_ns": 0, "steps": [], "lanes": [], "idle": [], "gaps": [], "use": []}
    result |= {"step_ns": step_ns, "step_ns_traced": None, "complete": trace.complete, "reasons": list(trace.reasons)}
    chosen = Steps(trace, max(0, min(skip_first, len(trace.steps) - 1)), steps)  # a lone step is better than none
    if not len(chosen):
        return result | {"complete": False, "reasons": [*trace.reasons, "it has no step after those left out"]}
    gpu, own = trace.gpu, chosen.gpu
    gaps = gaps or breakdown(trace, chosen, step_ns).gaps
    low = int(chosen.starts[0])
    high = max(int(chosen.ends[-1]), int(trace.end[own].max()) if len(own) else low)
    shortest = (high - low) // PIXELS

    def visible(spans: intervals.Intervals) -> list[list[int]]:
        spans, gap = intervals.close_gaps(intervals.clip(spans, low, high), shortest), max(shortest, 1)
        while len(spans[0]) > MOST_INTERVALS:
            gap *= 2
            spans = intervals.close_gaps(spans, gap)
        return [[start - low, end - start] for start, end in zip(spans[0].tolist(), spans[1].tolist(), strict=True)]

    def lane(name: str, kind: str, spans: intervals.Intervals, device: int | None = None) -> None:
        shown = visible(spans)
        if shown:
            result["lanes"].append({"name": name, "kind": kind, "device": device, "intervals": shown})

    def spans_of(which: np.ndarray) -> intervals.Intervals:
        return intervals.union(trace.start[which], trace.end[which])

    waits = intervals.union(*data_waits(trace, chosen.thread))
    lane("data wait", "data_wait", waits)
    # Operators called within __next__ (collating, decoding in the main process) belong to the wait.
    lane("host", "host", intervals.difference(spans_of(trace.category == CPU_OP), waits))
    kinds = (trace.named(kind, trace.calls) for kind in (KERNEL_LAUNCH, GRAPH_LAUNCH, COPY_LAUNCH, MEMSET_LAUNCH))
    lane("launches", "launches", spans_of(trace.calls[np.logical_or.reduce([*kinds])]))

    any_gpu = len(gpu) > 0
    gpu = gpu[(trace.end[gpu] > low) & (trace.start[gpu] < high)]
    devices, counts = np.unique(trace.device[gpu], return_counts=True)
    shown = np.sort(devices[np.argsort(-counts, kind="stable")][:MOST_DEVICES])
    if len(devices) > len(shown):
        result["reasons"] = [*result["reasons"], f"{len(shown)} of {len(devices)} GPUs are shown"]
    for device in shown.tolist():
        here = gpu[trace.device[gpu] == device]
        prefix = f"GPU {device} " if len(shown) > 1 else "GPU "
        kernel = here[trace.category[here] == KERNEL]
        communication = by_name(is_communication, trace, kernel) == 1
        groups = np.where(np.isin(trace.stream[kernel], _busiest_streams(trace, kernel)), trace.stream[kernel], -2)
        for stream in sorted(set(groups.tolist()), key=lambda stream: (stream == -2, stream)):
            name = prefix + ("other streams" if stream == -2 else f"stream {stream}" if stream >= 0 else "stream ?")
            for kind, mask in (("gpu", ~communication), ("communication", communication)):
                lane(name, kind, spans_of(kernel[(groups == stream) & mask]), device)
        lane(f"{prefix}copies".replace("GPU copies", "copies"), "copies", spans_of(_without(here, kernel)), device)
        causes = _causes(gaps, device)
        for cause, spans in causes.items():
            wide = spans[1] - spans[0] >= max(shortest, 1)
            result["gaps"] += [[*span, cause, device] for span in visible((spans[0][wide], spans[1][wide]))]
        parts = {"gpu": spans_of(kernel[~communication]), "communication": spans_of(kernel[communication])}
        parts |= {"copies": spans_of(_without(here, kernel)), **causes}
        result["use"].append({"device": device, "share": _shares(parts, low, high)})
    if any_gpu:
        if len(gpu):
            busy = spans_of(gpu[trace.device[gpu] == devices[counts.argmax()]])
            idle = intervals.complement(intervals.close_gaps(busy, shortest), low, high)
        else:
            idle = (np.array([low]), np.array([high]))
        wide = idle[1] - idle[0] >= max(shortest, 1)
        result["idle"] = visible((idle[0][wide], idle[1][wide]))
    result["gaps"].sort()
    result["origin_ns"], result["span_ns"] = low, high - low
    result["steps"] = [[int(s) - low, int(e) - low] for s, e in zip(chosen.starts, chosen.ends, strict=True)]
    result["step_ns_traced"] = chosen.length
    return result


def used_devices(trace: Trace) -> list[str]:
    """The names of the GPUs that worked, "?" for one that the trace does not name; without any the first that it names.
    A trace lists all GPUs of the machine, of which a process often uses one."""
    used = devices_of(trace, trace.gpu)
    names = [trace.devices[i] if 0 <= i < len(trace.devices) else "?" for i in used]
    return names or trace.devices[:1]


def _busiest_streams(trace: Trace, kernels: np.ndarray) -> np.ndarray:
    streams, of = np.unique(trace.stream[kernels], return_inverse=True)
    time = np.bincount(of, weights=trace.duration[kernels], minlength=len(streams))
    return streams[np.argsort(-time, kind="stable")[:MOST_STREAMS]]


def _without(events: np.ndarray, left_out: np.ndarray) -> np.ndarray:
    return np.setdiff1d(events, left_out, assume_unique=True)


def _causes(gaps: Gaps | None, device: int) -> dict[str, intervals.Intervals]:
    """The idle times of a device, for each cause that has any."""
    if gaps is None:
        return {}
    here = gaps.device == device
    start, end, cause = gaps.start[here], gaps.end[here], gaps.cause[here]
    return {PARTS[c]: intervals.union(start[cause == c], end[cause == c]) for c in np.unique(cause).tolist()}


def _shares(parts: dict[str, intervals.Intervals], low: int, high: int) -> dict[str, list[int]]:
    """How much of each bin every part takes, permille; an earlier part hides a later one, what none takes is "idle"."""
    edges = np.linspace(low, high, BINS + 1)
    taken, below, shares = intervals.EMPTY, np.zeros(BINS, int), {}
    for name, spans in parts.items():
        taken = intervals.union(np.append(taken[0], spans[0]), np.append(taken[1], spans[1]))
        # Rounded as running totals, so that the parts of a bin always add up to 1000.
        total = np.rint(1000 * _covered(intervals.clip(taken, low, high), edges) / max((high - low) / BINS, 1))
        total = np.clip(total.astype(int), below, 1000)
        if (total > below).any():
            shares[name] = (total - below).tolist()
        below = total
    if (below < 1000).any():
        shares["idle"] = (1000 - below).tolist()
    return shares


def _covered(spans: intervals.Intervals, edges: np.ndarray) -> np.ndarray:
    """Time within each bin that disjoint, ordered spans cover."""
    if not len(spans[0]):
        return np.zeros(len(edges) - 1)
    points = np.stack(spans, axis=1).ravel()
    covered = np.stack((np.zeros(len(spans[0]), np.int64), spans[1] - spans[0]), axis=1).ravel().cumsum()
    return np.diff(np.interp(edges, points, covered))
