"""The lab of Hugging Face's Trainer on the CPU. Skipped where its packages are missing, but for what is said there."""

import importlib.util
from dataclasses import replace

import pytest
import torch
import variants
from benchmarks import measured, nanogpt_peer
from helpers import assert_each_cause_is_gone, assert_rejected, assert_told_apart, looked, running, said

from grader import labs, machine
from grader.calibrate import honest_form
from grader.data import prepare
from grader.grade import grade
from grader.look import peek
from grader.measure.blocks import Plan
from grader.result import NOT_MEASURED, PASS, Result
from grader.sandbox.child_error import ChildError
from grader.submission import Submission

NAME = "4d_trainer"
LAB = labs.get(NAME)
SHORT = Plan(block_s=0.1, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)
gpu = pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
missing = [name for name in LAB.packages if not importlib.util.find_spec(name)]
trainer = pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def graded(source: str) -> Result:
    return grade(Submission(source), LAB, device="cpu", plan=SHORT)


def job_and_options(**more):
    from grader.workloads import gpt

    form = LAB.forms["cpu"]
    return gpt.make_job(1, torch.device("cpu"), **form.options | {"folder": str(prepare(form.data))} | more)


def arguments(job, folder, **more):
    from grader.workloads.trainer import TrainingArguments

    own = {"per_device_train_batch_size": job.batches.batch_size, "max_steps": 1000, "learning_rate": job.lr}
    quiet = {
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "output_dir": str(folder),
    }
    return TrainingArguments(**own | quiet | {"lr_scheduler_type": "constant", "max_grad_norm": 0.0} | more)


def test_where_it_is_missing_it_says_what_to_install():
    hidden = "import sys\n\nsys.modules['transformers'] = None\n\n"  # as if it were not installed
    with running(hidden + LAB.starter, LAB.forms["cpu"]) as child, pytest.raises(ChildError) as error:
        child.load()
    assert "pip install transformers accelerate greenlet" in str(error.value)


def test_without_its_packages_nothing_is_measured():
    result = grade(
        Submission(LAB.starter), replace(LAB, packages=("numpy", "no_such_package")), device="cpu", plan=SHORT
    )
    assert {check.status for check in result.checks} == {NOT_MEASURED}
    assert not result.fatal and "`pip install no_such_package`." in said(result)


@trainer
def test_a_step_is_made_when_it_is_asked_for_and_none_ahead(tmp_path):
    from grader.workloads.trainer import CausalLM, JobTrainer, optimizer_steps

    job = job_and_options()
    before = job.model.positions.detach().clone()
    one = JobTrainer(job, CausalLM(job.model), arguments(job, tmp_path))
    loop = optimizer_steps(one)
    assert one.state.global_step == 0
    for step in (1, 2, 3):
        loss = next(loop)
        assert loss.shape == () and not loss.requires_grad
        assert one.state.global_step == step
    assert not torch.equal(job.model.positions, before)  # it is the job's own model that is trained
    loop.close()


@trainer
def test_parts_of_a_batch_are_the_batch(tmp_path):
    from grader.workloads.trainer import CausalLM, JobTrainer, optimizer_steps

    losses = []
    for parts in (1, 3):
        job = job_and_options()
        size = job.batches.batch_size // parts
        args = arguments(job, tmp_path, per_device_train_batch_size=size, gradient_accumulation_steps=parts)
        loop = optimizer_steps(JobTrainer(job, CausalLM(job.model, "sdpa", 64), args))
        losses.append([next(loop).item() for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    with pytest.raises(ValueError, match="batch of 12 windows"):
        JobTrainer(job, CausalLM(job.model), arguments(job, tmp_path, gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match="one of eager, sdpa"):
        CausalLM(job.model, "flash")


@trainer
def test_an_error_in_the_training_reaches_whoever_asked(tmp_path):
    from grader.workloads.trainer import CausalLM, JobTrainer, optimizer_steps

    job = job_and_options()
    job.model.blocks[1].forward = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        next(optimizer_steps(JobTrainer(job, CausalLM(job.model), arguments(job, tmp_path))))
    job = job_and_options()
    assert len(list(optimizer_steps(JobTrainer(job, CausalLM(job.model), arguments(job, tmp_path, max_steps=2))))) == 2


@trainer
@pytest.mark.parametrize("make", [variants.in_a_thread, lambda lab: honest_form(variants.solution(lab), "bf16")])
def test_the_loop_can_be_wrapped(make, tmp_path):
    """As a calibration and the controls of the measurements do: they rename train(job)."""
    loops = [nanogpt_peer.loaded(text, tmp_path).train(job_and_options()) for text in (make(NAME), LAB.starter)]
    ours, starters = ([next(loop).item() for _ in range(2)] for loop in loops)
    torch.set_autocast_enabled("cpu", False)  # a loop that stands at its yield has left it on, in this process
    assert ours == pytest.approx(starters, rel=2e-3) and ours[0] != ours[1]


@trainer
def test_same_training():
    result = graded(variants.solution(NAME))
    assert not result.fatal and result.check("parity").status == PASS, said(result)
    assert result.check("throughput").status == NOT_MEASURED and result.score == 0


@trainer
@pytest.mark.slow
@pytest.mark.parametrize("what", variants.WRONGS[NAME])
def test_what_is_wrong_is_rejected_and_named(what):
    source, words = variants.wrongs(NAME)[what]
    assert_rejected(graded(source), words)


@trainer
@pytest.mark.slow
def test_faults_are_rejected_and_honest_forms_are_not():
    assert_told_apart(variants.faults(NAME), variants.honest_on_a_cpu(NAME) | dict(measured.rungs(NAME)), graded)


@trainer
@pytest.mark.slow
def test_it_can_be_compiled_and_profiled():
    """The profiler and the compiler belong to a thread: the Trainer must run in the one that asks."""
    source = variants.edit(variants.solution(NAME), [("torch_compile=cuda", "torch_compile=True")])
    seen = peek(Submission(source), LAB, device="cpu")
    assert not seen.message, seen.message
    assert seen.compiled["graphs"] and not seen.compiled["graph_breaks"]
    assert seen.metrics.cpu_ops > 0 and seen.metrics.aligned_share == 1


@trainer
@pytest.mark.slow
def test_what_is_left_is_counted_on_a_cpu():
    starter, solution = (looked(LAB, which(NAME), "cpu") for which in (variants.starter, variants.solution))
    assert starter.score_matrices > 0 and solution.score_matrices == 0
    assert starter.aligned_share < 1 and solution.aligned_share == 1


@gpu
@trainer
def test_the_causes_on_a_gpu():
    starter, solution = (looked(LAB, which(NAME), "cuda") for which in (variants.starter, variants.solution))
    assert_each_cause_is_gone(LAB, starter, solution)
