"""Read a trace of torch.profiler (Kineto) into columns of integers.

A trace may come from the very process that it is evidence about, so the file is not trusted: not its type, not its
size, not its contents. What is no trace raises TraceError; what is one but cannot be relied on is read, and `complete`
and `reasons` say so."""

from __future__ import annotations

import gc
import os
import re
import stat
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from grader.errors import UserError

# Categories of Kineto that have a meaning here; an event of any other category is OTHER. The number is the code in
# `Trace.category`.
CATEGORIES = (
    "other",
    "cpu_op",
    "user_annotation",
    "python_function",
    "cuda_runtime",
    "cuda_driver",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_sync",
    "gpu_user_annotation",
    "overhead",
)
OTHER, CPU_OP, ANNOTATION, PYTHON, RUNTIME, DRIVER, KERNEL, MEMCPY, MEMSET, SYNC, GPU_ANNOTATION, OVERHEAD = range(12)
CODES = {name: code for code, name in enumerate(CATEGORIES)}
CODES["Kernel"] = KERNEL  # spelling of releases before 1.12
CODES["Memcpy"], CODES["Memset"], CODES["Runtime"], CODES["Operator"] = MEMCPY, MEMSET, RUNTIME, CPU_OP

STEP = re.compile(r"ProfilerStep#\d+")
# Host calls that put work on the GPU; the groups are told apart in metrics.py.
KERNEL_LAUNCH = re.compile(r"(cuda|cu|hip|hipExt|hipModule|hipExtModule)Launch(Cooperative)?Kernel")
GRAPH_LAUNCH = re.compile(r"(cuda|cu|hip)GraphLaunch")
COPY_LAUNCH = re.compile(r"(cuda|cu|hip)Memcpy")
MEMSET_LAUNCH = re.compile(r"(cuda|cu|hip)Memset")  # some leave no GPU event in sound traces, so none is missed

LONGEST_NS = 3600 * 10**9  # no event of a training trace lasts an hour, and no trace a day
LONGEST_SPAN_NS = 24 * LONGEST_NS
LATEST_US = 4e15  # microseconds since 1970 reach this in the year 2096; also keeps every sum within int64
MISSING_TOLERATED = 0.005  # share of launches without GPU work, or the reverse, at the edges of a recording
CLOCKS_APART_NS = 1_000_000  # clocks of CPU and GPU differ by up to 10 us; this is no clock error
MOST_DEVICES = 256
MAX_OBJECTS = 8_000_000  # JSON objects, about two an event: bounds memory, a decoded object takes far more than "{}"


class TraceError(UserError):
    """This is not a trace that can be read. The message says why."""


@dataclass(frozen=True)
class Memory:
    """The allocator's reports (`profile_memory=True`), in order of time. Bytes; device -1 is the CPU."""

    time: np.ndarray  # ns, on the clock of Trace
    device: np.ndarray
    allocated: np.ndarray  # in use after this allocation or release
    reserved: np.ndarray


