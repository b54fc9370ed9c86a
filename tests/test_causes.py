"""Traces of other people's jobs, recorded and made up: what holds each of them back, and what is said of it."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader import trace
from grader.trace.diagnosis import EITHER
from tests import loops
from tests.loops import GEMM, PAGEABLE, US, Loop, Recording

LABELLED = Path(__file__).parent / "data" / "traces"
LABELS = json.loads((LABELLED / "labels.json").read_text())
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def labelled(name, step=True):
    step_ms = LABELS[name]["step_ms"]
    return trace.analyse(trace.read(LABELLED / name), step_ms * 1e6 if step_ms and step else None)


def said(a):
    return " ".join([a.diagnosis.text, *(e.text for e in a.diagnosis.evidence), *a.diagnosis.what_to_try])


@pytest.mark.parametrize("name", LABELS)
def test_the_cause_is_one_that_was_accepted(name):
    a = labelled(name)
    assert a.diagnosis.cause in [f"{cause}-bound" for cause in LABELS[name]["accepted"]], a.diagnosis
    assert a.diagnosis.what_to_try


def test_every_labelled_trace_is_there():
    assert set(LABELS) == {path.name for path in LABELLED.glob("*.gz")}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("case_17_index_duplicates.json.gz", "One operation stands out: aten::_index_put_impl_, backward"),
        ("case_17_index_duplicates.json.gz", "Use index_select"),
        ("case_25_python_environments.json.gz", "between aten::squeeze and aten::linear"),
        ("case_05_cpu_confusion_matrix.json.gz", "py-spy"),
        ("case_05_cpu_confusion_matrix.json.gz", "has just read values from the GPU"),
        ("case_24_float_before_copy.json.gz", "uint8 instead of float32"),
    ],
)
def test_the_report_leads_to_the_fix(name, words):
    assert words in said(labelled(name))


@pytest.mark.parametrize(
    ("name", "within", "left"),
    [
        ("case_17_index_duplicates.json.gz", 0.25, 0),
        ("case_24_float_before_copy.json.gz", 0.2, 1 / 4),  # copies bytes in place of float32
    ],
)
def test_the_what_if_is_what_the_accepted_fix_gained(name, within, left):
    found = labelled(name)
    expected = found.diagnosis.what_if_step_ms + left * found.breakdown["copies"] / 1e6
    assert expected == pytest.approx(LABELS[name]["fixed_step_ms"], rel=within)


def test_recorded_stacks_change_no_verdict():
    """13.6 us of waits do not hold back a step of 4.4 ms, however long the profiler took over Python's functions."""
    found = [labelled(f"bert_h100_with{out}_stack.json.gz") for out in ("", "out")]
    assert {a.diagnosis.cause for a in found} == {"launch-bound"}
    assert all(a.breakdown["idle_sync"] <= 2 * (a.metrics.sync_ns or 0) for a in found)


# --- the host's own Python ----------------------------------------------------------------------------------------


def steps_with(between, work=100 * US, count=5, tail=0):
    """Steps of ten kernels; `between(recording, start)` writes what the host does before them, and returns when it ends."""
    r, host, gpu = Recording(), 0, 0
    for number in range(count):
        begin, host = host, between(r, host)
        for _ in range(10):
            r.event("cpu_op", "aten::mm", host, 8 * US)
            gpu = max(host + 8 * US, gpu)
            r.work("kernel", GEMM, host + 2 * US, gpu, work)
            gpu, host = gpu + work, host + 20 * US
        host += tail
        r.step(number, begin, host)
    return r


def test_python_between_operators_is_the_hosts_own_and_its_function_is_named():
    def evaluate(r, at):
        r.event("python_function", "metrics.py(30): accumulate", at, 8_000 * US)
        r.event("python_function", "numpy/lib/arraysetops.py(9): unique", at + 10 * US, 7_900 * US)
        return at + 8_000 * US

    found = trace.analyse(steps_with(evaluate).read())
    assert found.diagnosis.cause == "host-bound", found.diagnosis
    assert "metrics.py(30): accumulate" in found.diagnosis.text and "unique" in found.diagnosis.text
    assert found.diagnosis.what_if_step_ms == pytest.approx(1.0, rel=0.1)


