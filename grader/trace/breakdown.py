"""Where the time of a step goes: the parts are disjoint and add up to the step time, to the nanosecond.

What kept the GPU busy is read off the trace. Why it was idle is told by what the host did meanwhile:

- from when the next piece of work was launched the host is not to blame: it was queued;
- it waited for data or made a batch, or was held by a blocking copy of more than 64 KB: that part of the gap is theirs;
- it was busy with something that launches nothing, see `absence` ("other");
- in what remains it was launching.

A gap of the last two kinds means that the host was not ahead of the GPU: either it has more to do in a step than the GPU, or
something had stopped it - a wait for the GPU, for data, for a copy - and it is catching up. Only as much of these gaps as the
host's own work exceeds the GPU's is blamed on it, the rest on what had stopped it, and on that no more than it held the host."""

from dataclasses import dataclass, field

import numpy as np

from grader.trace import intervals
from grader.trace.absence import Away, away
from grader.trace.catalogue import PARTS
from grader.trace.columns import Trace
from grader.trace.events import CPU_OP, MEMCPY, PYTHON
from grader.trace.host import copying_op, data_waits, launching_op
from grader.trace.metrics import PHASE_NAMES, SMALL_COPY
from grader.trace.steps import Steps
from grader.trace.work import between_host_and_device, busy_devices, by_name

DATA, TRANSFER, SYNC, LAUNCH, OTHER, BETWEEN, QUEUE = range(5, 12)  # indices into PARTS

CHANGE_OVER_NS = 50_000  # a GPU needs a microsecond or a few from one kernel to the next; what waits longer waits for
# something, on another stream or on the host
CLOCKS_NS = 10_000  # clocks of CPU and GPU differ by up to 10 us

# What the profiler adds to the host's work for each operator or call, and for each Python function, that it records: on
# the host of an H200, torch 2.11. The first by tests/benchmarks/profiler_cost.py (1.1 to 2.3 us in five runs). For the
# second that gave 0.7 us, with hardly a module called; this is what data/traces/gpt_sync_stacks took beside gpt_sync, the
# same loop recorded without stacks.
OP_NS = 1_300
PYTHON_NS = 2_300
# of a step: what it would have grown by at least, and by how much two measurements of it differ
MUCH_SHOWN, NOISE = 0.05, 0.03

Columns = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Gaps:
    """Idle times of the GPUs in the counted steps, cut where the cause changes, in order of device and start."""

    device: np.ndarray
    start: np.ndarray  # ns
    end: np.ndarray
    cause: np.ndarray  # index into PARTS, one of the idle ones: what the host did at that very time
    before: np.ndarray  # index of the GPU event that ended last before the gap, -1 without one
    after: np.ndarray  # and of the first after it


@dataclass(frozen=True)
class Breakdown:
    parts: dict[str, float] = field(default_factory=dict)  # PARTS -> ns per step, mean over devices; sums to `step_ns`
    step_ns: float | None = None  # the unprofiled length of a step where it was given, else the traced one
    # the host's own work per step, without its waits, with what the profiler added, of which nobody knows how much it is
    most_host_ns: float | None = None
    data_ns: float = 0.0  # the host waited for data, or made a batch, per step
    fused_ns: float | None = None  # "memory" if each run of such kernels were one, see `fused_length`
    unseen: dict[str, float] = field(default_factory=dict)  # ns of a part by which the recorded steps were too short
    gaps: Gaps = field(default_factory=lambda: Gaps(*[np.empty(0, np.int64)] * 6))
    away: Away | None = None
    # "idle_other" before any of it was blamed on what had stopped the host: without its doing the step would be so much shorter
    alone: float = 0.0


