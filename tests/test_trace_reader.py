"""The reader of traces: the same columns as a plain decode whatever the layout, and what it says of damaged files."""

import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter

import fuzz_trace
import kineto
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader import trace
from grader.trace import TraceError, parallel, pieces
from grader.trace.decode import Args, More

# --- a small sound trace, event by event --------------------------------------------------------------------------

STEP_US = 1000


def sound_events(steps=4, kernels=3, graph=0, devices=1):
    """`steps` steps with so many kernels each, launched one by one, and a graph of so many."""
    events, correlation = [], 0

    def event(cat, name, ts, dur, tid=100, **args):
        args = {key.replace("_", " ") if key[0].isupper() else key: value for key, value in args.items()}
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args})

    for step in range(steps):
        at = 4388195796371.125 + step * STEP_US
        event("user_annotation", f"ProfilerStep#{step}", at, STEP_US - 50.5)
        event("python_function", "train.py(12): step", at + 1, 700.25, Python_id=step + 1, Python_parent_id=None)
        for n in range(kernels):
            correlation += 1
            t = at + 10 + n * 20
            shapes = {"Input_type": ["float", "c10::BFloat16"], "Input_Dims": [[2, 3], [3, n]], "Sequence_number": n}
            event("cpu_op", "aten::mm", t, 9.875, **shapes)
            event("cuda_runtime", "cudaLaunchKernel", t + 1.5, 3.25, correlation=correlation, External_id=n)
            device = correlation % devices
            work = {"device": device, "stream": 7, "correlation": correlation}
            event("kernel", f"gemm<{n}, float>", t + 8.001, 11.5, 7, **work, grid=[1, 2, 3])
            events.append({"ph": "s", "id": correlation, "pid": 1, "tid": 100, "ts": t, "cat": "ac2g", "name": "ac2g"})
        correlation += 1
        t = at + 300
        event("cuda_runtime", "cudaMemcpyAsync", t, 2, correlation=correlation)
        copy = {"device": 0, "stream": 20, "correlation": correlation, "bytes": 1 << 20}
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", t + 5, 40.125, 20, **copy)
        if graph:
            correlation += 1
            event("cuda_runtime", "cudaGraphLaunch", at + 400, 9, correlation=correlation)
            for n in range(graph):
                work = {"device": 0, "stream": 7, "correlation": correlation}
                event("kernel", f"in graph {n}", at + 420 + n * 10, 5, 7, **work)
        args = {"Device Type": 1, "Device Id": 0, "Total Allocated": 1 << step, "Total Reserved": 1 << 30}
        events.append({"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": at + 500, "args": args})
    return events


def document(events, **more):
    two_ranks = {"distributedInfo": {"rank": 1, "world_size": 2}, "traceName": "/tmp/[trace].json"}
    return kineto.document(events, devices=2, **two_ranks | more)


def as_kineto(doc):
    """As Kineto lays it out."""
    head = ",\n".join(f'    "{key}": {json.dumps(value)}' for key, value in doc.items() if key not in LATE)
    events = []
    for e in doc["traceEvents"]:
        first = ", ".join(f'"{key}": {json.dumps(e[key])}' for key in e if key not in ("ts", "dur", "args"))
        parts = [first, ", ".join(f'"{key}": {json.dumps(e[key])}' for key in ("ts", "dur") if key in e)]
        if not isinstance(e.get("args", {}), dict):
            parts.append(f'"args": {json.dumps(e["args"])}')
        elif "args" in e:
            args = ",      ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in e["args"].items())
            parts.append(f'"args": {{\n      {args}\n    }}')
        events.append("  {\n    " + ",\n    ".join(part for part in parts if part) + "\n  }")
    late = "".join(f', "{key}": {json.dumps(doc[key])} ' for key in LATE[1:] if key in doc)
    return f'{{\n{head},\n    "traceEvents": [\n    \n' + ",\n".join(events) + f"\n  ]{late}}}"


