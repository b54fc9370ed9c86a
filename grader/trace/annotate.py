"""A copy of a trace with what was found as tracks of its own, before its events, for Perfetto (https://ui.perfetto.dev)."""

import gzip
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np

from grader.trace import document, intervals, packed, pieces
from grader.trace.analysis import Analysis
from grader.trace.breakdown import Host
from grader.trace.catalogue import PARTS, STEP_PARTS
from grader.trace.columns import TraceError
from grader.trace.streams import queue_length
from grader.trace.work import devices_of

MOST = 200_000  # slices of a track, the longest; and points of a counter
NAME = "grader diagnose"
FIRST_ID = 990_000_000  # of the process that the tracks belong to, if no other has it
HOST = ("waits for data", "held by a copy", "waits for the GPU", "busy, launches nothing")


@dataclass(frozen=True)
class Track:
    """Slices that do not overlap, in order. Times in ns, as in the trace."""

    name: str
    start: np.ndarray
    end: np.ndarray
    label: np.ndarray  # of each, index into `labels`
    labels: list[str]
    details: list[dict[str, str]] | None = None  # one for each label


@dataclass(frozen=True)
class Counter:
    name: str
    time: np.ndarray  # ns
    value: np.ndarray


def annotate(source: Path, target: Path, a: Analysis, more: list[Track] | None = None) -> None:
    """Write the trace at `source`, of which `a` is the analysis, with its tracks to `target`, packed where that ends in .gz. more:
    further tracks. Raises TraceError if there is no list of events in it, OSError as files do."""
    made = target.with_name(f".{target.name}.part")
    try:
        with open(source, "rb") as file, open(made, "wb") as out:
            write = gzip.GzipFile(fileobj=out, mode="wb", compresslevel=3) if target.suffix == ".gz" else out
            blocks = packed.unpacked(file.fileno(), os.fstat(file.fileno()).st_size, sys.maxsize)
            _copy(_blocks(blocks, a.trace.breaks_off), write, a, [*tracks(a), *(more or [])])
            if write is not out:
                write.close()
        os.replace(made, target)
    except pieces.Damaged:
        raise TraceError(f"{source.name} is cut short, so it cannot be copied with tracks") from None
    finally:
        made.unlink(missing_ok=True)


def _copy(blocks: Iterator[bytes], write: IO[bytes] | gzip.GzipFile, a: Analysis, found: list[Track | Counter]) -> None:
    head = b""
    while not (bracket := document.HEAD.search(head)) and len(head) <= document.LONGEST_HEAD:
        if not (block := next(blocks, b"")):
            break
        head += block
    at = bracket.end() if bracket else len(head) - len(head.lstrip()) + 1
    if not bracket and head.lstrip()[:1] != b"[":
        raise TraceError("there is no list of events in the trace to add tracks to")
    while not (rest := head[at:].lstrip()) and (block := next(blocks, b"")):
        head += block
    write.write(head[:at])
    separator = b"\n"
    for text in _events(a, found):
        write.write(separator + text)
        separator = b",\n"
    write.write(b"\n" if rest[:1] in (b"]", b"") else b",\n")
    rests = chain([head[at:]], blocks)
    if not a.trace.breaks_off:
        write.writelines(rests)
        return
    separator = b""  # between what is whole
    for chunk in pieces.whole_events(rests):
        if chunk.closed:
            write.write(separator + chunk.text())
            separator = b",\n"
    write.write(b"]}" if head.lstrip()[:1] == b"{" else b"]")


def _blocks(blocks: Iterator[bytes], breaks_off: bool) -> Iterator[bytes]:
    try:
        yield from blocks
    except pieces.Damaged as error:
        if not breaks_off and not str(error).endswith(pieces.WRONG_SUM):
            raise