def test_a_mark_around_it_is_named_as_well():
    def draw(r, at):
        r.event("user_annotation", "draw boxes", at, 8_000 * US)
        return at + 8_000 * US

    found = trace.analyse(steps_with(draw).read()).diagnosis
    assert found.cause == "host-bound" and '"draw boxes"' in found.text


@pytest.mark.parametrize("name", ["Python GC", "<built-in function collect>"])
def test_garbage_collection_is_told_by_name(name):
    def collect(r, at):
        r.event("python_function", "train.py(22): main", at, 8_100 * US)
        r.event("python_function", name, at, 8_000 * US)
        return at + 8_000 * US

    a = trace.analyse(steps_with(collect).read())
    assert a.diagnosis.cause == "host-bound" and "garbage collection took 7.19 ms" in a.diagnosis.text
    assert "gc.freeze()" in a.diagnosis.what_to_try[0]


@pytest.mark.parametrize("category", ["cpu_op", "user_annotation"])
def test_garbage_collection_before_the_batch_is_copied_is_no_making_of_the_batch(category):
    """As after each step of a loop whose steps end with the optimizer."""
    r, host, gpu = Recording(), 0, 0
    for number in range(5):
        begin = host
        r.event(category, "Python GC", host, 8_000 * US)
        host += 8_010 * US
        r.event("cpu_op", "aten::copy_", host, 8 * US)
        r.work("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", host + 2 * US, host + 6 * US, 2 * US)
        host += 20 * US
        for _ in range(10):
            r.event("cpu_op", "aten::mm", host, 8 * US)
            gpu = max(host + 8 * US, gpu)
            r.work("kernel", GEMM, host + 2 * US, gpu, 100 * US)
            gpu, host = gpu + 100 * US, host + 20 * US
        r.step(number, begin, host)
    found = trace.analyse(r.read()).diagnosis
    assert found.cause == "host-bound" and "garbage collection took" in found.text, found


@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("user_annotation", "_compile.compile_inner (dynamo_timed)"),
        ("user_annotation", "entire_frame_compile (dynamo_timed)"),
        ("cpu_op", "OutputGraph.call_user_compiler (dynamo_timed)"),
        ("python_function", "torch/_dynamo/convert_frame.py(612): _compile"),
    ],
)
def test_compiling_again_is_told_by_name(category, name):
    def compile_(r, at):
        r.event(category, name, at, 8_000 * US)
        return at + 8_000 * US

    a = trace.analyse(steps_with(compile_).read())
    assert a.diagnosis.cause == "host-bound" and "torch.compile compiled" in a.diagnosis.text
    assert "TORCH_LOGS=recompiles" in a.diagnosis.what_to_try[0]


def test_operators_on_tensors_of_the_cpu_launch_nothing():
    def on_cpu(r, at):
        for i in range(100):
            r.event("cpu_op", "aten::sort", at + i * 80 * US, 78 * US)
        return at + 8_000 * US

    found = trace.analyse(steps_with(on_cpu).read())
    assert found.diagnosis.cause == "host-bound", found.diagnosis
    assert "aten::sort" in said(found) and "tensors of the CPU" in said(found)


def test_an_optimizer_s_own_python_is_launching():
    def step(r, at):
        r.event("user_annotation", "Optimizer.step#Adam.step", at, 3_000 * US)
        return at + 3_000 * US

    assert trace.analyse(steps_with(step).read()).diagnosis.cause == "launch-bound"


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=25, deadline=None)
def test_pauses_anywhere_are_found_and_their_absence_is_foreseen(seed, known):
    rng = random.Random(seed)
    count = rng.randint(20, 100)
    kernels = [rng.choice([20, 60, 200]) * US] * count
    pauses = dict.fromkeys(rng.sample(range(count), rng.randint(2, 12)), rng.randint(1_500, 9_000) * US)
    planted, fixed = Loop(kernels, pauses=pauses), Loop(kernels)
    a = trace.analyse(planted.record()[0].read(), planted.length() if known else None)
    if fixed.length() < 0.75 * planted.length():
        assert a.diagnosis.cause == "host-bound", a.diagnosis
        assert a.diagnosis.what_if_step_ms == pytest.approx(fixed.length() / 1e6, rel=0.15)


# --- loaders that do not look like one ----------------------------------------------------------------------------