LATE = ("traceEvents", "traceName")
LAYOUTS = {
    "kineto": as_kineto,
    "dumps": json.dumps,
    "compact": lambda doc: json.dumps(doc, separators=(",", ":")),
    "compact, UTF-8": lambda doc: json.dumps(doc, separators=(",", ":"), ensure_ascii=False),
    "indented": lambda doc: json.dumps(doc, indent=2),
    "tabs": lambda doc: json.dumps(doc, indent="\t\t").replace("\n", "\r\n"),
    "sorted": lambda doc: json.dumps(doc, sort_keys=True),
    "events first": lambda doc: json.dumps({"traceEvents": doc["traceEvents"]} | doc),
    "events last": lambda doc: json.dumps({key: doc[key] for key in sorted(doc, key="traceEvents".__eq__)}),
}
PACKINGS = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "gzip, two members": lambda data: gzip.compress(data[:777]) + gzip.compress(data[777:]) + bytes(9),
}


def us(ns):
    """A time that `written` writes with all its nanoseconds, which a float of 1.7e15 us cannot hold."""
    return f"@{'-' if ns < 0 else ''}{abs(ns) // 1000}.{abs(ns) % 1000:03d}@"


def written(doc, layout="kineto", packing="plain"):
    text = re.sub(r'"@(-?\d+\.\d+)@"', r"\1", LAYOUTS[layout](doc))
    return PACKINGS[packing](text.encode())


# --- bit for bit what a plain decode gives --------------------------------------------------------------------------

NASTY = st.sampled_from(
    [
        '}, {"ph": "X"',
        '{"a"}, {"b"',
        '"traceEvents": [',
        '], "traceName": "x"}',
        '\\", {"name"',
        "日本語 ∂\u2028",
        "\\\\",
        "\x00\x1f\n",
        "😀" * 3,
        "",
        "}\n,\n{",
    ]
)
TEXT = NASTY | st.text(max_size=12).filter(lambda text: not re.search(r"[\ud800-\udfff]", text))
NESTED = st.recursive(
    st.none() | st.integers(-9, 9) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT.filter(lambda k: k not in ARGUMENTS), inner, max_size=3)
    ),
    max_leaves=8,
)
# what the reader looks at
ARGUMENTS = {each.encode_name for known in (Args, More) for each in msgspec.structs.fields(known)}
NS = st.integers(0, 10**9)
BASES = st.sampled_from([0, 4388195796371_000, -5_000_000, 1_700_000_000_123_456_000])  # ns; the last as old files have


OPERATOR = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 0, "tid": 0, "ts": us(-1), "dur": us(1)}


@st.composite
def any_events(draw):
    base = draw(BASES)
    events = []
    for start in draw(st.lists(NS, max_size=12, unique=True)):  # an event that is there twice is read once
        ts, dur = base + start, draw(NS)
        args = draw(st.dictionaries(TEXT.filter(lambda key: key not in ARGUMENTS), NESTED, max_size=2))
        args |= draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "correlation": st.integers(-1, 2**62),
                    "device": st.integers(-1, 400) | st.sampled_from(["0", "3", "cuda"]),
                    "stream": st.integers(-1, 2**40) | st.just("7"),
                    "bytes": st.integers(0, 2**50),
                    "Sequence number": st.integers(0, 99),
                    "Python id": st.integers(0, 99),
                    "Python parent id": st.none() | st.integers(0, 99),
                    "Input type": st.lists(st.sampled_from(["float", "", "TensorList"]), max_size=3),
                    "Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2),
                },
            )
        )
        cats = ["kernel", "gpu_memcpy", "cpu_op", "python_function", "cuda_runtime", "user_annotation", "Trace", "own"]
        event = {"ph": draw(st.sampled_from("XXXXXsfM")), "cat": draw(st.sampled_from(cats)), "name": draw(TEXT)}
        event |= {"pid": draw(st.integers(0, 2) | TEXT), "tid": draw(st.integers(0, 2) | TEXT)}
        event |= {"ts": us(ts), "dur": us(dur)}
        if draw(st.booleans()):
            event["args"] = args
        events.append(dict(draw(st.permutations(list(event.items())))))
    return events


