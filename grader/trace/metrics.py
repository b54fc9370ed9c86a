"""The numbers that checks are made of, one definition each.

Durations are integer nanoseconds; busy times are lengths of unions of intervals on one device, never sums, so that
overlapping work counts once. GPU work belongs to the step in which the host launched it; host and GPU events are
matched by correlation id only. What a trace cannot tell is None, never 0."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from grader.trace import intervals, kernels
from grader.trace.read import ANNOTATION, CPU_OP, GRAPH_LAUNCH, KERNEL, KERNEL_LAUNCH, MEMCPY, Trace

TINY_NS = 10_000  # a kernel shorter than this costs about as much to launch as to run
SMALL_COPY = 64 << 10  # bytes; pinning does not matter below
UNKNOWN_TOLERATED = 0.1  # share of matmul time whose precision may be unknown before the share is not given at all

DATA_WAIT = re.compile(r"enumerate\(DataLoader\)#.*__next__|data_wait$")
LOAD_SAMPLE = re.compile(r"load_sample$")
SYNC_CALL = re.compile(r"(cuda|hip)(Stream|Device|Event)Synchronize|cu(Stream|Ctx|Event)Synchronize")
BLOCKING_COPY_CALL = re.compile(r"(cuda|hip)Memcpy(2D|3D)?(_v\d+|_ptds_v\d+)?$")
ANY_COPY_CALL = re.compile(r"(cuda|hip)Memcpy|cuMemcpy")
ANY_OP = re.compile("")
ITEM = re.compile(r"aten::_local_scalar_dense$")
COPY_NAME = re.compile(r"(?:Memcpy|CopyHostToDevice|Copy)\s*(\w+?)(?:\s*\((\w+) -> (\w+)\))?$")
COPY_KINDS = ("HtoD pinned", "HtoD pageable", "DtoH", "DtoD")

UNPROFILED, WINDOW = "unprofiled step time", "trace window"


@dataclass
class Metrics:
    """What a trace shows, per counted step unless it says share. None: this trace cannot tell.

    A trace without GPU events leaves every GPU field None; one without any call into CUDA also `launches`, `syncs`."""

    steps: int = 0  # steps counted: those after the first `skip_first`
    step_ns_traced: float | None = None  # length of a step under the profiler, see `step_length`
    gpu_busy_ns: float | None = None  # union of kernels, copies and memsets launched in the step; mean over devices
    gpu_idle: float | None = None  # share: 1 - busy / step time
    gpu_idle_basis: str | None = None  # which step time that was
    kernels: float | None = None  # kernels on the GPU
    launches: float | None = None  # host calls that launch kernels; a CUDA graph is one
    syncs: float | None = None  # host-blocking calls, see `blocking_calls`
    copies: dict[str, dict[str, float | None]] | None = None  # kind -> {"count", "bytes", "ns"}
    h2d_pinned: float | None = None  # share of host-to-device bytes that came from pinned memory, copies >= 64 KB
    h2d_overlap: float | None = None  # share of host-to-device copy time during which a kernel ran on that device
    tiny_kernel_share: float | None = None  # share of the kernels that are shorter than 10 us
    tiny_kernel_time: float | None = None  # share of the busy time with such a kernel running
    tensor_core: dict[str, float] | None = None  # shares of matmul and convolution time: {"yes", "no", "unknown"}
    half_share: float | None = None  # share of matmul and convolution time with bf16 or fp16 inputs
    data_wait: float | None = None  # share of host step time that the main thread spent in the DataLoader's __next__
    loads_in_main: float | None = None  # samples loaded in the main process (record_function "load_sample"); 0 is known
    cpu_ops: float | None = None  # operators called on the host, nested ones included
    complete: bool = False
    reasons: list[str] = field(default_factory=list)  # why it is not


def metrics(trace: Trace, step_ns: float | None = None, skip_first: int = 1) -> Metrics:
    """Measure the steps after the first `skip_first` (the profiler can lose events of its first active step).

    step_ns: length of a step measured without the profiler, ns. Profiling stretches a step that is bound by launches
    (10 to 31 ms in one measurement), so only with it is `gpu_idle` about the loop and not about the profiler."""
    m = Metrics(complete=trace.complete, reasons=list(trace.reasons))
    all_steps = trace.steps
    steps = all_steps[skip_first:]
    if not len(steps):
        if len(all_steps):
            m.reasons.append(f"it has no step beyond the {skip_first} that are not counted")
        m.complete = False
        return m
    n = m.steps = len(steps)
    step_of = Steps(trace, steps)

    gpu = np.flatnonzero(trace.is_gpu)
    launch = trace.launch_of(gpu)
    step = np.where(launch >= 0, step_of(trace.start[launch]), -1)
    gpu, launch, step = gpu[step >= 0], launch[step >= 0], step[step >= 0]
    m.step_ns_traced = step_length(trace, steps, skip_first)
    host_metrics(m, trace, step_of)
    if trace.is_gpu.any() and not len(gpu):
        m.reasons.append("no GPU work was launched in the counted steps")
        m.complete = False
    elif len(gpu):
        busy = busy_per_step(trace, gpu, step)
        m.gpu_busy_ns = busy / n
        length = step_ns if step_ns else m.step_ns_traced
        m.gpu_idle_basis = UNPROFILED if step_ns else WINDOW
        m.gpu_idle = max(0.0, 1 - m.gpu_busy_ns / length) if length > 0 else None
        kernel_metrics(m, trace, gpu, launch, n)
        copy_metrics(m, trace, gpu, n)
    return m


class Steps:
    """Says to which counted step a host time belongs: its position, -1 for none. By time alone: backward kernels are
    launched by the autograd thread, not by the thread that opened the step."""

    def __init__(self, trace: Trace, steps: np.ndarray):
        self.starts, self.ends = trace.start[steps], trace.end[steps]
        self.thread = int(trace.thread[steps[0]])
        self.pid = trace.threads[self.thread][0]

    def __len__(self) -> int:
        return len(self.starts)

    def __call__(self, times: np.ndarray) -> np.ndarray:
        at = np.searchsorted(self.starts, times, side="right") - 1
        return np.where((at >= 0) & (times < self.ends[np.maximum(at, 0)]), at, -1)


def step_length(trace: Trace, steps: np.ndarray, skip_first: int) -> float:
    """Mean length of the counted steps in the trace, ns: the longer of two spans, over their number.

    Host: from the start of the first to the end of the last. GPU: from the end of the last work launched before them
    to the end of the last work launched in them - a host that queues work and runs ahead of the GPU finishes its steps
    in a fraction of the time that they take."""
    host = int(trace.end[steps[-1]] - trace.start[steps[0]])
    gpu = np.flatnonzero(trace.is_gpu)
    launch = trace.launch_of(gpu)
    ends, launched = trace.end[gpu[launch >= 0]], trace.start[launch[launch >= 0]]
    before = ends[launched < trace.start[steps[0]]]
    within = ends[(launched >= trace.start[steps[0]]) & (launched < trace.end[steps[-1]])]
    device = int(within.max() - before.max()) if len(before) and len(within) and skip_first else 0
    return max(host, device) / len(steps)


def busy_per_step(trace: Trace, gpu: np.ndarray, step: np.ndarray) -> float:
    """Busy time summed over steps, ns: for each step and device the union of its work; mean over devices."""
    if not len(gpu):
        return 0.0
    device = trace.device[gpu]
    order = np.lexsort((step, device))
    gpu, device, step = gpu[order], device[order], step[order]
    bounds = np.flatnonzero((np.diff(device) != 0) | (np.diff(step) != 0)) + 1
    groups = np.split(gpu, bounds)
    busy = sum(intervals.length(intervals.union(trace.start[g], trace.end[g])) for g in groups)
    return busy / len(np.unique(device))


def kernel_metrics(m: Metrics, trace: Trace, gpu: np.ndarray, launch: np.ndarray, n: int) -> None:
    is_kernel = trace.category[gpu] == KERNEL
    k, launch = gpu[is_kernel], launch[is_kernel]
    m.kernels = len(k) / n
    if not len(k):
        return
    tiny = trace.duration[k] < TINY_NS
    m.tiny_kernel_share = float(tiny.mean())
    busy = union_length(trace, gpu)
    m.tiny_kernel_time = union_length(trace, k[tiny]) / busy if busy else None

    op = launching_op(trace, launch, kernels.MATMUL_OP)
    names = {code: trace.names[code] for code in np.unique(trace.name[k]).tolist()}
    matmul_name = by_name(kernels.is_matmul_kernel, names, trace.name[k])
    matmul = (matmul_name == 1) | ((matmul_name < 0) & (op >= 0))
    k, op = k[matmul], op[matmul]
    time = trace.duration[k].astype(np.float64)
    total = time.sum()
    if not total:
        return
    typed = np.where(op >= 0, trace.half[op], -1)  # the operator's input types, where they were recorded
    half = np.where(typed >= 0, typed, by_name(kernels.has_half_inputs, names, trace.name[k]))
    core = by_name(kernels.on_tensor_cores, names, trace.name[k])
    # Every recent GPU runs a bf16 or fp16 product on tensor cores, so the input type answers where the name does not.
    core = np.where((core < 0) & (half == 1), 1, core)
    m.tensor_core = {a: float(time[core == v].sum() / total) for a, v in (("yes", 1), ("no", 0), ("unknown", -1))}
    known = time[half >= 0].sum()
    if known >= (1 - UNKNOWN_TOLERATED) * total:
        m.half_share = float(time[half == 1].sum() / known)


def by_name(judge: Callable[[str], bool | None], names: dict[int, str], codes: np.ndarray) -> np.ndarray:
    """What `judge` says of each event's name: 1, 0, or -1 for None. Each distinct name is judged once."""
    answers = {code: judge(name) for code, name in names.items()}
    return np.array([-1 if answers[code] is None else int(answers[code]) for code in codes.tolist()], np.int8)


