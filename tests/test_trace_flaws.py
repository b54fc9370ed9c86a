"""A harmless flaw costs the damaged part and not the verdict: events that are missing, or there twice, and times in another unit."""

import gzip
import json

import pytest
from test_trace_anybody import GEMM, Job, seen
from test_trace_kinds import short, uneven

from grader import trace


def waiting():
    """A host that does something else before each step."""
    return uneven(2e4, 2e4, 2e4, 2e4)


RIGHT = {
    "busy": "compute-bound",
    "short": "launch-bound",
    "waiting": "host-bound",
    "one": "compute-bound",
    "unmarked": "compute-bound",
}


def of_kind(kind):
    return {
        "busy": Job().steps,
        "short": short,
        "waiting": waiting,
        "one": lambda: Job().steps(1, 20),
        "unmarked": lambda: Job().steps(6, 12, 700, name="iteration"),
    }[kind]()


@pytest.mark.parametrize("place", [0.35, 0.5, 0.75, 0.95])
@pytest.mark.parametrize("what", ["kernel", "cuda_runtime"])
@pytest.mark.parametrize("kind", RIGHT)
def test_a_lost_event_costs_itself_and_not_the_verdict(kind, what, place):
    job = of_kind(kind)
    some = [e for e in job.events if e["cat"] == what and "correlation" in e["args"]]
    job.events.remove(some[int(place * len(some))])
    a = seen(job)
    assert a.diagnosis.cause == RIGHT[kind] and a.metrics.complete
    missing = "; ".join(a.metrics.notes)
    if what == "kernel":
        assert "launches have no GPU work recorded, the first one's cudaLaunchKernel in aten::mm at" in missing
    else:
        assert kind == "short" or "GPU events have no launch recorded" in missing


def test_a_long_kernel_that_was_lost_costs_its_step():
    """Else its time looks like that of a GPU that waits on its own side."""
    job = Job()
    for number in range(8):
        start = job.now
        for length in [300] * 9 + [9000]:
            job.op(length=length)
        job.wait().mark(f"ProfilerStep#{number}", start)
    job.events.remove([e for e in job.events if e["cat"] == "kernel"][39])
    a = seen(job)
    assert a.diagnosis.cause == "compute-bound" and a.metrics.gpu_idle_unprofiled is None
    assert a.metrics.steps == 4 and a.breakdown["idle_queue"] == 0
    assert "Only 4 steps without such a loss are counted" in a.metrics.notes[0]


def test_a_long_kernel_that_each_step_lost_costs_the_verdict():
    job = Job()
    for number in range(8):
        start = job.now
        for length in [300] * 19 + [9000]:
            job.op(length=length)
        job.wait().mark(f"ProfilerStep#{number}", start)
    job.events = [e for e in job.events if e["cat"] != "kernel" or e["dur"] < 9000]
    a = seen(job)
    assert a.diagnosis.cause is None and "6 of 120 launches have no GPU work recorded" in a.metrics.reasons


def test_a_replay_of_a_graph_that_was_lost_costs_its_step():
    job = Job()
    for number in range(6):
        start = job.now
        job.launch(GEMM, 2000, "cudaGraphLaunch")
        job.now += 20
        for _ in range(40):
            job.op(length=50)
        job.wait().mark(f"ProfilerStep#{number}", start)
    job.events.remove([e for e in job.events if e["cat"] == "kernel" and e["dur"] == 2000][1])
    a = seen(job)
    assert a.diagnosis.cause == "compute-bound" and a.metrics.steps == 4
    assert "cudaGraphLaunch" in a.metrics.notes[0]


