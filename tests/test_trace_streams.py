"""Streams, queue and lengths of kernels, against a plain count."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_trace_reader import document, written

from grader import trace
from grader.frontends import diagnosis_streams
from grader.trace import streams
from grader.trace.breakdown import CHANGE_OVER_NS, CLOCKS_NS
from grader.trace.steps import Steps

ROOT = Path(__file__).resolve().parents[1]
STEP_NS = 1_000_000


@st.composite
def work(draw):
    """(stream, launched, begins, lasts), ns within its step; in order on each stream."""
    rows, free = [], {}
    for _ in range(draw(st.integers(1, 25))):
        stream = draw(st.sampled_from([7, 20]))
        put = draw(st.integers(0, 900)) * 1000
        begin = max(put + draw(st.integers(-5, 200)) * 1000, free.get(stream, 0) + draw(st.integers(0, 90)) * 1000)
        lasts = draw(st.integers(0, 60)) * 1000
        free[stream] = begin + lasts
        rows.append((stream, put, begin, lasts))
    return rows


def recorded(steps):
    """Two steps, of which the first is not counted."""
    base, events, n = 4388195796371000, [], 0
    for i, rows in enumerate(steps):
        at = base + i * STEP_NS
        host = {"ph": "X", "pid": 1, "tid": 100}
        events.append(
            host | {"cat": "user_annotation", "name": f"ProfilerStep#{i}", "ts": at / 1000, "dur": STEP_NS / 1000}
        )
        for stream, put, begin, lasts in rows:
            n += 1
            call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": (at + put) / 1000, "dur": 1.0}
            gpu = {
                "ph": "X",
                "cat": "kernel",
                "name": "k",
                "pid": 0,
                "tid": stream,
                "ts": (at + begin) / 1000,
                "dur": lasts / 1000,
            }
            events += [
                host | call | {"args": {"correlation": n}},
                gpu | {"args": {"device": 0, "stream": stream, "correlation": n}},
            ]
    return trace.read_bytes(written(document(events)))


@given(work(), work())
@settings(max_examples=150, deadline=None)
def test_streams_are_as_a_plain_count_finds_them(before, rows):
    t = recorded([before, rows])
    steps = Steps(t, 1)
    low, high = steps.window
    found = {one.stream: one for one in streams.streams(t, steps)}
    assert {*found} == {stream for stream, *_ in rows}
    for stream, one in found.items():
        mine = sorted(
            e
            for e in zip(
                t.start[steps.gpu].tolist(),
                t.end[steps.gpu].tolist(),
                steps.launch.tolist(),
                t.stream[steps.gpu].tolist(),
                strict=True,
            )
            if e[3] == stream
        )
        assert one.busy_ns + one.idle_host_ns + one.idle_change_ns + one.idle_held_ns + one.idle_edges_ns == high - low
        assert one.events == len(mine)
        kinds = {"host": 0, "change": 0, "held": 0}
        spans = [e for e in mine if e[1] > e[0] and e[1] > low and e[0] < high]
        for (_, end, *_), (start, *_) in pairwise(spans):
            first = next(e for e in mine if e[0] >= start)
            late = t.end[first[2]] > end + CLOCKS_NS
            kinds["host" if late else "change" if start - end < CHANGE_OVER_NS else "held"] += max(0, start - end)
        assert (one.idle_host_ns, one.idle_change_ns, one.idle_held_ns) == tuple(kinds.values())


@given(work(), work(), st.integers(0, STEP_NS))
@settings(max_examples=150, deadline=None)
def test_the_queue_is_as_long_as_a_plain_count(before, rows, at):
    t = recorded([before, rows])
    steps = Steps(t, 1)
    time, waiting = streams.queue_length(t, steps, 0)
    when = int(time[0]) + at
    launch = t.launch_of(t.gpu)
    expected = ((t.start[launch] <= when) & (t.start[t.gpu] > when)).sum()
    if time[0] <= when < steps.window[1]:
        assert waiting[np.searchsorted(time, when, side="right") - 1] == expected
    assert time[0] == steps.window[0] and (np.diff(time) > 0).all() and (waiting >= 0).all()


@given(work())
@settings(max_examples=50, deadline=None)
def test_every_kernel_is_in_one_class(rows):
    t = recorded([rows, rows])
    found = streams.histogram(t, Steps(t, 1))
    for one in found:
        inside = [lasts for *_, lasts in rows if one.from_ns <= lasts < (one.to_ns or 10**18)]
        assert (one.count, one.ns) == (len(inside), sum(inside))
    assert sum(one.count for one in found) == len(rows)


@pytest.mark.parametrize("name", ["gpt_comm", "gpt_launch", "resnet_input"])
def test_of_recorded_traces(name):
    a = trace.analyse(trace.read(ROOT / f"data/traces/{name}.json.gz"))
    low, high = a.steps.window
    for one in diagnosis_streams.as_json(a)["streams"]:
        idle = sum(value for key, value in one.items() if key.startswith("idle"))
        assert one["busy_ns"] + idle == pytest.approx((high - low) / a.metrics.steps)
        assert 0 <= one["empty_share"] <= 1 and 0 <= one["queue_mean"] <= one["queue_most"]
    page = diagnosis_streams.as_html(a)
    assert "queue empty" in page and "less than 2 µs" in page


def test_without_gpu_work_there_is_nothing():
    t = trace.read_bytes(written(document([])), expect_gpu=False)
    assert streams.streams(t, Steps(t)) == [] == streams.histogram(t, Steps(t))