def launching_op(trace: Trace, launch: np.ndarray, pattern: re.Pattern[str]) -> np.ndarray:
    """For each host call (indices) the innermost operator with such a name around it on its thread (index, else -1).

    One sweep in order of time with a stack of open operators, so that nesting of any depth costs linear time."""
    result = np.full(len(launch), -1)
    is_op = (trace.category == CPU_OP) & trace.named(pattern)
    wanted = np.zeros(len(trace), bool)
    wanted[launch] = True
    both = np.flatnonzero(is_op | wanted)  # in order of start, outer before inner
    stacks: dict[int, list[tuple[int, int]]] = {}
    found: dict[int, int] = {}
    columns = (both, trace.thread[both], trace.start[both], trace.end[both])
    for index, thread, start, end in zip(*(column.tolist() for column in columns), strict=True):
        stack = stacks.setdefault(thread, [])
        while stack and stack[-1][1] <= start:
            stack.pop()
        if wanted[index]:
            found[index] = stack[-1][0] if stack else -1
        else:
            stack.append((index, end))
    for position, index in enumerate(launch.tolist()):
        result[position] = found[index]
    return result


def copy_kind(name: str) -> str:
    """ "Memcpy HtoD (Pinned -> Device)" -> "HtoD pinned". Other directions keep their code; a host-to-device copy whose
    source is neither pinned nor pageable is "HtoD other"."""
    match = COPY_NAME.match(name)
    if not match:
        return "other"
    direction, source = match[1], (match[2] or "").lower()
    if direction != "HtoD":
        return direction
    return f"HtoD {source}" if source in ("pinned", "pageable") else "HtoD other"