def _events(a: Analysis, found: list[Track | Counter]) -> Iterator[bytes]:
    """As JSON."""
    taken = {pid for pid, _ in a.trace.threads}
    process = next(number for number in range(FIRST_ID, FIRST_ID + len(taken) + 1) if number not in taken)
    yield _about("process_name", process, 0, name=NAME)
    yield _about("process_sort_index", process, 0, sort_index=-1)
    for number, one in enumerate(found, 1):
        if isinstance(one, Counter):
            name = json.dumps(one.name)
            for time, value in zip(one.time.tolist(), one.value.tolist(), strict=True):
                yield b'{"ph":"C","pid":%d,"name":%s,"ts":%s,"args":{"waiting":%d}}' % (
                    process, name.encode(), _us(time), value,
                )  # fmt: skip
            continue
        yield _about("thread_name", process, number, name=one.name)
        yield _about("thread_sort_index", process, number, sort_index=number)
        details = one.details or [{}] * len(one.labels)
        texts = [
            b'"name":%s,"cat":"grader","args":%s' % (json.dumps(label).encode(), json.dumps(detail).encode())
            for label, detail in zip(one.labels, details, strict=True)
        ]
        rows = zip(one.start.tolist(), (one.end - one.start).tolist(), one.label.tolist(), strict=True)
        for start, length, label in rows:
            yield b'{"ph":"X","pid":%d,"tid":%d,"ts":%s,"dur":%s,%s}' % (
                process, number, _us(start), _us(length), texts[label],
            )  # fmt: skip


def _about(what: str, process: int, thread: int, **args: str | int) -> bytes:
    return json.dumps({"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}).encode()


def _us(ns: int) -> bytes:
    """All nanoseconds of it, as microseconds."""
    return b"%s%d.%03d" % (b"-" if ns < 0 else b"", abs(ns) // 1000, abs(ns) % 1000)


# --- what is shown -------------------------------------------------------------------------------------------------


def tracks(a: Analysis) -> list[Track | Counter]:
    """What was found in the counted steps: the steps, each GPU's parts, why it idled, how much was queued, what held the host."""
    trace, steps = a.trace, a.steps
    if not len(steps):
        return []
    numbers = np.arange(len(steps))
    found: list[Track | Counter] = [
        Track("counted steps", steps.starts, steps.ends, numbers, [f"step {n + a.left_out}" for n in numbers.tolist()])
    ]
    if not len(steps.gpu):
        return found
    gpu, kind = steps.work, steps.kind
    low, high = steps.window
    devices = devices_of(trace, steps.gpu)
    for device in devices:
        of = "GPU" if len(devices) == 1 else f"GPU {device}"
        here, own = a.gaps.device == device, trace.device[gpu] == device
        busy = intervals.EMPTY
        pieces = []
        for part in range(PARTS.index("idle_data")):
            events = gpu[own & (kind == part)]
            spans = intervals.clip(trace.spans(events), low, high)
            pieces.append((*intervals.difference(spans, busy), part))
            busy = intervals.joined(busy, spans)
        words = [{"what": part.words} for part in STEP_PARTS.values()]
        short = [part.short for part in STEP_PARTS.values()]
        found.append(_track(f"{of}: parts of the step", pieces, short, words))
        gaps = (a.gaps.start[here], a.gaps.end[here], a.gaps.cause[here])
        found.append(_longest(Track(f"{of}: why it idles", *gaps, short, words)))
        time, waiting = queue_length(trace, steps, device)
        some = slice(None, None, -(-len(time) // MOST) or 1)
        found.append(Counter(f"{of}: launched, not begun", time[some], waiting[some]))
    return [*found, _host(a)]


def _host(a: Analysis) -> Track:
    host = Host(a.trace, a.steps)
    known, pieces = intervals.EMPTY, []
    waiting = intervals.union(host.wait_start, host.wait_end)
    for label, spans in enumerate((host.data, host.transfer, waiting, host.away.spans)):
        spans = intervals.clip(spans, *a.steps.host)
        pieces.append((*intervals.difference(spans, known), label))
        known = intervals.joined(known, spans)
    return _track("host: what holds it", pieces, list(HOST), None)


def _track(
    name: str, pieces: list[tuple[np.ndarray, np.ndarray, int]], labels: list[str], details: list[dict[str, str]] | None
) -> Track:
    start, end = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
    label = np.concatenate([np.full(len(piece[0]), piece[2]) for piece in pieces])
    order = np.argsort(start, kind="stable")
    return _longest(Track(name, start[order], end[order], label[order], labels, details))


def _longest(track: Track) -> Track:
    if len(track.start) <= MOST:
        return track
    kept = np.sort(np.argsort(track.start - track.end, kind="stable")[:MOST])
    columns = {name: getattr(track, name)[kept] for name in ("start", "end", "label")}
    return replace(track, name=f"{track.name} (the longest)", **columns)
