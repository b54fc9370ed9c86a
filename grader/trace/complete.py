"""Whether a readable trace is one to judge by."""

import re

import numpy as np

from grader.trace import intervals
from grader.trace.columns import Trace
from grader.trace.events import (
    CAPTURE_ASKED,
    CPU_OP,
    GRAPH_LAUNCH,
    KERNEL,
    KERNEL_LAUNCH,
    OVERLAPPING_LAUNCH,
    SYNC_DEVICE,
)
from grader.trace.intervals import TOUCHING_NS
from grader.trace.loss import MISSING_TOLERATED, MOST_LOST, Loss, among, captured, first_counted, launches_of
from grader.trace.nesting import alike
from grader.trace.words import counted, milliseconds, plain

LONGEST_SPAN_NS = 24 * 3600 * 10**9  # no trace lasts a day
FEW_TWICE = 0.02  # share of launches whose id another one has: so few change nothing
CLOCKS_APART_NS = 1_000_000  # clocks of CPU and GPU differ by up to 10 us; this is no clock error
# In 96 recordings with so many waits the median kernel had ended 1 us before its wait did, or sooner.
BEHIND_NS, MANY_WAITS = 50_000, 5
SYNC_STREAM = re.compile(r"(cuda|hip|cu|musa|mc)(Device|Stream|Ctx)Synchronize")
# A GPU that idles now and then takes what was launched sooner, at least one of so many.
NEVER_SO_LATE_NS, FEW, MOST_BUSY = 200_000_000, 10, 0.8
# The call takes a host 2 to 20 us, and its quickest tenth is not held up by a queue that is full.
LAUNCH_OF_KNOWN_LENGTH = re.compile(r"(cuda|hip|hipModule)LaunchKernel")
LONGEST_LAUNCH_NS = 1_000_000
# The shortest kernels take 1 to 2 us on any GPU, and a usual operator some more.
SHORTEST_LAUNCH_NS, SHORTEST_OP_NS, SHORTEST_KERNEL_NS = 100, 500, 1_500
MUCH_HIDDEN = 0.05  # of the GPU's time, in work without a duration; in whole microseconds up to 7% of the kernels have none, but short
MOST_AFTER = 0.3  # of the GPU's work, after the last step
NO_GPU = "it has no GPU events"
UNSEEN = ", though work was launched: the profiler was not allowed to see the GPU, or another one did"


def doubts(trace: Trace, expect_gpu: bool, dropped: int = 0) -> tuple[list[str], list[str]]:
    """What makes a readable trace one not to be judged by, and what is merely odd. dropped: events that were damaged and left out."""
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
    notes += _repeated_marks(trace) + _other_rows(trace)
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
    for these, more in zip((reasons, notes), _timed(trace, gpu[timed], timed.all()), strict=True):
        these += more
    if timed.all():
        return reasons, notes
    launches = trace.loss.launches
    if noted := int(captured(trace, launches).sum()):
        said = counted(noted, "launch{es} {were} noted in a CUDA graph, which runs nothing")
        if 2 * noted > len(launches):
            reasons.append(f"{said}: record its replays")
        else:
            notes.append(said)
    for these, more in zip((reasons, notes), _unmatched(trace, launch, dropped), strict=True):
        these += more
    if not trace.by_operator:
        for many, what in _several(trace, launches, gpu):
            (notes if many <= FEW_TWICE * len(launches) else reasons).append(what)
    short = _short_replays(trace, launches[trace.named(GRAPH_LAUNCH, launches)], gpu)
    if short:
        said = counted(short, "replay{s} of a CUDA graph {have} less GPU work recorded than others of the same graph")
        # Without steps, graphs are told apart by their first kernel alone.
        (reasons if len(steps) else notes).append(said)
    return reasons + _impossible(trace, gpu, launch), notes


def _other_rows(trace: Trace) -> list[str]:
    steps, row = len(trace.steps), len(trace.windows) + trace.windows.cut
    return (
        [f"its {steps} steps do not all follow each other, so only {row} in a row are counted"] if steps > row else []
    )


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
    unknown = _hidden(trace, gpu) > MUCH_HIDDEN * int(trace.end[gpu].max() - trace.start[gpu].min())
    reasons = [f"{none} of {len(kernels)} kernels have no duration"] if unknown or 2 * none > len(kernels) else []
    calls = launches[trace.named(LAUNCH_OF_KNOWN_LENGTH, launches)]
    quick = float(np.percentile(trace.duration[calls], 10)) if len(calls) >= FEW else 0.0
    if quick > LONGEST_LAUNCH_NS:
        reasons.append(f"launching a kernel takes {milliseconds(quick)} in it, so its times are not in microseconds")
    elif len(calls) >= FEW and len(kernels):
        ops = np.flatnonzero(trace.category == CPU_OP)
        usual, least = np.median(trace.duration[calls]), np.percentile(trace.duration[kernels], 10)
        short = not len(ops) or np.median(trace.duration[ops]) < SHORTEST_OP_NS
        if short and usual < SHORTEST_LAUNCH_NS and least < SHORTEST_KERNEL_NS:
            said = f"launching a kernel takes {usual:.0f} ns in it, so its times are not in microseconds"
            reasons.insert(0, f"{said} but perhaps in milliseconds or seconds")
    return reasons