def copy_metrics(m: Metrics, trace: Trace, gpu: np.ndarray, n: int) -> None:
    copies = gpu[trace.category[gpu] == MEMCPY]
    kinds_of = {code: copy_kind(trace.names[code]) for code in np.unique(trace.name[copies]).tolist()}
    kind = np.array([kinds_of[code] for code in trace.name[copies].tolist()], dtype=object)
    m.copies = {}
    for one in (*COPY_KINDS, *sorted({*kinds_of.values()} - {*COPY_KINDS})):
        of_kind = copies[kind == one]
        sizes = trace.bytes[of_kind]
        m.copies[one] = {
            "count": len(of_kind) / n,
            "bytes": float(sizes.sum(dtype=np.float64) / n) if (sizes >= 0).all() else None,
            "ns": float(trace.duration[of_kind].sum(dtype=np.float64) / n),
        }
    h2d = copies[np.char.startswith(kind.astype(str), "HtoD")] if len(copies) else copies
    size = np.where(trace.bytes[copies] >= SMALL_COPY, trace.bytes[copies], 0).astype(np.float64)
    pinned, pageable = size[kind == "HtoD pinned"].sum(), size[kind == "HtoD pageable"].sum()
    if pinned + pageable:
        m.h2d_pinned = float(pinned / (pinned + pageable))
    copied = overlapped = 0
    is_kernel = trace.category == KERNEL
    for device in np.unique(trace.device[h2d]).tolist():
        here = h2d[trace.device[h2d] == device]
        copying = intervals.union(trace.start[here], trace.end[here])
        running = np.flatnonzero(is_kernel & (trace.device == device))  # of any step: the copy is for the next one
        computing = intervals.union(trace.start[running], trace.end[running])
        copied += intervals.length(copying)
        overlapped += intervals.length(intervals.intersection(copying, computing))
    if copied:
        m.h2d_overlap = overlapped / copied


