"""Attention and kernels of one's own: labs 3f and 3i on the CPU, and what their grades are made of."""

import itertools
from dataclasses import replace

import pytest
import torch
import variants
from helpers import first
from test_phase2_labs import PLAN, SHORT, graded, said
from test_solutions import shown_by

from grader import calibrate, labs, machine
from grader.frontends import notebook
from grader.grade import grade
from grader.grading import evidence
from grader.kinds import kernel
from grader.kinds.kernel import KernelLab
from grader.look import peek
from grader.measure.blocks import QUICK
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, Result, silent
from grader.sandbox import launches
from grader.submission import Submission
from grader.trace import kernels
from grader.workloads import chain
from tests import adversaries

# ---------------------------------------------------------------- 3f: attention without the matrix of scores

ATTENTION = "3f_attention"


@pytest.mark.slow
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


@pytest.mark.parametrize("what", first([what for what in variants.WRONGS[ATTENTION] if what not in TIMED] + [*TIMED]))
def test_attention_that_is_wrong_is_rejected_and_named(what):
    source, words = variants.wrongs(ATTENTION)[what]
    result = graded(ATTENTION, source, PLAN if what in TIMED else SHORT)
    assert words in said(result)
    check = result.check("throughput")
    assert check.status in (FAIL, INCONCLUSIVE) and check.points < 0.7 * check.max_points
    assert result.score == 0 or what in TIMED


@pytest.mark.slow
def test_attention_s_solution():
    result = graded(ATTENTION, variants.solution(ATTENTION), SHORT)
    assert result.check("parity").status == PASS, said(result)
    assert result.check("flash").status == NOT_MEASURED


# ---------------------------------------------------------------- 3i: a kernel of one's own

TRITON = labs.get("3i_triton")
OWN = calibrate.solution(TRITON).source
RIGHT = {name: kernel.CaseResult(0.5, 0.5) for check in TRITON.cases for name in check.sizes}
# one case of each kind, where it is not the cases that are tried
FEW = replace(
    TRITON,
    cases=(
        replace(TRITON.cases[0], sizes={"rows that lie apart": TRITON.cases[0].sizes["rows that lie apart"]}),
        replace(TRITON.cases[1], sizes={"bfloat16": {"rows": (3, 9), "width": (130, 190), "type": "bfloat16"}}),
    ),
)


TIMED_HERE = replace(
    FEW, forms={"cpu": replace(TRITON.forms["cpu"], timed={"rows": 64, "width": 130, "type": "float32"}, calls=2)}
)


# all cases, of fewer rows: here each row is interpreted
FEW_ROWS = replace(
    TRITON,
    cases=tuple(
        replace(check, sizes={name: case | {"rows": 1 if case["rows"] == 1 else (2, 5)} for name, case in check.sizes.items()})
        for check in TRITON.cases
    ),
)  # fmt: skip


def checked(source: str, lab: KernelLab = TRITON) -> Result:
    result = grade(Submission(source), lab, device="cpu")
    assert not result.fatal, result.fatal
    return result


def test_kernel_solution():
    result = checked(OWN, FEW_ROWS)
    assert [c.status for c in result.checks] == [PASS, PASS, NOT_MEASURED]
    assert result.score == 55


def test_kernel_starter():
    result = checked(TRITON.starter)
    assert result.score == 0 and "aten::gelu" in result.check("shapes").reason


