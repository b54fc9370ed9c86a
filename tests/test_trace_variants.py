"""The same recording as other tools, releases and vendors write it: the verdict and the counts stay, or the trace says why not."""

import copy
import gzip
import json
import random

import pytest
from test_trace_anybody import Job, seen

from grader import trace


def busy() -> Job:
    return Job().steps(4, ops=10, length=1000)


def launching() -> Job:
    return Job().steps(4, ops=60, length=5)


BASES = {"compute-bound": busy, "launch-bound": launching}


def document(job: Job) -> dict:
    return json.loads(job.text())


def change(doc: dict, one) -> dict:
    """`one` of each event; None leaves it out."""
    return doc | {"traceEvents": [e for e in map(one, doc["traceEvents"]) if e is not None]}


def with_(event: dict, **changed) -> dict:
    return {**event, **changed}


def is_gpu(event: dict) -> bool:
    return event.get("cat") == "kernel"


def timed(one):
    """Changes the times of all events."""
    return lambda doc: change(doc, lambda e: e | {key: one(e[key]) for key in ("ts",) if key in e})


def without_args(*names):
    return lambda doc: change(
        doc, lambda e: e | {"args": {k: v for k, v in e.get("args", {}).items() if k not in names}}
    )


def of(test, **changed):
    return lambda doc: change(
        doc, lambda e: with_(e, **{k: v(e) for k, v in changed.items()}) if e.get("ph") == "X" and test(e) else e
    )


def without(test):
    return lambda doc: change(doc, lambda e: None if test(e) else e)


def shuffled(doc: dict) -> dict:
    events = [*doc["traceEvents"]]
    random.Random(1).shuffle(events)
    return doc | {"traceEvents": events}


def in_halves(doc: dict) -> dict:
    """Each event as its begin and its end, in order."""
    rows = []
    for e in doc["traceEvents"]:
        if e.get("ph") != "X":
            rows.append((e["ts"], 1, e))
            continue
        begin = {key: value for key, value in e.items() if key != "dur"} | {"ph": "B"}
        rows.append((e["ts"], 2 - e["dur"] / 1e9, begin))  # the longer first
        rows.append((e["ts"] + e["dur"], 0, {"ph": "E", "pid": e["pid"], "tid": e["tid"], "ts": e["ts"] + e["dur"]}))
    return doc | {"traceEvents": [e for *_, e in sorted(rows, key=lambda row: row[:2])]}


def more(make):
    """`make` of each event makes another one, or None."""
    return lambda doc: (
        doc
        | {
            "traceEvents": doc["traceEvents"]
            + [e for e in map(make, copy.deepcopy(doc["traceEvents"])) if e is not None]
        }
    )


def is_step(event: dict) -> bool:
    return event.get("name", "").startswith("ProfilerStep")


def on_second_gpu(event: dict) -> dict | None:
    if event.get("cat") not in ("kernel", "cuda_runtime") or "correlation" not in event["args"]:
        return None
    other = {"device": 1} if is_gpu(event) else {}
    pid = 1 if is_gpu(event) else event["pid"]
    return with_(
        event,
        pid=pid,
        ts=event["ts"] + 0.1,
        args=event["args"] | other | {"correlation": event["args"]["correlation"] + 9999},
    )


OLD = {"kernel": "Kernel", "cuda_runtime": "Runtime", "cpu_op": "Operator", "user_annotation": "Operator"}
HIP = {"cudaLaunchKernel": "hipLaunchKernel", "cudaDeviceSynchronize": "hipDeviceSynchronize"}
XPU = {"cudaLaunchKernel": "urEnqueueKernelLaunch", "cudaDeviceSynchronize": "urQueueFinish"}