def same(data, **options):
    """What was read, after a comparison with the plain decode."""
    t = trace.read_bytes(data, **options)
    fuzz_trace.invariants(t)
    found, wanted = fuzz_trace.rows_of(t), fuzz_trace.reference(data)
    placed = slice(3, 5)  # device and stream, which are taken from pid and tid where no GPU work says them
    assert sorted(repr((*row[:3], *row[5:])) for row in found) == sorted(repr((*row[:3], *row[5:])) for row in wanted)
    assert Counter(repr(row) for row in wanted if min(row[placed]) >= 0) <= Counter(map(repr, found))
    assert t.base_ns == 1_790_857_026_000_000_000 and t.devices == ["NVIDIA H200"] * 2
    assert (t.rank, t.world_size) == (1, 2)
    said = t.reasons + t.notes
    assert not [each for each in said if "damaged" in each or "lost" in each or "mark" in each], said
    return t


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    any_events(), st.sampled_from([*LAYOUTS]), st.sampled_from([*PACKINGS]), st.sampled_from([37, 300, 2000, 1 << 18])
)
def test_every_layout_gives_what_a_plain_decode_gives(events, layout, packing, block):
    before, pieces.BLOCK = pieces.BLOCK, block
    if {event["cat"] for event in events if event["ph"] == "X"} <= {"Trace", "own"}:
        # nobody's whom the reader knows: it would refuse them
        events.append(OPERATOR)
    try:
        same(written(document(events), layout, packing))
    finally:
        pieces.BLOCK = before


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", [7, 100, 1000, 1 << 18])
def test_a_sound_trace_is_complete_in_every_layout(layout, packing, block, monkeypatch):
    monkeypatch.setattr(pieces, "BLOCK", block)
    t = same(written(document(sound_events()), layout, packing))
    assert t.complete, t.reasons
    assert t.memory.allocated.tolist() == [1, 2, 4, 8] and (np.diff(t.memory.time) == STEP_US * 1000).all()
    assert len(t) == 4 * (2 + 3 * 3 + 2)


@pytest.fixture
def helpers(monkeypatch):
    """Any trace is large enough to be shared."""
    monkeypatch.setattr(parallel, "START_UP", 0)
    monkeypatch.setattr(parallel, "SMALLEST", 2000)
    monkeypatch.setattr(parallel, "cores", lambda: 3)


def started(monkeypatch):
    """Counts the helpers that gave their part."""
    parts = []
    part = parallel.Helper.part

    def counted(self, columns):
        parts.append(part(self, columns))
        return parts[-1]

    monkeypatch.setattr(parallel.Helper, "part", counted)
    return parts


@pytest.mark.parametrize("layout", ["kineto", "compact", "indented"])
def test_helpers_give_the_same(layout, helpers, monkeypatch, tmp_path):
    parts = started(monkeypatch)
    data = written(document(sound_events(steps=30, devices=2)), layout)
    shared = same(data)
    assert len(parts) == 2 and None not in parts
    (tmp_path / "trace.json").write_bytes(data)
    of_file = trace.read(tmp_path / "trace.json")
    assert len(parts) == 4 and None not in parts
    alone = trace.read_bytes(data, parallel=False)
    assert len(parts) == 4
    for name in ("category", "start", "duration", "correlation", "device", "stream", "bytes", "sequence", "python"):
        for one in (shared, of_file):
            assert (getattr(one, name) == getattr(alone, name)).all(), name
    assert shared.reasons == of_file.reasons == alone.reasons == []


@pytest.mark.parametrize("start_up", [-1999, -1, 0, 1, 1999, 2000, 5000])
def test_a_file_of_any_size_is_shared_or_read_alone(start_up, helpers, monkeypatch, tmp_path):
    data = written(document(sound_events(steps=1)))
    monkeypatch.setattr(parallel, "START_UP", len(data) - 2000 + start_up)  # around where the first helper is worth it
    (tmp_path / "trace.json").write_bytes(data)
    assert trace.read(tmp_path / "trace.json").complete


def test_helpers_meet_arguments_that_look_like_events(helpers, monkeypatch):
    parts = started(monkeypatch)
    events = sound_events(steps=3)
    events[2]["args"]["list"] = [{"ph": "a"}, {"b": 2}] * 2000  # the file is cut within it
    data = written(document(events))
    t = same(data)
    assert t.complete and len(t) == len(fuzz_trace.reference(data))
    assert not parts or None in parts


