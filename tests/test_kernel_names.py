"""What the names of kernels tell, one name a line: collected from recordings and from the sources of the libraries named."""

import re

import pytest

from grader.trace import kernels
from grader.trace.operations import CONVOLUTION_NODE

CORES, ORDINARY, ANY = "on tensor cores", "on CUDA cores", ""

PRODUCTS = {
    # Triton
    "triton_tem_fused_mm_0": ANY,
    "triton_mm": ANY,
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu": CORES,
    "_matmul_kernel": ANY,
    "matmul_kernel_persistent": ANY,
    "_scaled_mm_kernel": ANY,
    "_w8a8_block_fp8_matmul": CORES,
    "_w8a8_block_int8_matmul": ANY,
    "_gemm_a8w8_blockscale_kernel": ANY,
    "_lora_shrink_kernel": ANY,
    "_lora_expand_kernel": ANY,
    # mixtures of experts
    "fused_moe_kernel": CORES,
    "fused_moe_kernel_gptq_awq": CORES,
    "aiter_fused_moe_kernel_bf16": CORES,
    "ck_moe_stage1_kernel<BF16, 128, 128>": CORES,
    "void moe_wna16_gemm_kernel<__half, 4>": CORES,
    "fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_ps_32x256": CORES,
    "void cutlass::Kernel2<cutlass::gemm::kernel::MoeFCGemm<cutlass::bfloat16_t>>": CORES,
    "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1": CORES,
    "bmm_E4m3_E4m3E4m3_Fp32_t128x8x128u2": CORES,
    "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3": CORES,
    # 8 bits
    "nvjet_qqtst_128x256_128x4_2x1_v_bz_coopA_TNT": CORES,
    "nvjet_sm100_tst_mma_128x192x64_4_64x192x64_2x1": CORES,
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 7168u>": CORES,
    "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u>": CORES,
    "sm100_fp8_gemm_1d1d_impl": CORES,
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<float_e4m3_t>>": CORES,
    # quantised weights
    "void marlin::Marlin<(vllm::ScalarTypeId)1125899906843648l, 256, 1, 8, 8>": CORES,
    "void gptq_marlin_gemm_kernel": CORES,
    "void vllm::gptq::gemm_half_q_half_gptq_4bit_kernel<true, 4>": CORES,
    "void vllm::awq::gemm_forward_4bit_cuda_m16nXk32<128>": CORES,
    "awq_gemm_kernel": CORES,
    "void machete::MacheteKernelTemplate<cutlass::half_t>": CORES,
    "void kgemm_4bit_inference_naive<__nv_bfloat16, 128, 16>": CORES,
    "void mul_mat_q<float, 64>": ANY,
    # AMD
    "Cijk_Ailk_Bljk_BBS_BH_MT256x256x64": CORES,
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32_MI16x16x1_SN": CORES,
    "Cijk_Ailk_Bljk_HHS_BH_MT128x64x32_MI32x32x8x1": CORES,
    "Cijk_Alik_Bljk_SB_MT64x64x16_MI16x16x4x1_SN": CORES,
    "Cijk_Alik_Bljk_SB_MT64x64x16_SE_TT4_4_WG16_16_1": ANY,
    "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm<half_t>>": CORES,
    "void ck_tile::kentry<256, 1, ck_tile::FlatmmKernel<bf16_t>>": CORES,
    "void wvSplitK_hf_sml_<__hip_bfloat16, 64, 4, 16, 8, 2, 4>": CORES,
    "wv_splitk_small_fp16_bf16_kernel": CORES,
    # Ascend
    "MatMul": ANY,
    **{name: ANY for name in ("MatMulV2", "aclnnMatmul_MatMulV3Common_MatMulV3", "aclnnMm_MatMulCommon_MatMulV2")},
    **{name: ANY for name in ("BatchMatMulV2", "GroupedMatmul", "aclnnGroupedMatmulV4_GroupedMatmul_GroupedMatmul")},
    # more of Triton
    **{name: ANY for name in ("_block_scaled_mm_kernel", "_gmm_kernel", "int8_scaled_mm_kernel")},
    **{name: ANY for name in ("_scaled_mm_rowwise_kernel", "grouped_gemm_kernel", "_persistent_matmul")},
    "bmm_BFloat16_E2m1E2m1_Fp32_bA16_bB16_t128x8x512_s4_et64x8_m64x8x64_cga1x1x1_16dp256b_TN": CORES,
    "cutlass3x_sm100_bstensorop_s256x256x64gemm_block_scaled_ue4m3xe2m1": CORES,
    "nvjet_sm103_qqtst_mma_256x256x128_4_64x128x128_2x1": CORES,
    # older ones
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn": CORES,
    "volta_sgemm_128x64_nn": ORDINARY,
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_ffma_aligna4": ORDINARY,
    "void gemv2T_kernel_val<int, int, float, float, float>": ORDINARY,
}
ATTENTION = [
    *(
        "sparse_attn_fwd_kernel",
        "_sparse_attn_prefill_kernel",
        "nsa_attention_fwd",
        "moba_attn_varlen",
        "_attention_inner_fwd",
    ),
    "_decode_grouped_att_m_fwd_kernel_rope",
    # linear attention, and states that are carried from chunk to chunk
    *(
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
        "chunk_fwd_kernel_o",
        "chunk_bwd_kernel_dqkwg",
        "chunk_gla_fwd_kernel_o",
    ),
    *("fused_recurrent_gated_delta_rule_fwd_kernel", "fused_sigmoid_gating_delta_rule_update_kernel"),
    *("chunk_scaled_dot_kkt_fwd_kernel", "recompute_w_u_fwd_kernel", "chunk_kda_fwd_kernel_intra_sub_intra"),
    *("_chunk_scan_fwd_kernel", "_chunk_state_fwd_kernel", "_chunk_scan_bwd_dx_kernel", "_bmm_chunk_fwd_kernel"),
    *(
        "_fwd_grouped_kernel_stage1_rope",
        "_decode_att_m_fwd",
        "_fwd_kernel_stage2",
        "void deep_gemm::sm90_fp8_mqa_logits<64u>",
    ),
    *(
        "qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf_kernel",
        "_ZN7cutlass13device_kernelIN5flash11enable_sm90INS1_16FlashAttn",
    ),
    *("_ZN5aiter28mla_a8w8_qh16_qseqlen1_gqaratio16E", "_ZN5aiter24pa_bf16_pertokenFp8_gqa8_2tg_4wE"),
    *(
        "FusedInferAttentionScore",
        "aclnnFlashAttentionScoreGrad_FlashAttentionScoreGrad",
        "void natten::cuda::fna_forward<float>",
    ),
    *(
        "_attn_fwd",
        "attn_fwd",
        "attn_fwd.kd",
        "_attn_bwd",
        "_fwd_kernel",
        "_fwd_grouped_kernel_stage1",
        "_bwd_kernel_dkdv",
    ),
    "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64>>",
    "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>",
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>>",
    "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensor000o11",
    "void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64>>",
    *("sage_fwd", "void qk_int_sv_f16_attn_kernel<128, 64>", "void qk_int_sv_f8_attn_kernel<128u, 64u>"),
    "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits>",
    "void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits>",
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<2u>",
    "void flashinfer::SinglePrefillWithKVCacheKernel<64>",
    "void flashinfer::mla::BatchMLAPagedAttentionKernel<flashinfer::mla::KernelTraits>",
    *("kernel_unified_attention_2d", "kernel_unified_attention_3d", "kernel_paged_attention_2d"),
    "void vllm::paged_attention_v2_kernel<uint16_t, uint16_t, 128>",
    "void paged_attention_ll4mi_QKV_mfma16_kernel<__hip_bfloat16>",
    "fmhaSm100fKernel_QkvE4m3OBfloat16H128PagedKvCausalP64VarSeqQ128Kv128",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
    "void aiter::fmha_fwd_hd128_bf16_causal",
    "triton_tem_fused_flex_attention_0",
    *("context_attention_fwd_kernel", "_fwd_kernel_flash_decode_stage1", "flash_decoding_kernel", "gqa_decode_kernel"),
    "void PyTorchMemEffAttention::AttentionKernel<cutlass::half_t>",
    "void mmha::masked_multihead_attention_kernel<uint16_t>",
]
COLLECTIVES = [
    *(
        "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>",
        "void dpsk::ep::intranode::cached_notify_combine<8>",
    ),
    *(
        "void flux::a2a_kernel<8>",
        "tilelink_all2all",
        "fi_ep_combine",
        "quick_reduce_kernel",
        "void symm_mem::all_to_all_vdev",
    ),
    *(
        "void hybrid_ep::combine_kernel<8>",
        "void nixl_ep::dispatch<8>",
        "uccl::dispatch<8>",
        "hcclAicpuKernel",
        "sendrecv_kernel",
    ),
    *("aclnnMoeDistributeDispatchV2_MoeDistributeDispatchV2", "MoeDistributeCombine", "HcclAllreduce"),
    *("void tensorrt_llm::kernels::moe_a2a::moeA2ADispatchKernel<8>", "moeA2ACombineKernel<__nv_bfloat16>"),
    *("a2a_dispatch_send_kernel", "a2a_combine_recv_kernel", "barrier_all_intra_node_atomic_cas_block"),
    "void aiter::local_device_load_rmsnorm<__hip_bfloat16, 8>",
    *("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic_4"),
    *("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)", "ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_bf16"),
    "ncclSymDevKernel_AllGather_LL",
    "void deep_ep::internode_ll::dispatch<3, 10, 7168>(void*, float*, int*)",
    "void deep_ep::internode_ll::combine<3, 10, 7168, 9>(void*)",
    *("void deep_ep::intranode::notify_dispatch<8>", "void deep_ep::intranode::barrier<8>"),
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<3, __nv_bfloat16, 8>",
    "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<(ArFusionPattern)1>",
    "void tensorrt_llm::kernels::ar_fusion::moe::moereduce_allreduce_fusion_kernel_oneshot_lamport",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, 8>",
    "void moeAlltoAllKernel<true>",
    *("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", "void aiter::cross_device_reduce_2stage<float, 8>"),
    "void sglang::cross_device_reduce_2stage<__half, 4>",
    "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot>",
    *(
        "one_shot_all_reduce_kernel<c10::BFloat16, 16>",
        "two_shot_all_reduce_kernel_inplace",
        "multimem_all_reduce_kernel",
    ),
    "multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>",
    *("void mscclpp::allreduceKernel<float>", "mscclKernel_Sum_half_LL", "rcclGenericKernel"),
    *("void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>", "EpCombineInterNodeKernel"),
    *("void pplx::dispatchKernel<8>", "nvshmemi_barrier_kernel", "hcom_allReduce__680_0_1"),
    "oneccl_allreduce_large_float",
]
OTHERS = {
    **{name: "normalisation" for name in ("void flashinfer::norm::GemmaRMSNormKernel<8>", "gemma_fused_add_rmsnorm")},
    **{name: "optimizer" for name in ("_adamw_kernel", "void adam8bit_blockwise<float>")},
    **{name: "unknown" for name in ("void merge_attn_states_kernel<float>", "build_attention_metadata")},
    "deepgemm_compute_src2dst_triton_kernel": "routing to experts",
    "compute_masked_m_triton_kernel": "routing to experts",
    "fill_gateup_input_triton_kernel": "routing to experts",
    "post_reorder_triton_kernel": "routing to experts",
    "moe_align_block_size_kernel": "routing to experts",
    "void moe::dev::routing::routingIndicesHistogramKernel<moe::dev::routing::KernelParams>": "routing to experts",
    "void vllm::moe::topkGatingSoftmax<8, 128>": "softmax and loss",
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>": "caching keys and values",
    "create_flashinfer_kv_indices_triton": "caching keys and values",
    "sage_quant_kernel": "quantising",
    "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16>": "quantising",
    "void vllm::rotary_embedding_kernel<c10::BFloat16, true>": "positions",
    "void vllm::rms_norm_kernel<c10::BFloat16>": "normalisation",
    "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>": "elementwise",
    "triton__0d1d2d3d": "fused by a compiler",
    "triton_poi_fused_all_gather_into_tensor_wait_tensor_3": "fused by a compiler",
    "triton_red_fused_mm_sum_2": "fused by a compiler",
    "Cijk_B_PostGSU2": "reduction",
    "l2norm_fwd_kernel": "normalisation",
    "_layer_norm_fwd_1pass_kernel": "normalisation",
    "chunk_local_cumsum_scalar_kernel": "reduction",
    "void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4, true, c10::BFloat16>>": "unknown",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>": "elementwise",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>": "reduction",
    "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16>": "layout, copy, cast",
    "a_kernel_that_nobody_knows": "unknown",
    "void reduce_1Block_kernel<float, 128, 7, cublasGemvTensorStridedBatched<float>>": "reduction",
    "_geglu_tanh_forward_kernel": "elementwise",
    "kOptimizerStatic8bit2StateBlockwise<__nv_bfloat16, 0, 256, 1>": "optimizer",
    # Ascend
    **{
        name: "elementwise"
        for name in ("aclnnInplaceMuls_MulAiCore_Mul", "aclnnDivs_RealDivAiCore_RealDiv", "Adds", "ZerosLike")
    },
    **{
        name: "layout, copy, cast"
        for name in ("aclnnMm_TransData_TransData", "aclnnAddmm_CastAiCore_Cast", "Cast", "TransData")
    },
    **{name: "layout, copy, cast" for name in ("ConcatD", "StridedSliceD", "Slice", "aclnnCast_CastAiCpu_Cast")},
    "ApplyAdamW": "optimizer",
    "aclnnMm_MatMulCommon_MemSet": "unknown",
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_matrix_products(name):
    assert kernels.is_matmul_kernel(name) and not kernels.is_communication(name) and not kernels.is_attention(name)
    assert kernels.family(name) == f"gemm {PRODUCTS[name]}".strip()


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name):
    assert kernels.family(name) == "attention" and kernels.is_matmul_kernel(name)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(name):
    assert kernels.family(name) == "communication" and not kernels.is_matmul_kernel(name)


