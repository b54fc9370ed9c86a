"""The numbers that checks are made of, one definition each.

Durations are integer nanoseconds; busy times are lengths of unions of intervals on one device. GPU work belongs to the step in which
the host launched it, by correlation id only. What a trace cannot tell is None, never 0."""

import re

import numpy as np

from grader.trace import intervals, kernels, roofline, shapes
from grader.trace.catalogue import Metrics
from grader.trace.columns import Trace
from grader.trace.events import CPU_OP, GRAPH_LAUNCH, KERNEL, KERNEL_LAUNCH, MEMCPY, SYNC_CALL
from grader.trace.host import DATA_WAIT, data_waits, launching_op, own_time
from grader.trace.lines import by_line
from grader.trace.steps import Steps
from grader.trace.words import milliseconds
from grader.trace.work import busy_devices, by_name, copy_kind, devices_of, overlap_length, per_device, union_length

TINY_NS = 10_000  # a kernel shorter than this costs about as much to launch as to run
SMALL_COPY = 64 << 10  # bytes; pinning does not matter below
UNKNOWN_TOLERATED = 0.1  # share of matmul time whose precision may be unknown before the share is not given at all

LOAD_SAMPLE = re.compile(r"load_sample$")
READ_TILES = re.compile(r"read_tiles$")
COPY_KINDS = ("HtoD pinned", "HtoD pageable", "DtoH", "DtoD")

PHASES = ("data_wait", "h2d", "fwd", "bwd", "opt")
# What names the same phases where a loop has no record_function of its own.
PHASE_NAMES = {
    "data_wait": DATA_WAIT,
    "h2d": re.compile(r"h2d$"),
    "fwd": re.compile(r"(fwd|forward)$"),
    "bwd": re.compile(r"(bwd|backward)$"),
    "opt": re.compile(r"(opt|optimizer)$|Optimizer\.step#"),
}
# Operators that only move values: what they launch is a layout change, a cast or a copy on the device.
COPYING_OP = re.compile(r"aten::(copy_|contiguous|clone|_to_copy|to)$")
COLLECTIVE = re.compile(r"c10d::")
# Operators that give Python a value (.item(), `if`, format) or a tensor whose size depends on values (a mask as an index).
VALUE_NEEDED = re.compile(r"aten::(_local_scalar_dense|nonzero|masked_select|_unique2)$")
COMPILED_CODE = re.compile(r"Torch-Compiled Region|CompiledFunction")
UNSHOWN = re.compile(r"(cuda|hip)GraphLaunch|triton_tem_")
BACKWARD_PASS = re.compile(r"autograd::engine::evaluate_function")
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#")
COPY_OP = re.compile(r"aten::copy_$")  # what all of them call
MOST_NAMED = 20  # operators
SPREAD_OF = 20  # steps at least, of which 95% do not exceed something
# In 187 traces of all vendors no wait ended more than 20 us after the GPU had, and all together not 3% of the time.
LATE_NS, MOST_LATE = 1_000_000, 0.1
FITS = 1.15  # GPU work per step, in units of the step's own length: clocks and profiling explain no more


def metrics(
    trace: Trace,
    step_ns: float | None = None,
    skip_first: int = 1,
    steps: Steps | None = None,
    count: int | None = None,
    wait_ns: float | None = None,
) -> Metrics:
    """Measure the steps after the first `skip_first` (the profiler can lose events of its first active step), `count` of them where it
    is given. steps: `Steps(trace, skip_first, count)`, if it is there already. step_ns: length of a usual step without the profiler,
    which stretches one that is bound by launches, so only with it is idleness about the loop. wait_ns: for data, in such a step."""
    m = Metrics(complete=trace.complete, reasons=list(trace.reasons), notes=list(trace.notes), step_ns=step_ns)
    memory_metrics(m, trace)
    steps = steps or Steps(trace, skip_first, count)
    m.gpu_idle = idle_share(trace, steps.begun)
    if not len(steps):
        if len(trace.windows):
            m.reasons.append(f"it has no step beyond the {skip_first} that are not counted")
        m.complete = False
        return m
    m.steps, m.steps_sure, m.wait_ns = len(steps), trace.windows.sure, wait_ns
    m.notes += _odd(trace, steps)
    m.step_ns_traced = steps.length
    per_step = busy_per_step(trace, steps) if len(steps.gpu) else None
    # No usual steps: some have more GPU work than fits into step_ns, others have not.
    if step_ns and per_step is not None and per_step.min() <= FITS * step_ns < per_step.mean():
        m.step_ns = step_ns = None
    m.spread = spread(steps)
    host_metrics(m, trace, steps)
    shapes.alignment(m, trace, steps)
    if len(trace.gpu) and not len(steps.gpu):
        m.reasons.append("no GPU work was launched in the counted steps")
        m.complete = False
    elif per_step is not None:
        m.per_step["gpu_busy_ns"] = per_step.tolist()
        m.gpu_busy_ns = float(per_step.sum() / m.steps)
        m.events["gpu_busy_ns"] = steps.gpu
        if step_ns:
            m.gpu_idle_unprofiled = max(0.0, 1 - m.gpu_busy_ns / step_ns)
        if late := _waited_for_nothing(trace, steps):
            m.reasons.append(
                f"the host waited for the GPU {milliseconds(late)} per step after all recorded work was done: some is not in the recording"
            )
            m.complete = False
        kernel_metrics(m, trace, steps)
        copy_metrics(m, trace, steps)
        phase_metrics(m, trace, steps)
    return m


