"""The recorded traces of data/traces/: what their side files say, what they keep to themselves, and the script that
records them, tried out on the CPU."""

import gzip
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from grader import trace
from grader.data import record
from grader.trace.analysis import CAUSES

TRACES = record.TRACES
SIDES = record.side_files(TRACES)
NOT_PLANTED = {"host", "queue"}  # their loops are simulated, see test_diagnosis
LIMIT = 8_000_000  # bytes, all together
SCHEMA = {
    "trace": str,
    "job": str,
    "role": str,
    "cause": str | list,
    "planted_by": str | None,
    "fixed_by": str | None,
    "step_ms": float,
    "step_ms_blocks": list,
    "fixed_step_ms": float | None,
    "fixed_step_ms_blocks": list | None,
    "other_step_ms": dict,
    "step_ms_traced": float | None,
    "steps_recorded": int,
    "model": str,
    "batch": int,
    "sizes": dict,
    "gpus": int,
    "rank": int | None,
    "environment": dict,
    "profiler": dict,
    "device": str,
    "driver": str | None,
    "cpu": str,
    "cuda": str | None,
    "torch": str,
    "torchvision": str,
    "python": str,
    "date": str,
}


def check_side_file(side: dict) -> None:
    assert list(side) == list(SCHEMA)
    for key, kind in SCHEMA.items():
        assert isinstance(side[key], kind), (key, side[key])
    if side["role"] == "planted":
        assert side["cause"] in CAUSES and side["planted_by"]
    else:
        assert side["role"] in ("fixed", "healthy") and set(side["cause"]) <= set(CAUSES)
    assert len(side["step_ms_blocks"]) == record.BLOCKS
    assert side["step_ms"] == pytest.approx(statistics.median(side["step_ms_blocks"]), abs=1e-3)
    assert 3 <= side["steps_recorded"] <= 5 and side["profiler"]["record_shapes"]


def check_nothing_private(path: Path) -> None:
    text = gzip.decompress(path.read_bytes()).decode()
    assert not set(record.PRIVATE) & set(json.loads(text))
    private = re.compile(r"""(?:[\s"'(=:]|\\[fnrt]|\\u[0-9a-f]{4})/(?:tmp|root|home|usr|opt|work|mnt|var|etc|Users)/""")
    assert not private.search(text), private.search(text)


@pytest.mark.slow
def test_every_trace_has_its_side_file():
    assert {side["trace"] for side in SIDES} == {path.name for path in TRACES.glob("*.json.gz")}
    assert len(SIDES) >= 12
    for side in SIDES:
        check_side_file(side)
        check_nothing_private(TRACES / side["trace"])


def test_the_traces_are_small_together():
    assert sum(path.stat().st_size for path in TRACES.iterdir()) <= LIMIT


def test_every_cause_is_there_and_enough_pairs():
    planted = [side for side in SIDES if side["role"] == "planted"]
    assert {side["cause"] for side in planted} == set(CAUSES) - NOT_PLANTED
    assert len([side for side in planted if side["fixed_step_ms"]]) >= 12
    assert [side for side in SIDES if side["role"] == "healthy"]


def test_every_kind_of_trace_is_there():
    assert any(side["profiler"].get("with_stack") for side in SIDES)
    assert any(side["profiler"].get("profile_memory") for side in SIDES)
    assert any(side["gpus"] == 2 for side in SIDES)


@pytest.mark.parametrize("side", SIDES, ids=[side["trace"] for side in SIDES])
def test_a_recorded_trace_is_complete(side):
    read = trace.read(TRACES / side["trace"])
    assert read.complete, read.reasons
    assert len(read.steps) == side["steps_recorded"]


@pytest.mark.parametrize("side", SIDES, ids=[side["trace"] for side in SIDES])
def test_the_planted_cause_is_named_and_no_other_of_a_healthy_loop(side):
    found, _ = record.diagnosed(TRACES, side)
    assert record.as_it_should(found, side), found.diagnosis
    assert found.diagnosis.evidence and found.operations and found.diagnosis.text
    assert sum(found.breakdown.values()) == pytest.approx(side["step_ms"] * 1e6)


def test_the_what_if_is_what_the_fix_gained():
    ratios = {side["trace"]: record.diagnosed(TRACES, side)[1] for side in SIDES}
    off = {job: ratio - 1 for job, ratio in ratios.items() if ratio is not None}
    assert len(off) >= 12
    assert sum(abs(one) <= record.CLOSE for one in off.values()) >= 10 / 12 * len(off), off