def test_damage_in_a_helpers_part_is_salvaged(helpers, monkeypatch):
    parts = started(monkeypatch)
    data = written(document(sound_events(steps=30)))
    at = data.rindex(b'"dur": 11.5')
    t = trace.read_bytes(data[:at] + b'"dur": nan ' + data[at + 11 :])
    assert None in parts
    assert "1 event is damaged and lost" in t.notes and len(t) == len(fuzz_trace.reference(data)) - 1


def test_without_helpers_it_is_read_all_the_same(helpers, monkeypatch):
    def refused(*_, **__):
        raise OSError("no processes here")

    monkeypatch.setattr(subprocess, "Popen", refused)
    assert same(written(document(sound_events(steps=30)))).complete


def test_helpers_start_in_a_thread_and_in_a_daemonic_process(tmp_path):
    (tmp_path / "trace.json").write_bytes(written(document(sound_events(steps=30))))
    code = """
import multiprocessing, sys, threading
from grader import trace
from grader.trace import parallel
def count(path, found):
    parallel.START_UP, parallel.SMALLEST, parallel.cores = 0, 2000, lambda: 3
    part, parts = parallel.Helper.part, []
    parallel.Helper.part = lambda self, columns: parts.append(part(self, columns)) or parts[-1]
    found.append((len(trace.read(path)), len(parts), None in parts))
def work(path):
    found = []
    thread = threading.Thread(target=count, args=(path, found), daemon=True)
    thread.start()
    thread.join()
    print(found, flush=True)
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work, args=(sys.argv[1],), daemon=True)
    process.start()
    process.join()
"""
    (tmp_path / "work.py").write_text(code)
    command = [sys.executable, str(tmp_path / "work.py"), str(tmp_path / "trace.json")]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600, env=environment)
    assert found.stdout.strip() == f"[({30 * 13}, 2, False)]", found.stderr


def test_no_thread_is_left():
    before = threading.active_count()
    data = gzip.compress(written(document(sound_events(steps=300))))
    trace.read_bytes(data)
    for broken in (data[:-100], gzip.compress(b"no trace" * 10**6)):
        with contextlib.suppress(TraceError):
            trace.read_bytes(broken, max_bytes=1 << 22)
    assert threading.active_count() == before


# --- damaged ------------------------------------------------------------------------------------------------------

WHOLE = written(document(sound_events()))
TEXT_OF = WHOLE.decode()
N = len(fuzz_trace.reference(WHOLE))


def edited(old, new, count=1):
    """The sound trace with the first `count` of these replaced."""
    assert old in TEXT_OF, old
    return TEXT_OF.replace(old, new, count).encode("utf-8", "surrogateescape")


def with_event(i, **fields):
    """The sound trace, its i-th kernel with other fields; None removes one."""
    events = sound_events()
    event = [e for e in events if e.get("cat") == "kernel"][i]
    for key, value in fields.items():
        target = event["args"] if key in ("correlation", "device", "stream") else event
        if value is None:
            del target[key]
        else:
            target[key] = value
    return written(document(events))


def without(**more):
    return written(document(sound_events(), **more))


def bomb(megabytes):
    return gzip.compress(b'{"traceEvents": [' + b" " * (megabytes << 20))


def graph_replays(short):
    events = sound_events(graph=5)
    kernels = [e for e in events if e["name"] == "in graph 4"]
    for e in kernels[1 : 1 + short]:
        events.remove(e)
    return written(document(events))


SOUND = {layout: written(document(sound_events(steps=2)), layout) for layout in LAYOUTS}
SOUND["gzip"] = gzip.compress(WHOLE, mtime=0)  # else the time of day is among what is changed at random
SOUND["graphs"] = graph_replays(0)
NO_TRACE = TraceError