def _odd(trace: Trace, steps: Steps) -> list[str]:
    notes: list[str] = []
    if trace.windows.cut:
        many = "step, which is" if trace.windows.cut == 1 else f"{trace.windows.cut} steps, which are"
        notes.append(f"the recording ends within its last {many} not counted")
    if steps.begun is not None:
        notes.append(
            f"for its first {milliseconds(steps.begun - steps.host[0])} the GPU did work of a step before, so the step is counted from the end of that"
        )
    if len(trace.windows) == 1 and len(trace.steps):
        notes.append("one whole step was recorded, so nobody can tell how steps differ, nor whether it was a usual one")
    if few := {*devices_of(trace, steps.gpu)} - {*busy_devices(trace, steps.gpu)} if len(steps.gpu) else ():
        named = ", ".join(map(str, sorted(few)[:8]))
        notes.append(f"next to nothing ran on GPU {named}, whose idle time does not count")
    return notes


def _waited_for_nothing(trace: Trace, steps: Steps) -> float:
    """How long synchronisations lasted per step, ns, when the GPU had nothing to do any more; 0 where that is little."""
    waits = steps.waits[(steps.of_event[steps.waits] >= 0) & (trace.start[steps.waits] >= steps.window[0])]
    waits = waits[trace.named(SYNC_CALL, waits)]
    end, busy = trace.end[waits], trace.spans(trace.gpu)
    last = np.searchsorted(busy[1], end, side="right")
    done = np.append(-(2**62), busy[1])[last]
    late = np.where(intervals.contains(busy, end), 0, end - np.maximum(done, trace.start[waits]))
    total = int(late[late > LATE_NS].sum())
    return total / len(steps) if total > MOST_LATE * steps.length * len(steps) else 0.0


def idle_share(trace: Trace, begun: int | None = None) -> float | None:
    """The share of the whole recording in which a GPU idled, mean over devices: from the start of the first step (without steps,
    of the first GPU event; begun: see `Steps.begun`) to the end of the last step or GPU event. None without GPU events."""
    gpu, steps = trace.gpu, trace.steps
    if not len(gpu):
        return None
    low = begun or int(trace.start[steps if len(steps) else gpu].min())
    high = int(max(trace.end[steps].max() if len(steps) else low, trace.end[gpu].max()))
    devices = busy_devices(trace, gpu)
    spans = [span for device, span in per_device(trace, gpu).items() if device in devices]
    busy = sum(intervals.length(intervals.clip(span, low, high)) for span in spans)
    return 1 - busy / len(spans) / (high - low) if high > low else None


def spread(steps: Steps) -> float | None:
    """The 95th percentile of the steps' lengths over their median: on a GPU from the end of a step's work to that of the next, else from
    start to start on the host. None for fewer than `SPREAD_OF` of them."""
    ends = np.append(steps.starts, steps.ends[-1])
    if len(steps.gpu):
        # a host that runs ahead makes its steps in no time, and then waits
        ends = np.zeros(len(steps))
        np.maximum.at(ends, steps.step, steps.trace.end[steps.gpu])
        ends = ends[ends > 0]
    lengths = np.diff(ends)
    if len(lengths) < SPREAD_OF:
        return None
    return float(np.percentile(lengths, 95) / max(1.0, float(np.median(lengths))))