@dataclass(frozen=True)
class Trace:
    """The complete ("X") events of a trace, one array entry an event, in order of start (of two that start together
    the longer comes first, so an outer event precedes the events within it).

    Times are integer nanoseconds after `base_ns` (Unix time; 0 in old files, whose times are Unix times themselves).
    -1 stands for "not recorded" in every column but the first five."""

    names: list[str]  # what `name` points into
    threads: list[tuple[int | str | float, int | str | float]]  # (pid, tid), what `thread` points into
    category: np.ndarray  # codes, see CATEGORIES
    name: np.ndarray
    thread: np.ndarray
    start: np.ndarray  # ns
    duration: np.ndarray  # ns
    correlation: np.ndarray
    device: np.ndarray
    stream: np.ndarray
    bytes: np.ndarray
    types: np.ndarray  # of a cpu_op's inputs, as JSON: what `texts` holds at this index; -1: not recorded
    dims: np.ndarray  # likewise, its inputs' shapes
    sequence: np.ndarray  # of a cpu_op that takes part in autograd: its backward has the same number
    python: np.ndarray  # a python_function's id, and that of the function that called it
    parent: np.ndarray
    called_from: np.ndarray  # the source line of that call, "file.py:12": index into `texts`; torch >= 2.14 or so
    texts: list[str]
    memory: Memory
    base_ns: int = 0
    devices: list[str] = field(default_factory=list)  # names of the GPUs
    world_size: int | None = None  # of a distributed run, as recorded
    rank: int | None = None
    reasons: list[str] = field(default_factory=list)  # why it is incomplete; empty when it is complete

    @property
    def complete(self) -> bool:
        return not self.reasons

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def end(self) -> np.ndarray:
        return self.start + self.duration

    def named(self, pattern: re.Pattern[str] | str) -> np.ndarray:
        """Mask of the events whose name begins with a match of `pattern`. Each distinct name is matched once."""
        match = re.compile(pattern).match
        return np.fromiter((match(name) is not None for name in self.names), bool, len(self.names))[self.name]

    @cached_property
    def half(self) -> np.ndarray:
        """A cpu_op has a bfloat16 or float16 input: 1, has none: 0, its types were not recorded: -1."""
        known = ["BFloat16" in text or "c10::Half" in text for text in self.texts]
        return np.array([*known, -1], np.int8)[self.types]  # -1 is the last

    @cached_property
    def is_gpu(self) -> np.ndarray:
        """Mask of GPU work: kernels, copies, memsets. Nothing else keeps a GPU busy."""
        return (self.category == KERNEL) | (self.category == MEMCPY) | (self.category == MEMSET)

    @cached_property
    def is_call(self) -> np.ndarray:
        """Mask of the host's calls into CUDA."""
        return (self.category == RUNTIME) | (self.category == DRIVER)

    @cached_property
    def steps(self) -> np.ndarray:
        """Indices of the host's `ProfilerStep#N` annotations, in order."""
        return np.flatnonzero((self.category == ANNOTATION) & self.named(STEP))

    def launch_of(self, events: np.ndarray) -> np.ndarray:
        """For each of these events (indices) the index of the host call with the same correlation id, -1 without one.
        Never matched by time: the clocks of CPU and GPU differ."""
        return self._launch[events]

    @cached_property
    def _launch(self) -> np.ndarray:
        found = np.full(len(self), -1)
        calls = np.flatnonzero(self.is_call & (self.correlation > 0))
        calls = calls[np.argsort(self.correlation[calls], kind="stable")]
        if len(calls):
            wanted = self.correlation
            at = np.minimum(np.searchsorted(wanted[calls], wanted), len(calls) - 1)
            same = wanted[calls[at]] == wanted
            found[same] = calls[at[same]]
        return found


def read(path: str | os.PathLike[str], max_bytes: int = 512 << 20, expect_gpu: bool = True) -> Trace:
    """Read a `.json` or `.json.gz` that torch.profiler wrote. gzip is told by its first bytes, not by the name.

    max_bytes: largest size accepted, before and after decompression. expect_gpu: False for a run on the CPU, where a
    trace without GPU work is complete. Raises TraceError for anything that is not a trace: no such file, a link, a pipe
    or a folder, too large, broken gzip, broken JSON, JSON of another kind."""
    path = Path(path)
    try:
        # O_NOFOLLOW and the check on the open descriptor: who wrote the file may swap it while it is being looked at.
        # O_NONBLOCK: opening a named pipe would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise TraceError(f"cannot open the trace {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise TraceError(f"the trace {path} is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from None
    finally:
        os.close(descriptor)
    return read_bytes(data, max_bytes, expect_gpu)


