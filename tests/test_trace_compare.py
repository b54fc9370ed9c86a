"""Comparison of two traces, and the families of kernels."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.frontends import diagnose
from grader.trace.analysis import analyse
from grader.trace.compare import compare, family_times, numbers
from grader.trace.kernels import family
from grader.trace.metrics import Metrics
from tests.loops import PINNED, Recording

US = 1000
SGEMM, NVJET = "ampere_sgemm_128x64_tn", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"

# Names as cuBLAS, cuDNN, CUTLASS, ATen, Triton, FlashAttention and NCCL give them; some cut within their arguments.
FAMILIES = {
    "gemm on tensor cores": (
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
        "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4>(cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4::Params)",
    ),
    "gemm on CUDA cores": (
        "ampere_sgemm_128x64_tn",
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel__51_cublas",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(cutlass_80_simt_sgemm_128x64_8x5_nn_align1::Params)",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false, cublasGemvParamsEx<int> >",
    ),
    "gemm": ("triton_tem_fused_mm_0",),
    "conv on tensor cores": (
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel_cudnn",
        "sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_cgasize1x1x1_stage4_execute_kernel__5x_cudnn",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_128x128_16x4_nhwc_align4>(Params)",
        "volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc_tn_v1",
    ),
    "conv on CUDA cores": (
        "cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1",
        "void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, false, true>(int, int, int, float const*, int)",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>",
    ),
    "conv": ("void cask_cudnn::first_layer_fwd_kernel<4, 7, 7, 64>(cask_cudnn::FirstLayerFwdParams)",),
    "attention": (
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128, 8, cutlass::bfloat16_t> >",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80, true>::Params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "triton_tem_fused_flex_attention_1",
    ),
    "fused by a compiler": (
        "triton_poi_fused_convolution_relu_3",
        "triton_red_fused_native_layer_norm_5",
    ),
    "optimizer": (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4> >",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpScalarFunctor<float, 2, 1, 1> >",
    ),
    "softmax and loss": (
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, LogSoftMaxForwardEpilogue>",
        "void (anonymous namespace)::softmax_warp_backward<float, float, float, 10, false, false>",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>",
    ),
    "normalisation": (
        "void at::native::batch_norm_backward_elemt_channels_last_kernel<4, float, float, float>",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnnTensorStruct, float const*)",
        "void cudnn::batchnorm_fwtr_nhwc_semiPersist<__nv_bfloat16, __nv_bfloat16, float, __nv_bfloat16, 2, true>",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float, float const*)",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float, 64u, 1u>",
    ),
    "embedding, index, sort": (
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)",
        "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<at_cuda_detail::cub::Policy900, false, long, long, int, int>",
    ),
    "pooling and resizing": ("void at::native::(anonymous namespace)::max_pool_backward_nhwc<float, float>",),
    "layout, copy, cast": (
        "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true, (cudnnKernelDataType_t)0>",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}>",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<OpaqueType<4u>, unsigned int, 3, 128, 1>",
    ),
    "random and dropout": (
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>",
        "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<unsigned int, 4, normal_and_transform>",
    ),
    "reduction": (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, sum_functor<float> > > >",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, float, float, float>",
    ),
    "elementwise": (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >",
        "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)::{lambda(float)#1}>",
    ),
    "communication": (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    ),
    "copy HtoD": ("Memcpy HtoD (Pinned -> Device)",),
    "copy DtoH": ("Memcpy DtoH (Device -> Pageable)",),
    "copy DtoD": ("Memcpy DtoD (Device -> Device)",),
    "memset": ("Memset (Device)",),
    "unknown": (
        "void at::native::amp_update_scale_cuda_kernel",
        "_my_own_kernel",
    ),
}


@pytest.mark.parametrize(("expected", "name"), [(f, name) for f, names in FAMILIES.items() for name in names])
def test_families(expected, name):
    assert family(name) == expected


@given(st.text())
def test_any_name_has_a_family(name):
    assert family(name)


def loop(length, *work):
    """An analysis of three steps of so many us, each with this GPU work: (name, us)."""
    r = Recording()
    for n in range(3):
        r.step(n, n * length * US, (n + 1) * length * US)
        at = n * length * US
        for name, us in work:
            cat = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
            r.work(cat, name, at + 1, at + 2, us * US, **({"bytes": 1 << 20} if cat != "kernel" else {}))
            at += us * US
    return r


def test_before_and_after():
    before = loop(1000, (SGEMM, 800), (ADD, 90), (PINNED, 10))
    after = loop(300, (NVJET, 100), (ADD, 90), (PINNED, 10))
    c = compare(*(analyse(r.read()) for r in (before, after)))
    assert (c.step.before, c.step.after, c.unprofiled) == (1000 * US, 300 * US, False)
    families = {change.name: (change.before, change.after, change.difference) for change in c.families}
    assert families == {
        "gemm on CUDA cores": (800 * US, 0, -800 * US),
        "gemm on tensor cores": (0, 100 * US, 100 * US),
        "elementwise": (90 * US, 90 * US, 0),
        "copy HtoD": (10 * US, 10 * US, 0),
    }
    assert [change.name for change in c.families][:2] == ["gemm on CUDA cores", "gemm on tensor cores"]
    assert sum(change.before for change in c.parts) == pytest.approx(1000 * US)
    assert c.parts[0].name == "matmul"
    metrics = {change.name: change for change in c.metrics}
    assert metrics["tensor_core_share.yes"].difference == 1 and metrics["kernels"].difference == 0
    assert metrics["gpu_busy_ns"].difference == -700 * US
    assert metrics["copies.HtoD pinned.bytes"].after == 1 << 20
    assert metrics["half_share"].before == 0
    assert c.text == (
        "A step takes 0.3 ms under the profiler instead of 1 ms: 3.33 times as fast. Matmuls on the CUDA cores fell "
        "from 0.8 ms to 0 ms per step, matmuls on tensor cores grew from 0 ms to 0.1 ms per step."
    )
    json.dumps(dataclasses.asdict(c), allow_nan=False)


def test_unprofiled_times_are_used_where_both_are_there():
    one, other = loop(1000, (SGEMM, 800)).read(), loop(300, (NVJET, 100)).read()
    c = compare(analyse(one, 900 * US), analyse(other, 450 * US))
    assert (c.step.before, c.step.after, c.unprofiled) == (900 * US, 450 * US, True)
    assert c.text.startswith("A step takes 0.45 ms instead of 0.9 ms: 2.00 times as fast.")
    assert not compare(analyse(one, 900 * US), analyse(other)).unprofiled


def test_the_same_twice_and_nothing_at_all():
    same = analyse(loop(1000, (SGEMM, 800)).read())
    c = compare(same, same)
    assert "about the same" in c.text and "No part of the step changed" in c.text
    assert all(not change.difference for change in (*c.metrics, *c.parts, *c.families))
    nothing = analyse(Recording().read())
    c = compare(nothing, same)
    assert c.step.difference is None and "cannot be compared" in c.text
    assert all(change.before is None and change.difference is None for change in (*c.parts, *c.families))


def test_traces_of_a_cpu_say_what_can_be_compared():
    def trained(length, waits, ops):
        r = Recording()
        for n in range(3):
            r.step(n, n * length * US, (n + 1) * length * US)
            r.event("user_annotation", "enumerate(DataLoader)#_Iter.__next__", n * length * US, waits * US)
            for i in range(ops):
                r.event("cpu_op", "aten::mm", n * length * US + waits * US + i * 10, 5)
        return r.read(expect_gpu=False)

    before, after = analyse(trained(1000, 800, 4)), analyse(trained(300, 100, 2))
    c = compare(before, after)
    assert c.text.startswith("A step takes 0.3 ms under the profiler instead of 1 ms: 3.33 times as fast.")
    assert "No part of the step changed" not in c.text
    assert "no GPU work" in c.text and "waiting for data and the operators" in c.text
    report = diagnose.text(["a.json", "b.json"], [before, after])
    assert "not named" not in report and "no GPU work, 2 steps counted" in report
    rows = {row[:54].strip(): row[54:].split() for row in report.splitlines()}
    assert rows["host waiting for data, under the profiler"] == ["80%", "33%", "-47", "points"]
    assert rows["operators called on the host"] == ["4", "2", "-2"]
    half = compare(before, analyse(loop(300, (SGEMM, 200)).read()))
    assert "No part of the step changed" not in half.text and "one of the traces" in half.text


def test_every_number_of_the_metrics_is_compared():
    m = Metrics(steps=3, tensor_core_share={"yes": 0.5}, copies={"DtoH": {"count": 1, "bytes": None}}, complete=True)
    found = numbers(m)
    assert (
        found["tensor_core_share.yes"] == 0.5 and found["copies.DtoH.count"] == 1 and found["copies.DtoH.bytes"] is None
    )
    assert found["gpu_idle"] is None and "complete" not in found and "reasons" not in found


@given(st.lists(st.tuples(st.sampled_from([SGEMM, NVJET, ADD, PINNED]), st.integers(1, 50)), min_size=1, max_size=8))
def test_times_of_families_add_up(work):
    times = family_times(loop(1000, *work).read(), 1, 2)
    assert sum(times.values()) == sum(us for _, us in work) * US
    assert family_times(loop(1000, *work).read(), 1, 0) is None
