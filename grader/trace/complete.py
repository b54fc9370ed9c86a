"""Whether a readable trace is one to judge by."""

from __future__ import annotations

import re

import numpy as np

from grader.trace import intervals
from grader.trace.columns import Trace
from grader.trace.events import (
    CAPTURE_ASKED,
    CAPTURE_BEGIN,
    CAPTURE_END,
    COPY_LAUNCH,
    GRAPH_LAUNCH,
    KERNEL,
    KERNEL_LAUNCH,
    OVERLAPPING_LAUNCH,
    SYNC_DEVICE,
)
from grader.trace.nesting import alike
from grader.trace.words import counted, milliseconds

LONGEST_SPAN_NS = 24 * 3600 * 10**9  # no trace lasts a day
MISSING_TOLERATED = 0.005  # share of launches without GPU work, or the reverse, at the edges of a recording
LATE_TOLERATED = 0.2  # share of launches at the end of a recording whose work begins after it
CLOCKS_APART_NS = 1_000_000  # clocks of CPU and GPU differ by up to 10 us; this is no clock error
# A GPU that idles now and then takes what was launched sooner, at least one of so many.
NEVER_SO_LATE_NS, FEW, MOST_BUSY = 200_000_000, 10, 0.8
TOUCHING_NS = 1_000  # kernels that overlap by less may do so by the clock's steps alone
# The call takes a host 2 to 20 us, and its quickest tenth is not held up by a queue that is full.
LAUNCH_OF_KNOWN_LENGTH = re.compile(r"(cuda|hip|hipModule)LaunchKernel")
LONGEST_LAUNCH_NS = 1_000_000
NO_GPU = "it has no GPU events"
UNSEEN = ", though work was launched: the profiler was not allowed to see the GPU, or another one did"


def launches_of(trace: Trace) -> np.ndarray:
    """The calls (indices) that give the GPU something to do."""
    kinds = [trace.named(kind, trace.calls) for kind in (KERNEL_LAUNCH, COPY_LAUNCH, GRAPH_LAUNCH)]
    return trace.calls[np.logical_or.reduce(kinds)]


def doubts(trace: Trace, expect_gpu: bool, dropped: int = 0) -> tuple[list[str], list[str]]:
    """What makes a readable trace one that should not be judged by, and what is merely odd about it. dropped: how many of its
    events were damaged and are left out."""
    reasons: list[str] = []
    notes: list[str] = []
    if not len(trace):
        return ["it holds no events"], notes
    if int(trace.end.max() - trace.start.min()) > LONGEST_SPAN_NS:
        reasons.append("it spans more than a day")
    steps, windows = trace.steps, trace.windows
    if not len(steps):
        sure = f" ({windows.sure:.0%} sure)" if len(windows) > 1 else ""
        notes.append(f"it has no ProfilerStep annotations: {windows.how}{sure}")
    reasons += _not_one_row(trace, steps)
    notes += _repeated_marks(trace)
    gpu, launches = trace.gpu, launches_of(trace)
    if not len(gpu):
        if expect_gpu or len(launches):
            reasons.append(NO_GPU + UNSEEN * bool(len(launches)))
        return reasons, notes
    if (trace.device[gpu] < 0).any():
        reasons.append(counted((trace.device[gpu] < 0).sum(), "GPU event{s} {do} not say on which device"))
    reasons += _no_times(trace, gpu, launches)
    launch = trace.launch_of(gpu)
    timed = trace.is_timed[gpu]
    if timed.any():
        count = "its GPU work" if timed.all() else counted(int(timed.sum()), "GPU event{s}")
        notes.append(f"no launches of {count} are recorded, so that counts to the step in which it ran")
    if timed.all():
        return reasons, notes
    # The first active step may have lost GPU events and is never counted; the time outside of steps isn't either.
    begin = int(windows.ends[0] if len(windows) > 1 else windows.starts[0])
    launches = launches[(trace.start[launches] >= begin) & (trace.start[launches] < windows.ends[-1])]
    if captured := int(_captured(trace, launches).sum()):
        said = counted(captured, "launch{es} {were} noted in a CUDA graph, which runs nothing")
        if 2 * captured > len(launches):
            reasons.append(f"{said}: record its replays")
        else:
            notes.append(said)
    reasons += _unmatched(trace, launches, launch, begin, dropped)
    if not trace.by_operator:
        reasons += _several(trace, launches, gpu)
    short = _short_replays(trace, launches[trace.named(GRAPH_LAUNCH, launches)], gpu)
    if short:
        said = counted(short, "replay{s} of a CUDA graph {have} less GPU work recorded than others of the same graph")
        (reasons if len(steps) else notes).append(
            said
        )  # without steps, graphs are told apart by their first kernel alone
    return reasons + _impossible(trace, gpu, launch), notes


def _repeated_marks(trace: Trace) -> list[str]:
    if len(trace.steps) == len(trace.marks):
        return []
    if len(np.unique(trace.thread[trace.marks])) == 1:
        return ["some ProfilerStep annotations lie within others; those of one kind are counted"]
    return ["other threads repeat the ProfilerStep annotations; those of one thread are counted"]


