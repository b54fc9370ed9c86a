"""A few steps of a trace as compact data: enough to draw them, small enough to keep in a result file."""

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
FAR_LONGER = 2.0  # than half of the steps: such a step is shown, for what it waits for holds the others up, too
BINS = 480  # of the share of the time that a GPU works: kernels of microseconds are no bars that one could see


def timeline(
    trace: Trace,
    steps: int = 3,
    skip_first: int = 1,
    step_ns: float | None = None,
    gaps: Gaps | None = None,
    exactly: bool = False,
) -> dict[str, Any]:
    """The first `steps` steps after `skip_first`, or the longest and its neighbours if it takes far longer than the others and not
    `exactly` those first ones are asked for. JSON values only, times in integer ns relative to "origin_ns". step_ns: length of a step
    without the profiler, to be written beside the picture. gaps: `Analysis.gaps` if it is there already."""
    result: dict[str, Any] = {
        "origin_ns": 0,
        "span_ns": 0,  # to the end of the last step, or of the GPU work launched in it if that is later
        "steps": [],  # [start, end]
        "lanes": [],  # {"name", "kind", "device" (None: host), "intervals": [[start, duration], ...]}; some share a name
        "idle": [],  # [start, duration]: nothing ran on the busiest GPU
        "gaps": [],  # [start, duration, cause (one of IDLE), device], without what is too short to see
        "use": [],  # {"device", "share": {"gpu" | "communication" | "copies" | cause | "idle": [permille of each bin]}}
        "step_ns": step_ns,
        "step_ns_traced": None,  # the mean length in the trace, of these and all later steps
        "complete": trace.complete,
        "reasons": list(trace.reasons),
    }
    skipped = max(0, min(skip_first, len(trace.windows) - 1))  # a lone step is better than none
    counted = Steps(trace, skipped)
    chosen = Steps(trace, skipped + (0 if exactly else _to_the_longest(counted, steps)), steps)
    if not len(chosen):
        return result | {"complete": False, "reasons": [*trace.reasons, "it has no step after those left out"]}
    low, own = int(chosen.starts[0]), chosen.gpu
    high = max(int(chosen.ends[-1]), int(trace.end[own].max()) if len(own) else low)
    window = _Window(trace, low, high, result)
    window.add_host(chosen.thread)
    if len(trace.gpu):
        window.add_gpus(gaps or breakdown(trace, chosen, step_ns).gaps)
    result["gaps"].sort()
    result["origin_ns"], result["span_ns"] = low, high - low
    result["steps"] = [[int(s) - low, int(e) - low] for s, e in zip(chosen.starts, chosen.ends, strict=True)]
    result["step_ns_traced"] = counted.length
    return result