SAME = {
    "shuffled": shuffled,
    "times are text": of(lambda e: True, ts=lambda e: f"{e['ts']:.3f}", dur=lambda e: str(e["dur"])),
    "times since 1970": timed(lambda ts: ts + 1.7e15),
    "times from 0": timed(lambda ts: ts - 1000),
    "times below 0": timed(lambda ts: ts - 1e9),
    "pids are text": lambda doc: change(doc, lambda e: e | {key: str(e[key]) for key in ("pid", "tid") if key in e}),
    "pids are names": lambda doc: change(doc, lambda e: e | {key: f"python {e[key]}" for key in ("pid", "tid") if key in e}),
    "ids are text": lambda doc: change(
        doc, lambda e: e | {"args": {k: str(v) if isinstance(v, int) else v for k, v in e.get("args", {}).items()}}
    ),
    "displayTimeUnit": lambda doc: doc | {"displayTimeUnit": "ns"},
    "baseTimeNanoseconds": lambda doc: doc | {"baseTimeNanoseconds": 1_700_000_000_000_000_000},
    "no deviceProperties": lambda doc: {key: value for key, value in doc.items() if key != "deviceProperties"},
    "events last": lambda doc: {**{k: v for k, v in doc.items() if k != "traceEvents"}, "traceEvents": doc["traceEvents"]},
    "begin and end": in_halves,
    "no arrows": without(lambda e: e.get("ph") in ("s", "f")),
    "no names of processes": without(lambda e: e.get("ph") == "M"),
    "old categories": of(lambda e: e["cat"] in OLD, cat=lambda e: OLD[e["cat"]]),
    "HIP": of(lambda e: e["name"] in HIP, name=lambda e: HIP[e["name"]]),
    "HIP's own category": of(lambda e: e["name"] in HIP, name=lambda e: HIP[e["name"]], cat=lambda e: "hip_runtime"),
    "XPU": of(lambda e: e["name"] in XPU, name=lambda e: XPU[e["name"]], cat=lambda e: "xpu_runtime"),
    "marks on the GPU": more(lambda e: with_(e, cat="gpu_user_annotation", pid=0, tid=7) if is_step(e) else None),
    "marks on a second thread": more(lambda e: with_(e, tid=999, ts=e["ts"] + 1) if is_step(e) else None),
    "counters": more(lambda e: {"ph": "C", "name": "SM", "pid": 0, "tid": 0, "ts": e["ts"], "args": {"SM": 0.5}}),
    "zero durations": of(lambda e: e["name"] == "cudaLaunchKernel" and e["args"]["correlation"] == 15, dur=lambda e: 0),
}  # fmt: skip


@pytest.mark.parametrize("cause", BASES)
@pytest.mark.parametrize("name", SAME)
def test_the_same_recording_in_another_form(name, cause):
    job = BASES[cause]()
    a, b = seen(job), seen(json.dumps(SAME[name](document(job))))
    assert a.diagnosis.cause == b.diagnosis.cause == cause
    assert b.diagnosis.confidence == pytest.approx(a.diagnosis.confidence, abs=0.02)
    assert (b.metrics.steps, b.metrics.kernels) == (a.metrics.steps, a.metrics.kernels)
    for measure in ("step_ns_traced", "gpu_busy_ns"):
        assert getattr(b.metrics, measure) == pytest.approx(getattr(a.metrics, measure), rel=1e-3)


@pytest.mark.parametrize("alone", ["B", "E"])
@pytest.mark.parametrize("category", ["cpu_op", "kernel", "python_function"])
def test_a_begin_or_an_end_alone_is_left_out(alone, category):
    doc = in_halves(document(busy()))
    doc["traceEvents"].append({"ph": alone, "cat": category, "name": "aten::add", "pid": 5, "tid": 5, "ts": 1500.0})
    a = seen(json.dumps(doc))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.kernels == 10 and a.metrics.complete
    assert "1 begin or end is alone and left out" in a.metrics.notes


PACKED = {
    "plain": lambda text: text,
    "gzip": gzip.compress,
    "two members": lambda text: gzip.compress(text[:999]) + gzip.compress(text[999:]),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "lines of Windows": lambda text: json.dumps(json.loads(text), indent=1).replace("\n", "\r\n").encode(),
    "bare list": lambda text: json.dumps(json.loads(text)["traceEvents"]).encode(),
    "not a number": lambda text: text.replace(b'"device": 0', b'"device": 0, "occupancy": NaN', 1),
    "infinite": lambda text: text.replace(b'"device": 0', b'"device": 0, "bandwidth": inf', 1),
}


@pytest.mark.parametrize("name", PACKED)
def test_the_same_text_in_another_file(name):
    text = busy().text().encode()
    a = trace.analyse(trace.read_bytes(PACKED[name](text)))
    assert a.diagnosis.cause == "compute-bound" and (a.metrics.steps, a.metrics.kernels) == (3, 10)


@pytest.mark.parametrize(
    ("pack", "said"),
    [
        (lambda text: text.decode().encode("utf-16"), "UTF-16"),
        (lambda text: gzip.compress(gzip.compress(text)), "gzip twice"),
    ],
)
def test_a_file_that_must_be_unpacked_first_says_so(pack, said):
    with pytest.raises(trace.TraceError, match=said):
        trace.read_bytes(pack(busy().text().encode()))


def test_two_gpus_of_one_process():
    a = seen(json.dumps(more(on_second_gpu)(document(busy()))))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.steps == 3 and a.metrics.kernels == 20
    assert a.metrics.gpu_busy_ns == pytest.approx(10e6, rel=1e-3)


def test_two_processes_in_one_file_are_refused():
    def other(event):
        args = event.get("args", {})
        ids = {"correlation": args["correlation"] + 9999, "device": 1} if "correlation" in args else {}
        return with_(event, pid=f"other {event.get('pid')}", args=args | ids)

    a = seen(json.dumps(more(other)(document(busy()))))
    assert a.diagnosis.cause is None and "it holds the steps of 2 processes" in a.metrics.reasons[0]


# ---------------------------------------------------------------- without