def _no_times(trace: Trace, gpu: np.ndarray, launches: np.ndarray) -> list[str]:
    """What shows that durations are none, or not in microseconds as a trace's are."""
    kernels = gpu[trace.category[gpu] == KERNEL]
    none = int((trace.duration[kernels] == 0).sum())
    reasons = [f"{none} of {len(kernels)} kernels have no duration"] if 2 * none > len(kernels) else []
    calls = launches[trace.named(LAUNCH_OF_KNOWN_LENGTH, launches)]
    quick = float(np.percentile(trace.duration[calls], 10)) if len(calls) >= FEW else 0.0
    if quick > LONGEST_LAUNCH_NS:
        reasons.append(f"launching a kernel takes {milliseconds(quick)} in it, so its times are not in microseconds")
    return reasons


def _not_one_row(trace: Trace, steps: np.ndarray) -> list[str]:
    """Why these steps do not follow each other."""
    threads = set(trace.thread[steps].tolist())
    if (processes := len({trace.threads[thread][0] for thread in threads})) > 1:
        return [f"it holds the steps of {processes} processes: give the trace of each in a file of its own"]
    reasons = ["its steps are on several threads"] if len(threads) > 1 else []
    if (trace.start[steps][1:] < trace.end[steps][:-1]).any():
        reasons.append("its steps overlap")
    return reasons


def _unmatched(trace: Trace, launches: np.ndarray, launch: np.ndarray, begin: int, dropped: int) -> list[str]:
    """What is said of launches without GPU work, and of GPU work without a launch. launch: of each GPU event."""
    gpu, reasons = trace.gpu, []
    ids = trace.correlation[launches]
    lost = ~_among(ids, trace.correlation[gpu]) & ~_captured(trace, launches)
    if (ids > 0).any():  # those without an id have no work that is known
        lost |= ids <= 0
    if not len(trace.steps) and (~lost).any():  # the recording ends before the work does
        late = np.flatnonzero(~lost)[-1] + 1
        lost[late:] &= len(lost) - late > LATE_TOLERATED * len(lost)
    graph = trace.named(GRAPH_LAUNCH, launches)
    if lost.sum() - dropped > MISSING_TOLERATED * len(launches):
        said = f"{lost.sum()} of {len(launches)} launches have no GPU work recorded"
        if trace.named(CAPTURE_ASKED, trace.calls).sum() > lost.sum() / 2:
            said += ", as where a CUDA graph is captured, which runs nothing: record its replays"
        reasons.append(said)
    elif (lost & graph).any() and not dropped:
        reasons.append(counted((lost & graph).sum(), "CUDA graph launch{es} {have} no GPU work recorded"))
    orphans = (
        (launch < 0)
        & ~trace.is_timed[gpu]
        & _after_first(trace, gpu, (launch >= 0) & (trace.start[launch] >= begin), begin)
    )
    if orphans.sum() - dropped > MISSING_TOLERATED * len(gpu):
        reasons.append(f"{orphans.sum()} of {len(gpu)} GPU events have no launch recorded")
    matched = launch >= 0
    late = trace.start[gpu[matched]] - trace.start[launch[matched]]
    if (early := late < -CLOCKS_APART_NS).any():
        reasons.append(counted(early.sum(), "GPU event{s} {start} before {their} launch by more than a millisecond"))
    if len(late) >= FEW and matched[0] and late.min() > NEVER_SO_LATE_NS and _idles(trace, gpu):
        said = "no GPU event starts within {:.1f} s of its launch: the clocks of host and GPU are apart"
        reasons.append(said.format(late.min() / 1e9))
    return reasons


def _idles(trace: Trace, gpu: np.ndarray) -> bool:
    """Whether the GPUs have long pauses between the first and the last of their work."""
    start, end = trace.start[gpu], trace.end[gpu]
    busy = intervals.length(intervals.union(start, end))
    return bool(busy < MOST_BUSY * (end.max() - start.min()))


def _captured(trace: Trace, launches: np.ndarray) -> np.ndarray:
    """Mask of the launches that were noted in a CUDA graph, on their thread, and ran nothing."""
    ends = trace.calls[trace.named(CAPTURE_END, trace.calls)]
    begins = trace.calls[trace.named(CAPTURE_BEGIN, trace.calls)]
    if not len(begins) or not len(ends):
        return np.zeros(len(launches), bool)
    counts = [
        np.array([_before(trace, marks, thread, launches) for thread in np.unique(trace.thread[marks]).tolist()])
        for marks in (begins, ends)
    ]
    return counts[0].sum(axis=0) > counts[1].sum(axis=0)


def _before(trace: Trace, marks: np.ndarray, thread: int, events: np.ndarray) -> np.ndarray:
    """For each of these events the number of marks before it, where both are on this thread."""
    times = trace.start[marks[trace.thread[marks] == thread]]
    return np.where(trace.thread[events] == thread, np.searchsorted(times, trace.start[events]), 0)