def read_bytes(data: bytes, max_bytes: int = 512 << 20, expect_gpu: bool = True) -> Trace:
    """`read` of what a file holds."""
    too_large = f"the trace is larger than {max_bytes >> 20} MB; record fewer steps"
    if len(data) > max_bytes:
        raise TraceError(too_large)
    if data[:2] == b"\x1f\x8b":
        data = _gunzip(data, max_bytes, too_large)
    if not data.strip():
        raise TraceError("the trace is empty")
    if data.count(b"{") > MAX_OBJECTS:
        raise TraceError("the trace holds too many events; record fewer steps")
    collecting = gc.isenabled()
    gc.disable()  # a million live objects and no garbage: collections would double the time
    try:
        document = _DECODER.decode(data)
        return _columns(document, expect_gpu)
    except msgspec.ValidationError as error:
        raise TraceError(f"this JSON is not a trace of torch.profiler: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"the trace is broken JSON, cut short or damaged: {error}") from None
    except RecursionError:
        raise TraceError("the trace is nested too deeply to be one") from None
    except MemoryError:
        raise TraceError("the trace does not fit in memory; record fewer steps") from None
    finally:
        if collecting:
            gc.enable()


def _gunzip(data: bytes, max_bytes: int, too_large: str) -> bytes:
    """Decompress, all members, and stop as soon as the result is larger than allowed."""
    parts, size = [], 0
    while data:
        member = zlib.decompressobj(wbits=31)
        try:
            part = member.decompress(data, max_bytes - size + 1)
        except zlib.error as error:
            raise TraceError(f"the trace is damaged gzip: {error}") from None
        size += len(part)
        if size > max_bytes:
            raise TraceError(too_large)
        if not member.eof:
            raise TraceError("the trace is cut short: its gzip data break off")
        parts.append(part)
        data = member.unused_data.lstrip(b"\0")  # padding after a member is allowed
        if len(parts) > 1000:
            raise TraceError("the trace is damaged gzip: too many members")
    return b"".join(parts)


Identifier = int | str | float | None
Integer = Annotated[int, msgspec.Meta(ge=-(2**61), le=2**61)]


class _Args(msgspec.Struct, gc=False):
    correlation: Integer | None = None
    device: Identifier = None
    stream: Identifier = None
    bytes: Integer | None = None
    # Kept as text, as few distinct ones occur again and again.
    types: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw, name="Input type")
    dims: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw, name="Input Dims")
    sequence: Integer | None = msgspec.field(default=None, name="Sequence number")
    python: Integer | None = msgspec.field(default=None, name="Python id")
    parent: Integer | None = msgspec.field(default=None, name="Python parent id")
    called_from: str | None = msgspec.field(default=None, name="CallFrom")
    memory_device_type: Integer | None = msgspec.field(default=None, name="Device Type")
    memory_device: Integer | None = msgspec.field(default=None, name="Device Id")
    allocated: Integer | None = msgspec.field(default=None, name="Total Allocated")
    reserved: Integer | None = msgspec.field(default=None, name="Total Reserved")


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Identifier = None
    tid: Identifier = None
    ts: float | None = None
    dur: float | None = None
    args: _Args | None = None


class _Device(msgspec.Struct):
    name: str = "?"


class _Distributed(msgspec.Struct):
    rank: Integer | None = None
    world_size: Integer | None = None


class _Document(msgspec.Struct):
    traceEvents: list[_Event]
    schemaVersion: Identifier = None
    baseTimeNanoseconds: Integer = 0
    deviceProperties: list[_Device] = []
    distributedInfo: _Distributed | None = None


_DECODER = msgspec.json.Decoder(_Document)


def to_ns(microseconds: np.ndarray) -> np.ndarray:
    """Microseconds with a fraction to integer ns. Whole and fraction are converted apart: `round(us * 1000)` rounds
    twice and is off by one for some values."""
    whole = np.trunc(microseconds)
    return whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)


def _number(identifier: Identifier, limit: int) -> int:
    """A device or stream as an integer within [0, limit), -1 for anything else. Some releases wrote it as a string."""
    if isinstance(identifier, str) and identifier.isdecimal() and len(identifier) < 12:
        identifier = int(identifier)
    return identifier if isinstance(identifier, int) and 0 <= identifier < limit else -1


