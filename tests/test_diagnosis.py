"""The diagnosis of simulated training loops, whose true cause and true step time without it are known."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader import trace
from grader.frontends.diagnosis_facts import step_length
from grader.trace.catalogue import PARTS
from grader.trace.causes import CAUSES
from grader.trace.diagnosis import diagnose
from grader.trace.events import CPU_OP
from grader.trace.metrics import launching_op
from tests.loops import GEMM, PINNED, POINTWISE, US, Loop, Recording

TRACES = Path(__file__).parents[1] / "data" / "traces"


def analysed(loop, step_ns=None):
    r, _ = loop.record()
    return trace.analyse(r.read(), step_ns)


BIG, SMALL = [300 * US] * 40, [4 * US] * 200

CASES = {
    "input": (dict(kernels=BIG, data=20_000 * US), dict(kernels=BIG)),
    "transfer": (dict(kernels=BIG, copy=9_000 * US), dict(kernels=BIG)),
    "sync": (
        dict(kernels=[40 * US] * 200, launch=30 * US, sync_after=range(0, 200, 2)),
        dict(kernels=[40 * US] * 200, launch=30 * US),
    ),
    "launch": (dict(kernels=SMALL, launch=12 * US), dict(kernels=SMALL, launch=1)),
    "host": (dict(kernels=BIG, absent=20_000 * US), dict(kernels=BIG)),
    "queue": (dict(kernels=BIG, late=6_000 * US), dict(kernels=BIG)),
    "communication": (dict(kernels=BIG, comm=6_000 * US), dict(kernels=BIG)),
    "memory": (dict(kernels=BIG, name=POINTWISE), None),
    "compute": (dict(kernels=BIG), None),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_the_planted_cause_is_named_and_the_what_if_is_what_a_fix_gains(cause):
    planted, fixed = CASES[cause]
    a = analysed(Loop(**planted), Loop(**planted).length())
    assert a.diagnosis.cause == f"{cause}-bound", a.diagnosis
    assert a.metrics.complete
    if fixed:
        assert a.diagnosis.what_if_step_ms == pytest.approx(Loop(**fixed).length() / 1e6, rel=0.1)
        healthy = analysed(Loop(**fixed), Loop(**fixed).length()).diagnosis
        assert healthy.cause in ("compute-bound", "memory-bound"), healthy


@pytest.mark.parametrize("cause", ["input", "sync", "launch", "compute"])
def test_a_profiler_that_stretches_the_host_does_not_change_the_diagnosis(cause):
    planted, fixed = CASES[cause]
    a = analysed(Loop(**planted, stretch=2.5), Loop(**planted).length())
    assert a.diagnosis.cause == f"{cause}-bound", a.diagnosis
    if fixed:
        assert a.diagnosis.what_if_step_ms == pytest.approx(Loop(**fixed).length() / 1e6, rel=0.2)


def test_a_profiler_that_stretches_the_fetching_of_data_leaves_the_launches_their_share():
    kernels = [5 * US] * 20
    length = Loop(kernels, launch=50 * US, data=4_000 * US).length()
    a = analysed(Loop(kernels, launch=55 * US, data=8_000 * US, data_ops=1300), length)
    assert a.diagnosis.cause == "input-bound", a.diagnosis
    without = Loop(kernels, launch=50 * US).length() / 1e6
    assert a.diagnosis.what_if["input"] == pytest.approx(without, rel=0.2)


@pytest.mark.parametrize(
    "loop",
    [
        dict(kernels=[5 * US] * 111, launch=10 * US, sync_after=range(0, 111, 5)),
        dict(kernels=[5 * US] * 53, launch=6 * US, sync_after=range(0, 53, 10)),
        dict(kernels=[5 * US] * 80, launch=6 * US, data=49 * US),
    ],
)
def test_a_profiler_that_did_not_stretch_the_step_took_nothing_of_the_launches(loop):
    """Where the GPU waits for the host, nothing that the profiler takes is hidden. A loop that waits every few launches is called
    sync-bound first."""
    a = analysed(Loop(**loop), Loop(**loop).length())
    assert "launch-bound" in (a.diagnosis.cause, a.diagnosis.runner_up), a.diagnosis
    assert a.diagnosis.cause == "launch-bound" or "sync_after" in loop, a.diagnosis


@pytest.mark.parametrize(
    ("cause", "more"),
    [
        ("communication", {"data": 590 * US, "comm": 820 * US}),
        ("queue", {"late": 440 * US}),
        ("communication", {"comm": 440 * US}),
        ("queue", {"late": 0}),
    ],
)
def test_a_wait_of_the_gpu_beside_a_host_that_is_as_busy_makes_no_sure_verdict(cause, more):
    """Without the wait the step would be as long as the host's own work."""
    loop = Loop([5 * US] * 83, launch=10 * US, **more)
    d = analysed(loop, loop.length()).diagnosis
    if any(more.values()):
        assert (
            d.cause == f"{cause}-bound" and d.confidence <= 0.6 and "it may be the host that holds the step" in d.text
        ), d
    else:
        assert d.cause == "launch-bound" and "may be the host" not in d.text, d