def _impossible(trace: Trace, gpu: np.ndarray, launch: np.ndarray) -> list[str]:
    """Times of kernels that cannot be: a stream does one after the other, and a host that waited for the device waited for all.

    Left out are graphs, which have streams of their own, and launches that allow a kernel to begin before the last one ends."""
    kernel = (trace.category[gpu] == KERNEL) & (launch >= 0) & (trace.stream[gpu] >= 0)
    k, call = gpu[kernel], launch[kernel]
    alone = ~trace.named(OVERLAPPING_LAUNCH, call)
    k, call = k[alone], call[alone]
    if len(k) < 2:
        return []
    stream = alike(trace.device[k], trace.stream[k])
    order = np.argsort(stream, kind="stable")  # and by time, as events are
    first, low = stream[order], int(trace.start[k[0]])
    start, end = trace.start[k[order]] - low, trace.end[k[order]] - low
    # The latest end of a stream's kernels so far is the maximum, once streams are moved apart by more than any time.
    apart = first * (int(end.max()) + 1)
    latest = (np.maximum.accumulate(end + apart)[:-1] - apart[1:]).clip(0)
    within = np.minimum(latest, end[1:]) - start[1:] > np.maximum((end - start)[1:] // 2, TOUCHING_NS)
    reasons = []
    if within.sum() > MISSING_TOLERATED * len(k):
        said = "kernel{s} ran while another one of the same stream still did: {their} times are wrong"
        reasons.append(counted(int(within.sum()), said))
    waits = trace.calls[trace.named(SYNC_DEVICE, trace.calls)]
    after = np.searchsorted(trace.start[waits], trace.end[call])
    done = np.append(trace.end[waits], np.iinfo(np.int64).max)[after]
    if late := int((trace.end[k] - CLOCKS_APART_NS > done).sum()):
        said = "kernel{s} ended after the host had waited for the device: {their} times are wrong"
        reasons.append(counted(late, said))
    return reasons


def _among(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Mask of the values that are among the others. Ids come nearly sorted, so this is faster than np.isin."""
    if not len(others):
        return np.zeros(len(values), bool)
    others = np.sort(others, kind="stable")
    return others[np.minimum(np.searchsorted(others, values), len(others) - 1)] == values


def _several(trace: Trace, launches: np.ndarray, gpu: np.ndarray) -> list[str]:
    """A correlation id stands for one call, and but for graphs and copies for one kernel."""
    doubts = []
    ids = np.sort(trace.correlation[launches])
    shared = len(np.unique(ids[1:][(ids[1:] == ids[:-1]) & (ids[1:] > 0)]))
    if shared:
        doubts.append(counted(shared, "correlation id{s} {belong} to several launches"))
    single = trace.correlation[launches[trace.named(KERNEL_LAUNCH, launches)]]
    of_kernel = trace.correlation[gpu[trace.category[gpu] == KERNEL]]
    of_kernel = np.sort(of_kernel[_among(of_kernel, single[single > 0])])
    again = of_kernel[1:] == of_kernel[:-1]
    several = len(np.unique(of_kernel[1:][again]))
    if several:
        doubts.append(counted(several, "launch{es} of one kernel {have} several recorded"))
    return doubts


def _short_replays(trace: Trace, replays: np.ndarray, gpu: np.ndarray) -> int:
    """How many replays of CUDA graphs have less GPU work recorded than another replay of the same graph.

    A trace does not name the graph. Where every step replays equally often, the n-th replay of a step is taken for the
    same graph as the n-th of any other; else replays whose recorded work begins with the same kernel."""
    if len(replays) < 2:
        return 0
    ids = trace.correlation[gpu]
    by_id = np.argsort(ids, kind="stable")  # and by time, as events are
    ids = ids[by_id]
    first = np.searchsorted(ids, trace.correlation[replays])
    count = np.searchsorted(ids, trace.correlation[replays], side="right") - first
    recorded = count > 0  # those without anything are reported as launches without GPU work
    replays, first, count = replays[recorded], first[recorded], count[recorded]
    step = np.searchsorted(trace.windows.starts, trace.start[replays], side="right")
    _, at, per_step = np.unique(step, return_index=True, return_counts=True)
    if len(at) > 1 and (per_step == per_step[0]).all():
        graph = np.arange(len(replays)) % per_step[0]
    else:
        graph = trace.name[gpu[by_id[first]]]
    most = np.zeros(graph.max(initial=0) + 1, np.int64)
    np.maximum.at(most, graph, count)
    return int((count < most[graph]).sum())


def _after_first(trace: Trace, gpu: np.ndarray, marked: np.ndarray, begin: int) -> np.ndarray:
    """Mask of the GPU events that start after the first marked one of their stream; where none is, after the first of all, or
    after `begin`. A stream works in order: what runs before it may have been launched before the recording began, what runs
    after it cannot."""
    stream, none = alike(trace.device[gpu], trace.stream[gpu]), np.iinfo(np.int64).max
    first = np.full(stream.max() + 1, none)
    np.minimum.at(first, stream[marked], trace.start[gpu[marked]])
    first[first == none] = max(begin, int(first.min())) if marked.any() else begin
    return trace.start[gpu] > first[stream]