def breakdown(trace: Trace, steps: Steps, step_ns: float | None = None, wait_ns: float | None = None) -> Breakdown:
    """Divide the step. Without steps or GPU work nothing is divided: an empty Breakdown. wait_ns: see `metrics`."""
    if not len(steps) or not len(steps.gpu):
        return Breakdown()
    low, high = steps.window
    n, devices = len(steps), busy_devices(trace, steps.gpu)
    gpu, kind = steps.work, steps.kind
    host = Host(trace, steps)
    total, after_stall = np.zeros((2, len(PARTS)))  # and how long the host caught up, by what had stopped it before
    gaps = []
    for device in devices:
        own = trace.device[gpu] == device
        busy = intervals.EMPTY
        for part in range(DATA):
            events = gpu[own & (kind == part)]
            spans = intervals.clip(trace.spans(events), low, high)
            total[part] += intervals.length(intervals.difference(spans, busy))
            busy = intervals.joined(busy, spans)
        idle = intervals.complement(busy, low, high)
        start, end, cause = host.causes(idle, _launched(trace, gpu[own], idle))
        total += np.bincount(cause, end - start, len(PARTS))
        catching_up = (cause == LAUNCH) | (cause == OTHER)
        stall = np.maximum.accumulate(np.where(catching_up | (cause >= BETWEEN), -1, np.arange(len(cause))))
        launching = catching_up & (stall >= 0)
        after_stall += np.bincount(cause[stall[launching]], (end - start)[launching], len(PARTS))
        gaps.append(_gaps(trace, gpu[own], device, start, end, cause))
    per_step = total / n / len(devices)
    length = float(step_ns) if step_ns else float(per_step.sum())
    own_work, held = host.without_profiler(float(per_step.sum()), length, bool(step_ns), gaps)
    # The profiler makes no step shorter. Where the recorded ones were, batches were ready that the loop usually waits for:
    # loader workers fill their queue while the profiler starts.
    unseen = max(0.0, length - float(per_step.sum()))
    per_step = _without_profiler(per_step, length, host.fetching)
    alone = float(per_step[OTHER])
    per_step = _blame(per_step, after_stall, own_work, held)
    more = unseen if wait_ns is None else max(0.0, wait_ns - float(per_step[DATA]))
    waited = min(unseen, more) if len(host.data[0]) else 0.0
    per_step[[DATA, OTHER]] += waited, unseen - waited
    return Breakdown(
        parts={name: float(ns) for name, ns in zip(PARTS, per_step, strict=True)},
        step_ns=length,
        most_host_ns=host.work,
        data_ns=intervals.length(intervals.clip(host.data, *steps.host)) / n,
        fused_ns=fused_length(trace, steps, gpu, kind) / n / len(devices),
        unseen={PARTS[DATA]: waited, PARTS[OTHER]: unseen - waited},
        gaps=Gaps(*map(np.concatenate, zip(*gaps, strict=True))),
        away=host.away,
        alone=alone,
    )


def _host_late(gaps: list[Columns], waits: np.ndarray) -> intervals.Intervals:
    """When the host's work alone decided how long a step takes: the idle times of a GPU in which the host was at work, and what lies
    between two of them without another gap or the start of a wait."""
    found = []
    for _, start, end, cause, *_ in gaps:
        late = np.isin(cause, (SYNC, LAUNCH, OTHER))
        alone = np.searchsorted(waits, end[:-1]) == np.searchsorted(waits, start[1:])
        joined = np.append(late[:-1] & late[1:] & alone, False)
        found.append((start[late], np.where(joined, np.append(start[1:], 0), end)[late]))
    return intervals.joined(*found)


