"""The labs about number formats and shapes on the CPU: the training, what can be counted there, and that what is wrong is
rejected with its cause named. What needs a GPU is measured by `tests/benchmarks/measured.py`."""

from functools import partial

import pytest
import variants
from helpers import assert_rejected, assert_told_apart, first, looked, said

from grader import labs, machine, trace
from grader.grade import grade
from grader.measure.blocks import Plan
from grader.result import FAIL, NOT_MEASURED, PASS, Result
from grader.submission import Submission
from grader.trace import roofline
from tests.loops import BACKWARD, Recording

SHAPES = "3c_shapes"
FP16 = "3m_fp16"
LABS = (SHAPES, FP16)
SHORT = Plan(block_s=0.1, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)
gpu = pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")


def graded(name: str, source: str) -> Result:
    return grade(Submission(source), labs.get(name), device="cpu", plan=SHORT)


def counts(source: str, name: str = SHAPES, device: str = "cpu") -> trace.Metrics:
    return looked(labs.get(name), source, device)


# ---------------------------------------------------------------- labs


@pytest.mark.parametrize("name", LABS)
@pytest.mark.parametrize("which", ["starter", "solution"])
def test_same_training(name, which):
    result = graded(name, getattr(variants, which)(name))
    assert result.check("parity").status == PASS, said(result)
    assert result.check("throughput").status == NOT_MEASURED and result.score == 0


@pytest.mark.parametrize(
    "name, what", [case for name in LABS for case in first((name, what) for what in variants.wrongs_on_a_cpu(name))]
)
def test_what_is_wrong_is_rejected_and_named(name, what):
    source, words = variants.wrongs(name)[what]
    assert_rejected(graded(name, source), words)


@pytest.mark.slow
@pytest.mark.parametrize("name", LABS)
def test_faults_are_rejected_and_honest_forms_are_not(name):
    assert_told_apart(variants.faults(name), variants.honest_on_a_cpu(name), partial(graded, name))


@pytest.mark.slow
def test_gradients_that_fp16_cannot_hold():
    """The many tokens and classes of the GPU's form make gradients small. Here the backward pass is made 4096 times smaller by
    hand, and enlarged again in fp32: with a scale nothing changes, without one it is another training."""
    enlarged = "        torch._foreach_mul_([p.grad for p in model.parameters()], 4096.0)\n"
    clip = "        torch.nn.utils.clip_grad_norm_("
    small = variants.edit(variants.solution(FP16), [("scale(loss)", "scale(loss / 4096)"), (clip, enlarged + clip)])
    assert graded(FP16, small).check("parity").status == PASS
    unscaled = variants.edit(small, [("init_scale=2.0**13", "enabled=False")])
    result = graded(FP16, unscaled)
    assert result.check("parity").status == FAIL and "not the same training" in said(result)


def test_what_fits_is_counted_on_a_cpu():
    starter, solution = (counts(which(SHAPES)).aligned_share for which in (variants.starter, variants.solution))
    assert 0.5 < starter < 0.8 and solution == 1


@gpu
def test_shapes_on_a_gpu():
    starter, solution = (counts(which(SHAPES), device="cuda") for which in (variants.starter, variants.solution))
    assert starter.aligned_share < 0.6 and solution.aligned_share == 1
    check = next(check for check in labs.get(SHAPES).trace if check.name == "layout")
    assert solution.layout_share < check.wanted.bound < starter.layout_share


@gpu
def test_fp16_on_a_gpu():
    starter, solution = (counts(which(FP16), FP16, device="cuda") for which in (variants.starter, variants.solution))
    assert starter.fp16_share == 0 and solution.fp16_share > 0.9
    assert solution.syncs == 0, "a fused optimizer looks for overflows itself"


# ---------------------------------------------------------------- the metrics they ask for


def tensor(shape, item=2):
    return roofline.Tensor(tuple(shape), item)


