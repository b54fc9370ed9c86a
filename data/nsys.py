"""Turns a trace of torch.profiler into the SQLite file that `nsys export --type sqlite` would make of a report of Nsight Systems.

    python -m grader.data.nsys data/traces/gpt_sync.json.gz report.sqlite

For those who have no nsys: the tables and columns are those of NVIDIA's schema, and so is the SQL that reads them. What
PyTorch's profiler does not record stays out: calls of the operating system, page faults, other processes, GPU metrics.
https://docs.nvidia.com/nsight-systems/UserGuide/index.html (SQLite Schema Reference)"""

import gzip
import json
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

PUSH_POP = 59  # of ENUM_NSYS_EVENT_TYPE
RUNTIME, DRIVER = 0, 1  # of ENUM_NSYS_EVENT_CLASS
COPIES = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "HtoH": 9, "PtoP": 10}  # of ENUM_CUDA_MEMCPY_OPER
KINDS = {"Pageable": 0, "Pinned": 1, "Device": 2}  # of ENUM_CUDA_MEM_KIND

GPU = "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER"
SCHEMA = f"""
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE ENUM_NSYS_EVENT_TYPE (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER NOT NULL, name TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({GPU}, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL,
    registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
    blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({GPU}, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET ({GPU}, bytes INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, text TEXT,
    globalTid INTEGER, textId INTEGER, domainId INTEGER);
INSERT INTO ENUM_NSYS_EVENT_TYPE VALUES ({PUSH_POP}, 'NvtxPushPopRange', 'NvtxPushPopRange');
"""

Event = dict[str, Any]


def short_name(kernel: str) -> str:
    """A kernel's name without return type, namespaces, templates and arguments."""
    bare, depth = "", 0
    for letter in kernel.replace("(anonymous namespace)::", ""):
        if letter in "<(":
            depth += 1
        bare += letter if not depth else ""
        if letter in ">)":
            depth -= 1
    return re.split(r"::| ", bare.strip())[-1] or kernel


def convert(trace: Path, report: Path) -> Path:
    """Write the report of a trace, a `.json` or `.json.gz` of torch.profiler; returns it. Times are ns since the first event.

    The ranges are those that the loop marked itself, and its steps: what `torch.cuda.nvtx.range` would have left."""
    with gzip.open(trace) if trace.suffix == ".gz" else trace.open("rb") as file:
        document = json.load(file)
    events = [event for event in document["traceEvents"] if event.get("ph") == "X" and event.get("cat") != "Trace"]
    report.unlink(missing_ok=True)
    with closing(sqlite3.connect(report)) as database, database:
        database.executescript(SCHEMA)
        database.execute(
            "INSERT INTO META_DATA_EXPORT VALUES ('CONVERTED_FROM', ?)", (f"{trace.name} of torch.profiler",)
        )
        for gpu in document.get("deviceProperties", ()):
            database.execute("INSERT INTO TARGET_INFO_GPU VALUES (?, ?)", (gpu["id"], gpu["name"]))
        _Rows(database, events).write()
    return report


class _Rows:
    """The rows of a trace's events."""

    def __init__(self, database: sqlite3.Connection, events: list[Event]):
        self.database, self.events = database, sorted(events, key=lambda event: event["ts"])
        self.first_us = self.events[0]["ts"] if events else 0.0
        self.strings: dict[str, int] = {}
        host = [event for event in self.events if event["cat"] in ("cuda_runtime", "cuda_driver", "user_annotation")]
        self.process = host[0]["pid"] << 24 if host else 0  # as nsys packs it: the process above 24 bits of the thread

    def write(self) -> None:
        kinds = {
            "kernel": self.kernel,
            "gpu_memcpy": self.copy,
            "gpu_memset": self.memset,
            "cuda_runtime": self.call,
            "cuda_driver": self.call,
            "user_annotation": self.range,
        }
        for event in self.events:
            if row := kinds.get(event["cat"], lambda _: None)(event):
                table, values = row
                marks = ", ".join("?" * len(values))
                self.database.execute(f"INSERT INTO {table} VALUES ({marks})", values)
        self.database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, s) for s, i in self.strings.items()])

    def times(self, event: Event) -> tuple[int, int]:
        start = round(1e3 * (event["ts"] - self.first_us))
        return start, start + round(1e3 * event["dur"])

    def string(self, value: str) -> int:
        return self.strings.setdefault(value, len(self.strings) + 1)

    def on_gpu(self, event: Event) -> tuple[int | None, ...]:
        named = event["args"]
        places = (named["device"], named["context"], named["stream"], named["correlation"])
        return (*self.times(event), *places, self.process)

    def kernel(self, event: Event) -> tuple[str, tuple[Any, ...]]:
        named, name = event["args"], event["name"]
        names = (self.string(name), self.string(short_name(name)))
        sizes = (*named.get("grid", (0, 0, 0)), *named.get("block", (0, 0, 0)))
        registers = named.get("registers per thread", 0)
        return "CUPTI_ACTIVITY_KIND_KERNEL", (*self.on_gpu(event), *names, registers, *sizes)

    def copy(self, event: Event) -> tuple[str, tuple[Any, ...]]:
        way, *ends = re.findall(r"\w+", event["name"].removeprefix("Memcpy "))
        kinds = [KINDS.get(end) for end in (*ends, "", "")[:2]]
        return "CUPTI_ACTIVITY_KIND_MEMCPY", (*self.on_gpu(event), event["args"]["bytes"], COPIES.get(way, 0), *kinds)

    def memset(self, event: Event) -> tuple[str, tuple[Any, ...]]:
        return "CUPTI_ACTIVITY_KIND_MEMSET", (*self.on_gpu(event), event["args"]["bytes"])

    def call(self, event: Event) -> tuple[str, tuple[Any, ...]]:
        kind = RUNTIME if event["cat"] == "cuda_runtime" else DRIVER
        name, correlation = self.string(event["name"]), event["args"].get("correlation")
        thread = self.process + event["tid"]
        return "CUPTI_ACTIVITY_KIND_RUNTIME", (*self.times(event), kind, thread, correlation, name, 0)

    def range(self, event: Event) -> tuple[str, tuple[Any, ...]] | None:
        name = re.sub(r"^ProfilerStep#", "step ", event["name"])
        if "#" in name:  # PyTorch's own, which nsys would not see
            return None
        thread = self.process + event["tid"]
        return "NVTX_EVENTS", (*self.times(event), PUSH_POP, None, name, thread, None, 0)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m grader.data.nsys TRACE.json.gz REPORT.sqlite")
    try:
        print(convert(Path(sys.argv[1]), Path(sys.argv[2])))
    except (OSError, ValueError, LookupError, TypeError) as error:
        sys.exit(f"{sys.argv[1]} cannot be converted, it may be no trace of torch.profiler: {error!r}")
