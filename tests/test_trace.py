"""Traces: synthetic ones whose truth is counted nanosecond by nanosecond, damaged and hostile ones, and real ones."""

import gzip
import json
import math
import os
import subprocess
import sys
import time

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grader import labs, trace
from grader.trace import TraceError, catalogue, decode, intervals, kernels, words
from grader.trace.metrics import FITS
from grader.trace.read import to_ns
from grader.trace.work import NEXT_TO_NOTHING
from tests.loops import BACKWARD, MAIN, PAGEABLE, PINNED, Recording


def covered(spans):
    """Every nanosecond of these (start, duration), one by one."""
    return {t for start, duration in spans for t in range(start, start + duration)}


# --- intervals ---------------------------------------------------------------------------------------------------

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


def as_set(spans):
    return covered(zip(spans[0].tolist(), (spans[1] - spans[0]).tolist(), strict=True))


def made(spans):
    starts, durations = np.array(spans, np.int64).reshape(-1, 2).T
    return intervals.union(starts, starts + durations)


@given(SPANS, SPANS)
def test_interval_sets_are_exact(one, other):
    a, b = made(one), made(other)
    assert as_set(a) == covered(one) and intervals.length(a) == len(covered(one))
    assert (a[0][1:] > a[1][:-1]).all(), "disjoint, in order, none touching"
    assert as_set(intervals.intersection(a, b)) == covered(one) & covered(other)
    assert as_set(intervals.difference(a, b)) == covered(one) - covered(other)
    assert as_set(intervals.complement(a, 5, 50)) == set(range(5, 50)) - covered(one)
    assert intervals.contains(a, np.arange(80)).tolist() == [time in covered(one) for time in range(80)]


def test_close_gaps():
    assert as_set(intervals.close_gaps(made([(0, 2), (4, 2), (10, 1)]), 3)) == {*range(6), 10}


# --- reading -----------------------------------------------------------------------------------------------------


@given(st.integers(-(2**52), 2**52))
def test_microseconds_with_a_fraction_become_exact_nanoseconds(ns):
    assert to_ns(np.array([float(f"{ns // 1000}.{ns % 1000:03d}" if ns >= 0 else repr(ns / 1000))]))[0] == ns


def test_conversion_is_that_of_whole_and_fraction_apart():
    for us in (0.0005, 1.0015, 4376463316129.926, 1700000000123456.789, 2.5, 0.1 + 0.2):
        whole = int(us)
        assert to_ns(np.array([us]))[0] == whole * 1000 + round((us - whole) * 1000)


def test_columns():
    t = Recording().step(1, 0, 5000).work("gpu_memcpy", PINNED, 10, 20_123, 77, bytes=1 << 40).read()
    assert t.base_ns == 1_790_857_026_000_000_000 and t.devices == ["NVIDIA H200"]
    copy = np.flatnonzero(t.is_gpu)
    assert (t.start[copy], t.duration[copy], t.bytes[copy], t.stream[copy]) == (20_123, 77, 1 << 40, 7)
    assert t.complete, t.reasons


def good():
    r = Recording()
    for n in range(3):
        r.step(n, n * 1000, n * 1000 + 900).work("kernel", "k", n * 1000 + 10, n * 1000 + 100, 50)
    return r


def reasons(recording, **more):
    t = trace.read_bytes(json.dumps(recording.document(**more)).encode())
    assert not t.complete or t.notes
    json.dumps([trace.metrics(t).to_dict(), trace.timeline(t)], allow_nan=False)
    return " / ".join(t.reasons + t.notes)


def test_a_sound_trace_is_complete_and_an_unsound_one_says_why():
    assert good().read().reasons == []
    assert "no ProfilerStep" in reasons(Recording().work("kernel", "k", 1, 2, 3))
    assert "no GPU events" in reasons(Recording().step(1, 0, 9).step(2, 10, 19))
    assert "1 of 3 launches" in reasons(good().event("cuda_runtime", "cudaLaunchKernel", 1500, 1, correlation=99))
    assert "1 of 4 GPU" in reasons(good().event("kernel", "k", 1500, 1, 7, correlation=99, device=0, stream=7))
    assert "absurd" in reasons(good().event("kernel", "k", 1500, 4 * 3600 * 10**9, 7, correlation=3))
    assert "absurd" in reasons(good().event("kernel", "k", 10**30, 1, 7, correlation=3))
    assert "negative" in reasons(good().event("kernel", "k", 1500, -1, 7, correlation=3))
    assert "overlap" in reasons(good().step(9, 500, 5200))
    assert "several threads" in reasons(good().event("user_annotation", "ProfilerStep#9", 5000, 10, BACKWARD))
    assert "before its launch" in reasons(good().work("kernel", "k", 2_002_500, 2600, 5).step(9, 2_002_000, 2_003_000))
    assert "mark that ends" in reasons(good(), traceEvents=good().events)
    assert "no events" in reasons(Recording(), traceEvents=[])


