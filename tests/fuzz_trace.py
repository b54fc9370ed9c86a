"""Fuzz the reader of traces with atheris, guided by coverage.

    pip install atheris                                   # Python 3.11 to 3.13; no dependency of the project
    for part in 1 2; do python tests/fuzz_trace.py -max_total_time=900 FOLDER || break; done

FOLDER keeps what reached new code; it is filled from the damaged traces of test_trace_reader.py when it is empty. Ends with
a traceback, and the input in a file, at the first crash, hang, or number that is wrong though the trace is called complete.
In two parts, for atheris itself grows by some 50 KB an input and is stopped at 16 GB (`oom-...`, which is no crash of the
reader: the same inputs without atheris take no memory).

`check` is what must hold for any bytes; test_trace_reader.py uses it too."""

import gzip
import json
import math
import sys
import tempfile
import time
import warnings
from decimal import Decimal, InvalidOperation
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

DATA = Path(__file__).with_name("data")
SECONDS = 5  # of the processor, for an input of a few kilobytes; -timeout is for those that hang
COLUMNS = ["start", "duration", "correlation", "device", "stream", "bytes", "sequence", "python", "parent"]


def reference(data: bytes) -> list[tuple]:
    """A trace's events as plain as can be: (category, name, pid, tid, start, duration, ..., types, dims), in order.
    Raises ValueError or the like for what is not sound."""
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    # Text that the reader has no use for may hold anything.
    document = json.loads(data.decode("utf-8", "surrogateescape"), parse_float=Decimal)
    rows = []
    for e in document["traceEvents"]:
        if e.get("ph") != "X" or e.get("cat") == "Trace":
            continue
        args = e.get("args") or {}
        op, frame = e["cat"] in ("cpu_op", "Operator"), e["cat"] == "python_function"
        work = not op and not frame
        rows.append(
            (
                *(_ns(e["ts"]), _ns(e["dur"])),
                _number(args.get("correlation") if work else None, 2**63),
                _number(args.get("device") if work else None, 256),
                _number(args.get("stream") if work else None, 2**31),
                _number(args.get("bytes") if work else None, 2**63),
                _number(args.get("Sequence number") if op else None, 2**63),
                _number(args.get("Python id") if frame else None, 2**63),
                _number(args.get("Python parent id") if frame else None, 2**63),
                *(e["name"], e.get("pid"), e.get("tid")),
                *(args.get(key) if op else None for key in ("Input type", "Input Dims")),
            )
        )
    return sorted(rows, key=lambda row: (row[0], -row[1]))


def _ns(us) -> int:
    return int((Decimal(us) * 1000).to_integral_value())


def _number(value, limit: int) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, (float, Decimal)) and value == int(value):
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < limit else -1


def rows_of(trace) -> list[tuple]:
    """A trace as `reference` gives it."""
    columns = [getattr(trace, name).tolist() for name in COLUMNS]
    texts = [json.loads(text) if text[:1] == "[" else text for text in trace.texts] + [None]
    named = [trace.names[i] for i in trace.name.tolist()]
    threads = [trace.threads[i] for i in trace.thread.tolist()]
    described = [[texts[i] for i in getattr(trace, name).tolist()] for name in ("types", "dims")]
    pids, tids = [pid for pid, _ in threads], [tid for _, tid in threads]
    return list(zip(*columns, named, pids, tids, *described, strict=True))


def invariants(trace) -> None:
    """What holds of anything that was read."""
    n = len(trace)
    for name in ("category", "name", "thread", "types", "dims", "called_from", *COLUMNS):
        column = getattr(trace, name)
        assert len(column) == n, name
        assert np.issubdtype(column.dtype, np.integer), name
        if n and name != "start":
            assert column.min() >= (0 if name in ("category", "name", "thread", "duration") else -1), name
    if n:
        assert (np.diff(trace.start) >= 0).all(), "in order"
        together = np.diff(trace.start) == 0
        assert (np.diff(trace.duration)[together] <= 0).all(), "the longer first"
        assert np.abs(trace.start).max() <= 4 * 10**18 and trace.duration.max() <= 3600 * 10**9
        assert trace.name.max() < len(trace.names) and trace.thread.max() < len(trace.threads)
        assert max(trace.types.max(), trace.dims.max(), trace.called_from.max()) < len(trace.texts)
        assert trace.device.max() < 256 and trace.stream.max() < 2**31
    assert len({len(getattr(trace.memory, name)) for name in ("time", "device", "allocated", "reserved")}) == 1


