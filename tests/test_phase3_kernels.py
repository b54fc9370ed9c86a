"""Attention and kernels of one's own: labs 3f and 3i on the CPU, and what their grades are made of."""

from __future__ import annotations

import pytest
import variants
from test_phase2_labs import gain, graded, said, share

from grader import labs
from grader.look import peek
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS
from grader.submission import Submission
from grader.trace import kernels

# ---------------------------------------------------------------- 3f: attention without the matrix of scores

ATTENTION = "3f_attention"


def test_scores_that_are_written_are_counted():
    """Two of each layer: the scores, and in the backward pass the gradient of the weights."""
    layers = labs.get(ATTENTION).forms["cpu"].options["layers"]
    wrongs = {name: source for name, (source, _) in variants.wrongs(ATTENTION).items()}
    expected = {
        variants.starter(ATTENTION): 2 * layers,
        variants.solution(ATTENTION): 0,
        variants.halves(ATTENTION)["in every second layer"]: layers,
        wrongs["the math backend"]: 2 * layers,
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