def busy_per_step(trace: Trace, steps: Steps) -> np.ndarray:
    """Busy time of each counted step, ns: the union of its work, mean over `busy_devices`. (float64, shape [steps])"""
    devices = busy_devices(trace, steps.gpu)
    counted = np.isin(trace.device[steps.gpu], devices)
    gpu, step = steps.gpu[counted], steps.step[counted]
    order = np.lexsort((step, trace.device[gpu]))
    gpu, device, step = gpu[order], trace.device[gpu[order]], step[order]
    bounds = np.flatnonzero((np.diff(device) != 0) | (np.diff(step) != 0)) + 1
    busy = np.zeros(len(steps))
    for first, group in zip(step[np.append(0, bounds)].tolist(), np.split(gpu, bounds), strict=True):
        busy[first] += intervals.length(trace.spans(group))
    return busy / len(devices)


def _count(m: Metrics, name: str, events: np.ndarray, step: np.ndarray, n: int) -> None:
    """Make these events (indices, with the step of each) of n steps the metric of this name."""
    setattr(m, name, len(events) / n)
    m.per_step[name] = np.bincount(step, minlength=n).astype(float).tolist()
    m.events[name] = events


def kernel_metrics(m: Metrics, trace: Trace, steps: Steps) -> None:
    n, busy = len(steps), steps.busy
    is_kernel = trace.category[steps.gpu] == KERNEL
    k = steps.gpu[is_kernel]
    _count(m, "kernels", k, steps.step[is_kernel], n)
    if not len(k):
        return
    tiny = trace.duration[k] < TINY_NS
    m.tiny_kernel_share = float(tiny.mean())
    m.events["tiny_kernel_share"] = k[tiny]
    m.tiny_kernel_time = union_length(trace, k[tiny]) / busy if busy else None
    strange = k[(by_name(kernels.is_unknown, trace, k) == 1) & ~steps.kernels.matmul[k]]
    m.unknown_kernel_share = union_length(trace, strange) / busy if busy else None
    m.events["unknown_kernel_share"] = strange
    communication = steps.kernels.communication[k]
    comm, other = k[communication], k[~communication]
    m.comm_ns = union_length(trace, comm) / n
    m.comm_exposed_ns = m.comm_ns - overlap_length(trace, comm, other) / n
    m.events["comm_exposed_ns"] = comm
    m.comm_exposed = m.comm_exposed_ns / step_ns if (step_ns := m.step_ns or m.step_ns_traced) else None
    copying = launching_op(trace, steps.launch[is_kernel])
    moves = k[(copying >= 0) & trace.named(COPYING_OP, copying)]
    m.copy_kernels = len(moves) / n
    m.copy_kernel_share = union_length(trace, moves) / busy if busy else None
    m.events["copy_kernels"] = moves
    changes = layout_changes(trace, steps)
    if changes is not None:
        m.layout_share = union_length(trace, changes) / busy if busy else None
        m.events["layout_share"] = changes
    m.flash_share = flash_share(trace, k)
    matmul_metrics(m, trace, steps, k[steps.kernels.matmul[k]])


def flash_share(trace: Trace, k: np.ndarray) -> float | None:
    """Of the time of these kernels (indices) that are attention, the share of the flash kind."""
    spent = {True: 0, False: 0}
    for code in np.unique(trace.name[k]).tolist():
        name = trace.names[code].lower()
        if kernels.is_attention(name):
            spent[bool(kernels.FLASH.search(name))] += int(trace.duration[k[trace.name[k] == code]].sum())
    return spent[True] / sum(spent.values()) if sum(spent.values()) else None


def matmul_metrics(m: Metrics, trace: Trace, steps: Steps, k: np.ndarray) -> None:
    time = trace.duration[k].astype(np.float64)
    total = time.sum()
    if not total:
        return

    def share(yes: np.ndarray) -> float | None:
        known = time[yes >= 0].sum()
        return float(time[yes == 1].sum() / known) if known >= (1 - UNKNOWN_TOLERATED) * total else None

    core = steps.kernels.core[k]
    m.events["tensor_core_share"] = k
    m.tensor_core_share = {a: float(time[core == v].sum() / total) for a, v in (("yes", 1), ("no", 0), ("unknown", -1))}
    m.half_share, m.fp16_share = share(steps.kernels.half[k]), share(steps.kernels.fp16[k])


def layout_changes(trace: Trace, steps: Steps) -> np.ndarray | None:
    """GPU events (indices) that only change where values lie: copies within the device from one type to the same
    (`contiguous`, `clone`), and cuDNN's conversions between NCHW and NHWC. None where a copy's types were not recorded."""
    on_device = trace.category[steps.gpu] == KERNEL
    on_device |= trace.named(r"Memcpy DtoD", steps.gpu)
    gpu, op = steps.gpu[on_device], launching_op(trace, steps.launch[on_device])
    same = np.array([*map(_one_type, trace.texts), False])  # -1, not recorded, is the last
    copies = (op >= 0) & trace.named(COPY_OP, op)
    if (trace.types[op[copies]] < 0).any():
        return None
    copies &= same[trace.types[op]]
    return gpu[copies | (by_name(kernels.changes_layout, trace, gpu) == 1)]