def test_gpu_work_from_before_the_recording_is_no_defect():
    r = good().event("kernel", "k", 1050, 20, 7, correlation=77, device=0, stream=7)  # runs before step 1's own work
    assert r.read().complete


def test_a_cuda_graph_without_its_kernels_is_incomplete():
    r = good()
    for n in range(400):
        r.work("kernel", "k", 1200 + n, 1300 + n, 1)
    r.event("cuda_runtime", "cudaGraphLaunch", 1700, 1, correlation=9999)
    assert "1 CUDA graph launch has no GPU work" in reasons(r)


DAMAGED = {
    "empty": b"",
    "space": b" \n",
    "an array": b"[1, 2]",
    "events no array": b'{"traceEvents": 7}',
    "another document": b'{"hello": 1}',
    "NaN": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN, "dur": 1}]}',
    "infinity": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e999, "dur": 1}]}',
    "a bare quote": b'{"traceEvents": [{"ph": "X", "name": "a "quoted" word"}]}',
    "no UTF-8": b'{"traceEvents": [{"ph": "X", "name": "\xff\xfe"}]}',
    "deep": b'{"traceEvents": [{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}]}",
    "gzip damaged": b"\x1f\x8b" + b"\x00" * 50,
    "gzip of nothing": gzip.compress(b""),
    "bomb": gzip.compress(b" " * (20 << 20)),
    "too many objects": b'{"traceEvents": [' + b"{}," * 8_000_001 + b"{}]}",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_no_trace_is_refused(name):
    with pytest.raises(TraceError):
        trace.read_bytes(DAMAGED[name], max_bytes=(10 if name == "bomb" else 512) << 20)


@pytest.mark.parametrize("names", [[str(i) for i in range(100)], ["a" * 20_000]])
def test_names_that_take_long_to_judge_are_refused_from_a_stranger(tmp_path, monkeypatch, names):
    r = good()
    for name in names:
        r.event("cpu_op", name, 0, 1)
    (tmp_path / "t.json").write_text(json.dumps(r.document()))
    assert trace.read(tmp_path / "t.json", max_bytes=1 << 20).complete
    monkeypatch.setattr(sys.modules["grader.trace.read"], "MOST_LETTERS", 10_000)
    with pytest.raises(TraceError, match="too many different names"):
        trace.read(tmp_path / "t.json", max_bytes=1 << 20)
    assert trace.read(tmp_path / "t.json").complete


def test_only_regular_files_are_opened(tmp_path):
    real = tmp_path / "trace.json.gz"
    real.write_bytes(gzip.compress(json.dumps(good().document()).encode()))
    assert trace.read(real).complete
    (tmp_path / "link").symlink_to(real)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", ".", "missing", "a\0b"):
        with pytest.raises(TraceError):
            trace.read(tmp_path / name)
    with pytest.raises(TraceError, match="larger"):
        trace.read(real, max_bytes=100)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
CATEGORIES = ["kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "user_annotation"]
ASKED_FOR_AT_TIMES = [each.encode_name for each in msgspec.structs.fields(decode.More)]
HOSTILE_EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXXBEsf"), "cat": st.sampled_from([*CATEGORIES, *CATEGORIES, decode.ARROW, None])},
    optional={
        "name": st.sampled_from(["ProfilerStep#1", "cudaLaunchKernel", "aten::mm", PAGEABLE, "cudaStreamSynchronize"]),
        "ts": st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 50),
        "dur": st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 50),
        "pid": st.integers(0, 1) | st.text(max_size=2),
        "tid": JSON,
        "id": JSON,
        "args": st.fixed_dictionaries(
            {},
            optional={
                "correlation": st.integers(-1, 3) | st.integers(),
                "bytes": st.integers(),
                "device": st.integers(-1, 1) | JSON,
                "stream": st.integers(-1, 2**70) | st.text(max_size=3),
                "Input type": JSON,
                **dict.fromkeys(ASKED_FOR_AT_TIMES, JSON),
            },
        ),
    },
)


