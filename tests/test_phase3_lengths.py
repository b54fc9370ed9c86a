"""Lab 3n on the CPU: the documents, the training, what its matmuls work on, and that what is wrong is rejected by name."""

import pytest
import torch
import variants
from helpers import assert_rejected, assert_told_apart, first, said, untimed

from grader import labs, machine
from grader.grade import grade
from grader.grading.forms import prepared
from grader.look import peek
from grader.measure.blocks import QUICK, Plan
from grader.result import INCONCLUSIVE, PASS, Result
from grader.submission import Submission
from grader.trace import Metrics
from grader.workloads import lengths

NAME = "3n_lengths"
LAB = labs.get(NAME)
SHORT = Plan(block_s=0.1, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)
gpu = pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")


def graded(source: str, plan: Plan = SHORT) -> Result:
    return grade(Submission(source), LAB, device="cpu", plan=plan)


def work(source: str, device: str = "cpu") -> float:
    seen = peek(Submission(source), LAB, device=device)
    assert not seen.message, seen.message
    return seen.metrics.work


def job(seed: int = 0):
    return lengths.make_job(seed, torch.device("cpu"), **prepared(LAB.forms["cpu"])[0])


def test_documents_are_as_long_as_they_say_and_follow_from_the_seed():
    data, same, other = (job(seed).dataset for seed in (0, 0, 1))
    assert data.lengths == same.lengths != other.lengths
    assert max(data.lengths) == data.longest == LAB.forms["cpu"].options["length"]
    for i in (0, data.each, len(data) - 1):
        tokens, targets = data[i]
        assert len(tokens) == len(targets) == data.lengths[i] and (tokens[1:] == targets[:-1]).all()


def test_every_batch_has_one_document_of_each_class_and_no_document_twice():
    made = job()
    batches, count = iter(made.batches), len(LAB.forms["cpu"].options["documents"])
    seen = [next(batches) for _ in range(made.dataset.each)]
    assert all(sorted(i // made.dataset.each for i in batch) == list(range(count)) for batch in seen)
    assert len({i for batch in seen for i in batch}) == len(made.dataset) == len(seen) * count
    assert len({tuple(i // made.dataset.each for i in batch) for batch in seen}) > 1, "in any order"


@pytest.mark.parametrize("seed", range(5))
def test_the_longest_document_comes_soon(seed):
    """Else a loop that cuts it, and is right for all others, would hardly ever be found."""
    made = job(seed)
    soon = [next(batches) for batches in [iter(made.batches)] for _ in range(lengths.SOON)]
    assert made.dataset.longest in (made.dataset.lengths[i] for batch in soon for i in batch)
    assert all(form.parity.steps >= lengths.SOON for form in (*LAB.gpu_forms, LAB.forms["cpu"]))


@pytest.mark.parametrize("form", [*LAB.gpu_forms, LAB.forms["cpu"]], ids=lambda form: form.size or "full")
def test_a_step_needs_what_the_form_says(form):
    with torch.device("meta"):
        model = lengths.GPT(*(form.options[name] for name in ("layers", "width", "heads", "length")))
    matrices = [p.numel() for name, p in model.named_parameters() if p.dim() == 2 and name != "positions"]
    assert form.flops == pytest.approx(6 * sum(matrices) * form.work[0])


def test_work_is_compared_with_what_a_step_needs():
    metrics = Metrics(product_flops=6e9)
    metrics.against(2e9)
    assert metrics.work == 3
    for known in (Metrics(product_flops=6e9), Metrics()):
        known.against(None if known.product_flops else 2e9)
        assert known.work is None


@pytest.mark.slow
def test_the_work_of_padding_is_counted():
    check = next(check for check in LAB.trace if check.name == "work")
    starter, solution = (work(which(NAME)) for which in (variants.starter, variants.solution))
    form = LAB.forms["cpu"].options
    padded = len(form["documents"]) * form["length"] / sum(form["documents"])
    assert starter == pytest.approx(padded, rel=0.1) and starter > check.wanted.none_at
    assert solution == pytest.approx(1, abs=0.1) and solution < check.wanted.bound
    for what, source in variants.halves(NAME).items():
        assert check.wanted.bound < work(source) < check.wanted.none_at, what


@pytest.mark.parametrize("what", first(variants.wrongs_on_a_cpu(NAME)))
def test_what_is_wrong_is_rejected_and_named(what):
    source, words = variants.wrongs(NAME)[what]
    assert_rejected(graded(source), words)


@pytest.mark.slow
def test_faults_are_rejected_and_honest_forms_are_not():
    lab = untimed(LAB)
    assert_told_apart(
        variants.faults(NAME),
        variants.honest_on_a_cpu(NAME),
        lambda source: grade(Submission(source), lab, device="cpu", plan=SHORT),
    )


@pytest.mark.slow
def test_the_solution_and_nothing_less_earns_all():
    whole, untouched = (graded(which(NAME), QUICK) for which in (variants.solution, variants.starter))
    assert whole.check("parity").status == PASS, said(whole)
    assert whole.check("throughput").points > 0.9 * 60 or whole.check("throughput").status == INCONCLUSIVE, said(whole)
    assert untouched.score < 10, said(untouched)
    half = graded(variants.half_fix(NAME), QUICK)
    assert half.check("parity").status == PASS and half.check("work").points < 30, said(half)


@gpu
def test_work_on_a_gpu():
    starter, solution = (work(which(NAME), "cuda") for which in (variants.starter, variants.solution))
    assert starter > 9 and solution == pytest.approx(1, abs=0.1)