def _one_type(text: str) -> bool:
    """Whether these are the input types of a `copy_` that keeps the type."""
    types = text.strip("[] ").split(",")
    return len(types) > 1 and types[0].startswith('"') and types[0].strip() == types[1].strip()


def copy_metrics(m: Metrics, trace: Trace, steps: Steps) -> None:
    n = len(steps)
    copies = steps.gpu[trace.category[steps.gpu] == MEMCPY]
    kinds_of = {code: copy_kind(trace.names[code]) for code in np.unique(trace.name[copies]).tolist()}
    kind = np.array([kinds_of[code] for code in trace.name[copies].tolist()], dtype=object)

    def bytes_a_step(some: np.ndarray) -> float | None:
        sizes = trace.bytes[some]
        return float(sizes.sum(dtype=np.float64) / n) if (sizes >= 0).all() else None

    m.copies = {}
    for one in (*COPY_KINDS, *sorted({*kinds_of.values()} - {*COPY_KINDS})):
        of_kind = copies[kind == one]
        m.copies[one] = {
            "count": len(of_kind) / n,
            "bytes": bytes_a_step(of_kind),
            "ns": float(trace.duration[of_kind].sum(dtype=np.float64) / n),
        }
    m.events["copies"] = copies
    h2d = copies[np.char.startswith(kind.astype(str), "HtoD")] if len(copies) else copies
    m.events["h2d_copies"] = m.events["h2d_pinned"] = m.events["h2d_overlap"] = h2d
    m.h2d_copies = len(h2d) / n
    m.h2d_bytes = bytes_a_step(h2d)
    size = np.where(trace.bytes[copies] >= SMALL_COPY, trace.bytes[copies], 0).astype(np.float64)
    pinned, pageable = size[kind == "HtoD pinned"].sum(), size[kind == "HtoD pageable"].sum()
    if pinned + pageable:
        m.h2d_pinned = float(pinned / (pinned + pageable))
    # Beside kernels of any step: the copy is for the next one.
    copied = union_length(trace, h2d)
    if copied:
        m.h2d_overlap = overlap_length(trace, h2d, np.flatnonzero(trace.category == KERNEL)) / copied


def host_metrics(m: Metrics, trace: Trace, steps: Steps) -> None:
    n, step = len(steps), steps.of_event
    calls = trace.calls
    if len(calls):
        calls = calls[step[calls] >= 0]
        graphs = trace.named(GRAPH_LAUNCH, calls)
        m.graph_launches = int(graphs.sum()) / n
        launches = calls[trace.named(KERNEL_LAUNCH, calls) | graphs]
        _count(m, "launches", launches, step[launches], n)
        syncs = steps.waits[step[steps.waits] >= 0]
        _count(m, "syncs", syncs, step[syncs], n)
        m.sync_ns = float(trace.duration[syncs].sum(dtype=np.float64) / n)
        m.sync_lines = {line: count / n for line, count in by_line(trace, syncs).items()} or None
    is_op = trace.category == CPU_OP
    ops = np.flatnonzero(is_op & (step[:-1] >= 0))
    waits = intervals.union(*data_waits(trace, steps.thread))
    if is_op.any():
        m.cpu_ops = len(ops) / n
        mine = ops[trace.thread[ops] == steps.thread]
        m.ops_outside_waits = int((~intervals.contains(waits, trace.start[mine])).sum()) / n
        m.events["collectives"] = ops[trace.named(COLLECTIVE, ops)]
        m.collectives = len(m.events["collectives"]) / n
        m.exchanged = shapes.exchanged(trace, m.events["collectives"], n)
        m.smallest_group = min(trace.group_sizes, default=None)
        shapes.products(m, trace, steps, ops)
        m.score_matrices = shapes.score_matrices(m, trace, steps, ops)
        m.compiled_products = compiled_products(trace, ops)
        if not len(trace.calls) and not len(trace.gpu):
            m.events["would_wait"] = would_wait(trace, steps, ops)
            m.would_wait = len(m.events["would_wait"]) / n
            m.host_ops = {name: time / n for name, time in list(own_time(trace, ops).items())[:MOST_NAMED]}
    data_metrics(m, trace, steps, waits)