def test_a_function_that_makes_the_batch_is_input():
    def decode(r, at):
        r.event("python_function", "train.py(40): step", at, 8_200 * US)
        r.event("python_function", "dataset.py(12): decode_jpeg", at, 8_000 * US)
        return at + 8_000 * US

    found = trace.analyse(steps_with(decode).read()).diagnosis
    assert found.cause == "input-bound" and "dataset.py(12): decode_jpeg" in found.text
    assert found.confidence <= EITHER, "a name is no proof"


def test_workers_that_start_anew_are_input():
    """As a DataLoader without persistent_workers was recorded: its seed, the fork of its workers, then their first batch."""

    def restart(r, at):
        r.event("user_annotation", LOADER, at, 500 * US)
        r.event("cpu_op", "aten::empty", at + 510 * US, 5 * US)
        r.event("cpu_op", "aten::random_", at + 520 * US, 25 * US)
        r.event("cpu_op", "aten::item", at + 550 * US, 9 * US)
        r.event("cpu_op", "aten::random_", at + 7_000 * US, 30 * US)
        r.event("cpu_op", "aten::randperm", at + 7_050 * US, 50 * US)
        r.event("user_annotation", LOADER, at + 7_200 * US, 800 * US)
        return at + 8_000 * US

    a = trace.analyse(steps_with(restart).read())
    assert a.diagnosis.cause == "input-bound" and a.diagnosis.confidence > EITHER, a.diagnosis
    assert "started its workers again" in said(a) and "persistent_workers" in said(a)


def test_work_before_the_first_copy_of_a_step_is_most_likely_its_batch():
    def make(r, at):
        at += 8_000 * US
        r.event("cpu_op", "aten::to", at, 20 * US)
        r.work("gpu_memcpy", PAGEABLE, at + US, at + 8 * US, 4 * US, bytes=1 << 20)
        r.event("cuda_runtime", "cudaStreamSynchronize", at + 3 * US, 10 * US)
        return at + 30 * US

    a = trace.analyse(steps_with(make).read())
    assert a.diagnosis.cause == "input-bound" and a.diagnosis.confidence <= EITHER, a.diagnosis
    assert "Most likely it makes the batch there" in said(a)


# --- waits and queued work ----------------------------------------------------------------------------------------


def items(call="cudaMemcpyAsync", steps=4, cpu=300 * US):
    """Twenty values a step that are copied to pageable memory; the call returns when the copy is done, and so when the kernel is."""
    r, host, gpu = Recording(), 0, 0
    for number in range(steps):
        begin = host
        for _ in range(20):
            r.event("cpu_op", "aten::mm", host, 8 * US)
            r.work("kernel", GEMM, host + 2 * US, host + 8 * US, 300 * US)
            gpu = host + 308 * US
            r.event("cpu_op", "aten::copy_", host + 20 * US, 296 * US)
            r.work("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", host + 21 * US, gpu, 2 * US, call, bytes=4)
            r.events[-2]["dur"] = 291.0
            r.event("cuda_runtime", "cudaStreamSynchronize", host + 313 * US, 2 * US)
            host = gpu + 8 * US + cpu
        r.step(number, begin, host)
    return r


@pytest.mark.parametrize("call", ["cudaMemcpyAsync", "hipMemcpyWithStream"])
def test_a_blocking_copy_counts_with_all_the_time_that_it_held(call):
    a = trace.analyse(items(call).read())
    assert a.metrics.syncs == 20 and a.metrics.sync_ns == pytest.approx(20 * 291 * US, rel=0.01)
    assert a.diagnosis.cause == "sync-bound", a.diagnosis
    assert a.diagnosis.what_if_step_ms == pytest.approx(a.metrics.step_ns_traced / 2e6, rel=0.1)
    assert a.diagnosis.what_if["host"] == pytest.approx(a.diagnosis.what_if_step_ms, rel=0.1), "either would do"
    assert "host-bound" in a.diagnosis.text


def test_what_was_queued_before_the_gap_waits_on_the_gpu_s_side():
    r = Recording()
    for number in range(4):
        at = number * 56_002 * US
        for i in range(10):
            r.event("cpu_op", "aten::mm", at + i * 20 * US, 8 * US)
            r.work("kernel", GEMM, at + (2 + 20 * i) * US, at + (1_000 + 6_000 * i) * US, 1_000 * US)
        r.event("cuda_runtime", "cudaDeviceSynchronize", at + 200 * US, 55_800 * US)
        r.step(number, at, at + 56_001 * US)
    found = trace.analyse(r.read()).diagnosis
    assert found.cause == "queue-bound" and found.what_if_step_ms == pytest.approx(10, rel=0.02), found


