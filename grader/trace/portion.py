"""What is kept of a trace that does not fit in memory: whole steps, with all that belongs to them.

A file is not in order of time, so it is read to its end first, packed in a sixth of the memory, and to disk where that is too much."""

import importlib
import mmap
import tempfile
from dataclasses import dataclass, field
from typing import IO

import numpy as np

from grader.errors import UserError
from grader.trace.columns import Trace
from grader.trace.decode import COLUMNS, OF_MEMORY, OF_OPS, OF_OTHERS, OF_PYTHON
from grader.trace.events import ANNOTATION, CPU_OP, DRIVER, KERNEL, MEMCPY, MEMSET, PYTHON, RUNTIME, SPAN, STEP
from grader.trace.parallel import Part
from grader.trace.windows import step_numbers
from grader.trace.words import counted

EVENT_BYTES = 300  # of memory, for each event of a trace that is read and diagnosed, at the peak
SHARE = 0.5  # of the memory that is free
SMALL = 1_000_000  # events fit in any memory
PAGE = mmap.ALLOCATIONGRANULARITY
MATCHED = 0.1  # share of GPU work with a launch; below, no launches were recorded
BINS = 2000  # of the time of a trace without steps
WORK, CALLS = (KERNEL, MEMCPY, MEMSET), (RUNTIME, DRIVER)


Wanted = tuple[int | None, int | None]  # numbers of the first and the last step; None: from the first, to the last


class Unfit(UserError):
    """What is asked for cannot be kept. The message says why."""


def most_events() -> int:
    """How many events of a trace may be held at once."""
    machine = importlib.import_module("grader.machine")  # here, for large traces alone: it takes its time to load
    return max(SMALL, int(SHARE * machine.free_memory() / EVENT_BYTES))


@dataclass
class Store:
    """The parts of a trace in the order of the file; on disk once there are too many events."""

    most: int | None = None  # None: as many as fit in memory
    parts: list[Part] = field(default_factory=list)
    events: int = 0
    file: IO[bytes] | None = None
    places: list[tuple[int, dict[str, tuple[int, int]]]] = field(default_factory=list)  # of the parts in the file

    @property
    def full(self) -> bool:
        if self.most is None and self.events > SMALL:
            self.most = most_events()
        return self.most is not None and self.events > self.most

    def add(self, part: Part) -> None:
        self.parts.append(part)
        self.events += len(part.packed["category"])
        while self.full and len(self.places) < len(self.parts):
            self._write(self.parts[len(self.places)])

    def _write(self, part: Part) -> None:
        self.file = self.file or tempfile.TemporaryFile()  # noqa: SIM115 - closed with the store
        begin = self.file.tell()
        at, where = 0, {}
        for name, column in part.packed.items():
            self.file.write(column)
            where[name] = (at, len(column))
            at += len(column)
            at += self.file.write(bytes(-at % 8))
        at += self.file.write(bytes(-at % PAGE or PAGE))
        self.places.append((begin, where | {"": (0, at)}))
        part.packed = {}

    def columns(self, i: int) -> dict[str, np.ndarray]:
        """Of one part, from wherever it is."""
        packed = self.parts[i].packed
        if not packed and self.file:
            self.file.flush()
            begin, where = self.places[i]
            whole = memoryview(
                mmap.mmap(self.file.fileno(), where[""][1], prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE, offset=begin)
            )
            packed = {name: whole[first : first + size] for name, (first, size) in where.items() if name}
        return {name: np.frombuffer(packed[name], np.dtype(code)) for name, code in COLUMNS.items()}


@dataclass(frozen=True)
class Window:
    low: float  # us, as in the file
    high: float
    first: float  # of its steps, by start; later ones than `last` are none of it
    last: float
    said: str  # what was left out


def kept(store: Store, steps: Wanted | None = None) -> tuple[list[Part], str]:
    """The parts cut to what may be held, and what that leaves out, in words; "" if nothing. steps: the numbers of the first and the
    last one wanted. Raises Unfit where these are too many, or are not there."""
    if not store.full or store.most is None:
        return store.parts, ""
    window = _window(store, store.most, steps)
    called = _correlations(store, window)
    parts = [_cut(store, i, window, called) for i in range(len(store.parts))]
    return parts, window.said


