"""Attention and kernels of one's own: labs 3f and 3i on the CPU, and what their grades are made of."""

from __future__ import annotations

from dataclasses import replace

import papermill
import pytest
import variants
from test_phase2_labs import gain, graded, said, share
from test_solutions import SOLUTIONS, outputs

from grader import calibrate, kernel, labs
from grader.grade import grade
from grader.labs.kinds import Bench
from grader.look import peek
from grader.measure import machine
from grader.measure.blocks import QUICK
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, Result
from grader.submission import Submission
from grader.trace import kernels

# ---------------------------------------------------------------- 3f: attention without the matrix of scores

ATTENTION = "3f_attention"


def test_scores_that_are_written_are_counted():
    """Two of each layer: the scores, and in the backward pass the gradient of the weights."""
    layers = labs.get(ATTENTION).forms["cpu"].options["layers"]
    expected = {
        variants.starter(ATTENTION): 2 * layers,
        variants.solution(ATTENTION): 0,
        variants.halves(ATTENTION)["in every second layer"]: layers,
    }
    for source, matrices in expected.items():
        seen = peek(Submission(source), labs.get(ATTENTION), device="cpu")
        assert not seen.message and seen.metrics.score_matrices == matrices, seen


@pytest.mark.parametrize(
    "name, fused, flash",
    [
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false>>", True, True),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", True, True),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0", True, True),
        ("triton_tem_fused_flex_attention_0", True, True),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<...>)", True, False),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 11, false, false>", False, False),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN", False, False),
    ],
)
def test_which_attention_kernel(name, fused, flash):
    assert bool(kernels.ATTENTION.search(name.lower())) == fused
    assert bool(fused and kernels.FLASH.search(name.lower())) == flash


TIMED = ("the math backend",)  # the same training: only what is timed and counted shows it


@pytest.mark.parametrize(
    "what", [pytest.param(w, marks=pytest.mark.slow if w in TIMED else ()) for w in variants.WRONGS[ATTENTION]]
)
def test_attention_that_is_wrong_is_rejected_and_named(what):
    source, words = variants.wrongs(ATTENTION)[what]
    result = graded(ATTENTION, source)
    assert words in said(result)
    check = result.check("throughput")
    assert check.status in (FAIL, INCONCLUSIVE) and check.points < 0.7 * check.max_points
    assert result.score == 0 or what in TIMED


@pytest.mark.slow
def test_gains_of_attention():
    starter, solution = (graded(ATTENTION, of(ATTENTION)) for of in (variants.starter, variants.solution))
    assert share(starter) <= 0.1, said(starter)
    assert gain(solution) >= labs.get(ATTENTION).forms["cpu"].minimum_gain, said(solution)
    assert solution.check("scores").status == PASS and solution.check("flash").status == NOT_MEASURED
    for source in variants.halves(ATTENTION).values():
        half = graded(ATTENTION, source)
        assert 1.1 * gain(starter) < gain(half) < gain(solution), said(half)


# ---------------------------------------------------------------- 3i: a kernel of one's own

TRITON = labs.get("3i_triton")
OWN = calibrate.solution(TRITON).source
RIGHT = {name: kernel.Seen(0.5) for check in TRITON.cases for name in check.sizes}
# on the CPU nothing of Triton's can be timed: these are functions of torch
TIMED_HERE = replace(
    TRITON,
    cases=TRITON.cases[:1],
    forms={"cpu": Bench({"rows": 1024, "width": 512, "type": "float32"}, calls=10, rounds=2, threads=1)},
)


def checked(source: str) -> Result:
    result = grade(Submission(source), TRITON, device="cpu")
    assert not result.fatal, result.fatal
    return result


def test_kernel_solution():
    result = checked(OWN)
    assert [c.status for c in result.checks] == [PASS, PASS, NOT_MEASURED]
    assert result.score == 55


def test_kernel_starter():
    result = checked(TRITON.starter)
    assert result.score == 0 and "aten::gelu" in result.check("shapes").reason


POINTS = {  # of shapes and of types that are left
    "the mask forgotten in the variance": (5, 0),
    "the stride of a row taken for its width": (25, 25),
    "mean square less squared mean": (30, 20),
    "calculated in 16 bits": (30, 5),
    "float32 for every result": (30, 5),
    "layer norm left to torch": (0, 0),
    "numpy": (0, 0),
}