@given(st.integers(1, 30), st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_what_waits_on_the_gpu_s_side_is_foreseen(times, seed):
    rng = random.Random(seed)
    kernels = [rng.choice([60, 200]) * US] * rng.randint(20, 80)
    late = times * sum(kernels) // 10
    a = trace.analyse(Loop(kernels, late=late).record()[0].read())
    if times >= 4:
        assert a.diagnosis.cause == "queue-bound", a.diagnosis
        assert a.diagnosis.what_if_step_ms == pytest.approx(Loop(kernels).length() / 1e6, rel=0.15)


def test_a_host_that_waits_after_every_few_launches_is_told_to_remove_the_waits_first():
    loop = Loop([5 * US] * 100, launch=30 * US, sync_after=range(0, 100, 4))
    found = trace.analyse(loop.record()[0].read())
    assert (found.diagnosis.cause, found.diagnosis.runner_up) == ("sync-bound", "launch-bound")
    assert found.diagnosis.confidence <= EITHER and "launch-bound as well" in found.diagnosis.text
    assert ".item()" in found.diagnosis.what_to_try[0]
    assert found.diagnosis.what_if_step_ms <= found.diagnosis.what_if["launch"]


# --- one operator -------------------------------------------------------------------------------------------------


def test_a_loop_of_tiny_kernels_within_one_operator_is_named():
    r, host = Recording(), 0
    for number in range(4):
        begin = host
        r.event("cpu_op", "aten::linalg_qr", host, 8_000 * US)
        for i in range(1_000):
            r.work("kernel", "geqr2_kernel", host + (8 * i + 1) * US, host + (8 * i + 4) * US, US)
        host += 8_010 * US
        r.event("cpu_op", "aten::mm", host, 8 * US).work("kernel", GEMM, host + 2 * US, host + 8 * US, 400 * US)
        host += 500 * US
        r.step(number, begin, host)
    found = trace.analyse(r.read()).diagnosis
    assert found.cause == "launch-bound" and "aten::linalg_qr" in found.what_to_try[0], found
    assert found.what_if_step_ms == pytest.approx(0.5, rel=0.3)


def test_no_simulated_loop_gets_a_wrong_cause_that_is_sure():
    rng, wrong, sure = random.Random(1), 0, 0
    for _ in range(60):
        options = loops.some_loop(rng)
        found = trace.analyse(Loop(**options).record()[0].read()).diagnosis
        if found.confidence >= 0.9:
            sure += 1
            wrong += found.cause.removesuffix("-bound") not in loops.accepted(loops.gains(options))
    assert sure > 20 and wrong <= 0.1 * sure


def test_names_in_a_trace_are_told_as_one_harmless_line():
    def work(r, at):
        r.event("python_function", "a.py(1): \x1b[31m" + "x" * 500 + "\nevil", at, 8_000 * US)
        return at + 8_000 * US

    text = trace.analyse(steps_with(work).read()).diagnosis.text
    assert "\x1b" not in text and "\n" not in text and len(text) < 700


def test_the_what_ifs_are_numbers_of_the_step():
    for name in LABELS:
        a = labelled(name)
        step = (a.step_ns or a.metrics.step_ns_traced) / 1e6
        assert all(0 <= ms <= step * 1.0001 for ms in a.diagnosis.what_if.values())
        assert sum(a.breakdown.values()) / 1e6 == pytest.approx(step) and np.isfinite(a.diagnosis.confidence)


def test_pauses_that_fill_a_short_step_are_the_hosts_own():
    """As of a graph that is replayed once a step, with Python between the replays; an ordinary loop pauses far less."""
    loop = Loop([5 * US] * 37, launch=10 * US, pauses=dict.fromkeys((6, 12, 21, 29), 300 * US))
    assert trace.analyse(loop.record()[0].read()).diagnosis.cause == "host-bound"


def test_pauses_where_an_ordinary_loop_has_them_are_launching():
    loop = Loop([5 * US] * 400, launch=12 * US, pauses=dict.fromkeys((100, 200, 300), 300 * US))
    assert trace.analyse(loop.record()[0].read()).diagnosis.cause == "launch-bound"