def _timed(trace: Trace, gpu: np.ndarray, is_all: bool) -> tuple[list[str], list[str]]:
    """Reasons and notes about GPU work whose launches are not recorded at all. gpu: that work; is_all: there is no other."""
    if not len(gpu):
        return [], []
    count = "its GPU work" if is_all else counted(len(gpu), "GPU event{s}")
    notes = [f"no launches of {count} are recorded, so that counts to the step in which it ran"]
    late = trace.start[gpu] >= (trace.windows.ends[-1] if len(trace.windows) else np.inf)
    if trace.duration[gpu[late]].sum() <= MOST_AFTER * trace.duration[trace.gpu].sum():
        return [], notes
    said = "much of the GPU's work ran after the last step, and no launches of it are recorded"
    return [f"{said}: the host was far ahead, and nobody knows of which step it is"], notes


def _hidden(trace: Trace, gpu: np.ndarray) -> int:
    """How long work without a duration may have run, ns: until the next of its stream, where that was queued already."""
    stream = alike(trace.device[gpu], trace.stream[gpu])
    order = np.argsort(stream, kind="stable")  # and by time, as events are
    work, after, of = gpu[order][:-1], gpu[order][1:], stream[order]
    launch = trace.launch_of(after)
    none = (trace.duration[work] == 0) & (of[1:] == of[:-1])
    queued = none & (launch >= 0) & (trace.end[launch] <= trace.start[work])
    return int((trace.start[after] - trace.start[work])[queued].sum())


def _not_one_row(trace: Trace, steps: np.ndarray) -> list[str]:
    """Why these steps do not follow each other."""
    threads = set(trace.thread[steps].tolist())
    if (processes := len({trace.threads[thread][0] for thread in threads})) > 1:
        return [f"it holds the steps of {processes} processes: give the trace of each in a file of its own"]
    reasons = ["its steps are on several threads"] if len(threads) > 1 else []
    if (trace.start[steps][1:] < trace.end[steps][:-1] - TOUCHING_NS).any():
        reasons.append("its steps overlap")
    return reasons


def _unmatched(trace: Trace, launch: np.ndarray, dropped: int) -> tuple[list[str], list[str]]:
    """What is said of launches without GPU work, and of GPU work without a launch: reasons and notes. launch: of each GPU event."""
    gpu, loss, begin = trace.gpu, trace.loss, first_counted(trace.windows)
    reasons, notes = list[str](), list[str]()
    missing, launches = loss.missing, loss.launches
    replays = missing[trace.named(GRAPH_LAUNCH, missing)]
    if loss.much(dropped) or (len(replays) and not dropped):
        said = f"{len(missing)} of {len(launches)} launches have no GPU work recorded"
        if not loss.much(dropped):
            said = counted(len(replays), "CUDA graph launch{es} {have} no GPU work recorded")
        if trace.named(CAPTURE_ASKED, trace.calls).sum() > len(missing) / 2:
            reasons.append(said + ", as where a CUDA graph is captured, which runs nothing: record its replays")
        elif way := _way_out(loss):
            notes.append(f"{said}, the first one's {_place(trace, missing[0])}. {way}")
        else:
            reasons.append(said)
    orphans = (
        (launch < 0)
        & ~trace.is_timed[gpu]
        & _after_first(trace, gpu, (launch >= 0) & (trace.start[launch] >= begin), begin)
    )
    if orphans.sum() - dropped > MISSING_TOLERATED * len(gpu):
        few = orphans.sum() <= MOST_LOST * len(gpu)
        (notes if few else reasons).append(f"{orphans.sum()} of {len(gpu)} GPU events have no launch recorded")
    matched = launch >= 0
    late = trace.start[gpu[matched]] - trace.start[launch[matched]]
    if (early := late < -CLOCKS_APART_NS).any():
        reasons.append(counted(early.sum(), "GPU event{s} {start} before {their} launch by more than a millisecond"))
    if len(late) >= FEW and matched[0] and late.min() > NEVER_SO_LATE_NS and _idles(trace, gpu):
        said = "no GPU event starts within {:.1f} s of its launch: the clocks of host and GPU are apart"
        reasons.append(said.format(late.min() / 1e9))
    return reasons, notes


def _way_out(loss: Loss) -> str:
    """How one does without the work that is missing; "" where that cannot be."""
    if loss.run:
        count = loss.run[1]
        return f"Only {counted(count, 'step{s}')} without such a loss {'is' if count == 1 else 'are'} counted"
    return f"That leaves at most {loss.unknown:.1%} of the time unknown" if loss.little else ""