@pytest.mark.parametrize(
    "job, said",
    [
        ("gpt_input", "Without that a step would take 17.3"),
        ("gpt_memory", "With these kernels fused a step would take 12.8"),
        ("gpt_compute", "With these on tensor cores a step would take 19.3"),
    ],
)
def test_the_diagnosis_says_under_which_condition_its_what_if_holds(job, said):
    found, _ = record.diagnosed(TRACES, next(s for s in SIDES if s["trace"] == f"{job}.json.gz"))
    assert said in found.diagnosis.text


def test_stacks_tell_the_lines_that_wait():
    found, _ = record.diagnosed(TRACES, next(s for s in SIDES if s["trace"] == "gpt_sync_stacks.json.gz"))
    line, count = next(iter(found.metrics.sync_lines.items()))
    assert line.startswith("data/planted.py:") and count >= 10
    assert any(line.split(":")[0] in e.text for e in found.diagnosis.evidence)


def test_memory_is_reported():
    found, _ = record.diagnosed(TRACES, next(s for s in SIDES if s["profiler"].get("profile_memory")))
    assert found.metrics.peak_memory > 1e9 and abs(found.metrics.memory_growth) < 1e6


def test_the_same_gradients_in_few_messages():
    many, few = (trace.metrics(trace.read(TRACES / f"{name}.json.gz")) for name in ("gpt_comm", "gpt_comm_fixed"))
    assert many.collectives == 52 and few.collectives == 7 and many.exchanged == few.exchanged == 55_629_824


def test_bytes_that_were_copied_are_counted():
    pageable, pinned = (trace.metrics(trace.read(TRACES / f"gpt_transfer{fixed}.json.gz")) for fixed in ("", "_fixed"))
    assert pageable.h2d_bytes == pinned.h2d_bytes == 537_001_984


@pytest.mark.parametrize("side", [each for each in SIDES if each["cause"] == "communication"])
def test_the_what_if_of_an_exchange_is_the_step_that_was_measured_without_it(side):
    """Also where the profiler made the step 1.7 times as long: its host is then not the job's."""
    found = trace.analyse(trace.read(TRACES / side["trace"]), side["step_ms"] * 1e6).diagnosis
    assert found.what_if_step_ms == pytest.approx(side["other_step_ms"]["no_exchange"], rel=0.05)


def test_the_page_is_made_from_the_side_files():
    assert (TRACES / "README.md").read_text() == record.table(TRACES)


def record_tiny(out: Path, jobs: str) -> str:
    command = [sys.executable, "-m", "grader.data.record", "--device", "cpu", "--tiny", "--out", out, "--jobs", jobs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_script_records_on_a_cpu(tmp_path):
    stdout = record_tiny(tmp_path, "gpt_launch,gpt_sync_stacks")
    sides = record.side_files(tmp_path)
    assert [side["trace"] for side in sides] == [
        "gpt_launch.json.gz",
        "gpt_launch_fixed.json.gz",
        "gpt_sync_stacks.json.gz",
    ]
    for side in sides:
        check_side_file(side)
        check_nothing_private(tmp_path / side["trace"])
        metrics = trace.metrics(trace.read(tmp_path / side["trace"], expect_gpu=False))
        assert metrics.complete and metrics.steps == side["steps_recorded"] - 1 and metrics.cpu_ops > 10
    assert sides[0]["fixed_step_ms"] == sides[1]["step_ms"] and "3 traces" in stdout
    stacks = gzip.decompress((tmp_path / "gpt_sync_stacks.json.gz").read_bytes()).decode()
    assert '"data/planted.py(' in stacks and '"torch/nn/modules/module.py(' in stacks
    # what is there is kept
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json*")}
    record_tiny(tmp_path, "gpt_launch")
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json*")}


@pytest.mark.slow
def test_two_ranks_on_a_cpu(tmp_path):
    record_tiny(tmp_path, "gpt_comm")
    planted, fixed = record.side_files(tmp_path)
    assert planted["gpus"] == 2 and planted["rank"] == 0 and planted["batch"] == fixed["batch"]
    assert list(planted["other_step_ms"]) == ["no_exchange"]
    read = trace.read(tmp_path / planted["trace"], expect_gpu=False)
    assert len(read.steps) == planted["steps_recorded"] and (read.rank, read.world_size) == (0, 2)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "/opt/torch/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py(17): f",
            "torch/nn/modules/module.py(17): f",
        ),
        (f"{record.PROJECT}/data/planted.py(3): g", "data/planted.py(3): g"),
        ("/tmp/torchinductor_root/ab/cabc.py", "cabc.py"),
        ("torch/optim/adam.py(3): step", "torch/optim/adam.py(3): step"),
        ("a: /home/me/x/run.py:4 in b", "a: run.py:4 in b"),
        ("4 / 2 and a/b.py", "4 / 2 and a/b.py"),
    ],
)
def test_paths_are_made_relative(path, expected):
    assert record.relative({"args": [path]}) == {"args": [expected]}
