"""Each stream of each GPU: when it idled and why, how much was queued for it; and how long its kernels are."""

from dataclasses import dataclass

import numpy as np

from grader.trace import intervals
from grader.trace.breakdown import CHANGE_OVER_NS, CLOCKS_NS
from grader.trace.columns import Trace
from grader.trace.events import KERNEL
from grader.trace.steps import Steps

EDGES_NS = (2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000)  # between the classes of kernels


@dataclass(frozen=True)
class Stream:
    """One stream in the counted steps. Times in ns per step; the idle ones and `busy_ns` add up to the step."""

    device: int
    stream: int
    events: float  # kernels, copies, memsets per step
    busy_ns: float
    idle_host_ns: float  # what it ran next was not launched yet when it ran dry
    idle_change_ns: float  # short pauses from one queued piece of work to the next
    idle_held_ns: float  # longer ones: queued work that waited for an event, another stream or another rank
    idle_edges_ns: float  # before its first and after its last work of the counted steps
    queue_mean: float | None  # work that is launched and has not begun, over the time; None: launches are not recorded
    queue_most: int | None
    empty_share: float | None  # of the time nothing was queued behind what ran


@dataclass(frozen=True)
class Class:
    """Kernels of like duration, per step."""

    from_ns: int
    to_ns: int | None
    count: float
    ns: float


def streams(trace: Trace, steps: Steps) -> list[Stream]:
    """Those with work in the counted steps, the busiest first."""
    if not len(steps) or not len(steps.gpu):
        return []
    gpu = steps.gpu
    keys = np.stack((trace.device[gpu], trace.stream[gpu]))
    places, of = np.unique(keys, axis=1, return_inverse=True)
    order = np.argsort(of.ravel(), kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(of.ravel()[order])) + 1)
    found = [
        _stream(trace, steps, device, stream, mine)
        for (device, stream), mine in zip(places.T.tolist(), groups, strict=True)
    ]
    return sorted(found, key=lambda one: -one.busy_ns)


def _stream(trace: Trace, steps: Steps, device: int, stream: int, mine: np.ndarray) -> Stream:
    """mine: positions in `steps.gpu`, in order of start."""
    low, high = steps.window
    n, gpu, launch = len(steps), steps.gpu[mine], steps.launch[mine]
    busy = intervals.clip(trace.spans(gpu), low, high)
    first, last = (int(busy[0][0]), int(busy[1][-1])) if len(busy[0]) else (low, low)
    idle = (busy[1][:-1], busy[0][1:])
    after = np.searchsorted(trace.start[gpu], idle[1], side="left")
    before = launch[np.minimum(after, len(gpu) - 1)]
    late = (before < 0) | (trace.end[before] > idle[0] + CLOCKS_NS)
    length = idle[1] - idle[0]
    short = length < CHANGE_OVER_NS
    time, waiting = _waiting(trace, gpu, launch, (low, high))
    lasting = np.diff(np.append(time, high))
    known = len(time) > 0 and high > low
    return Stream(
        device,
        stream,
        events=len(gpu) / n,
        busy_ns=intervals.length(busy) / n,
        idle_host_ns=float(length[late].sum()) / n,
        idle_change_ns=float(length[~late & short].sum()) / n,
        idle_held_ns=float(length[~late & ~short].sum()) / n,
        idle_edges_ns=float((first - low) + (high - last)) / n,
        queue_mean=float((waiting * lasting).sum() / (high - low)) if known else None,
        queue_most=int(waiting.max()) if known else None,
        empty_share=float((lasting[waiting == 0].sum() + time[0] - low) / (high - low)) if known else None,
    )


def queue_length(trace: Trace, steps: Steps, device: int) -> tuple[np.ndarray, np.ndarray]:
    """(time, ns; pieces of work that are launched and have not begun from then on) of one GPU, in the window of the counted steps."""
    launch = trace.launch_of(trace.gpu)
    mine = (trace.device[trace.gpu] == device) & (launch >= 0)
    return _waiting(trace, trace.gpu[mine], launch[mine], steps.window)


def _waiting(
    trace: Trace, gpu: np.ndarray, launch: np.ndarray, window: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Each time within the window once, its beginning first. Work that seems to begin before its launch waits for no time."""
    gpu, launch = gpu[launch >= 0], launch[launch >= 0]
    if not len(gpu):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    put, begun = np.minimum(trace.start[launch], trace.start[gpu]), trace.start[gpu]
    time, place = np.unique(np.concatenate((put, begun, [window[0]])), return_inverse=True)
    change = np.bincount(place[: len(put)], minlength=len(time)) - np.bincount(
        place[len(put) : -1], minlength=len(time)
    )
    waiting = np.cumsum(change)
    inside = (time >= window[0]) & (time < window[1])
    return time[inside], waiting[inside]


def histogram(trace: Trace, steps: Steps) -> list[Class]:
    """How many kernels of a step are how long, and their time; the shortest first."""
    if not len(steps):
        return []
    lengths = trace.duration[steps.gpu[trace.category[steps.gpu] == KERNEL]]
    of = np.searchsorted(EDGES_NS, lengths, side="right")
    count, time = np.bincount(of, minlength=len(EDGES_NS) + 1), np.bincount(of, lengths, minlength=len(EDGES_NS) + 1)
    bounds = zip((0, *EDGES_NS), (*EDGES_NS, None), strict=True)
    return [
        Class(low, high, float(c) / len(steps), float(t) / len(steps))
        for (low, high), c, t in zip(bounds, count.tolist(), time.tolist(), strict=True)
    ]