def union_length(trace: Trace, events: np.ndarray) -> int:
    """Length of the union of these events on each device, summed over devices, ns."""
    device = trace.device[events]
    order = np.argsort(device, kind="stable")
    groups = np.split(events[order], np.flatnonzero(np.diff(device[order])) + 1)
    return sum(intervals.length(intervals.union(trace.start[g], trace.end[g])) for g in groups)


def host_metrics(m: Metrics, trace: Trace, step_of: Steps) -> None:
    n = len(step_of)
    in_step = step_of(trace.start) >= 0
    ops = trace.category == CPU_OP
    if ops.any():
        m.cpu_ops = int((ops & in_step).sum()) / n
    calls = trace.is_call
    if calls.any():
        launches = trace.named(KERNEL_LAUNCH) | trace.named(GRAPH_LAUNCH)
        m.launches = int((calls & launches & in_step).sum()) / n
        m.syncs = int(in_step[blocking_calls(trace)].sum()) / n
    annotations = trace.category == ANNOTATION
    own = np.fromiter((pid == step_of.pid for pid, _ in trace.threads), bool, len(trace.threads))[trace.thread]
    m.loads_in_main = int((annotations & own & trace.named(LOAD_SAMPLE) & in_step).sum()) / n
    waits = intervals.union(*data_waits(trace, step_of.thread))
    length = int((step_of.ends - step_of.starts).sum())
    if len(waits[0]) and length > 0:
        within = intervals.intersection(waits, intervals.union(step_of.starts, step_of.ends))
        m.data_wait = intervals.length(within) / length


def data_waits(trace: Trace, thread: int) -> intervals.Intervals:
    """Where this thread was in a DataLoader's `__next__`, or in a record_function "data_wait"."""
    waits = (trace.category == ANNOTATION) & trace.named(DATA_WAIT) & (trace.thread == thread)
    return trace.start[waits], trace.end[waits]


def blocking_calls(trace: Trace) -> np.ndarray:
    """Indices of host calls that made the host wait for the GPU, each wait once.

    They are: synchronisation of a stream, an event or the device; a copy by `cudaMemcpy`, which is never asynchronous;
    a `cudaMemcpyAsync` whose host side is pageable, which is not either; and a copy within `aten::_local_scalar_dense`
    (`.item()` and friends). PyTorch follows a blocking copy by a synchronisation of its stream: the two are one wait
    when they are within the same operator and nothing else was called in between on that thread."""
    calls = np.flatnonzero(trace.is_call)
    if not len(calls):
        return calls
    sync = trace.named(SYNC_CALL)
    copies = np.flatnonzero(trace.is_call & trace.named(ANY_COPY_CALL))
    blocks = trace.named(BLOCKING_COPY_CALL) & trace.is_call
    work = np.flatnonzero(trace.category == MEMCPY)
    pageable = work[trace.named(r".*Pageable")[work]]
    of_pageable = trace.launch_of(pageable)
    blocks[of_pageable[of_pageable >= 0]] = True
    blocks[copies[launching_op(trace, copies, ITEM) >= 0]] = True
    calls = calls[np.lexsort((calls, trace.thread[calls]))]  # thread by thread, in order of time
    thread, op = trace.thread[calls], launching_op(trace, calls, ANY_OP)
    followed = np.append(sync[calls[1:]] & (thread[1:] == thread[:-1]) & (op[1:] == op[:-1]), False)
    return np.sort(calls[sync[calls] | (blocks[calls] & ~followed)])
