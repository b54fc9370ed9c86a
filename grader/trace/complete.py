"""Whether a readable trace is one to judge by."""

from __future__ import annotations

import numpy as np

from grader.trace.columns import Trace
from grader.trace.events import COPY_LAUNCH, GRAPH_LAUNCH, KERNEL, KERNEL_LAUNCH
from grader.trace.nesting import alike
from grader.trace.words import counted

LONGEST_SPAN_NS = 24 * 3600 * 10**9  # no trace lasts a day
MISSING_TOLERATED = 0.005  # share of launches without GPU work, or the reverse, at the edges of a recording
CLOCKS_APART_NS = 1_000_000  # clocks of CPU and GPU differ by up to 10 us; this is no clock error
NO_GPU = "it has no GPU events"


def launches_of(trace: Trace) -> np.ndarray:
    """The calls (indices) that give the GPU something to do."""
    kinds = [trace.named(kind, trace.calls) for kind in (KERNEL_LAUNCH, COPY_LAUNCH, GRAPH_LAUNCH)]
    return trace.calls[np.logical_or.reduce(kinds)]


def doubts(trace: Trace, expect_gpu: bool) -> list[str]:
    """What makes a readable trace one that should not be judged by."""
    doubts = []
    if not len(trace):
        return ["it holds no events"]
    if int(trace.end.max() - trace.start.min()) > LONGEST_SPAN_NS:
        doubts.append("it spans more than a day")
    steps = trace.steps
    if not len(steps):
        doubts.append("it has no ProfilerStep annotations, so nothing can be counted per step")
    if len(set(trace.thread[steps].tolist())) > 1:
        doubts.append("its steps are on several threads")
    if (trace.start[steps][1:] < trace.end[steps][:-1]).any():
        doubts.append("its steps overlap")
    gpu, launches = trace.gpu, launches_of(trace)
    if not len(gpu):
        if expect_gpu or len(launches):
            doubts.append(NO_GPU)
        return doubts
    launch = trace.launch_of(gpu)
    if len(steps):
        # The first active step may have lost GPU events and is never counted; the time outside of steps isn't either.
        begin = trace.end[steps[0]] if len(steps) > 1 else trace.start[steps[0]]
        launches = launches[(trace.start[launches] >= begin) & (trace.start[launches] < trace.end[steps[-1]])]
    else:
        begin = trace.start[0]
    orphans = (launch < 0) & _after_first(trace, gpu, (launch >= 0) & (trace.start[launch] >= begin), begin)
    lost = ~_among(trace.correlation[launches], trace.correlation[gpu])
    graph = trace.named(GRAPH_LAUNCH, launches)
    if lost.sum() > MISSING_TOLERATED * len(launches):
        doubts.append(f"{lost.sum()} of {len(launches)} launches have no GPU work recorded")
    elif (lost & graph).any():
        doubts.append(counted((lost & graph).sum(), "CUDA graph launch{es} {have} no GPU work recorded"))
    if orphans.sum() > MISSING_TOLERATED * len(gpu):
        doubts.append(f"{orphans.sum()} of {len(gpu)} GPU events have no launch recorded")
    doubts += _several(trace, launches, gpu)
    short = _short_replays(trace, launches[graph], gpu)
    if short:
        doubts.append(
            counted(short, "replay{s} of a CUDA graph {have} less GPU work recorded than others of the same graph")
        )
    unplaced = trace.device[gpu] < 0
    if unplaced.any():
        doubts.append(counted(unplaced.sum(), "GPU event{s} {do} not say on which device"))
    matched = launch >= 0
    early = trace.start[launch[matched]] - trace.start[gpu[matched]] > CLOCKS_APART_NS
    if early.any():
        doubts.append(counted(early.sum(), "GPU event{s} {start} before {their} launch by more than a millisecond"))
    return doubts


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
    step = np.searchsorted(trace.start[trace.steps], trace.start[replays], side="right")
    _, at, per_step = np.unique(step, return_index=True, return_counts=True)
    if len(at) > 1 and (per_step == per_step[0]).all():
        graph = np.arange(len(replays)) % per_step[0]
    else:
        graph = trace.name[gpu[by_id[first]]]
    most = np.zeros(graph.max(initial=0) + 1, np.int64)
    np.maximum.at(most, graph, count)
    return int((count < most[graph]).sum())


def _after_first(trace: Trace, gpu: np.ndarray, marked: np.ndarray, begin: int) -> np.ndarray:
    """Mask of the GPU events that start after the first marked one of their stream, or after `begin` where none is. A
    stream works in order: what runs before it may have been launched before the recording began, what runs after it
    cannot."""
    stream, none = alike(trace.device[gpu], trace.stream[gpu]), np.iinfo(np.int64).max
    first = np.full(stream.max() + 1, none)
    np.minimum.at(first, stream[marked], trace.start[gpu[marked]])
    first[first == none] = begin
    return trace.start[gpu] > first[stream]