POINTS = {  # of shapes and of types that are left
    "the mask forgotten in the variance": (5, 0),
    "the stride of a row taken for its width": (25, 25),
    "mean square less squared mean": (30, 21),
    "no epsilon": (30, 21),
    "calculated in 16 bits": (30, 8),
    "float32 for every result": (30, 8),
    "layer norm left to torch": (0, 0),
    "numpy": (0, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", variants.WRONGS[TRITON.name])
def test_kernel_that_is_wrong(what):
    source, words = variants.wrongs(TRITON.name)[what]
    result = checked(source, FEW_ROWS)
    assert words in said(result)
    # sizes are drawn: a case of 5 points more or less can be right by luck
    assert [result.check(name).points for name in ("shapes", "types")] == pytest.approx(POINTS[what], abs=5.01), said(
        result
    )


OUT = "torch.empty((rows, width), dtype=x.dtype, device=x.device)"


SIGMOID = OWN.split("\n").index("    y = r + h * tl.sigmoid(1.5957691216057308 * (h + 0.044715 * h * h * h))") + 1


@pytest.mark.parametrize(
    "source, words",
    [
        ("def chain(x):\n    return x", "defines no function `fused`."),
        ("def fused(*tensors):\n    return None", "must return a new tensor like x, but it returned None"),
        ("def fused(x):\n    return x", "TypeError"),
        (
            variants.edit(OWN, [(OUT, "residual")]),
            "must return a new tensor and leave its inputs as they are, but it wrote to input 3",
        ),
        # the place is the kernel's, and not its launch's
        (
            variants.edit(OWN, [("tl.sigmoid(", "tl.sigmoidd(")]),
            f"AttributeError when it was called: module 'triton.language' has no attribute 'sigmoidd' (submission cell 1, line {SIGMOID}).",
        ),
        (
            variants.edit(
                OWN,
                [
                    (
                        "@triton.jit\ndef chain(",
                        "@triton.autotune([triton.Config({}), triton.Config({}, num_warps=2)], [])\n@triton.jit\ndef chain(",
                    ),
                    ("        num_warps=min(16, max(1, block // 512)),\n", ""),
                ],
            ),
            "Without a GPU, Triton cannot try configurations out.",
        ),
    ],
)
def test_no_kernel_at_all(source, words):
    result = grade(Submission(source, (2,)), FEW, device="cpu")
    assert words in result.fatal and result.score == 0


# ---- who made the results

JITTED = "@triton.jit\ndef chain("
HONEST_EDITS = {
    "jit by a name of one's own": [(JITTED, "from triton import jit as kernel\n\n@kernel\ndef chain(")],
    "jit called": [("@triton.jit\n", ""), ("\n\ndef fused(", "\n\nchain = triton.jit(chain)\n\n\ndef fused(")],
    "zeros_like": [(OUT, "torch.zeros_like(x)")],
    "zeros": [(OUT, "torch.zeros((rows, width), dtype=x.dtype, device=x.device)")],
    "full": [(OUT, "torch.full((rows, width), 2.0, dtype=x.dtype, device=x.device)")],
    "ones": [(OUT, "torch.ones_like(x)")],
    "fill_": [(OUT, "x.new_empty(x.shape).fill_(3).zero_()")],
    "new_zeros": [(OUT, "x.new_zeros(x.shape)")],
    "views": [("    rows, width =", "    x = x.contiguous().view(-1, x.shape[-1])\n    rows, width ="), ("return out", "return out.reshape(x.shape)")],
    "a type more": [(OUT, OUT.replace("x.dtype", "torch.float32")), ("return out", "return out.to(x.dtype)")],
    "compiled before it is launched": [
        ("    chain[(rows,)](", "    strides = x.stride(0), residual.stride(0), out.stride(0)\n    chain.warmup(x, bias, residual, weight, shift, out, width, *strides, EPSILON, BLOCK=block, grid=(1,))\n    chain[(rows,)]("),
    ],
    "copies of all inputs": [
        ("    rows, width =", "    kind = x.dtype\n    x, bias, residual, weight, shift = (t.float().contiguous() for t in (x, bias, residual, weight, shift))\n    rows, width ="),
        ("return out", "return out.to(kind)"),
    ],
    "autotuned": [
        ("@triton.jit\ndef chain(", "configs = [triton.Config({}, num_warps=n) for n in (4, 8)]\n\n\n@triton.autotune(configs, ['width'], do_bench=lambda call, quantiles: [call() or 1.0])\n@triton.jit\ndef chain("),
        ("        num_warps=min(16, max(1, block // 512)),\n", ""),
    ],
    "a grid by a function": [("[(rows,)]", "[lambda meta: (rows * meta['BLOCK'] // block,)]")],
    "several rows a program": [
        ("    row = tl.program_id(0).to(tl.int64)", "  for part in range(2):\n    row = 2 * tl.program_id(0).to(tl.int64) + part"),
        ("    inside = column < width\n", "    inside = (column < width) & (row < rows)\n"),
        ("out, width, x_stride", "out, rows, width, x_stride"),
        ("        out,\n        width,\n", "        out,\n        rows,\n        width,\n"),
        ("[(rows,)]", "[(triton.cdiv(rows, 2),)]"),
    ],
    "a kernel that calls another": [
        (JITTED, "@triton.jit\ndef gelu(h):\n    return h * tl.sigmoid(1.5957691216057308 * (h + 0.044715 * h * h * h))\n\n\n" + JITTED),
        ("y = r + h * tl.sigmoid(1.5957691216057308 * (h + 0.044715 * h * h * h))", "y = r + gelu(h)"),
    ],
    "a kernel that calls another, which only calls others": [
        (JITTED, "@triton.jit\ndef logistic(z):\n    return tl.sigmoid(z)\n\n\n@triton.jit\ndef gelu(h):\n    return h * logistic(1.5957691216057308 * (h + 0.044715 * h * h * h))\n\n\n" + JITTED),
        ("y = r + h * tl.sigmoid(1.5957691216057308 * (h + 0.044715 * h * h * h))", "y = r + gelu(h)"),
    ],
    "over a copy of the residual": [(OUT, "residual.clone(memory_format=torch.contiguous_format)"), ("        residual,\n", "        out,\n"), ("residual.stride(0)", "out.stride(0)")],
    "padded, with a descriptor": [
        (OUT, "torch.zeros((rows, triton.next_power_of_2(width)), dtype=x.dtype, device=x.device)\n    out[:, :width] = x"),
        ("        x,\n", "        TensorDescriptor.from_tensor(out, [1, out.shape[1]]),\n"),
        ("tl.load(x + row * x_stride + column, mask=inside, other=0.0)", "x.load([tl.program_id(0), 0]).reshape([BLOCK])"),
        ("return out", "return out[:, :width].contiguous()"),
        ("import triton.language as tl\n", "import triton.language as tl\nfrom triton.tools.tensor_descriptor import TensorDescriptor\n"),
    ],
    "in inference mode": [("\ndef fused(", "\n@torch.inference_mode()\ndef fused("), (OUT, OUT + "\n    x = x.contiguous().reshape(rows, -1)")],
    "numpy for what is no result": [("import torch\n", "import numpy as np\nimport torch\n"), ("EPSILON,\n", "float(np.float32(EPSILON)),\n")],
    "one place for all results": [(OUT, "kept.setdefault((x.shape, x.dtype), torch.empty(x.shape, dtype=x.dtype, device=x.device))"), ("EPSILON =", "kept = {}\nEPSILON =")],
}  # fmt: skip


@pytest.mark.parametrize("what", first(HONEST_EDITS))
def test_honest_kernels_of_other_forms(what):
    result = checked(variants.edit(OWN, HONEST_EDITS[what]), FEW)
    assert [c.status for c in result.checks[:2]] == [PASS, PASS], said(result)


PRETENDS = """
{host}
import torch
import torch.nn.functional as F

{triton}


@triton.jit
def chain(out, ready, n, BLOCK: {constexpr}):
    {body}


def simple(x, bias, residual, weight, shift):
    return F.layer_norm(residual + F.gelu(x + bias, approximate="tanh"), x.shape[-1:], weight, shift, 1e-5)


def elsewhere(*tensors):
    box = []
    thread = threading.Thread(target=lambda: box.append(simple(*tensors)))
    thread.start()
    thread.join()
    return box[0]


kept = {{}}


def fused(x, *others):
    out = torch.empty(x.shape, dtype=x.dtype)
    {calls}
    return out
"""
HOST = """
import threading

import numpy as np


def by_numpy(x, bias, residual, weight, shift):
    x, bias, residual, weight, shift = (np.float64(t.float().numpy()) for t in (x, bias, residual, weight, shift))
    h = x + bias
    y = residual + h / (1 + np.exp(-1.5957691216057308 * (h + 0.044715 * h * h * h)))
    y = y - y.mean(1, keepdims=True)
    return torch.from_numpy(y / np.sqrt((y * y).mean(1, keepdims=True) + 1e-5) * weight + shift)
"""
IMPORTED = {"host": HOST, "triton": "import triton\nimport triton.language as tl", "constexpr": "tl.constexpr"}
COPY = "i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    tl.store(out + i, tl.load(ready + i, mask=i < n), mask=i < n)"
LAUNCH = "chain[(triton.cdiv(out.numel(), 4096),)](out, {}, out.numel(), BLOCK=4096)"
DECOY = {
    "host": HOST,
    "triton": "class triton:\n    jit = staticmethod(lambda f: f)",
    "constexpr": "int",
    "body": "pass",
}
ELSEWHERE = "something else has calculated"
PRETENCES = {
    "in a thread, no triton": (DECOY | {"calls": "out = elsewhere(x, *others)"}, "launched no kernel"),
    "numpy, no triton": (DECOY | {"calls": "out.copy_(by_numpy(x, *others))"}, "launched no kernel"),
    "in a thread": (IMPORTED | {"body": "pass", "calls": "out = elsewhere(x, *others)"}, "launched no kernel"),
    "in a thread, then copied": (
        IMPORTED | {"body": COPY, "calls": f"ready = elsewhere(x, *others); {LAUNCH.format('ready')}"},
        ELSEWHERE,
    ),
    "numpy, nothing launched": (
        IMPORTED | {"body": "pass", "calls": "out.copy_(by_numpy(x, *others))"},
        "launched no kernel",
    ),
    "numpy, after a launch": (
        IMPORTED
        | {"body": "tl.store(out + 0, 1.0)", "calls": f"{LAUNCH.format('out')}; out.copy_(by_numpy(x, *others))"},
        ELSEWHERE,
    ),
    "numpy, before a launch": (
        IMPORTED
        | {
            "body": "tl.store(out + 0, tl.load(out + 0))",
            "calls": f"out.copy_(by_numpy(x, *others)); {LAUNCH.format('out')}",
        },
        ELSEWHERE,
    ),
    "numpy, then copied": (
        IMPORTED | {"body": COPY, "calls": f"ready = by_numpy(x, *others).to(x.dtype); {LAUNCH.format('ready')}"},
        ELSEWHERE,
    ),
    "in the first call": (
        IMPORTED
        | {
            "host": "",
            "body": COPY,
            "calls": "key = (x.shape, x.dtype, x.stride()); first = key not in kept\n"
            "    ready = kept.setdefault(key, simple(x, *others) if first else None); " + LAUNCH.format("ready"),
        },
        "off by",
    ),
}


@pytest.mark.parametrize("what", first(PRETENCES, 2))
def test_results_that_no_kernel_made(what):
    parts, words = PRETENCES[what]
    result = checked(PRETENDS.format(**parts), FEW)
    assert words in said(result), said(result)
    assert result.score == 0


KERNELS = [each for each in adversaries.corpus() if TRITON.name in each.labs]


EVERY_TIME = ("kernel_by_the_harness", "kernel_record_made_up", "kernel_copies_numpy")
ON_A_CPU = sorted((each for each in KERNELS if "cpu" in each.devices), key=lambda each: each.name not in EVERY_TIME)


@pytest.mark.parametrize("each", first(ON_A_CPU, len(EVERY_TIME)), ids=lambda each: each.name)
def test_no_profit(each):
    result = grade(Submission(each.source(TRITON.name)), FEW, device="cpu")
    assert result.score == 0 and (ELSEWHERE in said(result) or "A kernel can use numbers" in result.fatal)


def test_what_is_timed_is_made_by_the_kernel_as_well():
    each = next(each for each in KERNELS if each.name == "kernel_only_when_small")
    result = grade(Submission(each.source(TRITON.name)), TIMED_HERE, device="cpu")
    assert [check.status for check in result.checks] == [PASS, PASS, FAIL]
    assert f"at {kernel.TIMED}: its kernel is off by" in result.check("roof").reason


NORMALISE = """
    tl.store(out + row * out_stride + column, y, mask=inside)


@triton.jit
def normalise(hidden, weight, shift, out, width, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    y = tl.load(hidden + row * width + column, mask=inside, other=0.0)

    mean ="""
TWO_KERNELS = [
    ("\n    mean =", NORMALISE),
    ("row * out_stride + column, result", "row * width + column, result"),
    ("    block =", "    hidden = torch.empty_like(out, dtype=torch.float32)\n    block ="),
    ("        out,\n", "        hidden,\n"),
    ("return out", "normalise[(rows,)](hidden, weight, shift, out, width, EPSILON, BLOCK=block)\n    return out"),
]


@pytest.mark.slow
def test_two_kernels_in_place_of_one():
    result = checked(variants.edit(OWN, TWO_KERNELS), FEW)
    assert "1 of 1 are right, but" in said(result) and "a call launched 2 kernels" in said(result), said(result)
    assert result.score == 0


def test_operators_that_calculate():
    x = torch.ones(3, 2)
    done = launches.Launches()
    with done:
        x.t().contiguous().view(-1).to(torch.bfloat16).cpu().numel()
        torch.broadcast_to(x[None, ..., :1], (2, 3, 1)).reshape(-1).narrow(0, 0, 2).split(1)
        torch.empty_like(x)[:] = x.new_full((2,), 1.0)
        torch.zeros_like(x, dtype=torch.float16).fill_(2).zero_().type_as(x)
        (
            x.diagonal(),
            x.mT,
            x.unfold(0, 1, 1),
            x.unflatten(0, (3, 1)),
            torch.tensor([1.0]),
            x.new_empty(2),
            x.new_ones(2),
        )
    assert not done.operators
    with done:
        torch.nn.functional.layer_norm(x + x, (2,))
    assert done.operators == {"aten::add", "aten::native_layer_norm"}


# ---- the timed calls


def timed(source: str) -> kernel.Findings:
    found = kernel.Findings(TIMED_HERE, "cpu")
    kernel.measure(found, Submission(source), QUICK, None, lambda share, what: None)
    return found


def test_timed_calls_are_launches_of_the_kernel():
    found = timed(OWN)
    assert len(found.rounds) == kernel.QUICK_ROUNDS and found.rounds[0].keys() == {"fused", *kernel.YARDSTICKS}
    assert found.strange < kernel.SAME / 5 and found.seen[kernel.TIMED].launches == 1


def test_looks_at_rounded_results():
    """What SAME allows for: one rounding in place of four."""
    case = {"rows": 128, "width": 4096, "type": "bfloat16"}
    look = chain.Look(128, 4096, torch.bfloat16, torch.device("cpu"))
    both = []
    for tensors in chain.anew(3, torch.device("cpu"), 24, **case):
        once = chain.plain(*(tensor.float() for tensor in tensors)).bfloat16()
        both.append((float(look(once)), float(look(chain.plain(*tensors)))))
    assert 0.001 < kernel._apart(*zip(*both, strict=True)) < kernel.SAME / 2


def test_inputs_of_timed_calls_are_new():
    """Each differs from the one before, in the same way for whoever has the seed, and by more than a look forgives."""
    case, device = {"rows": 64, "width": 512, "type": "float32"}, torch.device("cpu")
    look = chain.Look(64, 512, torch.float32, device)
    calls, again = ([[t.clone() for t in tensors] for tensors in chain.anew(5, device, 40, **case)] for _ in range(2))
    assert all(
        torch.equal(a, b) for one, other in zip(calls, again, strict=True) for a, b in zip(one, other, strict=True)
    )
    for name in (0, 1, 2):
        assert not any(torch.equal(a[name], b[name]) for a, b in itertools.pairwise(calls))
    stale = [
        look(chain.plain(x, new[1], residual, *others)) for (x, _, residual, *others), new in itertools.pairwise(calls)
    ]
    right = [look(chain.plain(*tensors)) for tensors in calls[1:]]
    assert kernel._apart([*map(float, stale)], [*map(float, right)]) > 2 * kernel.SAME


HALF_THE_ROWS = [("[(rows,)]", "[(rows if rows < 64 else rows // 2,)]"), (OUT, "torch.zeros_like(x)")]


def test_timed_calls_that_leave_rows_out():
    found = timed(variants.edit(OWN, HALF_THE_ROWS))
    assert "off by" in kernel._wrong_when_timed(found) and found.strange > kernel.SAME
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


def test_the_cases_are_shown_on_a_gpu_without_bf16(monkeypatch):
    """There they have other names, by which nobody looked them up."""
    monkeypatch.setattr(evidence, "lacks_on", lambda form_name: ["bf16"])
    lab = notebook.open_lab("3i_triton", device="cpu")
    monkeypatch.setattr(lab, "_submission", lambda: Submission(OWN))
    (rows,) = lab._tried(silent).tables
    names = [name for name, *_ in rows]
    assert "float16 for bfloat16" in names and not [name for name in names if name.startswith("bfloat16")]


def test_a_round_that_was_held_up_does_not_count():
    even, held_up = rounds(0.9) * 2, rounds(0.3)[:1]
    found = kernel.Findings(TIMED_HERE, "cpu", seen=dict(RIGHT), rounds=[*even, *held_up])
    assert kernel._judge_roof(found, "", right=True).status == PASS
    found.rounds = [*even[:3], *held_up * 3]  # as many as not: then that is how it is
    assert kernel._judge_roof(found, "", right=True).status == INCONCLUSIVE


@pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
def test_kernel_on_a_gpu():
    lab = TRITON
    own, plain = (grade(Submission(source), lab, device="cuda").check("roof") for source in (OWN, lab.starter))
    assert own.points == own.max_points, own.reason
    assert plain.points == 0, plain.reason


ON_A_GPU = replace(FEW, forms={"cuda": replace(TRITON.forms["cuda"], timed=None)})
COMPILED_FIRST = """

def launch(*args, BLOCK, num_warps):
    compiled = chain.warmup(*args, BLOCK=BLOCK, num_warps=num_warps, grid=(1,))
    compiled[(args[5].shape[0], 1, 1)](*args, BLOCK)


def fused("""
HONEST_ON_A_GPU = HONEST_EDITS | {
    "compiled, and then launched": [("    chain[(rows,)](", "    launch("), ("\n\ndef fused(", COMPILED_FIRST)]
}


@pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("what", HONEST_ON_A_GPU)
def test_honest_kernels_on_a_gpu(what):
    result = grade(Submission(variants.edit(OWN, HONEST_ON_A_GPU[what])), ON_A_GPU, device="cuda")
    assert [c.status for c in result.checks] == [PASS, PASS, NOT_MEASURED], said(result)


@pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(
    "each",
    [each for each in KERNELS if (each.control, *each.devices[1:]) == ("starter", "cuda")],
    ids=lambda each: each.name,
)
def test_no_profit_on_a_gpu(each):
    assert grade(Submission(each.source(TRITON.name)), ON_A_GPU, device="cuda").score == 0


@pytest.mark.slow
def test_kernel_notebook_runs(tmp_path):
    shown = shown_by("3i_triton", tmp_path, device="cpu", quick=True)
    assert "bfloat16, wide rows" in shown["cases"]
    assert "NOT MEASURED" in shown["check"] and "PASS" in shown["check"]