@pytest.mark.parametrize(("cause", "more"), [("input", {"data": 420 * US}), ("host", {"absent": 420 * US})])
def test_what_the_host_does_besides_is_no_sure_cause_where_launching_takes_as_long(cause, more):
    """It does one after the other and never waits for the GPU, so without either of them the other one remains."""
    loop = Loop([5 * US] * 100, launch=6 * US, **more)
    for step_ns in (loop.length(), None):
        d = analysed(loop, step_ns).diagnosis
        assert d.cause == f"{cause}-bound" and d.confidence <= 0.6 and "The host's launches take as long" in d.text, d
    longer = {name: 8 * length for name, length in more.items()}
    loop = Loop([5 * US] * 100, launch=6 * US, **longer)
    assert analysed(loop, loop.length()).diagnosis.confidence > 0.8


@pytest.mark.parametrize(("data", "cause", "part"), [(20 * US, "input", "idle_data"), (0, "host", "idle_other")])
def test_recorded_steps_that_are_shorter_than_the_loops_waited_less(data, cause, part):
    """Batches were ready: loader workers go on while the profiler starts."""
    a = analysed(Loop(BIG, data=data), 80_000 * US)
    traced = a.metrics.step_ns_traced
    assert a.diagnosis.cause == f"{cause}-bound" and a.diagnosis.confidence < 0.75, a.diagnosis
    assert a.breakdown[part] == pytest.approx(80_000 * US - traced, rel=0.05)
    assert a.diagnosis.what_if_step_ms == pytest.approx(traced / 1e6, rel=0.05)
    assert any("are not in the recording. Its steps took 12" in each.text for each in a.diagnosis.evidence)
    assert not any(
        "not in the recording" in each.text for each in analysed(Loop(BIG, data=20_000 * US)).diagnosis.evidence
    )


@pytest.mark.parametrize(("wait", "cause"), [(70_000, "input"), (10_000, "host")])
def test_what_recorded_steps_lack_is_a_wait_for_data_only_as_far_as_it_was_one(wait, cause):
    """`grader run` measures that wait without the profiler."""
    r, _ = Loop(BIG, data=20 * US).record()
    a = trace.analyse(r.read(), 80_000 * US, wait_ns=wait * US)
    assert a.diagnosis.cause == f"{cause}-bound", a.diagnosis
    missing = 80_000 * US - a.metrics.step_ns_traced
    waited = min(missing, wait * US)
    assert a.breakdown["idle_data"] == pytest.approx(waited, rel=0.05)
    assert a.breakdown["idle_other"] == pytest.approx(missing - waited, rel=0.05, abs=1000 * US)
    assert f"which waited for data for {wait // 1000} ms each" in step_length(a)


@pytest.mark.parametrize("tested", [1, 0.2])
def test_anomaly_detection_is_named_where_most_waits_are_its_own(tmp_path, tested):
    """Each `.item()` of a recorded loop that waits follows a search for NaN, or only every fifth does."""
    document = json.loads(gzip.decompress((TRACES / "gpt_sync.json.gz").read_bytes()))
    items = [e for e in document["traceEvents"] if e.get("name") == "aten::item"]
    for item in items[:: round(1 / tested)]:
        search = {"name": "aten::_is_any_true", "ts": item["ts"] - 0.5, "dur": 0.4}
        document["traceEvents"].append({key: value for key, value in item.items() if key != "args"} | search)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    found = trace.analyse(trace.read(path), 17_599_400).diagnosis  # ns, from gpt_sync.json
    assert found.cause == "sync-bound"
    assert ("set_detect_anomaly" in found.what_to_try[0]) == (tested == 1)