@pytest.mark.parametrize("name", OTHERS)
def test_other_families(name):
    assert kernels.family(name) == OTHERS[name] and not kernels.is_matmul_kernel(name)


def test_a_long_name_is_gone_through_once():
    """What is searched for goes on without an end at no place: from each start of it in a name of 60,000
    letters to the end took 13 s. What follows "cutlass" begins with "::", which no such run holds."""
    searched = [value for value in vars(kernels).values() if isinstance(value, re.Pattern)]
    searched += [pattern for _, pattern in kernels.FAMILIES]
    matched = (kernels.MATMUL_OP, kernels.MEMCPY)  # from the beginning alone
    texts = [pattern.pattern.replace(r"(?!::\w+_t\b)", "") for pattern in searched if pattern not in matched]
    assert len(texts) > 20 and not [text for text in texts if re.search(r"(\\w|(?<!\\)\.)[*+]|\|\\d[*+]", text)]


def test_the_backward_node_of_a_convolution():
    names = ("ConvolutionBackward0", "MyConvConvBackward12", "CudnnConvBackwardBackward", "XConv2dBackward")
    others = ("ConvolutionBackward0x", "AddBackward0", "Conv", "BackwardConv", "my::ConvolutionBackward0")
    assert [name for name in (*names, *others) if CONVOLUTION_NODE.match(name)] == list(names)