# name -> (bytes, what is said of it). What is said is TraceError, or parts of reasons, () for a complete trace.
CORPUS = {
    # no trace at all
    "nothing": (b"", NO_TRACE),
    "blanks": (b" \n\t", NO_TRACE),
    "not JSON": (b"\x7fELF\x02\x01\x01" + bytes(300), NO_TRACE),
    "an HTML page": (b"<!doctype html><html><body>404</body></html>", NO_TRACE),
    "a number": (b"17", NO_TRACE),
    "a string": (b'"traceEvents"', NO_TRACE),
    "null": (b"null", NO_TRACE),
    "an array of numbers": (b"[1, 2, 3]", NO_TRACE),
    "an empty array": (b"[]", NO_TRACE),
    "another document": (b'{"nodes": [{"id": 1}, {"id": 2}]}', NO_TRACE),
    "events are a number": (b'{"traceEvents": 7}', NO_TRACE),
    "events are an object": (b'{"traceEvents": {"ph": "X"}}', NO_TRACE),
    "events are numbers": (b'{"traceEvents": [1, 2, 3]}', NO_TRACE),
    "nested deeply": (b'{"traceEvents": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}", NO_TRACE),
    "nested deeply, never closed": (b'{"traceEvents": [{"ph": "X", "args": ' + b'{"a":' * 100_000, NO_TRACE),
    "gzip of nothing": (gzip.compress(b""), NO_TRACE),
    "gzip, only its first bytes": (b"\x1f\x8b", NO_TRACE),
    "gzip, nonsense": (b"\x1f\x8b\x08\x00" + b"\x5a" * 200, NO_TRACE),
    "gzip, many members": (gzip.compress(b" ") * 5000, NO_TRACE),
    "zip bomb": (bomb(64), NO_TRACE),
    "zip bomb in a zip bomb": (gzip.compress(bomb(100)), NO_TRACE),
    # cut short
    "cut in an event": (WHOLE[: WHOLE.index(b'"gemm<2', 2000) + 3], ("cut short", "1 event is damaged and lost")),
    "cut between events": (WHOLE[: WHOLE.index(b"},\n", 5000) + 1], ("cut short", "mark that ends")),
    "cut after a comma": (WHOLE[: WHOLE.index(b"},\n", 5000) + 2], ("cut short", "mark that ends")),
    "cut in a number": (WHOLE[: WHOLE.index(b'"ts": 4388', 5000) + 9], ("cut short", "1 event is damaged and lost")),
    "cut after the events": (WHOLE[: WHOLE.rindex(b"]") + 1], ("what follows its events is damaged",)),
    "cut before its last brace": (WHOLE[:-1], ("what follows its events is damaged",)),
    "cut in its head": (WHOLE[:100], NO_TRACE),
    "gzip cut short": (gzip.compress(WHOLE, mtime=0)[:-400], ("compressed data are damaged", "cut short")),
    "gzip without its check sum": (gzip.compress(WHOLE)[:-8], ("compressed data are damaged",)),
    "gzip, wrong check sum": (gzip.compress(WHOLE)[:-6] + b"\1\2\3\4\5\6", ("compressed data are damaged",)),
    "gzip and something else": (gzip.compress(WHOLE) + b"more", ("compressed data are damaged",)),
    "two traces, one after the other": (WHOLE + WHOLE, ("another document follows it",)),
    "something after it": (WHOLE + b"\nTraceback", ("what follows its events is damaged",)),
    "blanks after it": (WHOLE + b"\n\n", ()),
    "without its beginning": (WHOLE[WHOLE.index(b'"cat"') :], NO_TRACE),
    "without its first brace": (WHOLE[1:], ("what precedes its events is damaged",)),
    # numbers
    "bare nan for a duration": (edited('"dur": 11.5', '"dur": nan'), ("1 event is damaged and lost",)),
    "bare NaN for a start": (edited('"ts": 4388195796381.125', '"ts": NaN'), ("1 event is damaged and lost",)),
    "bare inf": (edited('"dur": 11.5', '"dur": inf'), ("1 event is damaged and lost",)),
    "bare -Infinity": (edited('"dur": 11.5', '"dur": -Infinity'), ("1 event is damaged and lost",)),
    "-nan(ind)": (edited('"dur": 11.5', '"dur": -nan(ind)'), ("1 event is damaged and lost",)),
    "nan in an argument": (
        edited('"grid": [1, 2, 3]', '"grid": [1, 2, nan]'),
        ("1 event is damaged and was read as far as possible",),
    ),
    "a string for a duration": (edited('"dur": 11.5', '"dur": "11.5"'), ()),
    "a string for a start": (
        edited('"ts": 4388195796381.125', '"ts": "4388195796381.125"'),
        (),
    ),
    "a word for a duration": (edited('"dur": 11.5', '"dur": "long"'), ("1 event is damaged and lost",)),
    "the string nan": (edited('"dur": 11.5', '"dur": "nan"'), ("1 event ",)),
    "a number beyond floats": (edited('"dur": 11.5', '"dur": 1e999'), ("1 event is damaged and lost",)),
    "a huge duration": (with_event(3, dur=4e9), ("1 event has absurd times",)),
    "a negative duration": (with_event(3, dur=-1e-3), ("1 event has a negative duration",)),
    "a start in the year 5000": (with_event(3, ts=9e16), ("1 event has absurd times",)),
    "a start far before": (with_event(3, ts=-9e16), ("1 event has absurd times",)),
    "an id beyond 64 bits": (with_event(3, correlation=2**64), ("1 number is no integer of 64 bits",)),
    "an id that is not whole": (with_event(3, correlation=7.5), ("1 number is no integer of 64 bits",)),
    "thousands of digits": (edited('"dur": 11.5', '"dur": ' + "1" * 6000), ("1 event ",)),
    "hexadecimal": (edited('"dur": 11.5', '"dur": 0x1p3'), ("1 event is damaged and lost",)),
    "a comma for a point": (edited('"dur": 11.5', '"dur": 11,5'), ("1 event is damaged and lost",)),
    # fields
    "no duration": (with_event(3, dur=None), ("1 event has no duration",)),
    "no start": (with_event(3, ts=None), ("1 event has no start",)),
    "no category": (with_event(3, cat=None), ("1 event has no category",)),
    "no name": (with_event(3, name=None), ("1 event has no name",)),
    "no type": (with_event(3, ph=None), ("1 event is of no type",)),
    "an unknown type": (with_event(3, ph="?"), ("1 event is damaged and lost",)),
    "no device": (with_event(3, device=None), ("1 GPU event does not say on which device",)),
    "no correlation": (with_event(3, correlation=None), ("launches have no GPU work recorded",)),
    "a device by name": (with_event(3, device="gpu"), ("1 GPU event does not say on which device",)),
    "a device beyond reason": (with_event(3, device=10**6), ("1 GPU event does not say on which device",)),
    "a list for a name": (with_event(3, name=["k"]), ("1 event is damaged and was read",)),
    "a list for arguments": (with_event(3, args=[1]), ("1 event is damaged and was read",)),
    "an object for a start": (with_event(3, ts={"a": 1}), ("1 event is damaged and lost",)),
    "true for a duration": (with_event(3, dur=True), ("1 event ",)),
    "null among the events": (edited("  {\n", "  null,\n  {\n"), ("1 event is damaged and lost",)),
    "an array among the events": (edited("  },\n", "  },\n  [1, 2],\n"), ("damaged",)),
    # text
    "control characters in a name": (edited("gemm<1,", "gemm<\x01\x02\n"), ("1 event is damaged and was read",)),
    "a zero byte in a name": (edited("gemm<1,", "gemm<\x00"), ("1 event is damaged and was read",)),
    "a zero byte between events": (edited("},\n", "},\x00\n"), ("damaged",)),
    "invalid UTF-8": (edited("gemm<1,", "gemm<\udcff\udcfe"), ("1 event is damaged and was read",)),
    "half a surrogate": (edited("gemm<1,", "gemm<\\ud800"), ("1 event is damaged",)),
    "bare quotes in a name": (edited("gemm<1,", 'gemm<"1",'), ("1 event is damaged and was read",)),
    "bare quotes in every name": (edited("gemm<", '"gemm"<', 99), ("12 events are damaged and were read",)),
    "a wrong escape": (edited("gemm<1,", "gemm<\\q"), ("1 event is damaged",)),
    "a byte order mark": (b"\xef\xbb\xbf" + WHOLE, ()),
    "UTF-16": (TEXT_OF.encode("utf-16"), NO_TRACE),
    # structure
    "an array at the top": (json.dumps(document(sound_events())["traceEvents"]).encode(), ("bare list of events",)),
    "within another object": (b'{"trace": ' + WHOLE + b"}", ("what precedes its events is damaged",)),
    "events twice": (WHOLE.rstrip()[:-1] + b', "traceEvents": []}', ("more than one list of traceEvents",)),
    "base times differ": (WHOLE.rstrip()[:-1] + b', "baseTimeNanoseconds": 7}', ("different values of base",)),
    "a comma too many": (edited("},\n", "},,\n"), ("damaged",)),
    "a comma missing": (edited("  },\n", "  }\n"), ("damaged",)),
    "a brace missing": (edited("\n  },\n", "\n  ,\n"), ("damaged",)),
    "a brace too many": (edited("  },\n", "  }},\n"), ("damaged",)),
    "a bracket too many": (edited("  },\n", "  }],\n"), ("damaged",)),
    "single quotes": (TEXT_OF.replace('"', "'").encode(), NO_TRACE),
    "comments": (edited("  {\n", "  // here\n  {\n"), ("damaged",)),
    "trailing comma": (TEXT_OF.replace("\n  ]", ",\n  ]").encode(), ("damaged",)),
    "a damaged head": (edited('"displayTimeUnit": "ms"', '"displayTimeUnit": ms'), ("what precedes its events",)),
    "devices of a wrong kind": (without(deviceProperties=7), ("what precedes its events is damaged",)),
    "a base time in words": (without(baseTimeNanoseconds="now"), ("what precedes its events is damaged",)),
    # sound JSON that a trace should not be judged by
    "no events": (without(traceEvents=[]), ("no events",)),
    "no mark at its end": (without(traceEvents=sound_events()), ("mark that ends",)),
    "no steps": (
        without(traceEvents=[e for e in document(sound_events())["traceEvents"] if "Step" not in e["name"]]),
        ("no ProfilerStep",),
    ),
    "no GPU events": (
        without(
            traceEvents=[
                e for e in document(sound_events())["traceEvents"] if e.get("cat") not in ("kernel", "gpu_memcpy")
            ]
        ),
        ("no GPU events",),
    ),
    "launches without kernels": (
        without(traceEvents=[e for e in document(sound_events())["traceEvents"] if "gemm<1" not in e["name"]]),
        ("3 of 12 launches have no GPU work",),
    ),
    "kernels without launches": (
        without(traceEvents=[e for e in document(sound_events())["traceEvents"] if "LaunchK" not in e["name"]]),
        ("no launches of 12 GPU events are recorded",),
    ),
    "every event twice": (
        without(traceEvents=document(sound_events())["traceEvents"] * 2),
        ("in it twice and count once",),
    ),
    "one id for two launches": (
        edited('"correlation": 10', '"correlation": 9', 2),
        ("1 correlation id belongs to several launches",),
    ),
    "one id for two kernels": (with_event(7, correlation=9), ("1 launch of one kernel has several recorded",)),
    "replays under-recorded": (graph_replays(2), ("2 replays of a CUDA graph",)),
    "steps on two threads": (
        edited('"name": "ProfilerStep#2", "pid": 1, "tid": 100', '"name": "ProfilerStep#2", "pid": 1, "tid": 5'),
        ("several threads",),
    ),
    "a clock far off": (
        without(
            traceEvents=[
                e | {"ts": e["ts"] - 5000} if e.get("cat") == "kernel" else e
                for e in document(sound_events())["traceEvents"]
            ]
        ),
        ("before their launch",),
    ),
}


@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize("block", [300, 1 << 18])
def test_damaged_traces(name, block, monkeypatch):
    monkeypatch.setattr(pieces, "BLOCK", block)
    data, said = CORPUS[name]
    began = time.process_time()
    if said is NO_TRACE:
        with pytest.raises(TraceError) as error:
            trace.read_bytes(data, max_bytes=32 << 20)
        assert len(str(error.value)) > 10
    else:
        t = trace.read_bytes(data, max_bytes=32 << 20)
        fuzz_trace.invariants(t)
        found = t.reasons + t.notes
        assert (not found) == (not said), found
        for part in said:
            assert part in "; ".join(found)
        assert len(t) == 0 or len(t) >= N - 1 or "cut" in name or "without" in "; ".join(found) or len(t) > N / 2
    assert time.process_time() - began < 20


def test_the_corpus_is_large():
    assert len(CORPUS) >= 30


@pytest.mark.parametrize("name", CORPUS)
def test_whatever_holds_of_any_bytes_holds_of_damaged_traces(name):
    fuzz_trace.check(CORPUS[name][0])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_bytes_changed_at_random(data):
    whole = bytearray(data.draw(st.sampled_from([WHOLE, SOUND["compact"], SOUND["gzip"]])))
    for _ in range(data.draw(st.integers(1, 4))):
        at, length = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 30))
        whole[at : at + length] = data.draw(
            st.binary(max_size=8) | st.sampled_from([b'"', b"]", b"},", b"{", b"nan", b"-"])
        )
    fuzz_trace.check(bytes(whole))


