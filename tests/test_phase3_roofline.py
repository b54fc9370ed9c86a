"""Phase 3: the lab of the costliest operations, the healthy loop, and the retest."""

from __future__ import annotations

import papermill
import pytest
import variants
from test_phase1_labs import answered, cell
from test_phase2_labs import graded, said
from test_solutions import outputs
from test_solutions import path as solution_path

from grader import labs
from grader.answers import unanswered
from grader.grade import grade
from grader.result import FAIL, INCONCLUSIVE, PASS
from grader.submission import solution

# ---------------------------------------------------------------- the retest

RETEST = labs.get("3l_retest")


def test_retest_solution_and_starter():
    result = grade(solution(RETEST), RETEST)
    assert result.score == 100 and {c.status for c in result.checks} == {PASS}
    assert RETEST.starter == unanswered(RETEST.questions)
    assert grade(cell(RETEST.starter), RETEST).score == 0


HALF = (
    # the causes only
    {name: {part.key: ... for part in q.parts[1:]} for name, q in zip("abcde", RETEST.questions, strict=True)},
    # tiny kernels taken for launching; any communication taken for waiting; the trace's own numbers misread
    {"c": {"cause": "launch-bound"}, "d": {"best_ms": 8.8}, "e": {"cause": "communication-bound", "hidden": 0.21}},
)


@pytest.mark.parametrize("half", HALF)
def test_retest_half(half):
    assert 40 <= answered(RETEST.name, **half).score <= 70


WRONG = [
    ("a", {"cause": "memory-bound"}, "matrix products and convolutions take 60.9 of 65.7 ms"),
    ("a", {"tflops": 799}, "more than 10% off"),
    ("b", {"cause": "compute-bound"}, "matrix products and convolutions take 4.1"),
    ("c", {"cause": "launch-bound"}, "has not launched the next kernel yet for 0 of 2.22 ms"),
    ("c", {"launches": 303}, "more than 5% off"),
    ("d", {"cause": "healthy"}, "then the GPU would calculate nearly all the time"),
    ("e", {"cause": "communication-bound"}, "communication with nothing beside it takes 1.74 of 23.8 ms"),
    ("e", {"hidden": 79}, "write 0.25 for 25%"),
]


@pytest.mark.parametrize(("question", "said", "against"), WRONG)
def test_retest_wrong(question, said, against):
    result = answered(RETEST.name, **{question: said})
    check = result.check(question)
    assert check.status == FAIL and against in check.reason, check.reason
    assert result.score == 80 + check.points < 100


def test_retest_notebook_runs(tmp_path):
    executed = papermill.execute_notebook(
        solution_path(RETEST.name), tmp_path / "executed.ipynb", cwd=tmp_path, progress_bar=False, execution_timeout=120
    )
    shown = {cell.id: outputs(cell) for cell in executed.cells if cell.cell_type == "code"}
    assert "8.78 ms" in shown["look-d"] and "on 2 NVIDIA H200" in shown["look-d"]
    assert "100 of 100 points" in shown["check"] and "20.0" in shown["grade-a"]


# ---------------------------------------------------------------- the healthy loop

HEALTHY = labs.get("3k_healthy")


def test_healthy_solution_is_the_starter():
    assert solution(HEALTHY).source.strip().endswith(HEALTHY.starter.strip())


@pytest.mark.parametrize("fault", variants.faults(HEALTHY.name))
def test_healthy_faults(fault):
    result = graded(HEALTHY.name, variants.faults(HEALTHY.name)[fault])
    assert result.check("parity").status == FAIL and result.check("throughput").points == 0, said(result)


def test_healthy_wrong_training():
    source, words = variants.wrongs(HEALTHY.name)["half the batch"]
    result = graded(HEALTHY.name, source)
    assert words in said(result) and result.score == 0


@pytest.mark.slow
def test_healthy_checkpointing_costs():
    source, words = variants.wrongs(HEALTHY.name)["checkpointed, where memory is not short"]
    check = graded(HEALTHY.name, source).check("throughput")
    assert check.evidence["gain"] < 1 and (words in check.reason or check.status == INCONCLUSIVE), check.reason


@pytest.mark.slow
@pytest.mark.parametrize("what", ["starter", *variants.HALVES["3k_healthy"]])
def test_healthy_unharmed(what):
    source = HEALTHY.starter if what == "starter" else variants.halves(HEALTHY.name)[what]
    check = graded(HEALTHY.name, source).check("throughput")
    assert check.points == HEALTHY.throughput.points or check.status == INCONCLUSIVE, check.reason