@pytest.mark.parametrize("what", variants.WRONGS[TRITON.name])
def test_kernel_that_is_wrong(what):
    source, words = variants.wrongs(TRITON.name)[what]
    result = checked(source)
    assert words in said(result)
    # sizes are drawn: a case of 5 points more or less can be right by luck
    assert [result.check(name).points for name in ("shapes", "types")] == pytest.approx(POINTS[what], abs=5.01), said(
        result
    )


@pytest.mark.parametrize(
    "source, words",
    [
        ("def chain(x):\n    return x", "defines no function `fused"),
        ("def fused(*tensors):\n    return None", "must return a new tensor like x; it returned None"),
        ("def fused(x):\n    return x", "TypeError"),
    ],
)
def test_no_kernel_at_all(source, words):
    result = grade(Submission(source), TRITON, device="cpu")
    assert words in result.fatal and result.score == 0


HONEST = "from grader.workloads.chain import plain as fused\n"
REMEMBERS = """
from grader.workloads.chain import plain

kept = {}


def fused(x, *others):
    if x.data_ptr() not in kept or x.shape[0] < 1000:
        kept[x.data_ptr()] = plain(x, *others)
    return kept[x.data_ptr()]
"""
HALF_THE_ROWS = """
import torch
from grader.workloads.chain import plain


def fused(x, bias, residual, *others):
    done = len(x) if len(x) < 1000 else len(x) // 2
    return torch.cat([plain(x[:done], bias, residual[:done], *others), residual[done:]])
"""


def timed(source: str) -> kernel.Findings:
    found = kernel.Findings(TIMED_HERE, "cpu")
    kernel.measure(found, Submission(source), QUICK, None, lambda share, what: None)
    assert len(found.rounds) == kernel.QUICK_ROUNDS and found.rounds[0].keys() == {"fused", *kernel.OURS}
    return found


def test_timed_calls_are_looked_at():
    assert timed(HONEST).strange < kernel.SAME / 5


@pytest.mark.parametrize("source", [REMEMBERS, HALF_THE_ROWS])
def test_timed_calls_that_are_left_out(source):
    found = timed(source)
    assert found.strange > kernel.SAME
    found.rounds = rounds(0.9)
    check = kernel._judge_roof(found, "", right=True)
    assert check.status == FAIL and check.points == 0 and "not those of the function" in check.reason


def rounds(share: float, spread: float = 0.0, plain: float = 0.3) -> list[dict[str, float]]:
    """Three rounds: 20 us for a look, 100 us more for what moves the same bytes."""
    return [
        {"nothing": 20e-6, "roof": 120e-6, "plain": 20e-6 + 100e-6 / plain, "fused": 20e-6 + 100e-6 / (share + d)}
        for d in (-spread, 0.0, spread)
    ]


@pytest.mark.parametrize(
    "share, spread, status, points, words",
    [
        (0.9, 0.0, PASS, 45, "90% of the roof"),
        (0.55, 0.0, FAIL, 28, "55% of the roof"),
        (0.3, 0.0, FAIL, 0, "30% of the roof"),
        (0.6, 0.1, INCONCLUSIVE, 18, "differ too much"),
        (1.3, 0.0, FAIL, 0, "faster than the memory"),
    ],
)
def test_points_of_the_roof(share, spread, status, points, words):
    found = kernel.Findings(TIMED_HERE, "cpu", seen=dict(RIGHT), rounds=rounds(share, spread))
    check = kernel._judge_roof(found, "", right=True)
    assert check.status == status and check.points == pytest.approx(points, abs=1.5) and words in check.reason, check
    assert kernel._judge_roof(found, "", right=False).points == 0
    found.form_name = "cuda"
    assert {c.status for c in kernel.judge(found, Submission(OWN))} == {NOT_MEASURED}


@pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
def test_kernel_on_a_gpu():
    lab = TRITON
    own, plain = (grade(Submission(source), lab, device="cuda").check("roof") for source in (OWN, lab.starter))
    assert own.points == own.max_points, own.reason
    assert plain.points == 0, plain.reason


def test_kernel_notebook_runs(tmp_path):
    executed = papermill.execute_notebook(
        SOLUTIONS / "3i_triton" / "3i_triton.ipynb",
        tmp_path / "executed.ipynb",
        parameters={"device": "cpu", "quick": True},
        cwd=tmp_path,
        progress_bar=False,
        execution_timeout=240,
    )
    cells = {cell.id: cell for cell in executed.cells}
    assert "bfloat16, wide rows" in outputs(cells["cases"])
    assert "NOT MEASURED" in outputs(cells["check"]) and "PASS" in outputs(cells["check"])
