"""Kinds of foreign traces that were once misread, each with neighbours. Made by hand, so that what is true of each is known."""

from __future__ import annotations

import gzip

import pytest
from test_trace_anybody import ADD, Job, seen

from grader import trace

STEP = "execute_32_context_0(0)_generation_32"

# ---------------------------------------------------------------- one step, cut out of a longer recording


def split(before, held, streams=(7,), orphans=0):
    """A server's step, for whose first `before` us the GPU was busy with the step before it. held: whether the host waits for that."""
    job = Job()
    start = job.now
    for number in range(orphans):
        ids = {"stream": 7, "correlation": 9000 + number}
        job.event("kernel", ADD, start + 20_000 * number, 19_990, 7, 0, device=0, **ids)
    job.event("cuda_runtime", "cudaLaunchKernel", job.now, 4, correlation=8000)  # on the scheduler's own stream
    job.event("kernel", ADD, job.now + 6, 3, 2, 0, device=0, stream=2, correlation=8000)
    job.now += 20
    job.gpu = start + before
    job.op("aten::embedding", 20)
    if held:
        job.event("cuda_runtime", "cudaStreamSynchronize", job.now, start + before - job.now + 30)
        job.now = start + before + 35
    for number in range(50):
        job.op(length=200)
        job.events[-1]["args"]["stream"] = job.events[-1]["tid"] = streams[number % len(streams)]
    return job.wait().mark(STEP, start)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("before", [3_000, 400_000])
def test_a_step_whose_gpu_was_still_busy_with_one_that_was_not_recorded(before, held):
    a = seen(split(before, held))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.step_ns_traced == pytest.approx(10e6, rel=0.03)
    assert "the GPU did work of a step before" in "; ".join(a.metrics.notes) and a.metrics.gpu_idle < 0.05


def test_nor_where_the_last_of_that_was_recorded():
    a = seen(split(400_000, True, orphans=20))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.step_ns_traced == pytest.approx(10e6, rel=0.2)


def test_a_host_that_is_late_is_not_taken_for_that():
    """It waits for nothing before the GPU begins: the time is its own."""
    job = Job()
    start = job.now
    job.now += 50_000
    for _ in range(50):
        job.op(length=200)
    a = seen(job.wait().mark(STEP, start))
    assert a.metrics.step_ns_traced == pytest.approx(60e6, rel=0.02) and a.diagnosis.cause in (
        "input-bound",
        "host-bound",
    )


# ---------------------------------------------------------------- JSON that only a lenient reader takes

VALUES = [
    "N/A",
    "-nan(ind)",
    "1.#INF",
    "-1.#IND",
    "nan(0x7ff)",
    "Infinity",
    "None",
    "True",
    "+5",
    ".5",
    "5.",
    "007",
    "0x1F",
]
VALUES += ["[1, NaN]", "[1,]", '{"a": 1,}']


@pytest.mark.parametrize("value", VALUES)
def test_values_that_are_no_json_cost_nothing_else(value):
    text = Job().steps().text().replace('"device": 0', f'"device": 0, "est. achieved occupancy %": {value}')
    a = seen(text)
    assert a.diagnosis.cause == "compute-bound" and a.metrics.kernels == 10 and a.metrics.complete
    assert "40 events are damaged and were read as far as possible" in a.metrics.notes


@pytest.mark.parametrize("path", [r"C:\Users\x\train.py", r"C:\users\x\unit.py", r"D:\new\table.py", r"\\server\x"])
def test_paths_of_windows(path):
    a = seen(Job().steps().text().replace("aten::mm", f"{path}(3): step"))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.complete and a.metrics.cpu_ops == 10


@pytest.mark.parametrize(("number", "ms"), [("1000.", 10), ("01000", 10), ("+500", 5), ("1e3", 10)])
def test_numbers_that_another_writer_wrote(number, ms):
    job = Job().steps()
    for event in job.events:
        if event["cat"] == "kernel" and number == "+500":
            event["dur"] = 500  # as it is written
    a = seen(job.text().replace(f'"dur": {500 if number == "+500" else 1000}', f'"dur": {number}'))
    assert a.metrics.kernels == 10 and a.metrics.gpu_busy_ns == pytest.approx(ms * 1e6)


WHOLE = Job().steps().text()


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (WHOLE[: WHOLE.rindex("}]") + 1].encode(), "it is cut short"),
        (gzip.compress(WHOLE.encode())[:-8], "they break off"),
        (gzip.compress(WHOLE.encode()) + b"more", "incorrect header check"),
    ],
)
def test_only_what_closes_the_file_is_missing(packed, said):
    a = trace.analyse(trace.read_bytes(packed))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.steps == 3 and said in "; ".join(a.metrics.notes)


def test_but_not_where_events_may_be():
    for packed in (WHOLE[: WHOLE.rindex("}, {")].encode(), gzip.compress(WHOLE.encode())[:-8] + bytes(8)):
        a = trace.analyse(trace.read_bytes(packed))
        assert a.diagnosis.cause is None and not a.metrics.complete