def test_a_call_without_its_process_is_of_no_other_one():
    """Only Ascend writes the calls of a thread as those of a process of its own."""
    call = b'"name": "cudaLaunchKernel", "pid"'
    assert call in WHOLE
    fuzz_trace.check(WHOLE.replace(call, call[:-5] + b'" pid"', 1))


def test_one_damaged_event_costs_one_event():
    """The others keep every nanosecond."""
    damaged = edited("gemm<1,", 'gemm<"1"\x01,')
    whole, read = trace.read_bytes(WHOLE), trace.read_bytes(damaged)
    assert len(read) == len(whole)
    for name in fuzz_trace.COLUMNS:
        assert (getattr(whole, name) == getattr(read, name)).all()
    assert 'gemm<"1" , float>' in read.names


def test_many_damaged_events_take_no_longer_than_their_number():
    seconds = []
    for steps in (300, 1200):
        data = (
            written(document(sound_events(steps=steps)))
            .replace(b'"gemm', b'"a "gemm"')
            .replace(b'"dur": 2', b'"dur": nan')
        )
        began = time.process_time()
        t = trace.read_bytes(data)
        seconds.append(time.process_time() - began)
        assert f"{steps} events are damaged and lost" in t.notes
        assert f"{steps * 3} events are damaged and were read as far as possible" in t.notes
    assert seconds[1] < 16 * max(seconds[0], 0.05)