# --- which steps ---------------------------------------------------------------------------------------------------


def _window(store: Store, most: int, wanted: Wanted | None) -> Window:
    starts, ends, numbers = _steps(store)
    if not len(starts):
        if wanted:
            raise Unfit("it has no ProfilerStep marks and does not fit in memory, so nobody knows where its steps are")
        return _without_steps(store, most)
    counts = _counts(store, np.append(starts, ends[-1]))
    before = np.append(0, np.cumsum(counts))
    if wanted:
        low, high = chosen(numbers, *wanted)
        low = max(0, low - 1)  # the first one is not counted
    else:
        low, high = middle(before, most)
    events = int(before[high] - before[low])
    if events > most:
        need, have = (words(count * EVENT_BYTES) for count in (events, most))
        what = "these steps hold" if wanted else f"step {numbers[low]} alone holds"
        raise Unfit(f"{what} {events:,} events, which need about {need} of memory; {have} may be used")
    said = (
        f"{high - low} of its {len(starts)} steps were read, {numbers[low]} to {numbers[high - 1]}: all {store.events:,} events would "
        f"need about {words(store.events * EVENT_BYTES)} of memory; --steps chooses others"
    )
    return Window(starts[low], ends[high - 1], starts[low], starts[high - 1], said)


def words(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def chosen(numbers: np.ndarray, first: int | None, last: int | None) -> tuple[int, int]:
    """Positions of the steps of these numbers, both included: from the first to before the last. Raises Unfit without any."""
    found = np.flatnonzero(
        (numbers >= (numbers.min() if first is None else first))
        & (numbers <= (numbers.max() if last is None else last))
    )
    if not len(found):
        raise Unfit(f"it has no such steps: it holds {numbers.min()} to {numbers.max()}")
    return int(found[0]), int(found[-1]) + 1


def positions(trace: Trace, wanted: Wanted) -> tuple[int, int]:
    """Of these steps among those of a trace, the second after the last one. Raises Unfit without any."""
    if not len(trace.windows):
        raise Unfit("no step is known")
    return chosen(step_numbers(trace), *wanted)


def middle(before: np.ndarray, most: int) -> tuple[int, int]:
    """The most steps in a row around the middle with at most so many events, one at least. before: events before each."""
    low = (len(before) - 1) // 2
    high = low + 1
    while True:
        grown = [(a, b) for a, b in ((low - 1, high), (low, high + 1)) if a >= 0 and b < len(before)]
        fits = [(a, b) for a, b in grown if before[b] - before[a] <= most]
        if not fits:
            return low, high
        low, high = min(fits, key=lambda ab: abs(ab[0] + ab[1] - len(before) + 1))


def _steps(store: Store) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start, end (us) and number of each step, in order of start."""
    found: list[np.ndarray] = []
    for i, part in enumerate(store.parts):
        codes = {code: STEP.match(name) for code, name in enumerate(part.header["names"])}
        number = {code: int(match[0].partition("#")[2][:18]) for code, match in codes.items() if match}
        if number:
            c = store.columns(i)
            rows = np.flatnonzero((c["category"] == ANNOTATION) & np.isin(c["name"], list(number)))
            of = np.array([number[code] for code in c["name"][rows].tolist()], np.int64)
            found.append(np.stack((c["start"][rows], c["start"][rows] + c["duration"][rows], of)))
    if not found:
        return (np.empty(0),) * 3
    start, end, number_of = np.concatenate(found, axis=1)
    order = np.argsort(start, kind="stable")
    return start[order], np.maximum.accumulate(end[order]), number_of[order].astype(np.int64)


def _counts(store: Store, edges: np.ndarray) -> np.ndarray:
    """Events that start between each two of these times."""
    count = np.zeros(len(edges) + 1, np.int64)
    for i in range(len(store.parts)):
        count += np.bincount(np.searchsorted(edges, store.columns(i)["start"], side="right"), minlength=len(edges) + 1)
    return count[1:-1]


def _without_steps(store: Store, most: int) -> Window:
    """From the middle of the recording."""
    some = []
    for i in range(len(store.parts)):
        c = store.columns(i)
        start = c["start"][c["category"] != SPAN]
        some.append(start[:: max(1, len(start) // 10_000)])
    quantiles = np.quantile(np.concatenate(some), [0.001, 0.999])
    edges = np.linspace(float(quantiles[0]), float(quantiles[1]), BINS + 1)
    before = np.append(0, np.cumsum(_counts(store, edges)))
    low, high = middle(before, int(0.9 * most))  # bins hold what begins in them; longer events are kept besides
    if before[high] - before[low] > most:
        raise Unfit("it does not fit in memory, and hardly any time passes in it")
    said = f"the middle {(high - low) / BINS:.0%} of its time was read: {counted(store.events, 'event{s} {do} not fit in memory')}"
    return Window(edges[low], edges[high], edges[low], edges[high], said)


# --- what belongs to them ------------------------------------------------------------------------------------------


def _inside(c: dict[str, np.ndarray], window: Window) -> np.ndarray:
    """Mask of the events that are open at any time of the window, GPU work among them."""
    return (c["start"] < window.high) & (c["start"] + c["duration"] > window.low) | (c["start"] == window.low)


def _ids(c: dict[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Correlations of some events (mask) that are neither operators nor Python functions."""
    others = (c["category"] != CPU_OP) & (c["category"] != PYTHON)
    return c["correlation"][rows[others]]


def _correlations(store: Store, window: Window) -> np.ndarray | None:
    """Of the calls within the window, in order; None where launches were not recorded."""
    found, ran, matched = [], 0, 0
    for i in range(len(store.parts)):
        c = store.columns(i)
        started = (c["start"] >= window.low) & (c["start"] < window.high)
        ids = _ids(c, started & np.isin(c["category"], CALLS))
        found.append(np.unique(ids[ids != -1]))
        ran += int((started & np.isin(c["category"], WORK)).sum())
    called = np.unique(np.concatenate(found))
    for i in range(len(store.parts)):  # wherever it ran: a GPU may lag behind by steps
        c = store.columns(i)
        matched += int(np.isin(_ids(c, np.isin(c["category"], WORK)), called).sum())
    return called if matched >= MATCHED * ran else None


def _cut(store: Store, i: int, window: Window, called: np.ndarray | None) -> Part:
    c, header = store.columns(i), store.parts[i].header
    category = c["category"]
    keep = _inside(c, window)
    is_step = np.array([STEP.match(name) is not None for name in header["names"]] or [False])
    others = (category == ANNOTATION) & is_step[c["name"]]
    keep &= ~others | ((c["start"] >= window.first) & (c["start"] <= window.last))
    work = np.isin(category, WORK)
    if called is None:
        keep &= ~work | (c["start"] >= window.low)
    else:
        keep[work] = np.isin(_ids(c, work), called)
    calls = np.isin(category, CALLS)  # one that began before has its work before
    keep &= ~calls | (c["start"] >= window.low)
    keep |= category == SPAN
    exact: list[int] = []
    values = []
    done = 0
    before = np.append(0, np.cumsum(keep))
    for first, count in zip(header["exact"][::2], header["exact"][1::2], strict=True):
        exact += int(before[first]), int(before[first + count] - before[first])
        values.append(c["exact_start"][done : done + count][keep[first : first + count]])
        done += count
    packed = {name: c[name][keep] for name in ("category", "name", "thread", "start", "duration")}
    is_op, is_python = category == CPU_OP, category == PYTHON
    for group, rows in ((OF_OPS, is_op), (OF_PYTHON, is_python), (OF_OTHERS, ~(is_op | is_python))):
        packed |= {name: c[name][keep[rows]] for name in group}
    in_time = (c["memory_time"] >= 1000 * window.low) & (c["memory_time"] < 1000 * window.high)
    packed |= {name: c[name][in_time] for name in OF_MEMORY}
    packed["exact_start"] = np.concatenate(values) if values else np.empty(0, np.int64)
    return Part(header | {"exact": exact}, packed)
