"""The labs of phase 2 on the CPU: what can be measured there separates starter, half fix and solution, and what is wrong is
rejected with its cause named. What needs a GPU is measured by `tests/benchmarks/measured.py`."""

from __future__ import annotations

import ast

import pytest
import variants

from grader import labs
from grader.grade import grade
from grader.measure.blocks import Plan
from grader.result import FAIL, NOT_MEASURED, PASS, Result
from grader.submission import Submission

LABS = [name for name in labs.NAMES if labs.get(name).phase == 2 and name in variants.HALVES and name != "2a_workers"]
TIMED = [name for name in LABS if labs.get(name).measures(labs.get(name).throughput, "cpu")]
PLAN = Plan(block_s=0.6, block_steps=2, min_pairs=3, max_pairs=6, precision=0.12, profile_steps=2)


def graded(name: str, source: str) -> Result:
    result = grade(Submission(source), labs.get(name), device="cpu", plan=PLAN)
    assert not result.fatal, result.fatal
    return result


def said(result: Result) -> str:
    return " ".join([result.fatal, *(check.reason for check in result.checks)])


def share(result: Result) -> float:
    """Of the points that were measured, without the prediction, which these submissions do not make."""
    counted = [c for c in result.checks if c.status != NOT_MEASURED and c.name != "prediction"]
    return sum(c.points for c in counted) / sum(c.max_points for c in counted)


@pytest.mark.parametrize("name", LABS)
def test_enough_variants(name):
    """A typing mistake in a variant would be rejected like a wrong fix, and prove nothing."""
    halves, wrongs = variants.halves(name), variants.wrongs(name)
    assert len(halves) >= 2 and len(wrongs) >= 2
    sources = [*halves.values(), *(source for source, _ in wrongs.values())]
    sources += [*variants.honest(name).values(), *variants.faults(name).values()]
    for source in sources:
        ast.parse(source)
    assert len({*sources, labs.get(name).starter}) >= len(sources)  # "as it is" is the starter or the solution


@pytest.mark.parametrize("name", LABS)
def test_hints_get_plainer(name):
    lab = labs.get(name)
    for check in (lab.throughput, *lab.trace):
        assert len(check.hints) == 3 and all(hint.endswith((".", "?")) for hint in check.hints)
        assert not any("\n" in hint for hint in check.hints)  # no code to paste


@pytest.mark.parametrize("name", [name for name in LABS if name not in TIMED])
@pytest.mark.parametrize("which", ["starter", "solution"])
def test_same_training_where_nothing_can_be_timed(name, which):
    result = graded(name, getattr(variants, which)(name))
    assert result.check("parity").status == PASS, said(result)
    assert result.check("throughput").status == NOT_MEASURED and result.score == 0
    if labs.get(name).logs:
        assert result.check("logs").status == PASS, said(result)


WRONG = [(name, what) for name in LABS for what in variants.WRONGS[name]]


@pytest.mark.parametrize("name, what", WRONG)
def test_what_is_wrong_is_rejected_and_named(name, what):
    source, words = variants.wrongs(name)[what]
    if words.startswith("GPU: "):
        pytest.skip("shows on a GPU only")
    result = grade(Submission(source), labs.get(name), device="cpu", plan=PLAN)
    assert words in said(result)
    assert result.check("throughput").status == FAIL and result.score == 0


@pytest.mark.parametrize("name", TIMED)
def test_points_follow_the_fix(name):
    starter, solution = graded(name, variants.starter(name)), graded(name, variants.solution(name))
    halves = [graded(name, source) for source in variants.halves(name).values()]
    assert share(starter) <= 0.1, said(starter)
    assert share(solution) >= 0.9, said(solution)
    for half in halves:
        assert share(starter) < share(half) < share(solution), said(half)
