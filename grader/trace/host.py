"""What the host did: which operator made a call, where it waited for data, where for the GPU."""

import re

import numpy as np

from grader.trace import intervals
from grader.trace.columns import Trace
from grader.trace.events import COPY_LAUNCH, CPU_OP, KERNEL_LAUNCH, MEMCPY, SYNC_CALL
from grader.trace.nesting import by_thread

DATA_WAIT = re.compile(r"enumerate\(DataLoader\)#.*__next__|enumerate\(DataPipe\)#|data_wait$")
BLOCKING_COPY_CALL = re.compile(
    r"((cuda|hip)Memcpy(WithStream|2D|3D|2DTo\w+|2DFrom\w+|To\w+|From\w+|HtoD|DtoH|HtoA|AtoH)?|cuMemcpy(HtoD|DtoH|HtoA|AtoH)?|(AscendCL@)?aclrtMemcpy)"
    r"(_v\d+|_ptds(_v\d+)?)?$"
)
HELD_NS, CLOCKS_NS = 100_000, 10_000  # no copy is handed over for so long; the clocks of host and GPU differ by so much
TO_HOST = re.compile(r".*(DtoH|DeviceToHost|D2H|D2M)")
LAUNCH_NS, LONGER = 5_000, 3
COPIES = re.compile(
    r"aten::(to|_to_copy|copy_|_copy_from(_and_resize)?)$"
)  # and convert, where the number format changes
ITEM = re.compile(r"aten::_local_scalar_dense$")  # `.item()` and friends


def launching_op(trace: Trace, calls: np.ndarray, pattern: re.Pattern[str] | None = None) -> np.ndarray:
    """For each host call (indices) the innermost operator around it on its thread, of those named so (`pattern`), else -1."""
    if pattern is None:
        return trace.operator[calls]
    ops = np.flatnonzero(trace.category == CPU_OP)
    found = trace.nesting(ops[trace.named(pattern, ops)]).around(calls)
    return np.where(calls >= 0, found, -1)


def copying_op(trace: Trace, calls: np.ndarray) -> np.ndarray:
    """For each host call (indices) the outermost operator around it that does nothing but copy and convert, as `.to(device, dtype)`
    does, which makes a converted copy on the host first; the innermost operator where there is none (index, else -1)."""
    op = launching_op(trace, calls)
    while True:
        outer = np.where(op >= 0, trace.operator[op], -1)
        copies = (outer >= 0) & trace.named(COPIES, outer)
        if not copies.any():
            return op
        op = np.where(copies, outer, op)


def own_time(trace: Trace, ops: np.ndarray) -> dict[str, float]:
    """Time, ns, in calls of these operators (indices) by name, without that of operators that they called; the longest first."""
    time = np.zeros(len(trace) + 1)  # the last is for what no operator called
    time[ops] = trace.duration[ops]
    np.subtract.at(time, trace.operator[ops], trace.duration[ops])
    by_name = np.bincount(trace.name[ops], time[ops].clip(0))
    return {trace.names[name]: float(by_name[name]) for name in np.argsort(-by_name, kind="stable") if by_name[name]}


def data_waits(trace: Trace, thread: int) -> intervals.Intervals:
    """Where this thread was in a DataLoader's `__next__`, or in a record_function "data_wait"."""
    own = trace.annotations[trace.thread[trace.annotations] == thread]
    waits = own[trace.named(DATA_WAIT, own)]
    return trace.start[waits], trace.end[waits]


def _read_within(trace: Trace, work: np.ndarray, call: np.ndarray) -> np.ndarray:
    """Mask of these copies: those to the host that began and ended within their call, which is longer than any that only hands over."""
    launches = trace.duration[trace.calls[trace.named(KERNEL_LAUNCH, trace.calls)]]
    usual = max(float(np.median(launches)) if len(launches) else 0.0, LAUNCH_NS)
    return trace.named(TO_HOST, work) & (trace.duration[call] >= LONGER * usual) & (trace.end[call] >= trace.end[work])


def blocking_calls(trace: Trace) -> np.ndarray:
    """Indices of host calls that made the host wait for the GPU, each wait once: synchronisations and blocking copies. PyTorch
    follows a blocking copy by a synchronisation of its stream, which is the same wait: the one that held longer stands for both."""
    calls = trace.calls
    if not len(calls):
        return calls
    copies = calls[trace.named(COPY_LAUNCH, calls)]
    blocks = np.zeros(len(trace) + 1, bool)  # the last is for what has no launch recorded
    blocks[calls] = trace.named(BLOCKING_COPY_CALL, calls)
    work = np.flatnonzero(trace.category == MEMCPY)
    blocks[trace.launch_of(work[trace.named(r".*Pageable", work)])] = True  # cudaMemcpyAsync waits for those, too
    call = trace.launch_of(work)  # as do others that last until the copy has ended
    work, call = work[call >= 0], call[call >= 0]
    held = (trace.duration[call] >= HELD_NS) & (trace.end[call] + CLOCKS_NS >= trace.end[work])
    held |= _read_within(trace, work, call)
    blocks[call[held & (trace.start[call] <= trace.start[work])]] = True
    blocks[copies[launching_op(trace, copies, ITEM) >= 0]] = True
    calls = by_thread(trace.thread, calls)
    thread, op, sync = trace.thread[calls], launching_op(trace, calls), trace.named(SYNC_CALL, calls)
    copy = blocks[calls] & ~sync
    pair = np.flatnonzero(copy[:-1] & sync[1:] & (thread[1:] == thread[:-1]) & (op[1:] == op[:-1]))
    waits = sync | copy
    # which of the two holds the host depends on the direction, on the memory and on the vendor
    waits[np.where(trace.duration[calls[pair]] > trace.duration[calls[pair + 1]], pair + 1, pair)] = False
    return np.sort(calls[waits])
