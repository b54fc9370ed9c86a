"""The copy of a trace with tracks: sound JSON, all of the trace in it, tracks that are right to the nanosecond."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from test_trace_reader import LAYOUTS, document, sound_events, written

from grader import trace
from grader.trace import annotate, intervals, pieces
from grader.trace.catalogue import STEP_PARTS

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ["resnet_healthy", "gpt_sync", "gpt_input", "gpt_transfer", "gpt_launch"]


def annotated(source, target):
    a = trace.analyse(trace.read(source))
    annotate.annotate(Path(source), target, a)
    packed = target.read_bytes()
    return a, json.loads(gzip.decompress(packed) if target.suffix == ".gz" else packed)


def ours(doc):
    """Our process, the names of its tracks by number, slices by track, points by counter."""
    events = doc["traceEvents"] if isinstance(doc, dict) else doc
    process = next(e["pid"] for e in events if e["ph"] == "M" and e["args"].get("name") == annotate.NAME)
    mine = [e for e in events if e["pid"] == process]
    names = {e["tid"]: e["args"]["name"] for e in mine if e["name"] == "thread_name"}
    slices = {name: [e for e in mine if e["ph"] == "X" and e["tid"] == tid] for tid, name in names.items()}
    counters = {}
    for e in mine:
        if e["ph"] == "C":
            counters.setdefault(e["name"], []).append((e["ts"], e["args"]["waiting"]))
    return process, slices, counters, [e for e in events if e["pid"] != process]


def ns(us):
    return round(us * 1000)


@pytest.mark.parametrize("name", RECORDED)
def test_tracks_of_recorded_traces(name, tmp_path):
    source = ROOT / f"data/traces/{name}.json.gz"
    a, doc = annotated(source, tmp_path / "with tracks.json.gz")
    _, slices, counters, rest = ours(doc)
    assert rest == json.loads(gzip.decompress(source.read_bytes()))["traceEvents"]
    assert {*slices} == {"counted steps", "GPU: parts of the step", "GPU: why it idles", "host: what holds it"}
    for track in slices.values():  # in Perfetto slices of a track must not overlap
        for one, other in pairwise(track):
            assert ns(one["ts"]) + ns(one["dur"]) <= ns(other["ts"])
    assert len(slices["counted steps"]) == a.metrics.steps
    assert [ns(s["ts"]) for s in slices["counted steps"]] == a.steps.starts.tolist()
    # Parts and idle times fill the window, and each has its share.
    low, high = a.steps.window
    both = slices["GPU: parts of the step"] + slices["GPU: why it idles"]
    assert sum(ns(s["dur"]) for s in both) == high - low
    spans = intervals.union(
        *(np.array([ns(s[key]) for s in both]) for key in ("ts",)), np.array([ns(s["ts"]) + ns(s["dur"]) for s in both])
    )
    assert [x.tolist() for x in spans] == [[low], [high]]
    words = {part.short for part in STEP_PARTS.values()}
    assert {s["name"] for s in both} <= words
    (counter,) = counters.values()
    assert all(value >= 0 for _, value in counter) and max(value for _, value in counter) > 0
    assert [ts for ts, _ in counter] == sorted(ts for ts, _ in counter)


def test_the_counter_counts(tmp_path):
    t = trace.read(ROOT / "data/traces/gpt_launch.json.gz")
    _, doc = annotated(ROOT / "data/traces/gpt_launch.json.gz", tmp_path / "x.json")
    (points,) = ours(doc)[2].values()
    launch = t.launch_of(t.gpu)
    put, begun = np.minimum(t.start[launch], t.start[t.gpu]), t.start[t.gpu]
    for ts, value in points[:: max(1, len(points) // 50)]:
        at = ns(ts)
        assert value == int(((put <= at) & (begun > at) & (launch >= 0)).sum())


@pytest.mark.parametrize("layout", [*LAYOUTS, "bare"])
@pytest.mark.parametrize("block", [7, 1 << 18])
def test_every_layout_stays_what_it_was(layout, block, tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "BLOCK", block)
    doc = document(sound_events())
    text = json.dumps(doc["traceEvents"], indent=1).encode() if layout == "bare" else written(doc, layout)
    source = tmp_path / "a.json"
    source.write_bytes(text)
    _, made = annotated(source, tmp_path / "b.json")
    *_, rest = ours(made)
    if layout == "bare":
        assert rest == doc["traceEvents"]
    else:
        assert made | {"traceEvents": rest} == json.loads(text)
    again = trace.read(tmp_path / "b.json")
    whole = trace.read(source)
    assert again.begin == whole.begin and len(again.steps) == len(whole.steps) and again.reasons == whole.reasons


def test_a_process_of_the_same_number_is_kept_apart(tmp_path):
    events = sound_events()
    for e in events:
        e["pid"] = annotate.FIRST_ID if e["pid"] == 1 else e["pid"]
    (tmp_path / "a.json").write_bytes(written(document(events)))
    _, made = annotated(tmp_path / "a.json", tmp_path / "b.json")
    assert ours(made)[0] == annotate.FIRST_ID + 1


def test_too_many_slices_leave_the_longest(tmp_path, monkeypatch):
    monkeypatch.setattr(annotate, "MOST", 50)
    source = ROOT / "data/traces/gpt_launch.json.gz"
    a, doc = annotated(source, tmp_path / "b.json")
    _, slices, counters, _ = ours(doc)
    kept = slices["GPU: why it idles (the longest)"]
    assert len(kept) == 50
    lengths = np.sort(a.gaps.end - a.gaps.start)[::-1]
    assert min(ns(s["dur"]) for s in kept) == lengths[49]
    assert all(len(points) <= 50 for points in counters.values())
