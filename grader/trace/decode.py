"""From JSON to packed columns, a chunk at a time: in bounded memory and the processor's cache. Without numpy helpers start faster."""

import math
import re
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from itertools import compress, islice
from struct import error as NotPackable
from struct import pack
from typing import Any, Literal

import msgspec

from grader.trace import collective_text
from grader.trace.events import CODES, CPU_OP, DRIVER, KERNEL, MEMCPY, MEMSET, OTHER, PYTHON, RUNTIME, SYNC, code_of

LATEST_US = 4e15  # microseconds since 1970 reach this in the year 2096; also keeps every sum within int64
# Kinds of entries of the Trace Event Format. The decoder then makes no string for each, and refuses any other.
# fmt: off
Phase = Literal[
    "", "X", "B", "E", "b", "n", "e", "i", "I", "R", "c", "C", "s", "t", "f", "p", "P", "N", "O", "D", "M", "V", "v",
    "S", "T", "F", "(", ")", ",", "=",
]
# fmt: on
# Microseconds from which a float no longer holds every nanosecond: half its spacing reaches 0.0005.
INEXACT_US = 2.0**43
LARGEST = 2**63 - 1
UNCONNECTED = 2**32 - 1  # Ascend's connection of a task that no call launched
FREQUENT = frozenset("Xsft")  # complete events, and the arrows between them
# of an event that is no complete one; what becomes an entry of the columns
HALVES, EVENTS = frozenset("BE"), frozenset("XBE")
ARROW, ENDS, MOST_DIGITS = "HostToDevice", frozenset("sf"), 40  # of Ascend
FRACTION = re.compile(rb'"ts"\s*:\s*"?-?\d*[.eE]')

Identifier = int | str | float | None


class Args(msgspec.Struct, gc=False, frozen=True):
    correlation: Identifier = -1
    device: Identifier = -1
    stream: Identifier = -1
    bytes: Identifier = -1  # a string from ROCm
    # Kept as text, as few distinct ones occur again and again.
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    sequence: int | None = msgspec.field(default=-1, name="Sequence number")
    python: int | None = msgspec.field(default=-1, name="Python id")
    parent: int | None = msgspec.field(default=-1, name="Python parent id")
    called_from: str | None = msgspec.field(default=None, name="CallFrom")
    memory_device_type: int | None = msgspec.field(default=None, name="Device Type")
    memory_device: int | None = msgspec.field(default=-1, name="Device Id")
    allocated: int | None = msgspec.field(default=None, name="Total Allocated")
    reserved: int | None = msgspec.field(default=-1, name="Total Reserved")


WITHOUT = Args()


class Event(msgspec.Struct, gc=False):
    ph: Phase = ""
    cat: str | None = None
    name: str | None = None
    pid: Identifier = None
    tid: Identifier = None
    ts: float | None = None
    dur: float | None = None
    args: Args | None = WITHOUT


class More(msgspec.Struct, gc=False):
    """What is asked for only of an event without category, or of GPU work without correlation. Nobody has looked at it before."""

    external: Any = msgspec.field(default=None, name="External id")
    # Of Ascend's
    task: Any = msgspec.field(default=None, name="Task Type")
    stream: Any = msgspec.field(default=-1, name="Stream Id")
    physical: Any = msgspec.field(default=-1, name="Physic Stream Id")
    size: Any = msgspec.field(default=-1, name="size(B)")
    operation: Any = None
    connection: Any = msgspec.field(default=None, name="connection_id")


class MoreOfEvent(msgspec.Struct, gc=False):
    args: More | None = None


class Arrow(msgspec.Struct, gc=False):
    id: Any = None