def test_a_trace_made_to_be_slow_to_salvage_is_not():
    open_ = b'{"ph": "X", "args": {"a": [{"b": 1}, '  # never closed
    for body in (
        open_ * 50_000,
        b'{"a": "' * 200_000,
        b'},{"' * 500_000,
        b"]" * 10**6,
        b'"name": "' * 300_000,
        b"\\" * 10**6,
    ):
        began = time.process_time()
        with contextlib.suppress(TraceError):
            trace.read_bytes(b'{"traceEvents": [' + body)
        assert time.process_time() - began < 30, body[:20]


def test_too_much_damage_is_not_worth_the_time(monkeypatch):
    monkeypatch.setattr(sys.modules["grader.trace.read"], "MOST_DAMAGED", 100)
    data = written(document(sound_events(steps=90))).replace(b'"dur": 2', b'"dur": nan')
    assert "90 events are damaged and lost" in trace.read_bytes(data).notes
    with pytest.raises(TraceError, match="damaged in more than 100 places"):
        trace.read_bytes(data.replace(b'"dur": 3.25', b'"dur": "3.25"'))


def test_a_file_that_is_cut_while_it_is_read(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(WHOLE * 3)
    descriptor = os.open(path, os.O_RDONLY)
    blocks = pieces.file_blocks(descriptor, 0, len(WHOLE) * 3)
    assert next(blocks)
    os.truncate(path, 10)
    assert list(blocks) == []
    os.close(descriptor)


def test_a_sound_bare_list_is_said_to_be_nothing_worse():
    data = json.dumps(document(sound_events())["traceEvents"]).encode()
    bare = "it is a bare list of events, not as torch.profiler writes it"
    assert trace.read_bytes(data + b"\n").notes == [bare]
    assert trace.read_bytes(data + b" more").notes == [bare, "what follows its events is damaged"]