def _place(trace: Trace, call: int) -> str:
    """Where a call is, for who looks for it."""
    op = trace.operator[call]
    inside = f" in {plain(trace.names[trace.name[op]], 60)}" if op >= 0 else ""
    return (
        f"{plain(trace.names[trace.name[call]], 40)}{inside} at {milliseconds(float(trace.start[call] - trace.begin))}"
    )


def _idles(trace: Trace, gpu: np.ndarray) -> bool:
    """Whether the GPUs have long pauses between the first and the last of their work."""
    start, end = trace.start[gpu], trace.end[gpu]
    busy = intervals.length(intervals.union(start, end))
    return bool(busy < MOST_BUSY * (end.max() - start.min()))


def _impossible(trace: Trace, gpu: np.ndarray, launch: np.ndarray) -> list[str]:
    """Times of kernels that cannot be: a stream does one after the other, and a host that waited for the device waited for all.
    Without graphs, which have streams of their own, and launches that allow a kernel to begin before the last one ends."""
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
    if late := _out_of_order(trace, k, call, stream):
        reasons.append(
            counted(late, "kernel{s} ran out of order, long after {their} stream did what was launched later")
        )
    if len(np.unique(trace.device[gpu])) > 1:  # a host waits for one of its GPUs, and the call does not say for which
        return reasons
    waits = trace.calls[trace.named(SYNC_DEVICE, trace.calls)]
    after = np.searchsorted(trace.start[waits], trace.end[call])
    done = np.append(trace.end[waits], np.iinfo(np.int64).max)[after]
    if late := int((trace.end[k] - CLOCKS_APART_NS > done).sum()):
        said = "kernel{s} ended after the host had waited for the device: {their} times are wrong"
        reasons.append(counted(late, said))
    elif (behind := _behind(trace, k, call, alone=len(np.unique(trace.stream[gpu])) == 1)) > BEHIND_NS:
        reasons.append(
            f"kernels end {milliseconds(behind)} after the host has waited for them: the clocks of host and GPU are apart"
        )
    return reasons


def _behind(trace: Trace, k: np.ndarray, call: np.ndarray, alone: bool) -> float:
    """How long after most waits of the host for the device, or for its only stream, the last kernel launched before them ends, ns.
    k: kernels; call: what launched each; alone: all work of the GPU is on one stream."""
    waits = trace.calls[trace.named(SYNC_STREAM if alone else SYNC_DEVICE, trace.calls)]
    order = np.argsort(trace.end[call], kind="stable")
    last = np.searchsorted(trace.end[call[order]], trace.start[waits], side="right") - 1
    waits, last = waits[last >= 0], last[last >= 0]
    return float(np.median(trace.end[k[order[last]]] - trace.end[waits])) if len(waits) >= MANY_WAITS else 0.0


def _out_of_order(trace: Trace, k: np.ndarray, call: np.ndarray, stream: np.ndarray) -> int:
    """How many of these kernels begin long after one of their stream that was launched later. Of 175,000 recorded kernels of all
    vendors none does. call: that launched each."""
    order = np.lexsort((trace.end[call], stream))
    start = trace.start[k[order]]
    low, apart = int(start.min()), int(start.max() - start.min()) + 1
    # The earliest start of those launched later; streams are moved apart by more than any time.
    place = stream[order] * apart
    sooner = np.minimum.accumulate((start - low + place)[::-1])[::-1]
    return int((start[:-1] - low + place[:-1] - sooner[1:] > CLOCKS_APART_NS).sum())


def _several(trace: Trace, launches: np.ndarray, gpu: np.ndarray) -> list[tuple[int, str]]:
    """A correlation id stands for one call, and but for graphs and copies for one kernel. How many do not, and the same in words."""
    doubts = []
    ids = np.sort(trace.correlation[launches])
    shared = len(np.unique(ids[1:][(ids[1:] == ids[:-1]) & (ids[1:] > 0)]))
    if shared:
        doubts.append((shared, counted(shared, "correlation id{s} {belong} to several launches")))
    single = trace.correlation[launches[trace.named(KERNEL_LAUNCH, launches)]]
    of_kernel = trace.correlation[gpu[trace.category[gpu] == KERNEL]]
    of_kernel = np.sort(of_kernel[among(of_kernel, single[single > 0])])
    again = of_kernel[1:] == of_kernel[:-1]
    several = len(np.unique(of_kernel[1:][again]))
    if several:
        doubts.append((several, counted(several, "launch{es} of one kernel {have} several recorded")))
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
    """Mask of the GPU events that start after the first marked one of their stream; where none is, after the first of all, or after
    `begin`: a stream works in order, and what runs before it may have been launched before the recording."""
    stream, none = alike(trace.device[gpu], trace.stream[gpu]), np.iinfo(np.int64).max
    first = np.full(stream.max() + 1, none)
    np.minimum.at(first, stream[marked], trace.start[gpu[marked]])
    first[first == none] = max(begin, int(first.min())) if marked.any() else begin
    return trace.start[gpu] > first[stream]
