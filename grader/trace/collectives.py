"""The collectives of one rank: when it came to each, when that ended, what was exchanged, and with whom."""

import re
from dataclasses import dataclass

import numpy as np

from grader.trace import kernels
from grader.trace.collective_text import Row, item_bytes
from grader.trace.columns import Trace
from grader.trace.events import ANNOTATION, CPU_OP, KERNEL
from grader.trace.work import by_name

ON_HOST = re.compile(r"(gloo|mpi|ucc):")  # what these backends do, they do on the CPU
ANNOTATED = re.compile(r"(nccl|gloo|mpi|ucc|xccl|hccl):")
# A kind by the letters that its name holds; in this order, as "allreduce" holds "reduce".
KINDS = (
    ("all_reduce", "allreduce"),
    ("all_reduce", "crossdevicereduce"),
    ("all_gather", "allgather"),
    ("reduce_scatter", "reducescatter"),
    ("all_to_all", "alltoall"),
    ("barrier", "barrier"),
    ("broadcast", "broadcast"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("reduce", "reduce"),
    ("send/recv", "sendrecv"),
    ("send", "send"),
    ("recv", "recv"),
    # between experts: DeepEP, pplx, mori
    ("notify", "notify"),
    ("dispatch", "dispatch"),
    ("combine", "combine"),
)
OTHER_KIND = "collective"
PAIRED = frozenset(("send", "recv"))  # of two ranks, not of a group
# All members get their result at about the same time; a broadcast's root is done earlier.
TOGETHER = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"))


@dataclass(frozen=True)
class Collectives:
    """One entry each, in the order in which the host called them."""

    event: np.ndarray  # index of the kernel, or of the annotation on the host
    called: np.ndarray  # ns, when the host did
    start: np.ndarray  # ns, when this rank came to it
    end: np.ndarray
    kind: list[str]
    group: list[str]  # a name that is the same on all its members; "" where nobody knows the partner
    bytes: np.ndarray  # as nccl-tests count them, see `links`; -1 where that was not recorded
    members: np.ndarray  # -1 likewise
    sequence: np.ndarray  # its number within the group, -1 likewise

    def __len__(self) -> int:
        return len(self.event)


def collectives(trace: Trace) -> Collectives:
    """Of kernels where there are any, and of what a backend does on the CPU."""
    k = np.flatnonzero(trace.category == KERNEL)
    k = k[by_name(kernels.is_communication, trace, k) == 1]
    launch = trace.launch_of(k)
    host = trace.annotations[trace.named(ON_HOST, trace.annotations)]
    event = np.append(k, host)
    called = np.append(np.where(launch >= 0, trace.start[launch], trace.start[k]), trace.start[host])
    said = _said(trace, k, launch) + [(row,) for row in _rows_of(trace, host)]
    order = np.lexsort((trace.start[event], called))
    event, called, said = event[order], called[order], [said[i] for i in order.tolist()]
    # of streams by first use: a communicator has one, whose own number differs from rank to rank
    numbers: dict[int, int] = {}
    streams = [numbers.setdefault(stream, len(numbers)) for stream in trace.stream[event].tolist()]
    told = [_Told(trace, e, rows, stream) for e, rows, stream in zip(event.tolist(), said, streams, strict=True)]
    return Collectives(
        event=event,
        called=called,
        start=trace.start[event],
        end=trace.end[event],
        kind=[t.kind for t in told],
        group=[t.group for t in told],
        bytes=np.array([t.bytes for t in told], np.int64),
        members=np.array([t.members for t in told], np.int64),
        sequence=np.array([t.sequence for t in told], np.int64),
    )


Rows = tuple[Row | None, ...]


def _said(trace: Trace, k: np.ndarray, launch: np.ndarray) -> list[Rows]:
    """For each of these kernels what it says itself, then what the operator and the annotation around its launch say."""
    own = _rows_of(trace, k)
    around = []
    for category in (CPU_OP, ANNOTATION):
        events = np.flatnonzero(trace.category == category)
        rows = _rows_of(trace, events)
        there = np.array([row is not None for row in rows], bool)
        speaks = events[there]
        kept = dict(zip(speaks.tolist(), [row for row in rows if row is not None], strict=True))
        found = trace.nesting(speaks).around(launch)
        found[launch < 0] = -1
        around.append([kept.get(e) for e in found.tolist()])
    return list(zip(own, *around, strict=True))


def _rows_of(trace: Trace, events: np.ndarray) -> list[Row | None]:
    """For each of these events what was read of it, by its start and its name, and of those that share these by its duration."""
    rows: list[Row | None] = [None] * len(events)
    if trace.collectives:
        by_start = {(row[0], row[1]): row for row in trace.collectives}
        exact: dict[tuple, list[Row]] = {}
        for row in trace.collectives:
            exact.setdefault((row[0], row[1], row[-1]), []).append(row)
        candidates = np.flatnonzero(np.isin(trace.start[events], [row[0] for row in trace.collectives]))
        for i in candidates.tolist():
            event = events[i]
            key = int(trace.start[event]), trace.names[trace.name[event]]
            alike = exact.get((*key, int(trace.duration[event])), [])
            rows[i] = alike.pop(0) if alike else by_start.get(key)  # both are in the order of the file
    return rows


class _Told:
    """One collective, of the first that says each thing."""

    def __init__(self, trace: Trace, event: int, rows: Rows, stream: int):
        known = [row for row in rows if row is not None]
        name = trace.names[trace.name[event]]
        names = [text for row in known for text in (row[2], row[1])] + [name]
        self.kind = next((kind for kind in map(kind_of, names) if kind != OTHER_KIND), OTHER_KIND)
        if "sendrecv" in name.lower() and not known:
            self.kind = "send/recv"
        size, sequence, source, target = (_first(known, place) for place in (6, 8, 9, 10))
        self.members = size if size >= 0 else min(trace.world_size or -1, 2**31)
        self.sequence = sequence
        host = trace.category[event] != KERNEL
        backend = name.partition(":")[0] if host else "kernels"
        said = next((row[7] for row in known if row[7]), "")
        self.group = said or f"{backend} {0 if host else stream}"
        if self.kind in PAIRED:
            self.group = f"{self.group} {source}->{target}" if source >= 0 and target >= 0 else ""
        self.bytes = self._bytes(known, next((row[3] for row in known if row[3]), ""))

    def _bytes(self, known: list[Row], dtype: str) -> int:
        size = next((item_bytes(row[3]) for row in known if row[4] >= 0 and row[3]), item_bytes(dtype))
        sent = next((row[4] for row in known if row[4] >= 0), -1)
        received = next((row[5] for row in known if row[5] >= 0), -1)
        if not size or sent < 0:
            return -1
        if self.kind == "all_gather" and received < 0:
            received = sent * self.members if self.members > 0 else -1
        return min(size * max(sent, received), 2**62)


def _first(rows: list[Row], place: int) -> int:
    """The first number that is known."""
    return next((int(row[place]) for row in rows if int(row[place]) >= 0), -1)


def kind_of(name: str) -> str:
    """ "all_reduce" of "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "nccl:_all_gather_base" or "allreduce"."""
    letters = re.sub(r"[^a-z]", "", name.lower().partition("(")[0])
    return next((kind for kind, sign in KINDS if sign in letters), OTHER_KIND)


def annotated(trace: Trace) -> np.ndarray:
    """Indices of what backends annotate on the host: no work of the loop's own."""
    return trace.annotations[trace.named(ANNOTATED, trace.annotations)]


def exchanges(trace: Trace) -> bool:
    """Whether there is any collective in it."""
    return any(kernels.is_communication(name) or ON_HOST.match(name) for name in trace.names)