def _to_the_longest(counted: Steps, shown: int) -> int:
    """How many of the counted steps to pass over, so that one which takes far longer than the others is in the middle of those shown."""
    lengths = counted.ends - counted.starts
    if len(lengths) <= shown or lengths.max() <= FAR_LONGER * np.median(lengths):
        return 0
    return int(np.clip(lengths.argmax() - shown // 2, 0, len(lengths) - shown))


class _Window:
    """The time from low to high, ns, of which a timeline is filled."""

    def __init__(self, trace: Trace, low: int, high: int, result: dict[str, Any]):
        self.trace, self.low, self.high, self.result = trace, low, high, result
        self.shortest = (high - low) // PIXELS

    def add_host(self, thread: int) -> None:
        t = self.trace
        waits = intervals.union(*data_waits(t, thread))
        self._lane("data wait", "data_wait", waits)
        # Operators called within __next__ (collating, decoding in the main process) belong to the wait.
        self._lane("host", "host", intervals.difference(self.trace.spans(t.category == CPU_OP), waits))
        kinds = [t.named(kind, t.calls) for kind in (KERNEL_LAUNCH, GRAPH_LAUNCH, COPY_LAUNCH, MEMSET_LAUNCH)]
        self._lane("launches", "launches", self.trace.spans(t.calls[np.logical_or.reduce(kinds)]))

    def add_gpus(self, gaps: Gaps) -> None:
        t, low, high = self.trace, self.low, self.high
        gpu = t.gpu[(t.end[t.gpu] > low) & (t.start[t.gpu] < high)]
        devices, counts = np.unique(t.device[gpu], return_counts=True)
        shown = np.sort(devices[np.argsort(-counts, kind="stable")][:MOST_DEVICES]).tolist()
        if len(devices) > len(shown):
            self.result["reasons"].append(f"{len(shown)} of {len(devices)} GPUs are shown")
        for device in shown:
            self._device(device, gpu[t.device[gpu] == device], gaps, f"GPU {device} " if len(shown) > 1 else "GPU ")
        idle = (np.array([low]), np.array([high]))
        if len(gpu):
            busy = self.trace.spans(gpu[t.device[gpu] == devices[counts.argmax()]])
            idle = intervals.complement(intervals.close_gaps(busy, self.shortest), low, high)
        self.result["idle"] = self._visible(self._wide(idle))

    def _device(self, device: int, gpu: np.ndarray, gaps: Gaps, prefix: str) -> None:
        t = self.trace
        is_kernel = t.category[gpu] == KERNEL
        kernel, copies = gpu[is_kernel], self.trace.spans(gpu[~is_kernel])
        communication = by_name(is_communication, t, kernel) == 1
        groups = np.where(np.isin(t.stream[kernel], _busiest_streams(t, kernel)), t.stream[kernel], -2)
        for stream in sorted(set(groups.tolist()), key=lambda stream: (stream == -2, stream)):
            name = prefix + ("other streams" if stream == -2 else f"stream {stream}" if stream >= 0 else "stream ?")
            for kind, mask in (("gpu", ~communication), ("communication", communication)):
                self._lane(name, kind, self.trace.spans(kernel[(groups == stream) & mask]), device)
        self._lane(f"{prefix}copies".replace("GPU copies", "copies"), "copies", copies, device)
        causes = _causes(gaps, device)
        for cause, spans in causes.items():
            self.result["gaps"] += [[*span, cause, device] for span in self._visible(self._wide(spans))]
        parts = {
            "gpu": self.trace.spans(kernel[~communication]),
            "communication": self.trace.spans(kernel[communication]),
        }
        share = _shares(parts | {"copies": copies, **causes}, self.low, self.high)
        self.result["use"].append({"device": device, "share": share})

    def _lane(self, name: str, kind: str, spans: intervals.Intervals, device: int | None = None) -> None:
        if shown := self._visible(spans):
            self.result["lanes"].append({"name": name, "kind": kind, "device": device, "intervals": shown})

    def _wide(self, spans: intervals.Intervals) -> intervals.Intervals:
        wide = spans[1] - spans[0] >= max(self.shortest, 1)
        return spans[0][wide], spans[1][wide]

    def _visible(self, spans: intervals.Intervals) -> list[list[int]]:
        """[start, duration] of these within the window, joined where nobody could see the gap."""
        gap = self.shortest
        spans = intervals.close_gaps(intervals.clip(spans, self.low, self.high), gap)
        while len(spans[0]) > MOST_INTERVALS:
            gap = max(gap, 1) * 2
            spans = intervals.close_gaps(spans, gap)
        starts, ends = (times.tolist() for times in spans)
        return [[start - self.low, end - start] for start, end in zip(starts, ends, strict=True)]


def used_devices(trace: Trace) -> list[str]:
    """The names of the GPUs that worked, "?" for an unnamed one; without any the first: a trace lists all GPUs of the machine."""
    used = devices_of(trace, trace.gpu)
    names = [trace.devices[i] if 0 <= i < len(trace.devices) else "?" for i in used]
    return names or trace.devices[:1]


def _busiest_streams(trace: Trace, kernels: np.ndarray) -> np.ndarray:
    streams, of = np.unique(trace.stream[kernels], return_inverse=True)
    time = np.bincount(of, weights=trace.duration[kernels], minlength=len(streams))
    return streams[np.argsort(-time, kind="stable")[:MOST_STREAMS]]


def _causes(gaps: Gaps, device: int) -> dict[str, intervals.Intervals]:
    """The idle times of a device, for each cause that has any."""
    here = gaps.device == device
    start, end, cause = gaps.start[here], gaps.end[here], gaps.cause[here]
    return {PARTS[c]: intervals.union(start[cause == c], end[cause == c]) for c in np.unique(cause).tolist()}


def _shares(parts: dict[str, intervals.Intervals], low: int, high: int) -> dict[str, list[int]]:
    """How much of each bin every part takes, permille; an earlier part hides a later one, what none takes is "idle"."""
    edges = np.linspace(low, high, BINS + 1)
    taken, below, shares = intervals.EMPTY, np.zeros(BINS, int), {}
    for name, spans in parts.items():
        taken = intervals.joined(taken, spans)
        # Rounded as running totals, so that the parts of a bin always add up to 1000.
        total = np.rint(
            1000 * np.diff(intervals.before(intervals.clip(taken, low, high), edges)) / max((high - low) / BINS, 1)
        )
        total = np.clip(total.astype(int), below, 1000)
        if (total > below).any():
            shares[name] = (total - below).tolist()
        below = total
    if (below < 1000).any():
        shares["idle"] = (1000 - below).tolist()
    return shares