def check(data: bytes) -> None:
    """Any bytes: only TraceError is raised, in time, and what a trace that is called complete says is true."""
    from grader import trace

    began = time.process_time()  # whatever else the machine does
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy warns of what overflows
            t = trace.read_bytes(data, max_bytes=32 << 20)
            invariants(t)
            m = trace.metrics(t, 1e6)
            line = trace.timeline(t)
            if ANALYSE:
                ANALYSE(t, 1e6)
    except trace.TraceError as error:
        assert str(error)
        return
    json.dumps([m.to_dict(), line], allow_nan=False)
    assert m.gpu_idle is None or 0 <= m.gpu_idle <= 1
    assert time.process_time() - began < SECONDS, "slow"
    if t.complete and not t.notes:
        try:
            truth = reference(data)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError, EOFError):
            return  # stdlib's json is stricter here and there
        except InvalidOperation:
            return
        assert sorted(map(_key, rows_of(t))) == sorted(map(_key, truth))


def _key(row: tuple) -> str:
    return repr([float(x) if isinstance(x, Decimal) and math.isfinite(x) else x for x in row])


def _analyse():
    try:
        from grader.trace.analysis import analyse

        return analyse
    except ImportError:
        return None


ANALYSE = None
# What mutations insert. libFuzzer reads C escapes, of which JSON's are a part.
WORDS = [
    *(
        '"ph": "B"',
        '"ph": "E"',
        '"ph": "X"',
        '"ts": ',
        '"dur": ',
        '"cat": "kernel"',
        '"cat": "cpu_op"',
        '"cat": "gpu_memcpy"',
        '"name": "',
    ),
    *('"args": {', '"correlation": ', '"device": ', '"stream": ', '"bytes": ', '"Input Dims": [[', '"Input type": ['),
    *('"traceEvents": [', '"baseTimeNanoseconds": ', "ProfilerStep#1", "cudaLaunchKernel", "cudaGraphLaunch", "nan"),
    *('"Task Type": "AI_CORE"', '"connection_id": ', '"External id": ', '"cat": "xpu_runtime"', '"Optimizer.step#'),
    *("inf", "null", "-1", "1e308", "9223372036854775807", "4398046511104.123", "}, {", "]}", '"', "cudaMemcpyAsync"),
]


def seeds(folder: Path) -> None:
    """Small traces, sound and damaged, to start from."""
    from test_trace_anybody import Job, ascend, unmarked
    from test_trace_reader import CORPUS, SOUND, document, sound_events, written

    people = [Job().steps().text(), unmarked(4, 2).text(), ascend(), *(file.read_bytes() for file in DATA.glob("*.gz"))]
    small = [*map(_bytes, people)]
    small += [written(document(sound_events(2, 1, graph)), "compact") for graph in (0, 2)]
    for number, data in enumerate([*small, *SOUND.values(), *(data for data, _ in CORPUS.values())]):
        if len(data) < 1 << 16:
            (folder / f"seed-{number}").write_bytes(data)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def main() -> None:
    global ANALYSE
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install atheris (Python 3.11 to 3.13, Linux)")
    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    if not folders or not folders[0].is_dir():
        sys.exit("usage: python tests/fuzz_trace.py [-max_total_time=SECONDS] FOLDER")
    with atheris.instrument_imports(include=["grader.trace"]):
        import grader.trace  # noqa: F401

        ANALYSE = _analyse()
    if not any(folders[0].iterdir()):
        seeds(folders[0])
    with tempfile.NamedTemporaryFile("w", suffix=".dict") as words:
        words.write("\n".join(json.dumps(word) for word in WORDS))
        words.flush()
        options = ["-max_len=16384", "-timeout=30", "-rss_limit_mb=16384", f"-dict={words.name}"]
        atheris.Setup([*sys.argv, *options], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