class Timestamp(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw(b"null")


decode_events = msgspec.json.Decoder(list[Event]).decode
decode_leniently = msgspec.json.Decoder(list[Event], strict=False).decode  # takes "12.5" for a number
decode_more = msgspec.json.Decoder(list[MoreOfEvent], strict=False).decode
decode_arrows = msgspec.json.Decoder(list[Arrow], strict=False).decode
decode_timestamps = msgspec.json.Decoder(list[Timestamp]).decode
# What decoding may raise for bytes that nobody has vouched for. DecodeError includes ValidationError.
DAMAGE = (msgspec.DecodeError, ValueError, OverflowError, RecursionError, NotPackable)


def numbered(numbers: dict[Any, int], *columns: list) -> list[int]:
    """The number of each entry (of several columns: of each row); a new one gets the next. Few are new, so that is tried first."""
    try:
        return [numbers[key] for key in (zip(*columns, strict=True) if len(columns) > 1 else columns[0])]
    except KeyError:
        keys = zip(*columns, strict=True) if len(columns) > 1 else columns[0]
        return [numbers.setdefault(key, len(numbers)) for key in keys]


# Columns and their struct codes. The first group has an entry for every event; the others only for the events of some
# categories, in the same order: most arguments belong to few events.
OF_ALL = {"category": "B", "name": "i", "thread": "i", "start": "d", "duration": "d"}
OF_OPS = {"types": "i", "dims": "i", "sequence": "q"}
OF_PYTHON = {"python": "q", "parent": "q", "called_from": "i"}
OF_OTHERS = {"correlation": "q", "device": "q", "stream": "q", "bytes": "q"}
OF_MEMORY = {"memory_time": "q", "memory_device": "q", "allocated": "q", "reserved": "q"}
COLUMNS = OF_ALL | OF_OPS | OF_PYTHON | OF_OTHERS | OF_MEMORY | {"exact_start": "q"}

# Of Ascend's tasks: between what a copy moves, and those that compute and move nothing.
DIRECTION = re.compile(r"(?:addr )?(host|device) to (host|device)")
CANN = re.compile(r"(Node|AscendCL|Runtime)@")
NO_TASK = re.compile(r"(EVENT|NOTIFY)_(WAIT|RECORD)|Notify (Wait|Record)|WRITE_VALUE|Write Value")

IS_OP, IS_PYTHON = (bytes(code == wanted for code in range(256)) for wanted in (CPU_OP, PYTHON))
IS_OTHER = bytes(code not in (CPU_OP, PYTHON) for code in range(256))
IS_WORK = bytes(code in (KERNEL, MEMCPY, MEMSET, RUNTIME, DRIVER) for code in range(256))
NO_MORE = More()


class Columns:
    """Collects the columns of a trace, chunk by chunk."""

    def __init__(self):
        self.packed: dict[str, list[bytes]] = {name: [] for name in COLUMNS}
        self.names: dict[str, int] = {}
        self.texts: dict[bytes | str, int] = {}
        self.threads: dict[tuple, int] = {}
        self.events = self.seen = 0  # complete events; events of any kind
        self.exact: list[int] = []  # pairs (first event, number of events) whose start is in "exact_start", in ns
        self.ended = False  # the mark that the profiler sets at the end of a recording was seen
        self.flaws: dict[str, int] = {}  # what is wrong with how many events
        self.collectives: list[collective_text.Row] = []
        self.signs: set[bytes] = set()  # of collectives, in the names that were looked at
        self.looked_at = 0

    def add(self, chunk: bytes, leniently: bool = False) -> None:
        """Raises one of DAMAGE, and adds nothing, if this is no array of events. leniently: strings may be numbers, but not times."""
        events = (decode_leniently if leniently else decode_events)(chunk)
        if leniently and any((e.ph == "X" and (e.ts is None or e.dur is None)) or not e.ph for e in events):
            raise ValueError
        exact = None
        if ARROW.encode() in chunk:
            _keep_arrows(chunk, events)
        phases = {e.ph for e in events}
        xs = [e for e in events if e.ph == "X"] if phases.isdisjoint(HALVES) else _with_halves(events)
        starts: list[Any] = [e.ts for e in xs]  # numbers, once they are packed
        flaws: dict[str, int] = {}
        try:  # looking for None takes longer
            start = pack(f"{len(xs)}d", *starts)
        except NotPackable:
            flaws["time"] = starts.count(None)
            xs = [e for e in xs if e.ts is not None]
            starts = [e.ts for e in xs]
            start = pack(f"{len(xs)}d", *starts)
        times = starts or [e.ts or 0.0 for e in events] or [0.0]
        if max(max(times), -min(times)) >= INEXACT_US and FRACTION.search(chunk):
            exact = {id(e): _exact_ns(bytes(t.ts)) for e, t in zip(events, decode_timestamps(chunk), strict=True)}
        rows = {"start": start} | self._rows(xs, flaws, partial(_more, chunk, events))
        if exact:
            rows["exact_start"] = pack(f"{len(xs)}q", *[exact[id(e)] for e in xs])
        if not phases <= FREQUENT:
            rows |= self._instants([e for e in events if e.ph not in FREQUENT], exact, flaws)
        # Nothing was changed so far but numberings, and what they number too much does no harm.
        if exact:
            self.exact += self.events, len(xs)
        for name, row in rows.items():
            self.packed[name].append(row)
        for flaw, count in flaws.items():
            self.flaws[flaw] = self.flaws.get(flaw, 0) + count
        self.events += len(xs)
        self.seen += len(events)
        self.signs |= collective_text.signs(islice(self.names, self.looked_at, None))
        self.looked_at = len(self.names)
        if self.signs and len(self.collectives) < collective_text.MOST:
            self.collectives += collective_text.found(chunk, self.signs)

    def _rows(self, xs: list[Event], flaws: dict[str, int], more: Callable[[], list[More]]) -> dict[str, bytes]:
        n = len(xs)
        durations = [e.dur for e in xs]
        try:
            duration = pack(f"{n}d", *durations)
        except NotPackable:
            flaws["duration"] = durations.count(None)
            duration = pack(f"{n}d", *[duration or 0.0 for duration in durations])
        category = self._categories(xs, flaws, more)
        called: list[Any] = [e.name for e in xs]  # some may be None
        try:
            name = [self.names[name] for name in called]
        except KeyError:
            if None in called:
                flaws["name"] = called.count(None)
                called = [name or "" for name in called]
            name = numbered(self.names, called)
        rows = {
            "category": category,
            "name": pack(f"{n}i", *name),
            "thread": pack(f"{n}i", *numbered(self.threads, [e.pid for e in xs], [e.tid for e in xs])),
            "duration": duration,
        }
        args = [e.args or WITHOUT for e in xs]
        ops = list(compress(args, category.translate(IS_OP)))
        if ops:
            m = len(ops)
            rows["types"] = pack(f"{m}i", *numbered(self.texts, _texts([a.types for a in ops])))
            rows["dims"] = pack(f"{m}i", *numbered(self.texts, _texts([a.dims for a in ops])))
            rows["sequence"] = _integers([a.sequence for a in ops], flaws)
        frames = list(compress(args, category.translate(IS_PYTHON)))
        if frames:
            rows["python"] = _integers([a.python for a in frames], flaws)
            rows["parent"] = _integers([a.parent for a in frames], flaws)
            rows["called_from"] = pack(f"{len(frames)}i", *numbered(self.texts, [a.called_from or b"" for a in frames]))
        others = list(compress(args, category.translate(IS_OTHER)))
        if others:
            correlation: list[Any] = [a.correlation for a in others]
            stream: list[Any] = [a.stream for a in others]
            size: list[Any] = [a.bytes for a in others]
            if -1 in compress(correlation, compress(category.translate(IS_WORK), category.translate(IS_OTHER))):
                self._other_ids(correlation, stream, size, list(compress(more(), category.translate(IS_OTHER))))
            rows["correlation"] = _integers(correlation, flaws)
            rows["device"] = _integers([a.device for a in others], flaws)
            rows["stream"] = _integers(stream, flaws)
            rows["bytes"] = _integers(size, flaws)
        return rows

    def _categories(self, xs: list[Event], flaws: dict[str, int], more: Callable[[], list[More]]) -> bytes:
        """Their codes; some may have no category."""
        categories = [e.cat for e in xs]
        try:
            return bytes([CODES[cat] for cat in categories])  # type: ignore[index]
        except KeyError:
            pass
        codes = bytes([code_of(cat) for cat in categories])
        if None in categories:
            rows = list(zip(codes, xs, more(), strict=True))
            codes = bytes(code if e.cat else _code_by_arguments(code, e, m) for code, e, m in rows)
            missing = sum(not cat and code == OTHER for code, cat in zip(codes, categories, strict=True))
            flaws |= {"category": missing} if missing else {}
        return codes

    def _other_ids(self, correlation: list[Any], stream: list[Any], size: list[Any], more: list[More]) -> None:
        """Put what may stand for a correlation, below -1, where there is none."""
        for i, (found, m) in enumerate(zip(correlation, more, strict=True)):
            if found == -1:
                correlation[i] = _below(m.external if m.connection is None else m.connection)
            if stream[i] == -1:
                stream[i] = m.stream if m.physical == -1 else m.physical
            if size[i] == -1:
                size[i] = m.size

    def _instants(self, rare: list[Event], exact: dict | None, flaws: dict[str, int]) -> dict[str, bytes]:
        """The events without a duration: the allocator's reports, and the mark at the end."""
        memory: list[int] = []
        for e in rare:
            if not e.ph:
                flaws["phase"] = flaws.get("phase", 0) + 1
            elif e.ph == "i" and e.name == "[memory]" and e.args and e.ts is not None and e.args.allocated is not None:
                a, in_use = e.args, e.args.allocated
                device = -1 if a.memory_device_type == 0 or a.memory_device is None else a.memory_device
                row = device, in_use, -1 if a.reserved is None else a.reserved
                if not -LATEST_US < e.ts < LATEST_US or not -LARGEST <= min(row) <= max(row) <= LARGEST:
                    flaws["memory"] = flaws.get("memory", 0) + 1
                    continue
                whole = int(e.ts)
                memory.append(exact[id(e)] if exact else whole * 1000 + round((e.ts - whole) * 1000))
                memory += row
            elif e.name and e.name.startswith("Record Window End"):
                self.ended = True
        return {name: pack(f"{len(memory) // 4}q", *memory[i::4]) for i, name in enumerate(OF_MEMORY) if memory}

    def header(self) -> dict:
        """Everything but the packed columns, as what msgpack can carry."""
        tables = {"names": list(self.names), "texts": list(self.texts), "threads": list(self.threads)}
        found = {"ended": self.ended, "flaws": self.flaws, "collectives": self.collectives}
        return tables | {"seen": self.seen, "exact": self.exact} | found


def _texts(raws: list[msgspec.Raw]) -> list[bytes]:
    """The bytes of each. Through one string, as that takes half the time."""
    texts = b"\0".join(raws).split(b"\0")
    return texts if len(texts) == len(raws) else list(map(bytes, raws))  # no valid JSON holds a 0


def _more(chunk: bytes, events: list[Event]) -> list[More]:
    """Of the events that have a start."""
    found = zip(events, decode_more(chunk), strict=True)
    return [more.args or NO_MORE for e, more in found if e.ph in EVENTS and e.ts is not None]


def _below(number: Any) -> int:
    """What stands in a column for an id that is no correlation: below -1, or -1 where it is none."""
    if isinstance(number, str) and number.isdecimal() and len(number) < MOST_DIGITS:
        number = int(number) % (LARGEST - 2)  # Ascend's are longer than 64 bits
    return -2 - number if isinstance(number, int) and 0 < number < LARGEST - 2 and number != UNCONNECTED else -1


def _keep_arrows(chunk: bytes, events: list[Event]) -> None:
    """Make both ends of Ascend's arrows, from a call to what it launched, entries of the columns that are no events (see `vendors`)."""
    for e, arrow in zip(events, decode_arrows(chunk), strict=True):
        if e.ph in ENDS and e.cat == ARROW:
            name, number = "Node@launch" if e.ph == "s" else "", _below(arrow.id)
            e.ph, e.cat, e.name, e.dur, e.args = "X", "Trace", name, 0.0, Args(correlation=number)


def _with_halves(events: list[Event]) -> list[Event]:
    """The complete events, and begins and ends of others, with what stands for their durations (see `pairs`)."""
    for e in events:
        if e.ph == "B":
            e.dur = -math.inf
        elif e.ph == "E":
            e.dur, e.cat, e.name, e.args = math.inf, "Trace", "", WITHOUT
    return [e for e in events if e.ph in EVENTS]


def _code_by_arguments(code: int, e: Event, more: More) -> int:
    """Of an event without a category, as Ascend's are: the device's have a "Task Type"; a copy gets its direction into its name."""
    name = e.name or ""
    if name.startswith("MEMCPY_ASYNC"):
        found = DIRECTION.match(str(more.operation))
        e.name = f"Memcpy {found[1][0].upper()}to{found[2][0].upper()}" if found else name
        return MEMCPY
    if isinstance(task := more.task, str) and task:
        if NO_TASK.match(task):
            return SYNC
        return MEMCPY if "MEMCPY" in task.upper() or "SDMA" in task.upper() else KERNEL
    if more.connection is None:
        return RUNTIME if CANN.match(name) else code
    return KERNEL if name.startswith("hcom_") else RUNTIME


def _integers(values: list, flaws: dict[str, int]) -> bytes:
    """Packed; -1 for what is no number. ROCm and some older releases write numbers as strings."""
    try:
        return pack(f"{len(values)}q", *values)
    except NotPackable:
        pass
    for i, value in enumerate(values):
        if (isinstance(value, str) and value.isdecimal() and len(value) < 20) or (
            isinstance(value, float) and value.is_integer()
        ):
            value = int(value)
        if value is None or isinstance(value, str):
            values[i] = -1
        elif isinstance(value, int) and -LARGEST <= value <= LARGEST:
            values[i] = value
        else:
            values[i] = -1
            flaws["number"] = flaws.get("number", 0) + 1
    return pack(f"{len(values)}q", *values)


def _exact_ns(text: bytes) -> int:
    """Microseconds, as they are written, to nanoseconds; 0 for what is no time in our days."""
    try:
        time = Decimal(text.strip(b'"').decode())
        return int((time * 1000).to_integral_value()) if abs(time) < LATEST_US else 0
    except (ArithmeticError, ValueError):
        return 0
