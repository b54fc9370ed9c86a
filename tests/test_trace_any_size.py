"""Traces that do not fit in memory: whole steps are kept, and these say what they say within the whole trace."""

import argparse
import dataclasses
import gzip
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_trace_reader import document, sound_events, written

from grader import trace
from grader.errors import UserError
from grader.frontends.commands import diagnose as command
from grader.trace import parallel, pieces, portion
from grader.trace.decode import Columns
from tests.benchmarks.trace_speed import make

ROOT = Path(__file__).resolve().parents[1]
RECORDED = [
    ROOT / "data/traces" / f"{name}.json.gz" for name in ("resnet_healthy", "gpt_launch", "gpt_input", "gpt_comm")
]


def held(monkeypatch, most):
    monkeypatch.setattr(portion, "most_events", lambda: most)
    monkeypatch.setattr(portion, "SMALL", 0)


def numbers(t, skip_first, count=None):
    """What is measured of some steps, as far as it is of these steps alone."""
    m = dataclasses.asdict(trace.metrics(t, skip_first=skip_first, count=count))
    for name in ("notes", "reasons", "events", "gpu_idle", "peak_memory", "memory_growth"):
        m.pop(name)
    return m


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name] == pytest.approx(b[name]) if isinstance(a[name], (int, float)) else a[name] == b[name], name


@pytest.mark.parametrize("source", RECORDED, ids=lambda path: path.name)
def test_kept_steps_say_what_they_say_within_the_whole(source, tmp_path, monkeypatch):
    path = tmp_path / "long.json"
    make(path, 6_000_000 if "gpt" in source.name else 15_000_000, "kineto", source)
    whole = trace.read(path)
    steps = len(whole.steps)
    assert steps >= 5
    held(monkeypatch, len(whole) * 2 // 3)
    part = trace.read(path)
    assert 2 < len(part.steps) < steps and not part.reasons
    assert any(f"{len(part.steps)} of its {steps} steps were read" in note for note in part.notes)
    named = [whole.names[whole.name[step]] for step in whole.steps]
    first = named.index(part.names[part.name[part.steps[0]]])
    assert abs(2 * first + len(part.steps) - steps) <= 2  # the middle
    same(numbers(part, 1), numbers(whole, first + 1, len(part.steps) - 1))
    assert len(part) <= len(whole) * 2 // 3 + 2000 and part.begin == whole.begin


def test_chosen_steps_are_kept_with_the_one_before(tmp_path, monkeypatch):
    path = tmp_path / "steps.json.gz"
    path.write_bytes(gzip.compress(written(document(sound_events(steps=20)))))
    whole = trace.read(path)
    held(monkeypatch, len(whole) // 2)
    part = trace.read(path, steps=(12, 14))
    assert [part.names[part.name[s]] for s in part.steps] == [f"ProfilerStep#{n}" for n in (11, 12, 13, 14)]
    same(numbers(part, 1), numbers(whole, 12, 3))
    with pytest.raises(trace.TraceError, match="it holds 0 to 19"):
        trace.read(path, steps=(30, 40))
    with pytest.raises(trace.TraceError, match="need about"):
        trace.read(path, steps=(None, 18))
    held(monkeypatch, 3)
    with pytest.raises(trace.TraceError, match="alone holds"):
        trace.read(path)


def test_without_steps_the_middle_of_the_time_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "nosteps.json"
    events = [e for e in sound_events(steps=40) if not e["name"].startswith("ProfilerStep")]
    path.write_bytes(written(document(events)))
    whole = trace.read(path)
    held(monkeypatch, len(whole) // 2)
    part = trace.read(path)
    assert any("the middle" in note for note in part.notes)
    assert len(whole) // 4 < len(part) <= len(whole) // 2 + 10
    before, after = part.start.min() - whole.start.min(), whole.end.max() - part.end.max()
    assert abs(before - after) < 0.2 * (whole.end.max() - whole.start.min())
    with pytest.raises(trace.TraceError, match="no ProfilerStep"):
        trace.read(path, steps=(1, 2))


def test_a_file_of_many_rounds_is_the_same(tmp_path, monkeypatch):
    path = tmp_path / "rounds.json"
    path.write_bytes(written(document(sound_events(steps=60, graph=2))))
    whole = trace.read(path)
    for name, value in {"START_UP": 5_000, "SMALLEST": 4_000, "ROUND": 9_000}.items():
        monkeypatch.setattr(parallel, name, value)
    monkeypatch.setattr(parallel, "cores", lambda: 3)
    monkeypatch.setattr(pieces, "BLOCK", 1000)
    started = []
    start = parallel.start_helpers
    monkeypatch.setattr(parallel, "start_helpers", lambda *a: started.append(start(*a)) or started[-1])
    shared = trace.read(path)
    assert len(started) > 2 and all(started[:-1])
    for name in ("start", "duration", "category", "correlation", "dims", "python", "bytes"):
        assert (getattr(shared, name) == getattr(whole, name)).all(), name
    assert shared.notes == whole.notes and shared.reasons == whole.reasons == []


def test_what_is_on_disk_is_what_was_put_there():
    chunks = [json.dumps(sound_events(steps=n)).encode() for n in (1, 3, 2)]
    stores = portion.Store(10**9), portion.Store(0)
    for store in stores:
        for chunk in chunks:
            columns = Columns()
            columns.add(chunk)
            store.add(parallel.Part(columns.header(), {name: b"".join(c) for name, c in columns.packed.items()}))
    assert stores[1].file and not stores[0].file
    for i in range(len(chunks)):
        a, b = (store.columns(i) for store in stores)
        assert all((a[name] == b[name]).all() and len(a[name]) == len(b[name]) for name in a)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 120))
@settings(max_examples=300, deadline=None)
def test_the_middle_holds_as_much_as_fits(counts, most):
    before = np.append(0, np.cumsum(counts))
    low, high = portion.middle(before, most)
    assert 0 <= low < high <= len(counts)
    inside = before[high] - before[low]
    assert inside <= most or high - low == 1
    if inside <= most:  # no neighbour fits besides
        assert low == 0 or before[high] - before[low - 1] > most
        assert high == len(counts) or before[high + 1] - before[low] > most


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["grader.trace.read"], "LEAST_UNZIPPED", 8 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (20 << 20)))
    with pytest.raises(trace.TraceError, match="larger than 8 MB"):
        trace.read(path)


