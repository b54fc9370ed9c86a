"""The labs about launches and torch.compile on the CPU: what can be counted there separates starter, half fix and solution,
and what is wrong is rejected with its cause named. What needs a GPU is measured by `tests/benchmarks/measured.py`."""

from __future__ import annotations

import pytest
import variants

from grader import labs
from grader.grade import grade
from grader.look import peek
from grader.measure import machine
from grader.measure.blocks import Plan
from grader.result import FAIL, NOT_MEASURED, Result
from grader.submission import Submission

TINY = "3d_tiny_ops"
LABS = (TINY,)
gpu = pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
PLAN = Plan(block_s=0.6, block_steps=2, min_pairs=3, max_pairs=3, precision=0.12, profile_steps=2)


def graded(name: str, source: str, plan: Plan = PLAN) -> Result:
    return grade(Submission(source), labs.get(name), device="cpu", plan=plan)


def said(result: Result) -> str:
    return " ".join([result.fatal, *(check.reason for check in result.checks)])


def gain(result: Result) -> float:
    assert result.check("throughput").evidence, said(result)
    return result.check("throughput").evidence["gain"]


def counts(name: str, source: str, device: str = "cpu"):
    seen = peek(Submission(source), labs.get(name), device=device)
    assert not seen.message, seen.message
    return seen


@pytest.mark.parametrize("name", LABS)
def test_hints_get_plainer(name):
    lab = labs.get(name)
    for check in (lab.throughput, *lab.trace):
        assert len(check.hints) == 3 and all(hint.endswith((".", "?")) for hint in check.hints)
        assert not any("\n" in hint for hint in check.hints)  # no code to paste


@pytest.mark.parametrize("name, what", [(name, what) for name in LABS for what in variants.WRONGS[name]])
def test_what_is_wrong_is_rejected_and_named(name, what):
    source, words = variants.wrongs(name)[what]
    if words.startswith("GPU: "):
        pytest.skip("shows on a GPU only")
    result = graded(name, source)
    assert words in said(result)
    assert result.check("throughput").status == FAIL and result.score == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", LABS)
def test_faults_are_rejected_and_honest_forms_are_not(name):
    """Few and short blocks: only the training is asked about."""
    plan = Plan(block_s=0.2, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)
    for what, source in variants.faults(name).items():
        assert graded(name, source, plan).check("parity").status == FAIL, what
    for what, source in variants.honest(name).items():
        result = graded(name, source, plan)
        assert not result.fatal and result.check("parity").status != FAIL, f"{what}: {said(result)}"


# ---------------------------------------------------------------- 3d: tiny kernels


def test_operators_of_a_step():
    check = next(c for c in labs.get(TINY).trace if c.name == "operators")
    starter, solution = (
        counts(TINY, source).metrics.cpu_ops for source in (variants.starter(TINY), variants.solution(TINY))
    )
    assert starter > check.none_at and solution < 0.9 * check.at_most
    for what, source in variants.halves(TINY).items():
        assert check.at_most < counts(TINY, source).metrics.cpu_ops < check.none_at, what


@pytest.mark.slow
def test_points_follow_the_fix():
    """By the gain, not by the points: on a busy machine those are rightly withheld."""
    starter, solution = graded(TINY, variants.starter(TINY)), graded(TINY, variants.solution(TINY))
    assert starter.check("throughput").points == 0 and starter.check("operators").points == 0
    assert gain(solution) >= labs.get(TINY).forms["cpu"].minimum_gain, said(solution)
    assert solution.check("launches").status == solution.check("kernels").status == NOT_MEASURED
    for what, source in variants.halves(TINY).items():
        half = graded(TINY, source)
        assert 1.1 * gain(starter) < gain(half) < 0.9 * gain(solution), f"{what}: {said(half)}"


@gpu
def test_launches_on_a_gpu():
    lab = labs.get(TINY)
    starter, solution = (
        counts(TINY, source, "cuda").metrics for source in (variants.starter(TINY), variants.solution(TINY))
    )
    for name in ("launches", "kernels"):
        check = next(c for c in lab.trace if c.name == name)
        assert 0.8 * check.none_at < getattr(starter, name) and getattr(solution, name) < 0.8 * check.at_most
    assert starter.tiny_kernel_share > 0.8