def test_without_correlations_the_operator_tells():
    doc = document(launching())
    number = 0
    for e in doc["traceEvents"]:
        if e.get("cat") in ("cpu_op", "cuda_runtime", "kernel"):
            number += e["cat"] == "cpu_op"
            e["args"] = {k: v for k, v in e["args"].items() if k != "correlation"} | {"External id": number}
    a = seen(json.dumps(doc))
    assert a.diagnosis.cause == "launch-bound" and a.metrics.kernels == 60


@pytest.mark.parametrize(
    "how",
    [
        without_args("correlation"),
        without(lambda e: e.get("cat") == "cuda_runtime"),
        without(lambda e: e.get("ph") == "X" and not is_gpu(e)),
    ],
)
def test_without_launches_only_what_keeps_the_gpu_busy_is_named(how):
    a = seen(json.dumps(how(document(busy()))))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.gpu_busy_ns >= 10e6
    a = seen(json.dumps(how(document(launching()))))
    assert a.diagnosis.cause is None and a.metrics.complete
    assert "no launch of its work is recorded, so the trace does not say what it waits for" in a.diagnosis.text


def test_without_steps_they_are_found():
    job = busy()
    a = seen(json.dumps(without(is_step)(document(job))))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.kernels == 10 and a.diagnosis.confidence < 0.8


def test_few_events_make_no_sure_verdict():
    job = Job()
    start = job.now
    job.op(length=50)
    job.now += 100_000
    a = seen(job.mark("ProfilerStep#1", start))
    assert a.diagnosis.cause == "host-bound" and a.diagnosis.confidence <= 0.6


# ---------------------------------------------------------------- cut


@pytest.mark.parametrize("share", [0.3, 0.6])
@pytest.mark.parametrize("cause", BASES)
def test_what_the_gpu_did_last_was_not_recorded(cause, share):
    job = BASES[cause]()
    end = max(e["ts"] for e in job.events if is_gpu(e))
    job.events = [e for e in job.events if not is_gpu(e) or e["ts"] < (1 - share) * end]
    a = seen(job)
    assert a.diagnosis.cause == cause and a.metrics.kernels == (10 if cause == "compute-bound" else 60)
    assert any("the recording ends within its last" in note for note in a.metrics.notes)


def test_the_gpu_was_busy_with_what_was_not_recorded():
    """A server's step that was cut out of a recording: the host had queued it behind the one before."""
    job = Job()
    job.gpu, start = job.now + 9000, job.now
    for _ in range(20):
        job.op(length=500)
    a = seen(job.mark("execute_context_0(0)_generation_16", start))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.step_ns_traced == 10e6 == a.metrics.gpu_busy_ns


@pytest.mark.parametrize(("seconds", "said"), [(3, "clocks of host and GPU are apart"), (-3, "before their launch")])
def test_clocks_that_are_seconds_apart_are_noticed(seconds, said):
    job = Job()
    for number in range(4):
        start = job.now
        for _ in range(10):
            job.op(length=3)
        job.mark(f"ProfilerStep#{number}", start)
    a = seen(json.dumps(of(is_gpu, ts=lambda e: e["ts"] + seconds * 1e6)(document(job))))
    assert a.diagnosis.cause is None and said in a.metrics.reasons[0]


# ---------------------------------------------------------------- what else old files and slow jobs hold


def test_a_loader_that_an_old_release_marked_as_an_operator():
    job = Job()
    for number in range(4):
        start = job.now
        job.event("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", job.now, 20_000)
        job.now += 20_000
        for _ in range(10):
            job.op(length=300)
        job.wait()
        job.event("Operator", f"ProfilerStep#{number}", start, job.now - start)
    a = seen(job)
    assert a.diagnosis.cause == "input-bound" and a.metrics.steps == 3 and a.metrics.data_wait > 0.8


def test_memory_that_is_allocated_again_and_again():
    """As without the caching allocator: each operator asks for memory and gives it back."""
    job = Job()
    for number in range(4):
        start = job.now
        for _ in range(20):
            job.event("cuda_runtime", "cudaMalloc", job.now, 400)
            job.now += 400
            job.op(length=50)
            job.event("cuda_runtime", "cudaFree", job.now, 500)
            job.now += 500
        job.mark(f"ProfilerStep#{number}", start)
    a = seen(job)
    assert (
        a.diagnosis.cause == "host-bound" and "cudaFree 20" in a.diagnosis.text and "cudaMalloc 20" in a.diagnosis.text
    )
    assert "empty_cache" in a.diagnosis.what_to_try[0]


def test_a_first_use_that_was_recorded():
    job = Job()
    start = job.now
    job.op(length=50)
    job.event("cuda_runtime", "cudaLaunchKernel", job.now, 600_000, correlation=900)
    job.now += 600_000
    job.event("kernel", "gemm", job.now + 5, 50, 7, 0, device=0, stream=7, correlation=900)
    job.gpu = job.now + 55
    for _ in range(20):
        job.op(length=50)
    a = seen(job.wait().mark("forward", start))
    assert a.diagnosis.cause == "launch-bound" and "Record steps after a warm-up" in a.diagnosis.text
    assert a.diagnosis.confidence <= 0.6