def test_sizes_that_fit_are_multiples_of_16_bytes():
    def fits(*tensors):
        return roofline.fits_tensor_cores(list(tensors))

    assert fits(tensor((8192, 768)), tensor((768, 50304)))
    assert not fits(tensor((8192, 768)), tensor((768, 50257)))
    assert not fits(tensor((8192, 764)), tensor((764, 512))) and fits(tensor((8192, 764), 4), tensor((764, 512), 4))
    assert not fits(tensor((64, 72), 1), tensor((72, 64), 1)) and fits(tensor((64, 80), 1), tensor((80, 64), 1))
    assert fits(tensor((50,)), tensor((16, 64)), tensor((64, 8)))  # a bias, whatever its length
    assert fits(tensor((3, 16, 64)), tensor((3, 64, 8)))  # a batch of three
    assert fits(tensor((16, 64), None)) is None and fits(None) is None


def product(recording, at, sizes, dtype="c10::BFloat16", op="aten::mm"):
    n, k, m = sizes
    return recording.event("cpu_op", op, at, 10, BACKWARD, Input_Dims=[[n, k], [k, m]], Input_type=[dtype, dtype])


def test_aligned_share_is_of_the_arithmetic():
    r = Recording().step(1, 0, 1000).step(2, 1000, 2000)
    product(r, 500, (64, 64, 63))  # of a step that is not counted
    product(r, 1100, (64, 64, 64)), product(r, 1200, (64, 64, 64)), product(r, 1300, (64, 128, 63))
    product(r, 1290, (64, 128, 63), op="aten::linear")  # the same once more, around it
    share = trace.metrics(r.read()).aligned_share
    assert share == pytest.approx(2 * 64**3 / (2 * 64**3 + 64 * 128 * 63))
    r.event("cpu_op", "aten::mm", 1400, 10, BACKWARD, Input_Dims=[[8, 8], [8, 8]])  # of an unknown type
    assert trace.metrics(r.read()).aligned_share is None


@pytest.mark.parametrize(
    "dtype, half, fp16",
    [("c10::Half", 1, 1), ("c10::BFloat16", 1, 0), ("float", 0, 0), ("c10::Float8_e5m2", 1, 0)],
)
def test_fp16_share(dtype, half, fp16):
    r = Recording().step(1, 0, 1000).step(2, 1000, 2000)
    product(r, 1100, (64, 64, 64), dtype)
    r.work("kernel", "some_gemm_kernel", 1105, 1500, 100, tid=BACKWARD)
    m = trace.metrics(r.read())
    assert (m.half_share, m.fp16_share) == (half, fp16)


def copied(*types):
    """A kernel of 100 ns that such a copy launched, a cast, cuDNN's conversion, and a product: 400 ns in all."""
    r = Recording().step(1, 0, 1000).step(2, 1000, 2000)
    r.event("cpu_op", "aten::copy_", 1100, 20, **({"Input_type": list(types)} if types else {}))
    r.work("kernel", "void at::native::elementwise_kernel<128, 4>", 1110, 3000, 100)
    r.event("cpu_op", "aten::copy_", 1200, 20, Input_type=["float", "c10::BFloat16", "Scalar"])
    r.work("kernel", "void at::native::elementwise_kernel<128, 4>", 1210, 3100, 100)
    r.event("cpu_op", "aten::cudnn_convolution", 1300, 50, Input_type=["float", "float"])
    r.work("kernel", "void cudnn::engines_precompiled::nchwToNhwcKernel<float>", 1310, 3200, 100)
    r.work("kernel", "sm90_xmma_fprop_implicit_gemm", 1320, 3300, 100)
    return trace.metrics(r.read()).layout_share


def test_layout_share_leaves_casts_out():
    assert copied("float", "float", "Scalar") == pytest.approx(0.5)
    assert copied("float", "c10::BFloat16", "Scalar") == pytest.approx(0.25)
    assert copied() is None


def test_layout_share_of_recorded_traces():
    """On tensor cores the ResNet in channels_last converts next to nothing, the one in NCHW much; on ordinary cores
    channels_last is what has to be converted."""
    folder = labs.get("3c_shapes").folder.parents[2] / "data" / "traces"
    shares = {
        name: trace.metrics(trace.read(folder / f"{name}.json.gz")).layout_share
        for name in ("resnet_healthy", "resnet_input_fixed", "resnet_compute")
    }
    assert shares["resnet_healthy"] < 0.001
    assert shares["resnet_input_fixed"] > 0.05 and shares["resnet_compute"] > 0.05