@settings(max_examples=200)
@given(st.lists(HOSTILE_EVENT, max_size=12), st.integers(0, 2))
@example([{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {"size(B)": []}}], 0)
@example([{"ph": "X", "cat": None, "name": "k", "ts": 1, "dur": 1, "args": {"Task Type": 1}}], 0)
@example([{"ph": "s", "cat": "HostToDevice", "name": "k", "ts": 1, "id": {}}], 0)
def test_hostile_events_never_crash(events, skip_first):
    try:
        t = trace.read_bytes(json.dumps({"traceEvents": events}).encode())
    except TraceError:
        return
    m, line = trace.metrics(t, 1000.0, skip_first), trace.timeline(t, skip_first=skip_first)
    json.dumps([m.to_dict(), line], allow_nan=False)
    assert m.gpu_idle is None or 0 <= m.gpu_idle <= 1


def test_a_trace_made_to_be_slow_is_not():
    n, events = 20_000, []
    for i in range(n):  # as many steps, streams and names as events; operators nested n deep
        here = {"pid": 1, "tid": 1, "ph": "X"}
        gpu = {"correlation": i + 1, "device": i, "stream": i}
        events.append({**here, "cat": "user_annotation", "name": f"ProfilerStep#{i}", "ts": i * 100, "dur": 50})
        events.append({**here, "cat": "cpu_op", "name": "aten::mm", "ts": i, "dur": 10**7 - 2 * i})
        events.append({**here, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": i * 100 + 9, "args": gpu})
        events.append({**here, "cat": "kernel", "name": f"gemm{i}", "ts": i * 100 + 20, "dur": 5, "args": gpu})
        copy = {**gpu, "correlation": n + i + 1, "bytes": 1 << 20}
        events.append({**here, "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "ts": i * 100 + 9, "args": copy})
        events.append({**here, "cat": "gpu_memcpy", "name": PINNED, "ts": i * 100 + 20, "dur": 5, "args": copy})
    t = trace.read_bytes(json.dumps({"traceEvents": events}).encode())
    began = time.process_time()
    assert trace.metrics(t).steps == n - 1
    trace.timeline(t)
    assert time.process_time() - began < 30


# --- metrics against the truth -----------------------------------------------------------------------------------

WORK = st.lists(
    st.tuples(
        st.sampled_from(["kernel", "gpu_memcpy", "gpu_memset"]),
        st.integers(0, 299),  # launched: steps are [0, 100), [100, 200), [200, 300)
        st.integers(0, 60),  # starts so much later
        st.integers(1, 40),  # and lasts so long
        st.integers(0, 1),  # device
        st.sampled_from([7, 20]),  # stream
        st.sampled_from([MAIN, BACKWARD]),  # launching thread
    ),
    min_size=1,
    max_size=14,
)


def at_work(spent):
    """The devices of these (device, ns), without those that have next to nothing to do, whose idle time does not count."""
    total = {device: sum(ns for other, ns in spent if other == device) for device, _ in spent}
    return {device for device, ns in total.items() if ns >= NEXT_TO_NOTHING * max(total.values())}


@settings(max_examples=200)
@given(WORK, st.none() | st.integers(1, 500))
@example([("kernel", 100, 0, 1, 1, 7, MAIN), *(("kernel", 100, 0, n, 0, 7, MAIN) for n in (40, 11))], None)
def test_busy_idle_and_overlap_to_the_nanosecond(work, step_ns):
    r = Recording().step(1, 0, 100).step(2, 100, 200).step(3, 200, 300)
    for cat, launched, later, duration, device, stream, tid in work:
        name = PINNED if cat == "gpu_memcpy" else cat
        r.work(cat, name, launched, launched + later, duration, tid=tid, device=device, stream=stream, bytes=1 << 20)
    r.event("cuda_sync", "Stream Sync", 100, 150, 7, stream=7, device=0, correlation=5000)  # keeps no GPU busy
    m = trace.metrics(r.read(), step_ns)

    spans = [(c, k // 100, d, (k + later, dur)) for c, k, later, dur, d, _, _ in work if k >= 100]
    assert m.steps == 2
    if not spans:
        assert m.gpu_busy_ns is None and m.kernels is None and not m.complete
        return
    devices = at_work([(d, dur) for _, _, d, (_, dur) in spans])
    each = [sum(len(covered(s for _, k, d, s in spans if (k, d) == (x, y))) for y in devices) for x in (1, 2)]
    busy = sum(each)
    assert m.gpu_busy_ns * 2 * len(devices) == pytest.approx(busy, abs=1e-9)
    ends = [[k + later + dur for _, k, later, dur, *_ in work if (k < 100) == before] for before in (True, False)]
    window = max(200, max(ends[1]) - max([100, *ends[0]])) / 2
    assert m.step_ns_traced == window
    if step_ns and min(each) <= FITS * step_ns * len(devices) < busy / 2:  # longer steps than that one is
        assert m.step_ns is None and m.gpu_idle_unprofiled is None
    else:
        idle = max(0, 1 - busy / 2 / len(devices) / step_ns) if step_ns else None
        assert m.gpu_idle_unprofiled == (pytest.approx(idle) if step_ns else None)
    everywhere = at_work([(d, n) for _, _, _, n, d, _, _ in work])
    high = max(300, *(k + later + n for _, k, later, n, *_ in work))
    running = sum(len(covered((k + lt, n) for _, k, lt, n, d, *_ in work if d == x)) for x in everywhere)
    assert m.gpu_idle == 1 - running / len(everywhere) / high  # of the whole recording
    assert m.kernels == sum(c == "kernel" for c, *_ in spans) / 2 == m.launches
    copied = overlapped = 0
    for device in (0, 1):
        copying = covered(s for c, _, d, s in spans if c == "gpu_memcpy" and d == device)
        copied += len(copying)
        overlapped += len(
            copying & covered((k + lt, n) for c, k, lt, n, d, *_ in work if c == "kernel" and d == device)
        )
    assert m.h2d_overlap == (overlapped / copied if copied else None)


@given(WORK)
def test_the_timeline_shows_exactly_what_ran(work):
    r = Recording().step(1, 0, 100).step(2, 100, 200).step(3, 200, 300)
    for cat, launched, later, duration, _, stream, tid in work:
        r.work(cat, cat, launched, launched + later, duration, tid=tid, stream=stream)
    line = trace.timeline(r.read(), steps=2)
    high = max([300, *(k + later + n for _, k, later, n, *_ in work if k >= 100)])
    shown = covered(tuple(i) for lane in line["lanes"] if lane["kind"] in ("gpu", "copies") for i in lane["intervals"])
    truth = covered((k + later, n) for _, k, later, n, *_ in work) & set(range(100, high))
    assert (line["origin_ns"], line["span_ns"]) == (100, high - 100)
    assert {t + 100 for t in shown} == truth
    assert {t + 100 for t in covered(map(tuple, line["idle"]))} == set(range(100, high)) - truth
    assert line["steps"] == [[0, 100], [100, 200]]


def test_a_timeline_stays_small():
    r = Recording().step(1, 0, 10).step(2, 10, 10**7)
    for n in range(3000):
        r.work("kernel", "k", 20 + n, 1000 + n * 3300, 1000)
    line = trace.timeline(r.read())
    assert all(len(lane["intervals"]) <= 600 for lane in line["lanes"]) and len(line["idle"]) <= 600


def test_copies_and_pinning():
    r = Recording().step(1, 0, 1000).step(2, 1000, 2000).step(3, 2000, 3000)
    for at in (1000, 2000):
        r.work("gpu_memcpy", PINNED, at + 1, at + 10, 5, bytes=3 << 20)
        r.work("gpu_memcpy", PAGEABLE, at + 2, at + 20, 5, bytes=1 << 20)
        r.work("gpu_memcpy", PAGEABLE, at + 3, at + 30, 5, bytes=100)  # too small to matter
        r.work("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", at + 4, at + 40, 6, bytes=4)
        r.work("gpu_memcpy", "Memcpy DtoD (Device -> Device)", at + 5, at + 50, 7)
    m = trace.metrics(r.read())
    assert m.h2d_pinned == 0.75
    assert m.copies["HtoD pinned"] == {"count": 1, "bytes": 3 << 20, "ns": 5}
    assert m.copies["HtoD pageable"] == {"count": 2, "bytes": (1 << 20) + 100, "ns": 10}
    assert m.copies["DtoH"] == {"count": 1, "bytes": 4, "ns": 6}
    assert m.copies["DtoD"] == {"count": 1, "bytes": None, "ns": 7}
    assert m.h2d_overlap == 0 and m.tensor_core_share is None and m.half_share is None


def test_each_blocking_call_counts_once():
    r = Recording().step(1, 0, 1000).step(2, 1000, 2000)
    r.work("kernel", "k", 1001, 1002, 1)
    r.work("gpu_memcpy", PAGEABLE, 1010, 1011, 1).event("cuda_runtime", "cudaStreamSynchronize", 1012, 5)  # one: .to()
    r.event("cpu_op", "aten::_local_scalar_dense", 1100, 50)  # one: .item()
    r.work("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 1110, 1111, 1)
    r.event("cuda_runtime", "cudaStreamSynchronize", 1112, 5)
    r.event("cpu_op", "aten::_local_scalar_dense", 1200, 50)  # none: .item() of a tensor on the CPU
    r.event("cpu_op", "aten::_local_scalar_dense", 1300, 50)  # one: its synchronisation was not recorded
    r.work("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 1310, 1311, 1)
    r.event("cuda_runtime", "cudaDeviceSynchronize", 1400, 5)  # one
    r.work("gpu_memcpy", PAGEABLE, 1500, 1501, 1)  # one: blocks though asynchronous by name
    r.work("gpu_memcpy", PINNED, 1510, 1511, 1)  # none
    r.event("cuda_runtime", "cudaEventSynchronize", 1520, 5, BACKWARD)  # one, on another thread
    r.event("cuda_runtime", "cudaStreamSynchronize", 500, 5).event("cuda_runtime", "cudaDeviceSynchronize", 2500, 5)
    m = trace.metrics(r.read())
    assert m.syncs == 6 and m.would_wait is None, "where waits are known none are guessed"


def test_what_would_wait_is_counted_where_there_is_no_gpu():
    r = Recording().step(1, 0, 1000).step(2, 1000, 2000)
    r.event("cpu_op", "aten::is_nonzero", 1100, 50)  # one, read within it: `if` on a tensor
    r.event("cpu_op", "aten::item", 1110, 30).event("cpu_op", "aten::_local_scalar_dense", 1120, 10)
    r.event("cpu_op", "aten::index", 1200, 50).event("cpu_op", "aten::nonzero", 1210, 10)  # one: a mask as an index
    # none: the optimizer's counters of steps and a DataLoader's samples are on the CPU wherever the model is
    r.event("user_annotation", "Optimizer.step#AdamW.step", 1300, 100)
    r.event("cpu_op", "aten::_local_scalar_dense", 1310, 10)
    r.event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1500, 100)
    r.event("cpu_op", "aten::_local_scalar_dense", 1510, 10)
    m = trace.metrics(r.read(expect_gpu=False))
    assert m.syncs is None and m.would_wait == 2 and len(m.events["would_wait"]) == 2


def test_a_graph_is_one_launch_and_many_kernels():
    r = Recording().step(1, 0, 1000).step(2, 1000, 2000)
    r.event("cuda_runtime", "cudaGraphLaunch", 1001, 5, correlation=50)
    for n in range(10):
        r.event("kernel", "k", 1100 + n * 20_000, 5_000 + 10_000 * (n < 4), 7, correlation=50, device=0, stream=7)
    m = trace.metrics(r.read())
    assert (m.launches, m.kernels, m.syncs) == (1, 10, 0)
    assert m.tiny_kernel_share == 0.6 and m.tiny_kernel_time == pytest.approx(30 / 90)


def matmul(op, types, name, duration=1000, tid=BACKWARD):
    """One product in the counted step: an outer operator in float32 (as autocast leaves it), the product within."""
    r = Recording().step(1, 0, 1000).step(2, 1000, 2000)
    r.event("cpu_op", "aten::linear", 1090, 100, tid, Input_type=["float", "float", ""])
    if op:
        r.event("cpu_op", op, 1100, 50, tid, **({"Input_type": types} if types else {}))
    r.event("cpu_op", "aten::copy_", 1160, 20, tid, Input_type=["c10::BFloat16", "float"])
    r.work("kernel", name, 1110 if op else 1195, 1500, duration, tid=tid)
    r.work("kernel", "void at::native::vectorized_elementwise_kernel<4>", 1170, 5000, 10_000, tid=tid)
    m = trace.metrics(r.read())
    return m.half_share, max(m.tensor_core_share, key=m.tensor_core_share.get)


def test_precision_of_products():
    half = ["c10::BFloat16", "c10::BFloat16"]
    assert matmul("aten::mm", half, "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT") == (1, "yes")
    assert matmul("aten::mm", half, "some_new_kernel") == (1, "yes")
    assert matmul("aten::mm", ["c10::Half"], "some_gemm_kernel") == (1, "yes")
    assert matmul("aten::mm", ["float", "float"], "ampere_sgemm_128x64_tn") == (0, "no")
    assert matmul("aten::mm", ["float"], "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128>") == (0, "yes")
    assert matmul("aten::mm", ["float"], "some_gemm_kernel") == (0, "unknown")
    assert matmul("aten::mm", None, "some_gemm_kernel") == (None, "unknown")
    assert matmul("aten::convolution_backward", half, "sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32") == (1, "yes")
    assert matmul(None, None, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64") == (1, "yes")
    assert matmul(None, None, "triton_tem_fused_mm_0") == (None, "unknown")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNN", (True, True, True)),
        ("nvjet_sm90_qrsss_128x160_128x5_1x2_h_bz_coopA_algo2_TNT", (True, True, True)),  # 8 bits
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4",
            (True, False, False),
        ),
        (
            "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128",
            (True, True, False),
        ),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>", (True, True, True)),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16>", (True, False, True)),
        ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", (True, False, False)),
        ("void fbgemm_gpu::permute_2D_data_kernel<false, int>", (None, None, None)),
        ("void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16>", (False, True, True)),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>", (False, None, None)),
        ("triton_poi_fused_convolution_relu_3", (False, None, None)),
        ("void at::native::elementwise_kernel<128, 2, direct_copy_kernel_cuda>", (False, None, None)),
    ],
)
def test_kernel_names(name, expected):
    assert (kernels.is_matmul_kernel(name), kernels.on_tensor_cores(name), kernels.has_half_inputs(name)) == expected


def test_what_is_not_in_a_trace_is_none_and_never_zero():
    m = trace.metrics(Recording().step(1, 0, 10).step(2, 10, 30).read(expect_gpu=False)).to_dict()
    known = {
        "steps": 1,
        "step_ns_traced": 20,
        "loads_in_main": 0,
        "complete": True,
        "reasons": [],
        "notes": [],
        "steps_sure": 1.0,
        "per_step": {},
        "events": {},
    }
    assert m == dict.fromkeys(m) | known


def test_waits_count_on_the_main_thread_only():
    r = Recording().step(1, 0, 1000).step(2, 1000, 2000).step(3, 2000, 3000)
    r.event("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 900, 300)
    r.event("user_annotation", "data_wait", 1150, 150)  # overlaps: counts once
    r.event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 2000, 500, BACKWARD)
    assert trace.metrics(r.read()).data_wait == 300 / 2000


def test_a_wait_is_a_share_of_the_step_without_the_profiler_as_well():
    r = Recording().step(1, 0, 1000).step(2, 1000, 2000).step(3, 2000, 3000)
    for at in (1000, 2000):
        r.event("user_annotation", "data_wait", at + 100, 300)
    assert trace.metrics(r.read()).data_wait_unprofiled is None
    m = trace.metrics(r.read(), step_ns=500)
    assert (m.data_wait, m.data_wait_unprofiled) == (0.3, 0.6)
    assert trace.metrics(r.read(), step_ns=200).data_wait_unprofiled == 1


def test_operators_outside_of_a_wait_are_those_of_the_main_thread():
    r = Recording().step(1, 0, 1000).step(2, 1000, 2000).step(3, 2000, 3000)
    r.event("user_annotation", "data_wait", 1100, 300)
    for at in (500, 1050, 1200, 1400, 2500):  # the first is not counted, the third is in the wait
        r.event("cpu_op", "aten::add", at, 10)
    r.event("cpu_op", "aten::mul", 1500, 10, BACKWARD)
    assert trace.metrics(r.read()).ops_outside_waits == 1.5


@pytest.mark.parametrize(
    "value, shown",
    [(0, "0"), (0.01234, "0.0123"), (12.34, "12.3"), (999.7, "1,000"), (2086.3, "2,086"), (2e9, "2,000,000,000")],
)
def test_large_numbers_have_no_exponent(value, shown):
    assert words.plain_number(value) == shown
    assert words.milliseconds(value * 1e6) == f"{shown} ms" or 0 < value < 0.1


# --- real traces, pictures, imports ------------------------------------------------------------------------------

TRAIN = """
import sys, time, torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        with record_function("load_sample"):
            time.sleep(0.002)
            return torch.randn(8), index % 4

def train(workers):
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in DataLoader(Slow(), batch_size=4, num_workers=workers):
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield

if __name__ == "__main__":
    torch.set_num_threads(1)
    for workers, path in enumerate(sys.argv[1:]):
        steps = train(2 * workers)
        next(steps)
        with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=4),
                     record_shapes=True, on_trace_ready=lambda p: p.export_chrome_trace(path)) as profiler:
            for _ in range(5):
                next(steps)
                profiler.step()
"""


def test_real_traces_of_a_data_loader(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    paths = [str(tmp_path / name) for name in ("alone.json.gz", "workers.json")]
    subprocess.run([sys.executable, tmp_path / "train.py", *paths], check=True, capture_output=True, timeout=600)
    traces = [trace.read(path, expect_gpu=False) for path in paths]
    alone, workers = (trace.metrics(t) for t in traces)
    for m in (alone, workers):
        assert m.complete and m.steps == 3 and m.step_ns_traced > 0 and m.cpu_ops > 10
        assert m.gpu_idle is None and m.kernels is None and m.launches is None and m.syncs is None
    assert alone.loads_in_main == 4 and workers.loads_in_main == 0
    assert alone.data_wait > 0.5
    assert 0 <= workers.data_wait <= 1
    assert trace.read(paths[0]).reasons == ["it has no GPU events"]
    lines = {"alone": trace.timeline(traces[0]), "workers": trace.timeline(traces[1])}
    assert [lane["name"] for lane in lines["alone"]["lanes"]] == ["data wait", "host"]
    assert len(lines["alone"]["steps"]) == 3
    trace.draw(lines).savefig(tmp_path / "picture.png")


def test_pictures_share_one_time_scale(tmp_path):
    slow, fast = Recording(), Recording()
    for r, length in ((slow, 2_000_000), (fast, 500_000)):
        for n in range(4):
            at = n * length
            r.step(n, at, at + length).work("kernel", "k", at + 10, at + 1000, length // 2)
    lines = {"before": trace.timeline(slow.read(), step_ns=1.9e6), "after": trace.timeline(fast.read())}
    figure = trace.draw(lines)
    figure.savefig(tmp_path / "picture.png")
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        "before: 1.9 ms per step (as recorded: 2 ms)",
        "after: 0.5 ms per step (as recorded)",
    ]
    assert math.isclose(figure.get_figwidth(), 9)
    empty = trace.timeline(Recording().work("kernel", "k", 1, 2, 3).read())
    trace.draw({"before": empty}).savefig(tmp_path / "empty.png")
    trace.draw({"before": empty, "after": lines["after"]}).savefig(tmp_path / "one.png")


def test_the_import_is_light():
    heavy = ("torch", "matplotlib", "IPython", "nbformat")
    code = f"import sys, grader.trace; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_metric_is_declared_once_and_the_views_show_metrics():
    shown = {*catalogue.PEEKED, *catalogue.RECORDED, *catalogue.PROFILED}
    assert shown <= set(catalogue.METRICS)
    for lab in map(labs.get, labs.loops()):
        asked = [check.metric for check in lab.trace]
        assert all(catalogue.unit(name) for name in lab.peek), lab.name
        assert all(catalogue.unit(name) for name in asked if not name.startswith("compiled.")), lab.name
