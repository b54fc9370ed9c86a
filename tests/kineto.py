"""A trace file around events of a test's own. Needs nothing but the standard library, as the fuzzer uses it, too."""

from typing import Any


def document(events: list[dict], devices: int = 1, **more: Any) -> dict[str, Any]:
    """What Kineto writes around its events: facts of the machine, a name of the process, the span and the mark that end
    a recording. more: entries of the document, also in place of those here."""
    at = events[0].get("ts", 0) if events else 0
    name = {"ph": "M", "name": "process_name", "ts": 0.5, "pid": 1, "tid": 0, "args": {"name": "python"}}
    span = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x", "ts": at, "dur": 9}
    end = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": at}
    gpus = [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 1}]
    gpus += [{"id": number, "name": "NVIDIA H200"} for number in range(1, devices)]
    return {
        "schemaVersion": 1,
        "deviceProperties": gpus,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_790_857_026_000_000_000,
        "traceEvents": [name, *events, span, end],
    } | more