def test_what_is_not_in_the_recording_is_said_of_the_cause_that_it_belongs_to():
    """A loop that waits for its launches, with a loader whose wait is not recorded, and less than they cost."""
    loop = Loop(SMALL, launch=12 * US, data=20 * US)
    a = analysed(loop, 1.12 * loop.length())
    assert a.diagnosis.cause == "launch-bound" and a.diagnosis.runner_up == "input-bound", a.diagnosis
    assert not any("not in the recording" in each.text for each in a.diagnosis.evidence)


@given(
    st.lists(st.integers(1, 60).map(lambda n: n * US), min_size=1, max_size=30),
    st.integers(1, 40).map(lambda n: n * US),
    st.sampled_from([0, 500 * US]),
    st.sampled_from([0, 300 * US]),
    st.sets(st.integers(0, 29)),
    st.sampled_from([0, 100 * US]),
    st.none() | st.floats(1e4, 1e8),
)
@settings(max_examples=60)
def test_the_parts_add_up_to_the_step(kernels, launch, data, copy, sync_after, comm, step_ns):
    a = analysed(Loop(kernels, launch, data, copy, sync_after, comm), step_ns)
    assert set(a.breakdown) == set(PARTS)
    assert sum(a.breakdown.values()) == pytest.approx(step_ns or a.metrics.step_ns_traced)
    assert min(a.breakdown.values()) >= 0
    gaps = a.gaps
    assert (gaps.end > gaps.start).all() and (gaps.start[1:] >= gaps.end[:-1]).all()
    json.dumps(a.metrics.to_dict(), allow_nan=False)
    for cause, ms in a.diagnosis.what_if.items():
        assert cause in CAUSES and 0 <= ms <= (step_ns or a.metrics.step_ns_traced) / 1e6 * 1.000001


def test_an_incomplete_trace_gets_no_cause():
    r = Recording().step(1, 0, 100).step(2, 100, 200).event("cuda_runtime", "cudaLaunchKernel", 150, 5, correlation=7)
    a = trace.analyse(r.read())
    assert a.diagnosis.cause is None and "incomplete. it has no GPU events" in a.diagnosis.text


def on_cpu(wait: int) -> Recording:
    """Steps of 1000 ns, so many of them in the DataLoader."""
    r = Recording()
    for n in range(3):
        r.step(n, n * 1000, n * 1000 + 1000)
        if wait:
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            r.event("user_annotation", name, n * 1000, wait)
    return r


@pytest.mark.parametrize(
    ("wait", "cause", "says"),
    [
        (800, "input-bound", "waited for data 80% of the step, and nothing ran on a GPU."),
        (400, None, "nothing ran on a GPU, and waiting for data is 40% of the step, less than half."),
        (499, None, "waiting for data is 49% of the step, less than half."),
        (0, None, "nothing ran on a GPU, and the trace does not show how long a step waits for data."),
    ],
)
def test_a_trace_without_any_gpu_stays_incomplete_and_says_what_can_be_told(wait, cause, says):
    a = trace.analyse(on_cpu(wait).read())
    assert a.metrics.reasons == ["it has no GPU events"] and not a.metrics.complete
    assert a.diagnosis.cause == cause and says in a.diagnosis.text


def test_on_the_cpu_a_wait_is_what_was_measured_of_it():
    guessed, known = (trace.analyse(on_cpu(400).read(), 4000, wait_ns=wait) for wait in (None, 400))
    assert guessed.diagnosis.cause == "input-bound", "3000 ns are missing in each recorded step"
    assert known.diagnosis.cause is None and "waiting for data is 10% of the step" in known.diagnosis.text
    assert "the missing time counts as waiting" in step_length(guessed).lower()
    assert "waiting" not in step_length(trace.analyse(on_cpu(0).read(), 4000)), "no loader was recorded"


def test_on_the_cpu_the_operators_with_most_time_of_their_own_are_named():
    r = on_cpu(0)
    for n in range(3):
        r.event("cpu_op", "aten::linear", n * 1000, 700).event("cpu_op", "aten::addmm", n * 1000 + 10, 600)
        r.event("cpu_op", "aten::gelu", n * 1000 + 800, 100, 200).event("cpu_op", "aten::add", n * 1000 + 950, 10)
        r.event("cpu_op", "<script>::x", n * 1000 + 960, 30).event("cpu_op", "mine::" + "x" * 99, n * 1000 + 700, 90)
    a = trace.analyse(r.read())
    assert list(a.metrics.host_ops.items())[:2] == [("aten::addmm", 600), ("aten::linear", 100)]
    assert a.diagnosis.text.endswith("took most: aten::addmm 60%, aten::linear 10%, aten::gelu 10%.")


