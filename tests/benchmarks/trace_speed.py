"""How fast traces are read and diagnosed, and in how much memory, against the time that msgspec's typed decode of the same
bytes takes in the same process, Python's json and, where it is installed, traceinsight (formerly
HolisticTraceAnalysis).

    python -m tests.benchmarks.trace_speed [--megabytes 5 50 200] [--layout kineto|compact|gzip]
        [--traceinsight-python PYTHON]   # of an environment with traceinsight and pandas < 3

Above 256 MB msgspec's time is that for the beginning, times the size. The traces are recorded ones, repeated step after step until they have the size. Seconds are the best of several runs,
memory is the peak of a fresh process and its helpers over what it had after its imports."""

import argparse
import gc
import gzip
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "data/traces/resnet_healthy.json.gz"
GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
CALLS = {"cuda_runtime", "cuda_driver"}
LARGE = 256 << 20  # bytes that are decoded at once


def make(path: Path, size: int, layout: str, source: Path = SOURCE) -> int:
    """Write a trace of about `size` bytes (uncompressed). Returns the number of its entries."""
    document = json.loads(gzip.decompress(source.read_bytes()))
    events = document["traceEvents"]
    # The edges of a recording, where one of launch and kernel is missing, would be repeated too.
    ids = [
        {e["args"]["correlation"] for e in events if e.get("cat") in group and "correlation" in e.get("args", {})}
        for group in (GPU, CALLS)
    ]
    both = ids[0] & ids[1]
    timed = [e for e in events if e["ph"] in "Xsf" and e.get("cat") != "Trace"]
    timed = [e for e in timed if e.get("cat") not in GPU or e["args"]["correlation"] in both]
    others = [e for e in events if e["ph"] not in "Xsf" or e.get("cat") == "Trace"]
    first, last = min(e["ts"] for e in timed), max(e["ts"] + e.get("dur", 0) for e in timed)
    steps = sum(e["name"].startswith("ProfilerStep#") for e in timed if e.get("cat") == "user_annotation")
    write = _kineto if layout != "compact" else lambda e: json.dumps(e, separators=(",", ":"))
    # One text for all repeats, with a place for each value that changes from one to the next.
    places: list[tuple[str, float]] = []
    template = CHANGES.sub(partial(_place, places), "".join(write(e) + ",\n" for e in timed).replace("%", "%%"))
    by = {"ts": last - first + 1000, "id": 10_000_000, "correlation": 10_000_000, "ProfilerStep#": steps}
    written = count = repeat = 0
    with gzip.open(path, "wt", compresslevel=1) if layout == "gzip" else open(path, "w") as file:
        head = {key: value for key, value in document.items() if key != "traceEvents"}
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        while written < size:
            written += file.write(template % tuple(value + repeat * by[what] for what, value in places))
            count += len(timed)
            repeat += 1
        file.write(",\n".join(map(write, others)) + "\n  ]}")
    return count + len(others)


CHANGES = re.compile(r'("ts": ?|"id": ?|"correlation": ?|"ProfilerStep#)(-?[\d.]+)')


def _place(places: list[tuple[str, float]], found: re.Match[str]) -> str:
    what = found[1].strip('": ')
    places.append((what, float(found[2]) if what == "ts" else int(found[2])))
    return found[1] + ("%.3f" if what == "ts" else "%d")


def _kineto(event: dict) -> str:
    """Laid out as the profiler writes it."""
    first = ", ".join(f'"{key}": {json.dumps(event[key])}' for key in event if key not in ("ts", "dur", "args"))
    times = ", ".join(f'"{key}": {event[key]:.3f}' for key in ("ts", "dur") if key in event)
    parts = [first, times]
    if "args" in event:
        parts.append('"args": {\n      ' + json.dumps(event["args"])[1:-1] + "\n    }")
    return "  {\n    " + ",\n    ".join(parts) + "\n  }"


# --- in a fresh process --------------------------------------------------------------------------------------------


def best(run, times: int) -> float:
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - began)
        del result
    return min(seconds)


