"""What a trace says of its collectives in arguments of their own: asked for only where they stand, as few events have them.

Imports no numpy, see `decode`."""

from __future__ import annotations

import re
from collections import deque
from decimal import Decimal
from typing import Any

import msgspec

from grader.trace.pieces import BETWEEN

# The argument that torch >= 2.1 writes at kernels and at `record_param_comms`, or what the backends annotate on the host.
SIGN = re.compile(rb'"Collective name"\s*:|"name"\s*:\s*"(?:nccl|gloo|mpi|ucc|xccl|hccl):')
LONGEST = 1 << 16  # bytes of one event
MOST = 2_000_000  # of them in a trace
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
    name: str | None = None
    args: Said | None = None


_decode = msgspec.json.Decoder(_Event).decode
# start in ns, name of the event, kind, dtype, elements sent and received, members, group, sequence number, source, target
Row = tuple[int, str, str, str, int, int, int, str, int, int, int]
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


def found(chunk: bytes) -> list[Row]:
    """Of every event of a chunk that says something of a collective, in order. What cannot be read is left out."""
    rows: list[Row] = []
    after = 0
    for sign in SIGN.finditer(chunk):
        at = sign.start()
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


def _row(event: _Event) -> Row:
    said = event.args or Said()
    sent, received, dtype = _integer(said.sent), _integer(said.received), said.dtype or ""
    if sent < 0:
        sent, dtype = _elements(said.dims, said.types)
    group = said.group if said.group is not None else said.group_id
    name = " ".join(str(part) for part in (group, said.ranks) if part is not None)
    time = int((Decimal(bytes(event.ts).strip(b'"').decode()) * 1000).to_integral_value())
    numbers = (_integer(value) for value in (said.size, said.sequence, said.source, said.target))
    size, sequence, source, target = numbers
    return time, event.name or "", said.kind or "", dtype, sent, received, size, name[:500], sequence, source, target


def _integer(value: int | str | None) -> int:
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 19 else None
    return value if value is not None and 0 <= value < 2**62 else -1


def _elements(dims: Any, types: Any) -> tuple[int, str]:
    """How many elements the tensors of an annotation hold, and their type; -1 where that was not recorded."""
    if not isinstance(dims, list) or not isinstance(types, list):
        return -1, ""
    total, dtype = -1, ""
    for shape, kind in zip(dims, types, strict=False):
        if isinstance(shape, list) and shape and isinstance(kind, str) and all(isinstance(size, int) for size in shape):
            count = 1
            for size in shape:
                count *= max(size, 0)
            total, dtype = max(total, 0) + count, kind
    return (total, dtype) if total < 2**62 else (-1, "")