def test_on_the_cpu_what_the_host_did_between_operators_is_told():
    """A drawing of 6 ms in each step of 10 ms, after the optimizer."""
    r, ms = Recording(), 1_000_000
    for n in range(4):
        r.step(n, 10 * n * ms, 10 * (n + 1) * ms)
        r.event("cpu_op", "aten::mm", 10 * n * ms, 4 * ms).event(
            "user_annotation", "draw", 10 * n * ms + 4 * ms, 6 * ms
        )
    text = trace.analyse(r.read(expect_gpu=False)).diagnosis.text
    assert "For 6 ms of a step under the profiler (60%) no operator of PyTorch ran" in text
    assert 'Most of it was in "draw"' in text and "between aten::mm and aten::mm" in text


def test_on_the_cpu_as_well_shorter_recorded_steps_waited_less():
    found = trace.analyse(on_cpu(100).read(), 10_000).diagnosis
    assert found.cause == "input-bound" and found.confidence == 0.91 and found.what_if_step_ms == pytest.approx(9e-4)


def test_on_the_cpu_only_waiting_for_data_can_be_told():
    r = on_cpu(800)
    m = trace.metrics(r.read(expect_gpu=False))
    d = diagnose(r.read(expect_gpu=False), m, trace.breakdown.Breakdown())
    assert d.cause == "input-bound" and d.what_if_step_ms == pytest.approx(0.0002)


def test_pinned_copies_that_overlap_cost_nothing():
    r = Recording()
    for n in range(4):
        r.step(n, n * 10_000, n * 10_000 + 10_000)
        r.work("kernel", GEMM, n * 10_000 + 10, n * 10_000 + 20, 9_980)
        r.work("gpu_memcpy", PINNED, n * 10_000 + 30, n * 10_000 + 40, 5_000, stream=20, bytes=1 << 20)
    a = trace.analyse(r.read())
    assert a.breakdown["copies"] == 0 and a.breakdown["tensor_core"] == pytest.approx(9_980)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(0, 1), st.booleans()), max_size=40))
def test_the_innermost_operator_to_the_nanosecond(events):
    """Operators and calls on two threads, nested or overlapping in part; the truth is the last that is still open."""
    events = sorted(events, key=lambda e: (e[0], -e[1]))
    r = Recording()
    for start, duration, thread, is_op in events:
        r.event(
            "cpu_op" if is_op else "cuda_runtime", "aten::x" if is_op else "cudaLaunchKernel", start, duration, thread
        )
    t = r.read(expect_gpu=False)
    found = launching_op(t, np.arange(len(t)))
    for i in range(len(t)):
        open_ops = [
            j for j in range(i) if t.category[j] == CPU_OP and t.thread[j] == t.thread[i] and t.end[j] > t.start[i]
        ]
        assert found[i] == (open_ops[-1] if open_ops else -1)


def test_gaps_between_queued_kernels_are_not_the_hosts():
    """One CUDA graph of tiny kernels a step, replayed back to back: the GPU needs a microsecond from one to the next."""
    r, gpu = Recording(), 0
    for n in range(6):
        r.step(n, n * 600 * US, (n + 1) * 600 * US)
        call = n * 600 * US - (500 * US if n else 0)  # well ahead
        r.event("cuda_runtime", "cudaGraphLaunch", max(call, n * 600 * US), 5 * US, correlation=9000 + n)
        gpu = max(gpu, n * 600 * US + 20 * US)
        for _ in range(300):
            r.event("kernel", POINTWISE, gpu, US, 7, device=0, stream=7, correlation=9000 + n)
            gpu += 2 * US
    a = trace.analyse(r.read())
    assert a.breakdown["idle_between"] == pytest.approx(300 * US, rel=0.05)
    assert a.breakdown["idle_launch"] + a.breakdown["idle_sync"] < 30 * US
    assert a.diagnosis.cause == "memory-bound", a.diagnosis


