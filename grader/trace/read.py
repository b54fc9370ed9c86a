"""Read a trace of torch.profiler (Kineto) into columns of integers.

The file is not trusted: it may come from the very process that it is evidence about. `pieces` cuts it between events, `decode`
makes columns of each piece, `salvage` takes over where one is damaged, `parallel` has helpers do the later parts of a large
file, and `complete` judges the result."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from grader.trace import document, foreign, order, packed, pairs, parallel, pieces, portion, vendors
from grader.trace.columns import Memory, Trace, TraceError
from grader.trace.complete import doubts
from grader.trace.decode import COLUMNS, DAMAGE, LATEST_US, OF_MEMORY, Columns
from grader.trace.events import OTHER, SPAN
from grader.trace.pieces import Chunk
from grader.trace.salvage import Salvage, softened
from grader.trace.words import counted

LONGEST_NS = 3600 * 10**9  # no event of a training trace lasts an hour
MOST_EVENTS = 8_000_000  # bounds memory: a column entry takes more than the smallest event's text
# Letters of different names, and how many letters' time each takes beside: every one is judged a dozen times.
MOST_LETTERS, A_NAME = 50 << 20, 100
MOST_DAMAGED = 1_000_000  # events; bounds the time, as each takes some 50 us
MOST_DROPPED = 0.05  # share of the events that may be damaged and left out of a trace that is judged by
BROKEN = -2
CUT = "it is cut short"

MOST_UNZIPPED = 200  # times the size of a file: traces are packed to a tenth or less, and no more than to a hundredth
LEAST_UNZIPPED = 512 << 20  # bytes
PART = 2_000_000  # events whose columns are put together at a time

Blocks = Callable[[int, int], Iterator[bytes]]  # the bytes from one place to another
Helpers = Callable[[int], list[parallel.Helper]]  # those that read on from a place


def read(
    path: str | os.PathLike[str],
    max_bytes: int | None = None,
    expect_gpu: bool = True,
    parallel: bool = True,
    steps: portion.Wanted | None = None,
) -> Trace:
    """Read what torch.profiler wrote, a `.json` or `.json.gz`, or packed otherwise. A damaged one is read as far as it goes: its `reasons` say
    why it should not be judged by, its `notes` what else is wrong. Of one larger than half of the free memory whole steps are kept.

    max_bytes: largest size accepted, before and after decompression. expect_gpu: False for a run on the CPU, where a trace without GPU
    work is complete. parallel: False keeps to this process. steps: numbers of the first and the last step to keep, where not all fit.
    Raises TraceError for what is no trace at all: no file, a link, too large, not a single event, or something else, by its name."""
    path = Path(path)
    try:
        # O_NOFOLLOW and the check on the open descriptor: who wrote the file may swap it while it is being looked at.
        # O_NONBLOCK: opening a named pipe would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise TraceError(f"cannot open the trace {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise TraceError(f"the trace {path} is not a regular file")
        if max_bytes is not None and status.st_size > max_bytes:
            raise TraceError(_too_large(max_bytes))
        # Never mapped into memory: who cuts the file meanwhile would kill this process.
        reading = _Reading(max_bytes, path.name, steps).file(descriptor, status.st_size, parallel)
        return reading.trace(expect_gpu)
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from None
    except MemoryError:
        raise TraceError("the trace does not fit in memory; record fewer steps") from None
    finally:
        os.close(descriptor)


def read_bytes(data: bytes, max_bytes: int = 512 << 20, expect_gpu: bool = True, parallel: bool = True) -> Trace:
    """`read` of what a file holds."""
    if len(data) > max_bytes:
        raise TraceError(_too_large(max_bytes))
    try:
        return _Reading(max_bytes).data(data, parallel).trace(expect_gpu)
    except MemoryError:
        raise TraceError("the trace does not fit in memory; record fewer steps") from None


def _too_large(max_bytes: int) -> str:
    return f"the trace is larger than {max_bytes >> 20} MB; record fewer steps"


def _no_helpers(start: int) -> list[parallel.Helper]:
    return []


class _Reading:
    """One pass over a trace, start to end."""

    def __init__(self, max_bytes: int | None, file_name: str = "", steps: portion.Wanted | None = None):
        self.max_bytes, self.file_name, self.steps = max_bytes, file_name, steps
        self.first = b""  # of the events, as text
        self.columns = Columns()
        self.store = portion.Store(None if max_bytes is None else MOST_EVENTS)
        self.salvage = Salvage()
        self.about = document.About()
        self.reasons: list[str] = []
        self.notes: list[str] = []
        self.softened = 0  # events
        self.damage: list[str] = []  # of the compression, and of the end
        self.bare = False  # a list of events and nothing around it

    def file(self, descriptor: int, size: int, share: bool) -> _Reading:
        first = os.pread(descriptor, packed.FIRST, 0)
        blocks = partial(pieces.file_blocks, descriptor)
        if self.max_bytes is None and packed.is_packed(first):
            self._zipped(partial(packed.unpacked, descriptor, size), size)
        elif first[:2] == pieces.GZIP:  # a stranger's is unpacked only from what torch.profiler writes
            self._zipped(partial(pieces.unzipped, blocks(0, size)), size)
        else:
            start = partial(parallel.start_helpers, descriptor, size) if share else _no_helpers
            self._last(self._plain(blocks, size, start(0), start))
        return self

    def data(self, data: bytes, share: bool) -> _Reading:
        blocks = partial(pieces.bytes_blocks, data)
        if data[:2] == pieces.GZIP:
            self._zipped(partial(pieces.unzipped, blocks(0, len(data))), len(data))
        else:
            helpers = parallel.start_helpers_on(data) if share else []
            self._last(self._plain(blocks, len(data), helpers, _no_helpers))
        return self

    def _zipped(self, unpack: Callable[[int], Iterator[bytes]], size: int) -> None:
        most = max(MOST_UNZIPPED * size, LEAST_UNZIPPED) if self.max_bytes is None else self.max_bytes
        unpacked = pieces.ahead(unpack(most))
        try:
            self._last(self._chunks(self._after_head(self._until_damage(unpacked))))
        except pieces.TooLarge:
            raise TraceError(_too_large(most)) from None
        finally:
            unpacked.close()

    def _until_damage(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        try:
            yield from blocks
        except pieces.Damaged as error:
            self.damage.append(f"its compressed data are damaged: {error}")

    def _plain(self, blocks: Blocks, size: int, helpers: list[parallel.Helper], more: Helpers) -> bytes:
        """The helpers do the later parts of each round, unless one of them fails. Returns what follows the last whole chunk."""
        try:
            end = helpers[0].start if helpers else size
            rest: bytes | None = self._chunks(self._after_head(blocks(0, end)))
            while helpers:
                rest = self._round(blocks, size, helpers, rest)
                if (end := helpers[-1].end) == size:
                    break
                self._whole(rest)
                helpers = more(end)
                rest = self._chunks(blocks(end, helpers[0].start if helpers else size))
            return rest or b""
        finally:
            for helper in helpers:
                helper.stop()

    def _round(self, blocks: Blocks, size: int, helpers: list[parallel.Helper], rest: bytes | None) -> bytes | None:
        for helper in helpers:
            self._whole(rest)
            rest = None
            part = None if self.salvage.waiting else helper.part(list(COLUMNS))
            if part is None:  # this process does it, and all that follows of this round
                for one in helpers:
                    one.stop()
                return self._chunks(blocks(helper.start, helpers[-1].end))
            self._close_part()
            self.store.add(part)
            self._limit()
            rest = part.rest if helper.end == size else None
        return rest

    def _whole(self, rest: bytes | None) -> None:
        if rest is not None:
            self._chunk(Chunk([pieces.before_comma(rest)], True))

    def _close_part(self) -> None:
        packed = {name: b"".join(parts) for name, parts in self.columns.packed.items()}
        self.store.add(parallel.Part(self.columns.header(), packed))
        self.columns = Columns()

    def _after_head(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """What comes after the bracket that opens the array of events."""
        head, recent, size = [], b"", 0
        blocks = iter(blocks)
        for block in blocks:
            head.append(block)
            size += len(block)
            if document.HEAD.search(recent + block):
                break
            recent = block[-200:]
            if size > document.LONGEST_HEAD:
                break
        text = b"".join(head).removeprefix(pieces.BOM)
        self.first = text[: foreign.FIRST]
        found = document.HEAD.search(text)
        if not text.strip():
            raise TraceError("the trace is empty" if not self.damage else f"the trace cannot be read: {self.damage[0]}")
        if found:
            about = document.head(text[: found.end()])
            if about is None:
                self.notes.append("what precedes its events is damaged")
                about = document.guessed(text[: found.end()])
            self.about = about
            text = text[found.end() :]
        elif text.lstrip()[:1] == b"[":
            self.bare = True
            self.notes.append("it is a bare list of events, not as torch.profiler writes it")
            text = text.lstrip()[1:]
        else:
            raise TraceError(foreign.file(self.first, self.file_name))
        return chain(pieces.bytes_blocks(text, 0, len(text)), blocks)

    def _chunks(self, blocks: Iterable[bytes]) -> bytes:
        """Decodes what is whole and returns the rest."""
        for chunk in pieces.whole_events(blocks):
            if chunk.closed:
                self._chunk(chunk)
        return chunk.text()

    def _chunk(self, chunk: Chunk) -> None:
        if not self.salvage.waiting:
            try:
                self.columns.add(chunk.array())
                return self._limit()
            except DAMAGE:
                pass
        self._salvaged(chunk.text())

    def _salvaged(self, text: bytes) -> None:
        if not self.salvage.waiting and self._softened(pieces.before_comma(text)):
            return
        self.columns.add(self.salvage.feed(text))
        self._limit()
        if self.salvage.lost + self.salvage.repaired > MOST_DAMAGED:
            raise TraceError(f"the trace is damaged in more than {MOST_DAMAGED} places; record it again")

    def _softened(self, text: bytes) -> bool:
        """Whether these events can be decoded all at once, but for numbers that are none and strings that are numbers."""
        for good, repaired in softened(text):
            try:
                self.columns.add(b"[" + good + b"]", leniently=True)
            except DAMAGE:
                continue
            self.softened += repaired
            self._limit()
            return True
        return False

    def _limit(self) -> None:
        if self.max_bytes is not None:
            if self.columns.seen + sum(part.header["seen"] for part in self.store.parts) > MOST_EVENTS:
                raise TraceError("the trace holds too many events; record fewer steps")
        elif self.columns.events > PART:
            self._close_part()

    def _last(self, rest: bytes) -> None:
        """The last events and what follows them."""
        tail = None
        close = b"}" if self.bare else b""  # of the document that a bare list is not in
        if not self.salvage.waiting:
            at = rest.rfind(b"]")  # most often what closes the events
            tail = document.tail(rest[at + 1 :] + close) if at >= 0 else None
            if tail is not None:
                try:
                    self.columns.add(b"[" + rest[:at] + b"]")
                    self._limit()
                except DAMAGE:
                    tail = tail if self._softened(rest[:at]) else None
        if tail is None:
            self._salvaged(rest)
            if self.salvage.finish():
                tail = document.tail(self.salvage.rest() + close)
                if tail is None:
                    self.notes.append(document.what_follows(self.salvage.rest()))
            else:
                self.damage.append(CUT)
        self._close_part()
        if tail is not None:
            self._merge(tail)

    def _merge(self, tail: document.Tail) -> None:
        """Some writers put what torch.profiler puts first last."""
        if bytes(tail.traceEvents):
            self.reasons.append("it holds more than one list of traceEvents; only the first was read")
        for name in document.About.__struct_fields__:
            late = getattr(tail, name)
            if late is None:
                continue
            if getattr(self.about, name) not in (None, late):
                self.notes.append(f"it holds two different values of {name}")
            else:
                setattr(self.about, name, late)

    def trace(self, expect_gpu: bool) -> Trace:
        lost, flaws, headers = self.salvage.lost, Counter[str](), [part.header for part in self.store.parts]
        for header in headers:
            flaws.update(header["flaws"])
        ended, seen = any(header["ended"] for header in headers), sum(header["seen"] for header in headers)
        try:
            parts, left_out = portion.kept(self.store, self.steps)
        except portion.Unfit as error:
            raise TraceError(f"the trace cannot be read in part: {error}") from None
        self.notes += [left_out] if left_out else []
        cut = not ended and all(said.endswith((CUT, pieces.BREAKS_OFF)) for said in self.damage)
        joined = _joined(parts)
        if self.max_bytes is not None and sum(map(len, joined.names)) + A_NAME * len(joined.names) > MOST_LETTERS:
            raise TraceError("the trace holds too many different names; record fewer steps")
        trace, dropped = _assemble(joined, self, bool(self.damage) and cut)
        if not len(trace) and (lost or self.bare):
            raise TraceError(foreign.file(self.first, self.file_name))
        if seen and (self.about.schemaVersion is None or len(trace)) and (trace.category == OTHER).all():
            raise TraceError(foreign.events(self.first))
        whole = ended and not any(said.endswith(pieces.WRONG_SUM) for said in self.damage)  # but for what closes it
        enough = whole or (trace.breaks_off and trace.windows.whole)
        (trace.notes if enough else trace.reasons)[:0] = self.damage
        dropped += lost + flaws["time"] + flaws["phase"]
        said = [counted(lost, "event{s} {are} damaged and lost")] if lost else []
        if repaired := self.salvage.repaired + self.softened:
            said.append(counted(repaired, "event{s} {are} damaged and {were} read as far as possible"))
        trace.notes[:0] = said + [counted(count, FLAWS[flaw]) for flaw, count in flaws.items() if count]
        if dropped > MOST_DROPPED * (len(trace) + dropped):
            trace.reasons.append(f"{dropped} of {len(trace) + dropped} events are damaged and left out")
        # Files from before the mark have no version.
        if self.about.schemaVersion is not None and not ended:
            trace.notes.append("the mark that ends a recording is missing: the file was cut or edited")
        reasons, notes = doubts(trace, expect_gpu, dropped)
        trace.reasons.extend(reasons)
        trace.notes.extend(notes)
        return trace


FLAWS = {
    "time": "event{s} {have} no start and {are} left out",
    "duration": "event{s} {have} no duration and {count} as 0 ns",
    "category": "event{s} {have} no category",
    "name": "event{s} {have} no name",
    "phase": "event{s} {are} of no type and {are} left out",
    "number": "number{s} {are} no integer{s} of 64 bits and {count} as not recorded",
    "memory": "report{s} of the allocator {are} absurd and {are} left out",
}


ODD = {
    "paired": "event{s} {are} written as begin and end, and {were} put together",
    "alone": "begin{s} or end{s} {are} alone and left out",
    "twice": "event{s} {are} in it twice and {count} once",
    "absurd": "event{s} {have} absurd times (longer than an hour, or before or after our days, if they are in microseconds)",
    "negative": "event{s} {have} a negative duration",
    "stray": "event{s} {are} hours away from all others and left out",
    "unreadable": "description{s} of inputs {are} damaged",
}


def to_ns(microseconds: np.ndarray) -> np.ndarray:
    """Microseconds to integer ns, whole and fraction apart: `round(us * 1000)` rounds twice and is off by one for some values."""
    whole = np.trunc(microseconds)
    rest = microseconds - whole
    rest *= 1000
    ns = whole.astype(np.int64)
    ns *= 1000
    ns += np.rint(rest, out=rest).astype(np.int64)
    return ns


@dataclass
class _Joined:
    """The columns of all parts, in the order of the file, with one numbering of what they point into."""

    columns: dict[str, np.ndarray]
    names: list[str]
    threads: list[tuple[Any, Any]]
    texts: list[str]
    exact: list[np.ndarray]  # the events whose start is in "exact_start"
    unreadable: int  # texts that are no JSON
    collectives: list[Any]

    def start_ns(self, sane: np.ndarray) -> np.ndarray:  # 0 where it is not
        start = to_ns(np.where(sane, self.columns["start"], 0))
        for rows, at in zip(self.exact, np.cumsum([0, *map(len, self.exact)])[:-1], strict=True):
            start[rows] = self.columns["exact_start"][at : at + len(rows)]
        return start


def _joined(parts: list[parallel.Part]) -> _Joined:
    names: dict[Any, int] = {}
    texts: dict[Any, int] = {}
    threads: dict[Any, int] = {}
    columns: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
    exact, before, unreadable = [], 0, 0
    collectives: list[Any] = []
    for part in parts:
        c = {name: np.frombuffer(part.packed.pop(name), np.dtype(code)) for name, code in COLUMNS.items()}
        header = part.header
        collectives += map(tuple, header["collectives"])
        c["name"] = _numbers(header["names"], names).astype(np.int32)[c["name"]]
        c["thread"] = _numbers(map(tuple, header["threads"]), threads).astype(np.int32)[c["thread"]]
        text_of = _numbers(map(_canonical, header["texts"]), texts)
        unreadable += int((text_of == BROKEN).sum())
        for name in ("types", "dims", "called_from"):
            c[name] = np.maximum(text_of, -1)[c[name]]
        for first, count in zip(header["exact"][::2], header["exact"][1::2], strict=True):
            exact.append(np.arange(before + first, before + first + count))
        before += len(c["category"])
        for name, column in c.items():
            columns[name].append(column)
    whole = {name: np.concatenate(columns.pop(name)) for name in COLUMNS}
    return _Joined(whole, list(names), list(threads), list(texts), exact, unreadable, collectives)


def _assemble(joined: _Joined, reading: _Reading, breaks_off: bool) -> tuple[Trace, int]:
    """One trace, in order of start, and how many events with absurd times were left out."""
    c, about = joined.columns, reading.about
    in_days = np.abs(c["start"]) < LATEST_US
    paired, alone = pairs.close(c, start := joined.start_ns(in_days))
    by_operator, said = vendors.settle(c, start, joined.names, joined.threads)
    duration, is_event = c["duration"], c["category"] != SPAN
    is_event[alone] = False
    sane = in_days & (duration <= LONGEST_NS / 1000)
    keep = is_event & sane & (duration >= 0)
    absurd, negative = int((is_event & ~sane).sum()), int((is_event & sane & (duration < 0)).sum())
    duration = to_ns(np.where(keep, duration, 0))
    in_time = np.argsort(c["memory_time"], kind="stable")
    marked = vendors.with_marks(c["category"], c["name"], joined.names)
    columns, twice = order.in_order(c, {"start": start, "duration": duration, "category": marked}, np.flatnonzero(keep))
    columns, stray = order.without_strays(columns, LONGEST_NS, MOST_DROPPED)
    distributed = about.distributedInfo
    trace = Trace(
        joined.names,
        joined.threads,
        **columns,
        texts=joined.texts,
        memory=Memory(*(c[name][in_time] for name in OF_MEMORY)),
        base_ns=about.baseTimeNanoseconds or 0,
        begin=int(to_ns(np.min(c["start"], where=sane, initial=np.inf, keepdims=True))[0]) if sane.any() else 0,
        devices=[device.name for device in about.deviceProperties or []],
        world_size=distributed.world_size if distributed else None,
        rank=distributed.rank if distributed else None,
        host=about.host_name if isinstance(about.host_name, str) else None,
        collectives=joined.collectives,
        group_sizes=distributed.group_sizes if distributed else (),
        reasons=[*reading.reasons],
        notes=[*said, *reading.notes],
        breaks_off=breaks_off,
        by_operator=by_operator,
    )
    trace.notes.extend(
        counted(count, ODD[what])
        for what, count in {
            "paired": paired,
            "alone": len(alone),
            "twice": twice,
            "absurd": absurd,
            "negative": negative,
            "stray": stray,
            "unreadable": joined.unreadable,
        }.items()
        if count
    )
    return trace, absurd + negative + stray + len(alone)


def _numbers(keys: Iterable[Any], numbers: dict[Any, int]) -> np.ndarray:
    """The number of each key. A key below 0 stands for itself."""
    numbered = [key if isinstance(key, int) else numbers.setdefault(key, len(numbers)) for key in keys]
    return np.array(numbered, np.int64)


def _canonical(text: bytes | str) -> str | int:
    """The same for the same JSON, however it was spaced. -1 for none, BROKEN for what is no JSON."""
    if isinstance(text, str) or not text:
        return text or -1
    try:
        # With spaces after commas, as Kineto writes.
        return msgspec.json.format(msgspec.json.encode(msgspec.json.decode(text)), indent=0).decode()
    except DAMAGE:
        return BROKEN
