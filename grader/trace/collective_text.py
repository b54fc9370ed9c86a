"""What a trace says of its collectives in arguments of their own, asked for only where they stand. Imports no numpy, see `decode`."""

from collections import deque
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import msgspec

from grader.trace.pieces import BETWEEN
from grader.trace.roofline import MOST_SIZES

# What an event of a collective holds: the argument that torch >= 2.1 writes at kernels and at `record_param_comms`, or the name that
# a backend annotates on the host.
ARGUMENT = b'"Collective name"'
BACKENDS = ("nccl:", "gloo:", "mpi:", "ucc:", "xccl:", "hccl:")
LONGEST = 1 << 16  # bytes of one event
MOST = 2_000_000  # of them in a trace
MOST_US, MOST_ELEMENTS = 2**52, 2**48  # what is larger is none
BROKEN = (msgspec.DecodeError, ArithmeticError, ValueError)


class Said(msgspec.Struct, gc=False):
    """The arguments of one event, as torch writes them."""

    kind: str | None = msgspec.field(default=None, name="Collective name")
    dtype: str | None = None
    sent: int | str | None = msgspec.field(default=None, name="In msg nelems")
    received: int | str | None = msgspec.field(default=None, name="Out msg nelems")
    size: int | str | None = msgspec.field(default=None, name="Group size")
    group: str | int | None = msgspec.field(default=None, name="Process Group Name")
    group_id: str | int | None = msgspec.field(default=None, name="Process Group ID")
    ranks: str | None = msgspec.field(default=None, name="Process Group Ranks")
    sequence: int | str | None = msgspec.field(default=None, name="Seq")
    source: int | str | None = msgspec.field(default=None, name="Src Rank")
    target: int | str | None = msgspec.field(default=None, name="Dst Rank")
    dims: Any = msgspec.field(default=None, name="Input Dims")
    types: Any = msgspec.field(default=None, name="Input type")


class _Event(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: msgspec.Raw = msgspec.Raw(b"-1")
    name: str | None = None
    args: Said | None = None


_decode = msgspec.json.Decoder(_Event).decode
# start in ns, name of the event, kind, dtype, elements sent and received, members, group, sequence number, source, target, duration
Row = tuple[int, str, str, str, int, int, int, str, int, int, int, int]
ITEM = {
    "float": 4,
    "double": 8,
    "half": 2,
    "bfloat16": 2,
    "int": 4,
    "long": 8,
    "short": 2,
    "bool": 1,
    "byte": 1,
    "char": 1,
}


def item_bytes(dtype: str) -> int:
    """Of a type as a trace writes it ("Float", "c10::BFloat16", "long int", "signed char"); 0 for one that is not known."""
    words = dtype.lower().replace("c10::", "").replace("unsigned", "").replace("signed", "").split()
    first = words[0] if words else ""
    return 1 if first.startswith("float8") else ITEM.get(first, 0)


def signs(names: Iterable[str | None]) -> set[bytes]:
    """What to look for in a trace with events of these names: nothing where none is of a collective, as looking takes time."""
    wanted = set()
    for name in names:
        if name and name.startswith(BACKENDS):
            wanted.add(f'"{name.partition(":")[0]}:'.encode())
            wanted.add(ARGUMENT)
        elif name and ("nccl" in name or name == "record_param_comms"):
            wanted.add(ARGUMENT)
    return wanted


def found(chunk: bytes, signs: Iterable[bytes]) -> list[Row]:
    """Of every event of a chunk that holds one of these signs, in order. What cannot be read is left out."""
    rows: list[Row] = []
    after = 0
    for at in sorted(_places(chunk, signs)):
        if at < after:
            continue
        begun = deque(BETWEEN.finditer(chunk, max(after, at - LONGEST), at), maxlen=1)
        low = begun[0].end() if begun else chunk.find(b"{", after)
        ended = BETWEEN.search(chunk, at)
        high = ended.start() + 1 if ended else chunk.rfind(b"}") + 1
        after = high
        try:
            rows.append(_row(_decode(chunk[low:high])))
        except BROKEN:
            continue
    return rows


def _places(chunk: bytes, signs: Iterable[bytes]) -> Iterator[int]:
    for sign in signs:
        at = chunk.find(sign)
        while at >= 0:
            yield at
            at = chunk.find(sign, at + 1)


def _row(event: _Event) -> Row:
    said = event.args or Said()
    sent, received, dtype = _integer(said.sent), _integer(said.received), said.dtype or ""
    if sent < 0:
        sent, dtype = _elements(said.dims, said.types)
    group = said.group if said.group is not None else said.group_id
    name = " ".join(str(part) for part in (group, said.ranks) if part is not None)
    time, duration = _ns(event.ts), _ns(event.dur)
    numbers = (_integer(value) for value in (said.size, said.sequence, said.source, said.target))
    size, sequence, source, target = numbers
    about = (said.kind or "", dtype, sent, received, size, name[:500], sequence, source, target)
    return time, event.name or "", *about, duration


def _ns(us: msgspec.Raw) -> int:
    number = Decimal(bytes(us).strip(b'"').decode())
    if not abs(number) < MOST_US:
        raise ValueError
    return int((number * 1000).to_integral_value())


def _integer(value: int | str | None) -> int:
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 19 else None
    return value if value is not None and 0 <= value < MOST_ELEMENTS else -1


def _elements(dims: Any, types: Any) -> tuple[int, str]:
    """How many elements the tensors of an annotation hold, and their type; -1 where that was not recorded."""
    if not isinstance(dims, list) or not isinstance(types, list):
        return -1, ""
    total, dtype = -1, ""
    for shape, kind in zip(dims, types, strict=False):
        known = isinstance(shape, list) and 0 < len(shape) <= MOST_SIZES and isinstance(kind, str)
        if known and all(isinstance(size, int) for size in shape):
            count = 1
            for size in shape:
                count *= max(size, 0)
            total, dtype = max(total, 0) + count, kind
    return (total, dtype) if total < MOST_ELEMENTS else (-1, "")