@pytest.mark.parametrize("which", ["all", "kernels", "one", "appended", "packed"])
@pytest.mark.parametrize("kind", RIGHT)
def test_events_that_are_there_twice_count_once(kind, which):
    job = of_kind(kind)
    once, doc = seen(job), json.loads(job.text())
    kernels = [e for e in doc["traceEvents"] if e.get("cat") == "kernel"]
    again = {"all": doc["traceEvents"], "kernels": kernels, "one": kernels[len(kernels) // 2 :][:1]}
    if which in again:
        a = seen(json.dumps(doc | {"traceEvents": doc["traceEvents"] + again[which]}))
        assert "in it twice and count" in a.metrics.notes[0]
    else:
        text = 2 * (job.text() + "\n").encode()
        a = trace.analyse(trace.read_bytes(gzip.compress(text) if which == "packed" else text))
        assert "another document follows it in the file" in a.metrics.notes[0]
    assert a.diagnosis.cause == RIGHT[kind] and a.metrics.complete
    assert (a.metrics.kernels, a.metrics.gpu_busy_ns) == (once.metrics.kernels, once.metrics.gpu_busy_ns)


@pytest.mark.parametrize("first", [0, 7, 100])
@pytest.mark.parametrize("kind", ["busy", "short", "waiting"])
def test_what_lies_between_two_recordings_in_one_file_is_no_wait(kind, first):
    job, doc = of_kind(kind), json.loads(of_kind(kind).text())
    for event in json.loads(job.text())["traceEvents"]:
        event["ts"] += 3e6
        name, mark, number = event["name"].partition("ProfilerStep#")
        event["name"] = f"ProfilerStep#{int(number) + first}" if mark else name
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] += 9999
        doc["traceEvents"].append(event)
    a, once = seen(json.dumps(doc)), seen(job)
    assert a.diagnosis.cause == RIGHT[kind] and a.metrics.steps == once.metrics.steps == 3
    assert a.metrics.step_ns_traced == once.metrics.step_ns_traced
    assert "its 8 steps do not all follow each other, so only 4 in a row are counted" in a.metrics.notes


@pytest.mark.parametrize("kind", ["busy", "short", "waiting"])
def test_a_lost_mark_costs_the_steps_beside_it(kind):
    job = of_kind(kind)
    job.events.remove(next(e for e in job.events if e["name"] == "ProfilerStep#1"))
    a = seen(job)
    assert a.diagnosis.cause == RIGHT[kind] and a.metrics.steps == 1
    assert a.metrics.step_ns_traced == pytest.approx(seen(of_kind(kind)).metrics.step_ns_traced, rel=0.02)


@pytest.mark.parametrize("what", ["kernel", "cuda_runtime"])
def test_one_wrong_id_costs_little(what):
    job = Job().steps(5, 40, 200)
    some = [e for e in job.events if e["cat"] == what and "correlation" in e["args"]]
    some[90]["args"]["correlation"] = some[89]["args"]["correlation"]
    a = seen(job)
    assert a.diagnosis.cause == "compute-bound" and a.metrics.complete and "several" in a.metrics.notes[-1]


def test_operators_that_are_alike_by_chance_stay():
    """Times of old releases are whole microseconds."""
    job = Job().steps()
    for _ in range(2):
        job.event("cpu_op", "aten::view", 1001, 0)
    a = seen(job)
    assert not a.metrics.notes and (a.trace.duration == 0).sum() == 2


# ---------------------------------------------------------------- times


@pytest.mark.parametrize("since_1970", [0, 1.79e15])
@pytest.mark.parametrize("per_us", [1e-3, 1e-6])
@pytest.mark.parametrize("job", [Job().steps, short, waiting])
def test_times_in_milliseconds_and_in_seconds_are_noticed(job, per_us, since_1970):
    doc = json.loads(job().text())
    for event in doc["traceEvents"]:
        event |= {key: per_us * (event[key] + since_1970 * (key == "ts")) for key in ("ts", "dur") if key in event}
    a = seen(json.dumps(doc))
    assert a.diagnosis.cause is None and "not in microseconds but perhaps in milliseconds" in a.metrics.reasons[0]


# ---------------------------------------------------------------- a time that is far from all others


@pytest.mark.parametrize("ts", [0, 12.5, -5e9, 1.9e15])
@pytest.mark.parametrize("what", ["kernel", "cpu_op", "cuda_runtime", "user_annotation"])
@pytest.mark.parametrize("since_1970", [0, 1.7e15])
def test_a_time_years_away_costs_the_event(since_1970, what, ts):
    """As a kernel whose start was never written, beside times since 1970."""
    job = Job().steps(6, 40)
    for event in job.events:
        event["ts"] += since_1970
    some = [e for e in job.events if e["cat"] == what]
    some[len(some) * 3 // 5]["ts"] = ts
    a = seen(job)
    if what == "cpu_op" or since_1970 or abs(ts) > 1e9:
        assert a.diagnosis.cause == "compute-bound" and a.metrics.step_ns_traced == pytest.approx(40e6, rel=0.02)
    if since_1970 or abs(ts) > 1e9:
        assert a.metrics.complete and "1 event is hours away from all others and left out" in a.metrics.notes


@pytest.mark.parametrize("call", ["cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"])
def test_a_wait_for_a_gpu_that_is_done_is_a_wait_for_what_was_not_recorded(call):
    """It is no wait that one could remove."""
    job = Job()
    for number in range(5):
        start = job.now
        for _ in range(10):
            job.op(length=200)
        job.wait()
        job.events[-1] |= {"name": call, "dur": job.events[-1]["dur"] + 20_000}
        job.now += 20_000
        job.mark(f"ProfilerStep#{number}", start)
    a = seen(job)
    assert (
        a.diagnosis.cause is None
        and "waited for the GPU 20 ms per step after all recorded work" in a.metrics.reasons[-1]
    )
    for event in job.events:
        if event["name"] == call:
            event["dur"] -= 20_000
    assert seen(job).metrics.complete and seen(job).diagnosis.cause == "host-bound"


def test_a_stream_works_in_order():
    """A kernel that seems to run minutes after those that were launched later has a wrong time."""
    job = Job().steps(6, 40)
    kernels = [e for e in job.events if e["cat"] == "kernel"]
    kernels[150]["ts"] += 3e8
    a = seen(job)
    assert a.diagnosis.cause is None and "1 kernel ran out of order" in a.metrics.reasons[0]
    kernels[150]["ts"] -= 3e8
    assert seen(job).metrics.complete