class Host:
    """What the host did, as sets of intervals on the threads that launch.

    work: ns per step without its waits. held: its waits. profiling: what the profiler added to that at least, ns per step. fetching: share of
    what the profiler added that lies in the waits for data, where the data set's own operators are recorded."""

    def __init__(self, trace: Trace, steps: Steps):
        launches = np.zeros(len(trace.threads), bool)
        launches[trace.thread[steps.launch[steps.launch >= 0]]] = launches[steps.thread] = True
        low, high = min(steps.host[0], steps.window[0]), max(steps.host[1], steps.window[1])
        mine = launches[trace.thread] & (trace.end > low) & (trace.start < high)
        active = mine & ((trace.category == CPU_OP) | trace.is_call)
        self.away = busy = away(trace, steps, mine, (low, high))
        self.data = intervals.joined(data_waits(trace, steps.thread), busy.starting, busy.named, busy.copied)
        waits = steps.waits[mine[steps.waits]]
        self.transfer = blocking_copies(trace, waits)
        # The ends of all waits, in order of start; they may overlap on several threads.
        self.wait_start = trace.start[waits]
        self.wait_end = np.maximum.accumulate(trace.end[waits])
        union = intervals.joined(self.data, self.transfer, trace.spans(waits))
        span = steps.host
        begun = steps.of_event[:-1] >= 0
        cost = np.where(active, OP_NS, np.where(mine & (trace.category == PYTHON), PYTHON_NS, 0)) * begun
        fetching = cost[intervals.contains(self.data, trace.start) & (trace.thread == steps.thread)].sum()
        self.profiling = float(cost.sum() - fetching) / len(steps)
        costly = np.flatnonzero(cost)
        self.cost, self.costs_at, self.count = cost[costly], trace.start[costly], len(steps)
        self.fetching = float(fetching / cost.sum()) if cost.any() else 0.0
        self.held = intervals.length(intervals.clip(union, *span)) / len(steps)
        self.work = (span[1] - span[0]) / len(steps) - self.held

    def without_profiler(self, traced: float, length: float, known: bool, gaps: list[Columns]) -> tuple[float, float]:
        """The host's own work and its waits in a step without the profiler, ns. traced, length: of a step with and without it;
        known: whether the latter was measured. gaps: columns of `Gaps`, by device."""
        # What the profiler added is taken off: at least what it added to the step, more where waits have hidden some.
        added = (traced - length) * (1 - self.fetching)
        usual = self.profiling
        # Nothing of that is hidden while the GPU waits for the host. A step that grew by less than that has a quicker profiler.
        late = _host_late(gaps, self.wait_start)
        shown = float(self.cost[intervals.contains(late, self.costs_at)].sum()) / self.count
        if known and shown >= MUCH_SHOWN * length and -NOISE * length <= added < 0.5 * shown:
            usual *= max(0.0, added) / shown
        work = max(0.0, self.work - max(added, usual))
        return work, max(self.held, length - work) if known else self.held

    def causes(self, idle: intervals.Intervals, launched: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cut idle times by cause: (start, end, cause), in order. launched: for each when the launch of what ended it was over."""
        short = idle[1] - idle[0] < CHANGE_OVER_NS
        between = short & (launched + CLOCKS_NS <= idle[0])
        queued = ~between & (idle[1] - np.maximum(launched, idle[0]) >= CHANGE_OVER_NS)
        pieces = [
            (idle[0][between], idle[1][between], BETWEEN),
            (np.maximum(launched, idle[0])[queued], idle[1][queued], QUEUE),
        ]
        rest = (idle[0][~between], np.where(queued, np.maximum(launched, idle[0]), idle[1])[~between])
        kept = rest[1] > rest[0]
        rest = (rest[0][kept], rest[1][kept])
        for cause, spans in ((DATA, self.data), (TRANSFER, self.transfer), (OTHER, self.away.spans)):
            pieces.append((*intervals.intersection(rest, spans), cause))
            rest = intervals.difference(rest, spans)
        at = np.searchsorted(idle[0], rest[0], side="right") - 1
        ran_dry = idle[0][at]  # when the GPU had finished all it had
        wait = np.searchsorted(self.wait_start, ran_dry + CLOCKS_NS, side="right") - 1
        waited = (wait >= 0) & (self.wait_end[wait] >= ran_dry - CLOCKS_NS) if len(self.wait_start) else wait >= 0
        pieces += [(rest[0][waited], rest[1][waited], SYNC), (rest[0][~waited], rest[1][~waited], LAUNCH)]
        start, end = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
        causes = np.concatenate([np.full(len(piece[0]), piece[2]) for piece in pieces])
        order = np.argsort(start, kind="stable")
        return start[order], end[order], causes[order]


def _launched(trace: Trace, gpu: np.ndarray, idle: intervals.Intervals) -> np.ndarray:
    """For each idle time when the call was over that launched what ended it (of `gpu`, all of that device); its end if not known."""
    after = np.searchsorted(trace.start[gpu], idle[1], side="left")
    launch = trace.launch_of(gpu[np.minimum(after, len(gpu) - 1)])
    return np.where((after < len(gpu)) & (launch >= 0), trace.end[launch], idle[1])


def blocking_copies(trace: Trace, waits: np.ndarray) -> intervals.Intervals:
    """When copies of more than 64 KB between host and device held the host (waits: indices of the calls that did so): from the
    beginning of the operator that converted what it copies to the end of the one that waited, or the call alone without one."""
    copies = np.flatnonzero((trace.category == MEMCPY) & (trace.bytes >= SMALL_COPY))
    copies = copies[by_name(between_host_and_device, trace, copies) == 1]
    call = trace.launch_of(copies)
    call = call[call >= 0]
    op = launching_op(trace, waits)
    held = np.isin(waits, call) | ((op >= 0) & np.isin(op, launching_op(trace, call)))
    waits, op = waits[held], op[held]
    whole = copying_op(trace, waits)
    return intervals.union(trace.start[np.where(whole >= 0, whole, waits)], trace.end[np.where(op >= 0, op, waits)])


def _gaps(trace: Trace, gpu: np.ndarray, device: int, start, end, cause) -> tuple[np.ndarray, ...]:
    by_end = gpu[np.argsort(trace.end[gpu], kind="stable")]
    before = np.searchsorted(trace.end[by_end], start, side="right") - 1
    after = np.searchsorted(trace.start[gpu], end, side="left")
    before = np.where(before >= 0, by_end[before], -1)
    after = np.where(after < len(gpu), gpu[np.minimum(after, len(gpu) - 1)], -1)
    return np.full(len(start), device), start, end, cause, before, after


def _without_profiler(parts: np.ndarray, length: float, fetching: float) -> np.ndarray:
    """Cut traced parts to the length of a step without the profiler, where they are longer. fetching: see `Host`."""
    # The profiler slows the host, not the GPU: its launching, and the data set's own operators. So what is too long is taken
    # from there first, then from the other idle time, and only then from the busy time.
    parts = parts.copy()
    launching, idle = [SYNC, LAUNCH, OTHER], [DATA, TRANSFER, BETWEEN, QUEUE]
    excess = max(0.0, parts.sum() - length)
    taken = min(max(0.0, excess * fetching), parts[DATA])
    parts[DATA] -= taken
    excess -= taken
    for group in (launching, idle, list(range(DATA))):
        have = parts[group].sum()
        taken = min(excess, have)
        if have:
            parts[group] *= 1 - taken / have
        excess -= taken
    return parts


def _blame(parts: np.ndarray, after_stall: np.ndarray, own_work: float, held: float) -> np.ndarray:
    """Divide the idle time in which the host was at work: only as much of it as its work exceeds the GPU's is its own, but no less
    than exceeds the time in which it was held: without its waits the host would be ahead by no more than that."""
    parts = parts.copy()
    weights = after_stall.copy()
    weights[SYNC] += parts[SYNC]
    at_work = parts[[SYNC, LAUNCH, OTHER]].sum()
    if not weights.sum():
        return parts
    own = max(own_work - parts[:DATA].sum() - parts[BETWEEN] - parts[QUEUE], at_work - held)
    own = min(at_work, max(0.0, own))
    shown = parts[LAUNCH] / (parts[LAUNCH] + parts[OTHER]) if parts[LAUNCH] + parts[OTHER] else 1.0
    other = min(own * (1 - shown), parts[OTHER])
    parts[SYNC], parts[LAUNCH], parts[OTHER] = 0.0, own - other, other
    return parts + (at_work - own) * weights / weights.sum()


def fused_length(trace: Trace, steps: Steps, gpu: np.ndarray, kind: np.ndarray) -> int:
    """What the "memory" kernels of the counted steps would take, ns, if each run of them were one kernel.

    Fused, a run reads and writes once: about as long as its longest kernel takes alone. A run ends at a matrix product or a
    collective; the optimizer's kernels work on different weights and are not fused."""
    step = steps.of_event[trace.launch_of(gpu)]
    gpu, kind, step = gpu[step >= 0], kind[step >= 0], step[step >= 0]
    if not len(gpu):
        return 0
    order = np.lexsort((trace.stream[gpu], trace.device[gpu]))  # and by time, as events are
    gpu, kind, step = gpu[order], kind[order], step[order]
    memory = kind == PARTS.index("memory")
    optimizer = by_optimizer(trace, gpu, steps)
    place = np.stack((trace.device[gpu], trace.stream[gpu], memory, optimizer, step))
    first = np.append(True, (np.diff(place) != 0).any(axis=0))
    begin = np.flatnonzero(first)
    duration = trace.duration[gpu]
    longest = np.maximum.reduceat(duration, begin)
    whole = np.add.reduceat(duration, begin)
    return int(np.where(optimizer[begin], whole, longest)[memory[begin]].sum())


def by_optimizer(trace: Trace, gpu: np.ndarray, steps: Steps) -> np.ndarray:
    """Mask of the GPU work that an optimizer launched."""
    spans = trace.annotations[trace.thread[trace.annotations] == steps.thread]
    spans = spans[trace.named(PHASE_NAMES["opt"], spans)]
    launch = trace.launch_of(gpu)
    return (launch >= 0) & intervals.contains(trace.spans(spans), trace.start[launch])