# --- the command ---------------------------------------------------------------------------------------------------


def diagnose(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


def test_chosen_steps_are_diagnosed(tmp_path, capsys):
    path = tmp_path / "steps.json"
    path.write_bytes(written(document(sound_events(steps=9))))
    assert diagnose(path, "--steps", "3:5", "--json", tmp_path / "a.json") == 0
    assert "3 steps counted" in capsys.readouterr().out
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["steps_counted"] == 3
    t = trace.read(path)
    for event in (*found["longest_gaps"], *(e for o in found["top_operations"] for e in o["events"])):
        assert event["at_ms"] == pytest.approx((event["ts"] * 1000 - t.begin) / 1e6)
        assert 2 <= event["at_ms"] <= 7
    for words, said in {
        ("--steps", "7:"): "2 steps",
        ("--steps", ":1"): "2 steps",
        ("--steps", "4"): "1 step ",
    }.items():
        assert diagnose(path, *words) == 0
        assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, said",
    [
        (["--steps", "9:12"], "it holds 0 to 8"),
        (["--steps", "five"], "such as 3:5"),
        (["--steps", "5:3"], "comes after the last"),
        (["--steps", ":"], "such as 3:5"),
        (["--annotate", "steps.json"], "another file"),
        (["--annotate", "-"], "another file"),
        (["--annotate", "no/such/folder.json"], "folder"),
        (["steps.json", "--annotate", "x.json"], "one trace"),
    ],
)
def test_what_is_asked_for_wrongly_is_said(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.json").write_bytes(written(document(sound_events(steps=9))))
    with pytest.raises(UserError, match=said):
        diagnose("steps.json", *words)


def test_found_steps_are_numbered_from_0(tmp_path, capsys):
    path = tmp_path / "steps.json"
    mark = {"ph": "X", "cat": "user_annotation", "name": "train_step", "pid": 1, "tid": 100, "dur": 900}
    events = [e for e in sound_events(steps=9) if not e["name"].startswith("ProfilerStep")]
    path.write_bytes(written(document(events + [mark | {"ts": 4388195796371.125 + 1000 * n} for n in range(9)])))
    found = len(trace.read(path).windows)
    assert found > 4
    assert diagnose(path, "--steps", "2:3") == 0
    assert "2 steps counted" in capsys.readouterr().out


def test_the_report_says_where_to_look(tmp_path, capsys):
    source = RECORDED[1]
    assert diagnose(source, "--annotate", tmp_path / "x.json") == 0
    said = re.search(r"See\s+it\s+at\s+([\d.,]+)\s+ms", capsys.readouterr().out)
    events = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    begin = min(e["ts"] for e in events if e["ph"] in "Xi")  # Perfetto's time begins with the first event
    at = float(said[1].replace(",", "")) * 1000 + begin
    assert any(abs(e["ts"] - at) < 1 for e in events if e["ph"] == "X")