def _columns(document: _Document, expect_gpu: bool) -> Trace:
    names: dict[str, int] = {}
    threads: dict[tuple, int] = {}
    rows: list[tuple] = []
    times: list[tuple[float, float]] = []
    absurd = negative = 0
    ended = False
    none = _Args()
    texts: dict[str, int] = {}
    memory: list[tuple[float, int, int, int]] = []

    def text(raw) -> int:
        return texts.setdefault(raw if isinstance(raw, str) else bytes(raw).decode(), len(texts)) if raw else -1

    def number(value: int | None) -> int:
        return -1 if value is None else value

    for e in document.traceEvents:
        if e.ph != "X":
            if e.ph == "i" and e.name == "[memory]" and e.args and e.ts is not None and e.args.allocated is not None:
                device = -1 if e.args.memory_device_type == 0 else number(e.args.memory_device)
                memory.append((e.ts, device, e.args.allocated, number(e.args.reserved)))
            ended = ended or (e.name or "").startswith("Record Window End")
            continue
        if e.cat is None or e.cat == "Trace" or e.ts is None:
            continue
        duration = e.dur or 0.0
        if not -LATEST_US < e.ts < LATEST_US or duration * 1000 > LONGEST_NS:
            absurd += 1
            continue
        if duration < 0:
            negative += 1
            continue
        a = e.args or none
        times.append((e.ts, duration))
        rows.append(
            (
                CODES.get(e.cat, OTHER),
                names.setdefault(e.name or "", len(names)),
                threads.setdefault((e.pid, e.tid), len(threads)),
                -1 if a.correlation is None else a.correlation,
                _number(a.device, MOST_DEVICES),
                _number(a.stream, 2**31),
                -1 if a.bytes is None else a.bytes,
                text(bytes(a.types)),
                text(bytes(a.dims)),
                number(a.sequence),
                number(a.python),
                number(a.parent),
                text(a.called_from),
            )
        )
    table = np.array(rows, np.int64).reshape(len(rows), 13).T
    start, duration = to_ns(np.array(times, np.float64).reshape(len(times), 2).T)
    order = np.lexsort((-duration, start))
    table, start, duration = table[:, order], start[order], duration[order]
    trace = Trace(
        list(names),
        list(threads),
        *(table[0].astype(np.uint8), table[1].astype(np.int32), table[2].astype(np.int32)),
        *(start, duration),
        *table[3:],
        texts=list(texts),
        memory=_memory(memory),
        base_ns=document.baseTimeNanoseconds,
        devices=[device.name for device in document.deviceProperties],
        world_size=document.distributedInfo.world_size if document.distributedInfo else None,
        rank=document.distributedInfo.rank if document.distributedInfo else None,
    )
    if absurd:
        trace.reasons.append(f"{absurd} events have absurd times (longer than an hour, or before or after our days)")
    if negative:
        trace.reasons.append(f"{negative} events have a negative duration")
    if document.schemaVersion is not None and not ended:
        trace.reasons.append("the mark that ends a recording is missing: the file was cut or edited")
    trace.reasons.extend(_doubts(trace, expect_gpu))
    return trace


def _memory(rows: list[tuple[float, int, int, int]]) -> Memory:
    rows.sort(key=lambda row: row[0])
    time = to_ns(np.array([row[0] for row in rows], np.float64))
    return Memory(time, *np.array([row[1:] for row in rows], np.int64).reshape(len(rows), 3).T)


def _doubts(trace: Trace, expect_gpu: bool) -> list[str]:
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
    gpu = np.flatnonzero(trace.is_gpu)
    calls = trace.is_call
    graphs = calls & trace.named(GRAPH_LAUNCH)
    launches = np.flatnonzero(calls & (trace.named(KERNEL_LAUNCH) | trace.named(COPY_LAUNCH)) | graphs)
    if not len(gpu):
        if expect_gpu or len(launches):
            doubts.append("it has no GPU events")
        return doubts
    launch = trace.launch_of(gpu)
    if len(steps):
        # The first active step may have lost GPU events and is never counted; the time outside of steps isn't either.
        begin = trace.end[steps[0]] if len(steps) > 1 else trace.start[steps[0]]
        launches = launches[(trace.start[launches] >= begin) & (trace.start[launches] < trace.end[steps[-1]])]
    else:
        begin = trace.start[0]
    orphans = (launch < 0) & _after_first(trace, gpu, (launch >= 0) & (trace.start[launch] >= begin))
    lost = ~np.isin(trace.correlation[launches], trace.correlation[gpu])
    if lost.sum() > MISSING_TOLERATED * len(launches):
        doubts.append(f"{lost.sum()} of {len(launches)} launches have no GPU work recorded")
    elif graphs[launches[lost]].any():
        doubts.append(f"{graphs[launches[lost]].sum()} CUDA graph launches have no GPU work recorded")
    if orphans.sum() > MISSING_TOLERATED * len(gpu):
        doubts.append(f"{orphans.sum()} of {len(gpu)} GPU events have no launch recorded")
    matched = launch >= 0
    early = trace.start[launch[matched]] - trace.start[gpu[matched]] > CLOCKS_APART_NS
    if early.any():
        doubts.append(f"{early.sum()} GPU events start before their launch by more than a millisecond")
    return doubts


def _after_first(trace: Trace, gpu: np.ndarray, marked: np.ndarray) -> np.ndarray:
    """Mask of the GPU events that start after the first marked one of their stream. A stream works in order: what
    runs before it may have been launched before the recording began, what runs after it cannot."""
    streams, of = np.unique(np.stack((trace.device[gpu], trace.stream[gpu])), axis=1, return_inverse=True)
    first = np.full(streams.shape[1], np.iinfo(np.int64).max)
    np.minimum.at(first, of[marked], trace.start[gpu[marked]])
    return trace.start[gpu] > first[of]
