"""Files that break off, as where a disk was full: what is whole is judged by, the rest is left out, and both are said."""

import gzip
import json

import pytest
from test_trace_anybody import Job, seen
from test_trace_flaws import waiting
from test_trace_kinds import short

from grader import trace
from grader.trace.events import KERNEL

JOBS = {
    "compute-bound": lambda: Job().steps(12, 20, 500),
    "launch-bound": lambda: Job().steps(12, 60, 5),
    "host-bound": waiting,
}
LATE = ("cuda_runtime", "kernel", "gpu_memcpy")


def written(job, order="kineto"):
    """The text of a trace, in the order in which it is written."""
    doc = json.loads(job.text())
    late = {
        "kineto": lambda e: (e.get("cat") in LATE, e["ts"] if e.get("cat") in LATE else 0),  # the CPU's events first
        "time": lambda e: e["ts"],
        "kinds": lambda e: (LATE.index(e["cat"]) if e.get("cat") in LATE else -1, e["ts"]),
    }[order]
    *events, span, end = doc["traceEvents"]
    doc["traceEvents"] = [*sorted(events, key=late), span, end]
    return json.dumps(doc).encode()


def cut(text, share, packed=False):
    """Cut where this share of its calls and GPU work is written."""
    begin = text.index(b'"cuda_runtime"')
    text = text[: begin + int(share * (len(text) - begin))]
    return gzip.compress(text)[:-9] if packed else text


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["kineto", "time"])
@pytest.mark.parametrize("share", [0.45, 0.7, 0.93])
@pytest.mark.parametrize("cause", ["compute-bound", "launch-bound"])
def test_whole_steps_before_the_cut_are_counted(cause, share, order, packed):
    job = JOBS[cause]()
    whole = seen(job)
    a = trace.analyse(trace.read_bytes(cut(written(job, order), share, packed)))
    assert a.diagnosis.cause == cause and a.metrics.complete and a.metrics.kernels == whole.metrics.kernels
    assert a.metrics.step_ns_traced == pytest.approx(whole.metrics.step_ns_traced, rel=0.03)
    assert 12 * share - 3 <= a.metrics.steps <= 12 * share
    assert "it is cut short" in a.metrics.notes and "the recording ends within its last" in "; ".join(a.metrics.notes)


@pytest.mark.parametrize("share", [0.75, 0.9])
def test_kinds_that_follow_each_other(share):
    """All calls are there, and only some of the kernels."""
    job = JOBS["compute-bound"]()
    a = trace.analyse(trace.read_bytes(cut(written(job, "kinds"), share)))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.kernels == 20


def test_nothing_marked():
    job = JOBS["compute-bound"]()
    job.events = [e for e in job.events if not e["name"].startswith("ProfilerStep")]
    a = trace.analyse(trace.read_bytes(cut(written(job), 0.6)))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.kernels == 20 and "it is cut short" in a.metrics.notes


@pytest.mark.parametrize("share", [-0.3, 0.02, 0.1])
def test_what_holds_no_two_whole_steps_gets_no_verdict(share):
    text = written(JOBS["compute-bound"]())
    a = trace.analyse(trace.read_bytes(cut(text, share)))
    assert a.diagnosis.cause is None and "it is cut short" in a.metrics.reasons


def test_a_packed_file_that_is_wrong_in_its_middle_gets_none():
    packed = bytearray(gzip.compress(written(JOBS["compute-bound"]())))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = bytes(40)
    assert trace.analyse(trace.read_bytes(bytes(packed))).diagnosis.cause is None


def test_the_report_counts_what_is_left(tmp_path, capsys):
    from grader.frontends import cli

    path = tmp_path / "trace.json"
    path.write_bytes(cut(written(JOBS["launch-bound"]()), 0.7))
    assert cli.main(["diagnose", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "launch-bound" in said and "cut short" in said


@pytest.mark.parametrize("target", ["copy.json", "copy.json.gz"])
@pytest.mark.parametrize("packed", [False, True])
def test_the_copy_with_tracks_is_sound(packed, target, tmp_path):
    from grader.trace import annotate

    path = tmp_path / ("trace.json" + ".gz" * packed)
    path.write_bytes(cut(written(JOBS["launch-bound"]()), 0.7, packed))
    a = trace.analyse(trace.read(path))
    annotate.annotate(path, tmp_path / target, a)
    text = (tmp_path / target).read_bytes()
    events = json.loads(gzip.decompress(text) if target.endswith("gz") else text)["traceEvents"]
    assert sum(e.get("cat") == "kernel" for e in events) == (a.trace.category == KERNEL).sum()
    assert "counted steps" in {e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_a_short_file_is_cut_as_well():
    a = trace.analyse(trace.read_bytes(cut(written(short()), 0.9)))
    assert a.diagnosis.cause == "launch-bound" and a.metrics.steps >= 1
