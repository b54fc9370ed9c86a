"""Memory, seen from outside: what grows, what does not fit, and the labs 3g and 3h that ask for it."""

from __future__ import annotations

import pytest
from helpers import running

from grader.checks.memory import judge_budget, judge_growth
from grader.labs.lab import Budget, Growth
from grader.measure.memory import Level, Meter, growth
from grader.result import FAIL, INCONCLUSIVE, PASS

HINTS = ("a", "b", "c")
GROWTH = Growth(points=70, at_most=24e3, hints=HINTS)
BUDGET = Budget(points=20, hints=HINTS)

KEEPING = """
import torch


def train(job):
    kept = []
    while True:
        work = [torch.ones(1 << 18) for _ in range(4)]  # 1 MiB each
        kept.append({kept})
        del work
        yield torch.tensor(1.0)
"""


def metered(source: str, turns: int = 3, **options) -> Meter:
    with running(source, **options) as child:
        child.load()
        meter = Meter(child, on_gpu=False)
        child.start(1)
        for _ in range(turns):
            with meter.turn():
                child.run(20)
    return meter


# ---------------------------------------------------------------- what is seen


@pytest.mark.parametrize(
    ("kept", "least", "most"),
    [
        ("None", -5e3, 5e3),
        ("work[0]", 0.95 * 2**20, 1.1 * 2**20),
        ("work[0][:1].detach()", 0.95 * 2**20, 1.1 * 2**20),  # a view keeps all of it
        ("work[0][:1].clone()", -5e3, 5e3),  # small pieces among large ones: nothing is left behind
    ],
)
def test_growth_is_what_is_kept(kept, least, most):
    gpu, main = growth(metered(KEEPING.format(kept=kept), exact_memory=True).levels)
    assert gpu == 0 and least <= main <= most


SHORT_PEAK = """
import os
import time
import torch


def train(job):
    while True:
        {begin}
        held = torch.ones(15_000_000)  # 60 MB
        time.sleep(0.2)
        del held
        {end}
        yield torch.tensor(1.0)
"""


@pytest.mark.parametrize(
    ("begin", "end"), [("", ""), ("pid = os.fork()", "os._exit(0) if pid == 0 else os.waitpid(pid, 0)")]
)
def test_a_peak_within_a_step_is_seen_and_that_of_helpers_too(begin, end):
    with running(SHORT_PEAK.format(begin=begin, end=end)) as child:
        child.load()
        meter = Meter(child, on_gpu=False)
        child.start(1)
        with meter.turn():
            child.run(5)
    processes = 2 if begin else 1
    assert processes * 60e6 <= meter.peak < processes * 60e6 + 40e6


def test_the_job_says_what_may_be_used():
    source = "import torch\n\n\ndef train(job):\n    while True:\n        yield torch.tensor(float(job.budget))\n"
    with running(source, budget=12345) as child:
        child.load()
        child.start(1)
        assert child.run(1)[1] == [12345.0]


# ---------------------------------------------------------------- verdicts


def seen(*levels: tuple[int, float], gpu: bool = False, peak: float = 0) -> Meter:
    """A meter as it is after these (steps, bytes)."""
    meter = object.__new__(Meter)
    meter.on_gpu, meter.peak = gpu, int(peak)
    meter.levels = [Level(steps, int(size) * gpu, int(size) * (not gpu)) for steps, size in levels]
    return meter


STARTER = seen((10, 100e6), (20, 120e6), (30, 140e6), (40, 160e6))


@pytest.mark.parametrize(
    ("submission", "status", "points"),
    [
        (seen((10, 100e6), (20, 100e6), (30, 100e6), (40, 100e6)), PASS, 70),
        (seen((10, 100e6), (20, 130e6), (30, 130e6), (40, 130e6)), PASS, 70),  # once: a buffer
        (seen((10, 100e6), (20, 110e6), (30, 120e6), (40, 130e6)), FAIL, 35),
        (seen((10, 100e6), (20, 120e6), (30, 140e6), (40, 160e6)), FAIL, 0),
        (seen((10, 100e6), (20, 150e6), (30, 200e6), (40, 250e6)), FAIL, 0),
        (seen((10, 100e6), (20, 120e6)), INCONCLUSIVE, 0),
    ],
)
def test_growth_that_is_gone_earns_its_part(submission, status, points):
    result = judge_growth(GROWTH, STARTER, submission)
    assert (result.status, result.points) == (status, points), result.reason


def test_memory_taken_in_advance_hides_nothing():
    starter = seen((10, 1e9), (20, 1.02e9), (30, 1.04e9), gpu=True)
    level = seen((10, 20e9), (20, 20e9), (30, 20e9), gpu=True)
    result = judge_growth(GROWTH, starter, level)
    assert result.status == FAIL and result.points == 0 and "taken in advance" in result.reason
    assert judge_growth(GROWTH, starter, seen((10, 1.5e9), (20, 1.5e9), (30, 1.5e9), gpu=True)).status == PASS


def test_a_budget_is_a_budget():
    assert judge_budget(BUDGET, 100, seen(peak=100)).points == 20
    beyond = judge_budget(BUDGET, 100_000_000, seen(peak=101e6))
    assert beyond.status == FAIL and beyond.points == 0 and "101 MB" in beyond.reason
    assert judge_budget(BUDGET, 100_000_000, seen(peak=101e6, gpu=True)).status == PASS  # CUDA's own is not the loop's