def peak() -> int:
    """Bytes, the largest of this process so far; Linux."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10


def beginning(path: str) -> tuple[bytes, int]:
    """A trace of the first events, up to LARGE bytes, as what msgspec's decode of it takes is linear; and the size of the whole."""
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
        data = file.read(LARGE)
        size = len(data)
        while block := file.read(1 << 24):
            size += len(block)
    return (data if size == len(data) else data[: data.rindex(b"},\n") + 1] + b"]}"), size


def times(path: str, runs: int) -> dict:
    import msgspec

    from grader import trace
    from grader.trace.analysis import analyse
    from grader.trace.document import Head

    data, size = beginning(path)
    decode = msgspec.json.Decoder(Head).decode
    result: dict = {}
    for _ in range(runs):  # in turns: another load on the machine slows all of them
        gc.collect()
        gc.disable()
        floor = best(lambda: decode(data), 1) * size / len(data)
        gc.enable()
        measured = {
            "floor": floor,
            "read": best(lambda: trace.read(path), 1),
            "alone": best(lambda: trace.read(path, parallel=False), 1) if size <= LARGE else math.nan,
            "diagnosed": best(lambda: analyse(trace.read(path)), 1),
        }
        for name, seconds in measured.items():
            result[name] = min(seconds, result.get(name, seconds))
    t = trace.read(path)
    return result | {"bytes": size, "events": len(t), "reasons": t.reasons, "notes": t.notes}


def memory(path: str) -> dict:
    from grader import trace
    from grader.trace.analysis import analyse

    before = peak()
    t = trace.read(path)
    read = peak() - before + (resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)
    analyse(t)
    return {"read": read, "diagnosed": peak() - before + (resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)}


def stdlib(path: str) -> dict:
    before = peak()

    def run():
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            return json.load(file)

    return {"seconds": best(run, 1), "peak": peak() - before}


TRACEINSIGHT = """
import json, logging, sys, time
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
began = time.perf_counter()
TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
print(json.dumps({"seconds": time.perf_counter() - began}))
"""


def fresh(*command: str) -> dict | None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[5, 50, 200])
    parser.add_argument("--layout", choices=("kineto", "compact", "gzip"), default="kineto")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--traceinsight-python")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        what, path = options.one
        run = {
            "times": lambda: times(path, options.runs),
            "memory": lambda: memory(path),
            "stdlib": lambda: stdlib(path),
        }
        print(json.dumps(run[what]()))
        return
    header = "MB  events  msgspec s  read s  one process s  +diagnosed s  ratio  peak B/B  json s  traceinsight s"
    print(header)
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in options.megabytes:
            path = Path(folder) / f"{megabytes}.json{'.gz' if options.layout == 'gzip' else ''}"
            make(path, megabytes * 10**6, options.layout)
            me = (sys.executable, "-m", "tests.benchmarks.trace_speed", "--runs", str(options.runs), "--one")
            t, used = (fresh(*me, what, str(path)) for what in ("times", "memory"))
            plain = fresh(*me, "stdlib", str(path)) if t["bytes"] <= LARGE else None
            other = None
            if options.traceinsight_python:
                other = fresh(options.traceinsight_python, "-c", TRACEINSIGHT, str(path))
            row = [
                f"{t['bytes'] / 1e6:.1f}",
                f"{t['events']}",
                *(f"{t[name]:.3f}" for name in ("floor", "read", "alone", "diagnosed")),
                f"{t['diagnosed'] / t['floor']:.2f}",
                f"{used['diagnosed'] / t['bytes']:.2f}",
                f"{plain['seconds']:.2f}" if plain else "-",
                f"{other['seconds']:.1f} ({other['seconds'] / t['diagnosed']:.0f}x)" if other else "-",
            ]
            print(
                "  ".join(f"{cell:>{len(word)}}" for cell, word in zip(row, header.split("  "), strict=True)),
                flush=True,
            )
            if t["reasons"]:
                print("  incomplete:", *t["reasons"])
            if t["notes"]:
                print("  ", *t["notes"])
            os.unlink(path)


if __name__ == "__main__":
    main()