def test_without_step_marks_the_steps_are_found_by_the_loader():
    r, _ = Loop(BIG, data=20_000 * US).record()
    r.events = [event for event in r.events if not event["name"].startswith("ProfilerStep")]
    a = trace.analyse(r.read())
    assert a.metrics.complete and "found by the DataLoader, which was asked for 5 batches" in a.metrics.notes[-1]
    assert a.metrics.steps == 3 and a.metrics.kernels == 40 == a.operations[0].count
    assert a.diagnosis.cause == "input-bound" and a.diagnosis.confidence <= 0.85
    assert a.breakdown["idle_data"] > 8_000 * US


def beside_copies(launches):
    """A host that hands over a copy of 3 ms from pinned memory and launches meanwhile, 10 us a kernel, what the GPU then does in 4."""
    r, host = Recording(), 0
    for number in range(5):
        begin, gpu = host, host + 3005 * US
        r.work("gpu_memcpy", PINNED, host + US, host + 5 * US, 3000 * US, bytes=1 << 26)
        for _ in range(launches):
            host += 10 * US
            r.event("cpu_op", "aten::mm", host - 10 * US, 10 * US)
            r.work("kernel", GEMM, host - 5 * US, max(gpu, host - 2 * US), 4 * US)
            gpu = max(gpu, host - 2 * US) + 4 * US
        r.event("cuda_runtime", "cudaStreamSynchronize", host, max(gpu - host, 0) + 2 * US)
        host = max(gpu, host) + 5 * US
        r.step(number, begin, host)
    return trace.analyse(r.read()).diagnosis


@pytest.mark.parametrize(("launches", "sure"), [(40, True), (200, True), (280, False), (320, False)])
def test_copies_beside_which_the_host_works_make_no_sure_verdict(launches, sure):
    d = beside_copies(launches)
    assert d.cause == "transfer-bound" and (d.confidence > 0.6) == sure
    assert ("the host works beside most of that" in d.text) != sure
    assert d.what_if["transfer"] == pytest.approx(0.01 * launches, rel=0.05)


def test_copies_that_a_host_nearly_as_slow_hides_in_few_steps_make_no_sure_verdict():
    """It never waits and comes to be ahead, by more in each step: that lead is no gain of a step without the copies."""
    r, gpu = Recording(), 0
    for number in range(4):
        begin = 11_600 * US * number
        gpu = max(gpu, begin) + 8_300 * US
        r.work("gpu_memcpy", PINNED, begin, gpu - 8_300 * US, 8_300 * US, bytes=1 << 27)
        for i in range(100):
            launched = begin + 6_500 * US + 50 * US * i
            gpu = max(gpu, launched + 2 * US) + 48 * US
            r.work("kernel", GEMM, launched, gpu - 48 * US, 48 * US)
        r.step(number, begin, begin + 11_599 * US)
    d = trace.analyse(r.read()).diagnosis
    assert d.cause == "transfer-bound" and d.confidence <= 0.6 and "the host works beside most of that" in d.text
    assert d.what_if["transfer"] == pytest.approx(11.6, rel=0.01)


def copies_of_their_own_stream(late):
    """A copy of 3 ms on a stream of its own, which the host launches after it has waited for the kernels of the step before (late),
    or while these still run; then 40 kernels of 100 us that need what was copied."""
    r, host, free, copied = Recording(), 0, 0, 0
    for number in range(6):
        begin, copied = host, max(host + 3 * US, copied) + 3000 * US
        r.work("gpu_memcpy", PINNED, host, copied - 3000 * US, 3000 * US, stream=20, bytes=1 << 26)
        if not late:
            r.event("cuda_runtime", "cudaStreamSynchronize", host + 3 * US, max(free - host, 0) + 2 * US)
            host = max(free, host) + 5 * US
        for _ in range(40):
            host += 10 * US
            free = max(free, copied, host) + 100 * US
            r.work("kernel", GEMM, host - 5 * US, free - 100 * US, 100 * US)
        if late:
            r.event("cuda_runtime", "cudaStreamSynchronize", host, max(free - host, 0) + 2 * US)
            host = max(free, host) + 5 * US
        r.step(number, begin, host)
    return trace.analyse(r.read()).diagnosis


def test_copies_that_a_wait_kept_from_running_beside_kernels_make_no_sure_verdict():
    d = copies_of_their_own_stream(late=True)
    assert d.cause == "transfer-bound" and d.confidence <= 0.6 and "Without these waits they could run beside" in d.text
    assert copies_of_their_own_stream(late=False).cause == "compute-bound"