def compiled_products(trace: Trace, ops: np.ndarray) -> float | None:
    """The share of the forward pass's matrix products among `ops` that compiled code called; None where none is seen, or where
    compiled code can have some that no operator shows: in a replayed graph, or in Inductor's own templates."""
    if any(map(UNSHOWN.match, trace.names)):
        return None
    products = ops[trace.named(roofline.MATRIX_PRODUCT, ops)]

    def within(pattern: re.Pattern[str]) -> np.ndarray:
        return trace.nesting(ops[trace.named(pattern, ops)]).around(products) >= 0

    forward = ~within(BACKWARD_PASS)
    return float(within(COMPILED_CODE)[forward].mean()) if forward.any() else None


def data_metrics(m: Metrics, trace: Trace, steps: Steps, waits: intervals.Intervals) -> None:
    """The loading of data. waits: where the main thread waited for it."""
    n, length = len(steps), int((steps.ends - steps.starts).sum())
    named = trace.annotations[steps.of_event[trace.annotations] >= 0]
    own = np.fromiter((pid == steps.pid for pid, _ in trace.threads), bool, len(trace.threads))[trace.thread[named]]
    m.loads_in_main = int((own & trace.named(LOAD_SAMPLE, named)).sum()) / n
    main = named[trace.thread[named] == steps.thread]
    reads = main[trace.named(READ_TILES, main)]
    unmarked = reads[~intervals.contains(waits, trace.start[reads])]
    if len(unmarked):  # the marks, if there are any, do not hold all of the wait
        m.unmarked_reads = len(unmarked) / n
        m.events["unmarked_reads"] = unmarked
    elif len(waits[0]) and length > 0:
        within = intervals.covered(steps.starts, steps.ends, waits)
        waited = int(within.sum())
        m.data_wait = waited / length
        if m.step_ns:
            wait = waited / n if m.wait_ns is None else m.wait_ns
            m.data_wait_unprofiled = min(1.0, wait / m.step_ns)
        m.per_step["data_wait_ns"] = within.astype(float).tolist()
        m.events["data_wait"] = main[trace.named(DATA_WAIT, main)]


def would_wait(trace: Trace, steps: Steps, ops: np.ndarray) -> np.ndarray:
    """Those of the operators `ops` that would wait for a GPU, were their tensors there. Not counted is what lies on the CPU
    wherever the model is: the samples of a DataLoader, and an optimizer's counters of its steps."""
    asking = ops[trace.named(VALUE_NEEDED, ops)]
    optimizer = trace.annotations[trace.named(OPTIMIZER_STEP, trace.annotations)]
    on_cpu = intervals.joined(data_waits(trace, steps.thread), trace.spans(optimizer))
    return asking[~intervals.contains(on_cpu, trace.start[asking])]


def phase_metrics(m: Metrics, trace: Trace, steps: Steps) -> None:
    """Time per step of each phase that the loop named by record_function, else of the DataLoader and the optimizer: on the host from
    entry to exit, on the GPU the union of the work that was launched meanwhile, by whatever thread."""
    n, m.phases = len(steps), {}
    mine = trace.annotations[trace.thread[trace.annotations] == steps.thread]
    mine = mine[steps.of_event[mine] >= 0]
    launched = trace.start[np.where(steps.launch >= 0, steps.launch, steps.gpu)]
    for phase in PHASES:
        spans = mine[trace.named(PHASE_NAMES[phase], mine)]
        if not len(spans):
            continue
        spent = trace.spans(spans)
        within = intervals.contains(spent, launched)
        m.phases[phase] = {
            "host_ns": intervals.length(spent) / n,
            "gpu_ns": union_length(trace, steps.gpu[within]) / n,
        }
        m.events[f"phases.{phase}"] = spans


def memory_metrics(m: Metrics, trace: Trace) -> None:
    """Of each GPU, or of the CPU where no GPU is reported; the worst of several."""
    memory = trace.memory
    devices = np.unique(memory.device[memory.device >= 0]).tolist() or np.unique(memory.device).tolist()
    ends = trace.end[trace.steps]
    for device in devices:
        own = memory.device == device
        time, allocated = memory.time[own], memory.allocated[own]
        m.peak_memory = max(m.peak_memory or 0.0, float(allocated.max()))
        at = np.searchsorted(time, ends, side="right") - 1
        at_ends = allocated[at[at >= 0]]
        if len(at_ends) > 1:
            growth = float(np.median(np.diff(at_ends)))  # a leak grows in each step, a cache or a buffer once
            m.memory_growth = max(growth, m.memory_growth if m.memory_growth is not None else growth)
